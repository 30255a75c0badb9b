"""What a handler raised, as bytes and back: a declared error as itself, everything else as `RemoteError`. Pure.

Local calls go the same way, so that a caller cannot tell where the entity lives by what it has to catch.

What calls look like between runners: small arrays around arguments and results that were encoded before. No I/O.

A result travels as it is. Other answers begin with a byte with which no msgpack value begins, so that the everyday
answer is neither wrapped nor copied:

    result…                     what the handler returned; of a stream: an item
    0xC1 1 failure…             what it raised, see `failures`
    0xC1 2 [seat, holder, …]    "not mine", with what that runner knows
    0xC1 3                      of a stored message: look in storage, which knows more

Fields are only ever added at the end, with a default: two versions of coterie talk to each other.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from coterie.entities.host.work import Chain
from coterie.entities.rpc import arguments_of, nearest
from coterie.errors import CoterieError, MalformedMessage, MessageCancelled, RemoteError
from coterie.kernel.serialization.codec import Codec

if TYPE_CHECKING:
    from types import TracebackType


_PROBLEM_MOST = 4_000
_TRACEBACK_MOST = 16_000
_OURS = "coterie."


class _Result(Struct, array_like=True, tag=1):
    """A declared error. The message is for a caller whose program has no such class."""

    name: str
    args: list[Any]
    message: str


class _Defect(Struct, array_like=True, tag=2):
    """Anything else."""

    type_name: str
    problem: str
    traceback: str


_CODEC: Codec[Any] = Codec(_Result | _Defect)
_CANCELLED = "coterie.MessageCancelled"
"""No class of a user's can have this name. A program that does not know it shows the message."""


def pack_failure(error: BaseException, declared: dict[str, type[Exception]]) -> bytes:
    """What a handler raised, as bytes.

    Args:
        error: The exception.
        declared: The errors of the rpc, by name.

    Promise:
        Only declared errors and text cross, never the name of a class that the caller would look up elsewhere.
        Whatever was raised, it gives bytes: a declared error whose `args` are not data crosses as a defect.
    """
    name = nearest(error, declared)
    return (name and _packed(error, name)) or _CODEC.encode(_defect(error))


def read_failure(data: bytes, declared: dict[str, type[Exception]]) -> Exception:
    """The error to raise at the caller. Never raises itself, whatever arrived."""
    try:
        failure = _CODEC.decode(data, what="a failure")
    except MalformedMessage as error:
        return RemoteError(type_name="MalformedMessage", problem=error.message, remote_traceback="")
    if isinstance(failure, _Defect):
        return RemoteError(type_name=failure.type_name, problem=failure.problem, remote_traceback=failure.traceback)
    if failure.name == _CANCELLED:
        return _cancelled(failure)
    return _rebuilt(failure, declared.get(failure.name))


def pack_cancelled(message_id: str) -> bytes:
    """What the row of a message says that was cancelled."""
    error = MessageCancelled(message_id=message_id)
    return _CODEC.encode(_Result(_CANCELLED, [message_id], error.message))


def described(error: BaseException) -> str:
    """What was raised, as text to be kept with a message: its type and words first, then where it happened."""
    defect = _defect(error)
    return f"{defect.type_name}: {defect.problem}\n{defect.traceback}".rstrip()


def _packed(error: BaseException, name: str) -> bytes | None:
    try:
        return _CODEC.encode(_Result(name, list(arguments_of(error)), _message(error)))
    except Exception:  # noqa: BLE001 args that are not data, or a __reduce__ of the user's that raised
        return None


def _cancelled(failure: _Result) -> Exception:
    match failure.args:
        case [str(message_id)]:
            return MessageCancelled(message_id=message_id)
    return RemoteError(type_name="MessageCancelled", problem=failure.message, remote_traceback="")


def _rebuilt(failure: _Result, kind: type[Exception] | None) -> Exception:
    try:
        if kind is not None:
            return kind(*failure.args)
    except Exception:  # noqa: BLE001 S110 another version of the class: its text is all that is left
        pass
    return RemoteError(type_name=failure.name, problem=failure.message, remote_traceback="")


def _defect(error: BaseException) -> _Defect:
    """A `RemoteError` that a handler let through stays what it was; the tracebacks of both runners are kept."""
    name = error.type_name if isinstance(error, RemoteError) else type(error).__qualname__
    problem = error.problem if isinstance(error, RemoteError) else _message(error)
    lines = traceback.format_exception(type(error), error, _without_ours(error.__traceback__))
    return _Defect(_encodable(name), problem, _last(_encodable("".join(lines))))


def _message(error: BaseException) -> str:
    try:
        text = error.message if isinstance(error, CoterieError) else str(error)
    except Exception:  # noqa: BLE001 a user's __str__
        text = "(its text cannot be made)"
    return _encodable(text)[:_PROBLEM_MOST]


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the user's first line on: how coterie came to call the handler is of no interest."""
    first = trace
    while first is not None and first.tb_frame.f_globals.get("__name__", "").startswith(_OURS):
        first = first.tb_next
    return first or trace


def _last(text: str) -> str:
    """The end of a long text, which is where a traceback says what happened."""
    return text if len(text) <= _TRACEBACK_MOST else f"…{text[-_TRACEBACK_MOST:]}"


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


MARK: Final = 0xC1
FAILED: Final = b"\xc1\x01"
NOT_MINE: Final = b"\xc1\x02"
LOOK: Final = b"\xc1\x03"

Name = Annotated[str, Meta(min_length=1, max_length=1_000)]
Depth = Annotated[Chain, Meta(max_length=1_000)]


class Envelope(Struct, array_like=True, gc=False):
    """A call. How much time it has left is the transport's to tell."""

    entity_type: Name
    entity_id: Name
    method: Name
    payload: bytes
    message_id: Name
    within_s: float
    """What the caller was ready to wait, for errors."""
    trace_id: str | None = None
    chain: Depth = ()
    key: str | None = None
    discards: bool = False
    """Whether nobody waits for the answer: it is told when it was taken."""


class Broadcast(Struct, array_like=True, gc=False):
    """A call of all resident entities of a type."""

    entity_type: Name
    method: Name
    payload: bytes
    within_s: float
    trace_id: str | None = None
    chain: Depth = ()


class BroadcastReply(Struct, array_like=True, gc=False):
    """What one entity answered to a broadcast: a body as above, or an error of ours by code and facts."""

    entity_id: str
    body: bytes
    code: str = ""
    facts: bytes = b""


class NotMine(Struct, array_like=True, gc=False):
    """A runner does not hold a seat; who does, as far as it knows, and at which epoch."""

    seat: str = ""
    holder: str = ""
    epoch: int = 0
    shards: int = 0
    """How many it counts in each group; 0: it does not say. Whoever counts otherwise looks in the wrong place."""


MALFORMED = (ValueError, RecursionError)  # as in the transport's envelopes

encode = msgspec.msgpack.Encoder().encode
decode_call = msgspec.msgpack.Decoder(Envelope).decode
decode_broadcast = msgspec.msgpack.Decoder(Broadcast).decode
decode_told = msgspec.msgpack.Decoder(BroadcastReply).decode
_decode_not_mine = msgspec.msgpack.Decoder(NotMine).decode


def pack_not_mine(known: NotMine) -> bytes:
    """The answer of a runner that does not hold the seat."""
    return NOT_MINE + encode(known)


def read_marked(body: bytes) -> bytes | NotMine:
    """What an answer that begins with the mark says: a failure, or "not mine". Never raises."""
    head, rest = body[:2], body[2:]
    if head != NOT_MINE:
        return rest if head == FAILED else b""  # of a newer version: a failure that cannot be read
    try:
        return _decode_not_mine(rest)
    except MALFORMED:
        return NotMine()
