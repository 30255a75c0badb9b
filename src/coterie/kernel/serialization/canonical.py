"""The canonical encoding: equal for equal values, whatever the order of their maps and sets; to compare payloads. Pure.

msgspec can sort, but only maps with text keys, and it cannot leave out defaults; hence this walk over values.
It is used for keyed calls only, where a commit follows that takes a hundred times as long.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from coterie.kernel.serialization.models import ABSENT, Part, dump_model, is_model_type, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LEAVES = frozenset({str, int, bool, bytes, type(None)})  # first, since nearly all parts are one of these


class Walk:
    """Encodes values in canonical form.

    Args:
        encode: Encodes values without parts.
        bare: Whether fields at their default are left out.
    """

    def __init__(self, encode: Callable[[object], bytes], *, bare: bool) -> None:
        self._encode = encode
        self._bare = bare
        self._default = lru_cache(maxsize=4096)(self._encoded_default)

    def bytes_of(self, value: Any) -> bytes:
        """The canonical encoding, which is valid msgpack."""
        if type(value) in _LEAVES:
            return self._encode(value)
        if is_model_type(type(value)):
            return self._model(value)
        if (parts := parts_of(type(value))) is not None:
            return self._object(value, parts)
        if isinstance(value, dict):
            return _map((self.bytes_of(key), self.bytes_of(part)) for key, part in value.items())
        if isinstance(value, set | frozenset):
            return _array(sorted(self.bytes_of(part) for part in value))
        if isinstance(value, list | tuple):
            return _array([self.bytes_of(part) for part in value])
        return self._encode(_plain(value) if isinstance(value, float) else value)

    def _object(self, value: Any, parts: Iterable[Part]) -> bytes:
        config: Any = getattr(value, "__struct_config__", None)
        tag = config.tag if config is not None else None
        if config is not None and config.array_like:
            return self._array_like(value, parts, tag)
        pairs = [(self._encode(part.name), encoded) for part, encoded, plain in self._parts(value, parts) if not plain]
        if tag is not None:
            pairs.append((self._encode(config.tag_field), self._encode(tag)))
        return _map(pairs)

    def _array_like(self, value: Any, parts: Iterable[Part], tag: str | int | None) -> bytes:
        """Fields by position: only those at the end can be left out."""
        found = self._parts(value, parts)
        while found and found[-1][2]:
            found.pop()
        head = [] if tag is None else [self._encode(tag)]
        return _array(head + [encoded for _, encoded, _ in found])

    def _model(self, value: Any) -> bytes:
        if not self._bare or value.model_extra:
            return self.bytes_of(dump_model(value))
        try:
            return self._object(value, parts_of(type(value)) or ())
        except (TypeError, ValueError):  # fields that only the model's own serializers can turn into data
            return self.bytes_of(dump_model(value))

    def _parts(self, value: Any, parts: Iterable[Part]) -> list[tuple[Part, bytes, bool]]:
        """The fields that have a value, each with whether it is at its default and may be left out."""
        held = [(part, part.of(value)) for part in parts]
        encoded = [(part, self.bytes_of(found)) for part, found in held if found is not ABSENT]
        return [(part, found, self._bare and found == self._default(part)) for part, found in encoded]

    def _encoded_default(self, part: Part) -> bytes | None:
        """The default, or None: there is none, or it differs each time (an id, the time of day)."""
        first, second = part.make_default(), part.make_default()
        if first is ABSENT:
            return None
        encoded = self.bytes_of(first)
        return encoded if encoded == self.bytes_of(second) else None


def _plain(number: float) -> float:
    """Numbers compare by value: 1.0 is 1 (a field of floats may have the default 0), and NaN is one value."""
    if math.isnan(number):
        return math.nan
    return int(number) if number.is_integer() and abs(number) < 2**63 else number


def _map(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    ordered = sorted(pairs)
    return _head(0x80, 0xDF, len(ordered)) + b"".join(key + value for key, value in ordered)


def _array(items: list[bytes]) -> bytes:
    return _head(0x90, 0xDD, len(items)) + b"".join(items)


def _head(short: int, long: int, count: int) -> bytes:
    return bytes([short | count]) if count < 16 else struct.pack(">BI", long, count)
