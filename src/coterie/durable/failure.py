"""The stored form of a step's error, which is raised again in later runs. Data only."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.entities.declared_errors import arguments_of
from coterie.errors import CoterieError, MalformedMessage, RemoteError
from coterie.kernel.serialization.codec import PLAIN
from coterie.kernel.text import said, storable

if TYPE_CHECKING:
    from coterie.durable.position import Place

_TEXT_MOST = 4_000
_DATA_MOST_BYTES = 64 * 1024
"""Limit for the data of an error besides its text; larger data is left out, so that every error can be stored."""


class StoredFailure(msgspec.Struct, frozen=True, array_like=True):
    """An error in its stored form. Fields are only ever added at the end."""

    module: str
    name: str
    args: list[Any] | None
    """The arguments of its class; None: they are not plain data."""
    text: str
    facts: dict[str, Any] | None = None
    """The facts of a `CoterieError`."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredFailure)


def pack(error: BaseException) -> bytes:
    """Encode an error for storage."""
    kind, text = type(error), storable(said(error)[:_TEXT_MOST])
    if isinstance(error, CoterieError):
        code, facts = error.to_wire()
        try:
            data = _encoder.encode(StoredFailure("", code, None, text, facts))
        except (TypeError, ValueError, OverflowError):
            data = b""
        return data if 0 < len(data) <= _DATA_MOST_BYTES else _encoder.encode(StoredFailure("", code, None, text))
    return _encoder.encode(StoredFailure(kind.__module__, kind.__qualname__, _arguments(error), text))


def unpack(data: bytes) -> Exception:
    """Decode a stored error: of the same class, if this program has it and it can be constructed.

    Uses only classes that are already loaded here, and only exceptions.
    """
    failure = _decoder.decode(data)
    if failure.facts is not None:
        return CoterieError.from_wire(failure.name, failure.facts)
    kind = _class_of(failure.module, failure.name)
    if kind is not None and failure.args is not None:
        try:
            made = kind(*failure.args)
        except Exception:  # noqa: BLE001 another version of the class
            made = None
        if made is not None:
            return made
    problem = failure.text.partition(": ")[2] or failure.text
    return RemoteError(type_name=failure.name, problem=problem, remote_traceback="")


def text_of(data: bytes) -> str:
    """The text of a stored error, for display."""
    return _decoder.decode(data).text


def name_of(data: bytes) -> str:
    """The name of the class of a stored error, or its code."""
    return _decoder.decode(data).name


def mark(error: BaseException, place: Place) -> None:
    """Note on an error at which place its body got it."""
    with suppress(AttributeError):  # of a class without a dictionary
        error.coterie_place = place  # type: ignore[attr-defined]


def is_of_step(error: BaseException) -> bool:
    """Whether a body got this very error from a step, or another place."""
    return getattr(error, "coterie_place", None) is not None


def places_of(error: BaseException) -> list[Place]:
    """The places of the steps whose errors this is, or comes from."""
    found: dict[Place, None] = {}
    left, seen = [error], set[int]()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        place = getattr(each, "coterie_place", None)
        if place is not None:
            found[place] = None
        elif isinstance(each, BaseExceptionGroup):
            left += each.exceptions
        elif (reason := each.__cause__ or each.__context__) is not None:
            left.append(reason)
    return list(found)


def _arguments(error: BaseException) -> list[Any] | None:
    try:
        arguments = list(arguments_of(error))
        data = PLAIN.checked(arguments)
        return arguments if len(data) <= _DATA_MOST_BYTES and PLAIN.decode(data) == arguments else None
    except (MalformedMessage, TypeError, ValueError):
        return None


def _class_of(module: str, name: str) -> type[Exception] | None:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None
