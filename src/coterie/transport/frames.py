"""Frames on a byte stream: four bytes of length, then a body. No I/O, nothing decoded.

    ┌──────────────┬───────────────┐
    │ length, >u32 │ body          │   1 <= length <= limit
    └──────────────┴───────────────┘

The length is judged as soon as it is there, before anything of the body is kept.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HEAD_BYTES = 4
FRAME_LIMIT_BYTES = 8 * 1024 * 1024

_LARGE_BYTES = 256 * 1024
"""Frames larger than this are not copied to be cut; smaller ones are, since a slice of a view costs three of bytes."""

_HEAD = struct.Struct(">I")
_pack, _unpack_from = _HEAD.pack, _HEAD.unpack_from


class ProtocolError(Exception):
    """The peer sent what no peer of ours sends: its connection is closed."""


class Refused(Exception):
    """The peer is not let in, or does not let us in: why, in words for the log."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Frames:
    """Cuts a stream of bytes into the bodies of its frames.

    Args:
        limit_bytes: The longest body that is taken.

    Promise:
        The same bytes give the same bodies, however they are split. Nothing but `ProtocolError` is raised. Between
        two calls at most one unfinished frame is kept, and never more of it than has arrived.
    """

    __slots__ = ("_limit_bytes", "_need_bytes", "_rest")

    def __init__(self, limit_bytes: int = FRAME_LIMIT_BYTES) -> None:
        assert 0 < limit_bytes < 1 << 32, f"a limit of {limit_bytes} bytes does not fit the length field"
        self._limit_bytes = limit_bytes
        self._rest = bytearray()  # not a list of pieces: a byte at a time each would weigh 40 times as much
        self._need_bytes = HEAD_BYTES  # how long the rest must be before there is anything new to see

    @property
    def kept_bytes(self) -> int:
        """How much of an unfinished frame is kept."""
        return len(self._rest)

    def feed(self, data: bytes) -> Iterable[bytes | memoryview]:
        """Take the next bytes and give the bodies that are complete now, in order.

        They are cut one by one: bodies ahead of a bad length are given before the error is raised. What is not taken
        is lost. A body may be a view, which is only good until the next call.

        Raises:
            ProtocolError: A length of zero or beyond the limit.
        """
        if not self._rest and len(data) > HEAD_BYTES:
            (size,) = _unpack_from(data)
            if size == len(data) - HEAD_BYTES and size <= self._limit_bytes:
                return (data[HEAD_BYTES:],)  # nothing but one frame, as of a lone call: no need to cut
        return self._cut(data)

    def _cut(self, data: bytes) -> Iterator[bytes | memoryview]:
        stream: bytes | memoryview = data
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need_bytes:
                return
            stream = memoryview(self._rest) if self._need_bytes > _LARGE_BYTES else bytes(self._rest)
            self._rest = bytearray()
        at, end, limit_bytes = 0, len(stream), self._limit_bytes
        need_bytes = HEAD_BYTES
        while (start := at + HEAD_BYTES) <= end:
            (size,) = _unpack_from(stream, at)
            if not 0 < size <= limit_bytes:
                raise _bad_length(size, limit_bytes)
            if (stop := start + size) > end:
                need_bytes = HEAD_BYTES + size
                break
            yield stream[start:stop]
            at = stop
        self._need_bytes = need_bytes
        if at < end:
            self._rest += stream[at:]


def framed(bodies: Iterable[bytes]) -> bytes:
    """Many bodies as one piece to write."""
    parts: list[bytes] = []
    for body in bodies:
        parts.append(_pack(len(body)))
        parts.append(body)
    return b"".join(parts)


def _bad_length(size: int, limit_bytes: int) -> ProtocolError:
    if size == 0:
        return ProtocolError("a frame of no bytes")
    return ProtocolError(f"a frame of {size} bytes, the limit is {limit_bytes}")
