"""The wire protocol: frames on a byte stream, and the small typed arrays that they carry. No I/O.

    ┌──────────────┬───────────────┐
    │ length, >u32 │ body          │   1 <= length <= limit
    └──────────────┴───────────────┘

The length is checked as soon as it is there, before anything of the body is kept. The body is an envelope around
opaque bytes:

    [kind, field, field, …]        kind is a small number, fields are in the order below

Rules for rolling deploys (N and N + 1 talk to each other, see also `identity.PROTOCOL`):
- Fields are only ever added at the end, with a default. Those of a newer peer are dropped, those that an older
  peer does not send take their default.
- A kind below `OPTIONAL_FROM` is sent only in a protocol version that has it; unknown, it breaks the connection.
- A kind from `OPTIONAL_FROM` on may be sent to any peer: one that does not know it skips it.

Depth and width: no field is a list or a map, so there is nothing to nest. Headers and facts
are bytes of a bounded size, decoded on demand.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import msgspec
from msgspec import Meta, Struct

from coterie.errors import CoterieError, MalformedMessage
from coterie.kernel.serialization.codec import codec_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


HEAD_BYTES = 4
FRAME_LIMIT_BYTES = 8 * 1024 * 1024

_LARGE_BYTES = 256 * 1024
"""Frames larger than this are not copied to be cut; smaller ones are, since slicing a view costs three slices of
bytes."""

_HEAD = struct.Struct(">I")
_pack, _unpack_from = _HEAD.pack, _HEAD.unpack_from


class ProtocolError(Exception):
    """The peer violated the protocol: its connection is closed."""


class Refused(Exception):
    """One end refuses the other: the reason, in words for the log."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Frames:
    """Cuts a stream of bytes into the bodies of its frames.

    Args:
        limit_bytes: The longest body that is accepted.

    Promise:
        The same bytes give the same bodies, however they are split. Nothing but `ProtocolError` is raised. Between
        two calls at most one unfinished frame is kept, and never more of it than has arrived.
    """

    __slots__ = ("_limit_bytes", "_need_bytes", "_rest")

    def __init__(self, limit_bytes: int = FRAME_LIMIT_BYTES) -> None:
        assert 0 < limit_bytes < 1 << 32, f"a limit of {limit_bytes} bytes does not fit the length field"
        self._limit_bytes = limit_bytes
        self._rest = bytearray()  # not a list of pieces: a byte at a time each would weigh 40 times as much
        self._need_bytes = HEAD_BYTES  # how long the rest must be before there is anything new to parse

    def feed(self, data: bytes) -> Iterable[bytes | memoryview]:
        """Add received bytes. Returns: the bodies that are complete now, in order.

        They are cut lazily: bodies before a bad length are returned before the error is raised. What is not consumed
        is lost. A body may be a view, which is only valid until the next call.

        Raises:
            ProtocolError: A length of zero or beyond the limit.
        """
        if not self._rest and len(data) > HEAD_BYTES:
            (size,) = _unpack_from(data)
            if size == len(data) - HEAD_BYTES and size <= self._limit_bytes:
                return (data[HEAD_BYTES:],)  # exactly one frame, as for a lone call: no need to cut
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


def _bad_length(size: int, limit_bytes: int) -> ProtocolError:
    if size == 0:
        return ProtocolError("a frame of no bytes")
    return ProtocolError(f"a frame of {size} bytes, the limit is {limit_bytes}")


OPTIONAL_FROM: Final = 64
HEADERS_MOST_BYTES: Final = 8 * 1024
FACTS_MOST_BYTES: Final = 32 * 1024
AROUND_BODY_BYTES: Final = 64 * 1024
"""A frame may be longer than its body by this: headers or facts, and the other fields."""

_SHOWN_CHARACTERS = 1_000

RawHeaders = Annotated[bytes, Meta(max_length=HEADERS_MOST_BYTES)]
RawFacts = Annotated[bytes, Meta(max_length=FACTS_MOST_BYTES)]
Count = Annotated[int, Meta(ge=0)]


class RequestFrame(Struct, array_like=True, tag=1, gc=False):
    """Requests one reply, or a stream of items if there is a window."""

    id: Count
    route: Count
    body: bytes
    left_ms: Count = 0
    headers: RawHeaders = b""
    window_bytes: Count = 0


class ReplyFrame(Struct, array_like=True, tag=2, gc=False):
    """The one reply to a request."""

    id: Count
    body: bytes


class FailureFrame(Struct, array_like=True, tag=3, gc=False):
    """The end of a request without a reply, or of a stream before its end: a `CoterieError`, by code and facts."""

    id: Count
    code: Annotated[str, Meta(max_length=200)]
    facts: RawFacts = b""


class CancelFrame(Struct, array_like=True, tag=4, gc=False):
    """The caller no longer waits for this request."""

    id: Count


class NoticeFrame(Struct, array_like=True, tag=5, gc=False):
    """A notice, which has no reply."""

    route: Count
    body: bytes
    headers: RawHeaders = b""


class ItemFrame(Struct, array_like=True, tag=6, gc=False):
    """One item of a stream."""

    id: Count
    body: bytes


class EndFrame(Struct, array_like=True, tag=7, gc=False):
    """The end of a stream, all items sent."""

    id: Count


class CreditFrame(Struct, array_like=True, tag=8, gc=False):
    """The reader of a stream has room for more bytes."""

    id: Count
    more_bytes: Count


class PingFrame(Struct, array_like=True, tag=9, gc=False):
    """Requests a pong."""

    number: Count = 0


class PongFrame(Struct, array_like=True, tag=10, gc=False):
    """Answers a ping."""

    number: Count = 0


class GoodbyeFrame(Struct, array_like=True, tag=11, gc=False):
    """No request will follow on this connection, and none should be sent; those in flight are finished.

    A final one ends those too: its receiver closes. So the sender never closes over unread bytes, which would reset
    the connection, and a reset may overtake the goodbye.
    """

    reason: Annotated[str, Meta(max_length=1_000)] = ""
    is_final: bool = False
    taken_id: Count | None = None
    """In a final one: the last request that was read. Later ones were never read, and so can be sent elsewhere."""


class TermsFrame(Struct, array_like=True, tag=12, gc=False):
    """The first frame of each side: the limits that it accepts."""

    body_most_bytes: Count
    in_flight: Count
    in_flight_bytes: Count


Envelope = (
    RequestFrame
    | ReplyFrame
    | FailureFrame
    | CancelFrame
    | NoticeFrame
    | ItemFrame
    | EndFrame
    | CreditFrame
    | PingFrame
    | PongFrame
    | GoodbyeFrame
    | TermsFrame
)


KINDS: Final = get_args(Envelope)


class _Kind(Struct, array_like=True, gc=False):
    kind: int


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Envelope).decode
"""Decodes the envelope in a body. Raises `MALFORMED`; call `require_optional` then."""

MALFORMED = (ValueError, RecursionError)  # msgspec's errors are ValueErrors; the second is for nested junk

_kind_of = msgspec.msgpack.Decoder(_Kind).decode
_headers_of = msgspec.msgpack.Decoder(dict[str, str]).decode
_facts = codec_for(dict[str, Any])


def require_optional(body: bytes | memoryview, error: Exception) -> None:
    """Return if a body that does not decode is of a kind that may be skipped.

    Raises:
        ProtocolError: It is malformed, or of a kind that must be understood.
    """
    try:
        kind = _kind_of(body).kind
    except MALFORMED:
        raise ProtocolError(f"a frame that is no envelope: {error}") from None
    if kind < OPTIONAL_FROM:
        raise ProtocolError(f"a frame of kind {kind} that this protocol version does not have: {error}") from None


def pack_headers(headers: Mapping[str, str]) -> bytes:
    """Encode headers.

    Raises:
        MalformedMessage: They are too long, or not text.
    """
    if not headers:
        return b""
    packed = codec_for(dict[str, str]).encode(dict(headers), what="headers")
    if len(packed) > HEADERS_MOST_BYTES:
        raise MalformedMessage(what="headers", problem=f"{len(packed)} bytes, the most is {HEADERS_MOST_BYTES}")
    return packed


def read_headers(packed: bytes) -> dict[str, str]:
    """Decode the headers of a peer; empty if they are malformed."""
    try:
        return _headers_of(packed) if packed else {}
    except MALFORMED:
        return {}


def pack_error(error: CoterieError) -> tuple[str, bytes]:
    """Encode an error as code and facts within the limit, its text shortened if need be."""
    code, facts = error.to_wire()
    try:
        packed = _facts.encode(facts)
    except MalformedMessage:  # a fact that is not plain data
        packed = b""
    if not 0 < len(packed) <= FACTS_MOST_BYTES:
        packed = _facts.encode({"message": error.message[:_SHOWN_CHARACTERS]})
    return code, packed


def read_error(frame: FailureFrame) -> CoterieError:
    """Decode the error that a peer sent. Never raises, whatever arrived."""
    try:
        facts = _facts.decode(frame.facts) if frame.facts else {}
    except MalformedMessage:
        facts = {}
    return CoterieError.from_wire(frame.code, facts)
