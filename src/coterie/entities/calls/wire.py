"""The wire format of calls: envelopes, answers and errors, around arguments and results that are already encoded. Pure.

A declared error crosses as itself, any other as `RemoteError`. Local calls use the same format, so that a caller has to
catch the same errors wherever the entity is.

A result travels as it is. Other answers start with a byte with which no msgpack value starts, so that the usual answer
is neither wrapped nor copied:

    result…                     the handler's result; of a stream: an item
    0xC1 1 failure…             the handler's error, see `pack_failure`
    0xC1 2 [seat, holder, …]    "not mine", with what that runner knows
    0xC1 3                      of a persisted message: read storage, which knows more

Fields are only ever added at the end, with a default, so that two versions of coterie understand each other.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from coterie.entities.declared_errors import arguments_of, nearest
from coterie.errors import CoterieError, Discarded, MalformedMessage, MessageCancelled, RemoteError
from coterie.kernel.serialization.codec import Codec

if TYPE_CHECKING:
    from types import TracebackType


_PROBLEM_MOST = 4_000
_TRACEBACK_MOST = 16_000
_OURS = "coterie."


class _Result(Struct, array_like=True, tag=1):
    """A declared error. The message is for a caller whose program lacks the class."""

    name: str
    args: list[Any]
    message: str


class _Defect(Struct, array_like=True, tag=2):
    """Any other error."""

    type_name: str
    problem: str
    traceback: str


_CODEC: Codec[Any] = Codec(_Result | _Defect)
_CANCELLED = "coterie.MessageCancelled"
_DISCARDED = "coterie.Discarded"
"""No user class can have these names. A program that does not know them shows the message."""


def pack_failure(error: BaseException, declared: dict[str, type[Exception]]) -> bytes:
    """Encode the error of a handler.

    Args:
        error: The exception.
        declared: The errors of the rpc, by name.

    Promise:
        Only declared errors and text cross, never the name of a class that the caller would have to look up elsewhere.
        Encoding never fails: a declared error whose `args` are not data crosses as a defect.
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
    if failure.name in (_CANCELLED, _DISCARDED):
        return _ended_early(failure)
    return _rebuilt(failure, declared.get(failure.name))


def pack_cancelled(message_id: str) -> bytes:
    """The failure that is stored for a cancelled message."""
    error = MessageCancelled(message_id=message_id)
    return _CODEC.encode(_Result(_CANCELLED, [message_id], error.message))


def pack_discarded(message_id: str, target: str, why: str) -> bytes:
    """The failure that is stored for a message that its handler has discarded."""
    facts = (message_id, target, _encodable(why)[:_PROBLEM_MOST])
    error = Discarded(message_id=message_id, target=target, problem=facts[-1])
    return _CODEC.encode(_Result(_DISCARDED, list(facts), error.message))


def is_discarded(reply: bytes) -> bool:
    """Whether a stored reply says that the message was discarded."""
    return reply.startswith(_DISCARDED_HEAD)


def described(error: BaseException) -> str:
    """An error as text to be stored with a message: its type and message first, then the traceback."""
    defect = _defect(error)
    return f"{defect.type_name}: {defect.problem}\n{defect.traceback}".rstrip()


def _packed(error: BaseException, name: str) -> bytes | None:
    try:
        return _CODEC.encode(_Result(name, list(arguments_of(error)), _message(error)))
    except Exception:  # noqa: BLE001 args that are not data, or a user's `__reduce__` that raised
        return None


def _ended_early(failure: _Result) -> Exception:
    match failure.args:
        case [str(message_id)] if failure.name == _CANCELLED:
            return MessageCancelled(message_id=message_id)
        case [str(message_id), str(target), str(why)] if failure.name == _DISCARDED:
            return Discarded(message_id=message_id, target=target, problem=why)
    return RemoteError(type_name=failure.name.removeprefix(_OURS), problem=failure.message, remote_traceback="")


def _rebuilt(failure: _Result, kind: type[Exception] | None) -> Exception:
    try:
        if kind is not None:
            return kind(*failure.args)
    except Exception:  # noqa: BLE001 S110 another version of the class: only its text is left
        pass
    return RemoteError(type_name=failure.name, problem=failure.message, remote_traceback="", declared=True)


def _defect(error: BaseException) -> _Defect:
    """A `RemoteError` that a handler did not catch keeps its type; the tracebacks of both runners are kept."""
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
    """The traceback from the user's first line on, without coterie's frames that led to it."""
    first = trace
    while first is not None and first.tb_frame.f_globals.get("__name__", "").startswith(_OURS):
        first = first.tb_next
    return first or trace


def _last(text: str) -> str:
    """The end of a long text: there a traceback names the error."""
    return text if len(text) <= _TRACEBACK_MOST else f"…{text[-_TRACEBACK_MOST:]}"


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


MARK: Final = 0xC1
FAILED: Final = b"\xc1\x01"
NOT_MINE: Final = b"\xc1\x02"
LOOK: Final = b"\xc1\x03"
_DISCARDED_HEAD = FAILED + _CODEC.encode(_Result(_DISCARDED, [], "")).removesuffix(
    b"\x90\xa0"
)  # without args and message

Chain = tuple[tuple[str, str], ...]
"""The callers that await a call, outermost first: address (`Account/alice`) and id of each message being handled."""
Name = Annotated[str, Meta(min_length=1, max_length=1_000)]
Depth = Annotated[Chain, Meta(max_length=1_000)]


class Envelope(Struct, array_like=True, gc=False):
    """A call. The transport carries how much time it has left."""

    entity_type: Name
    entity_id: Name
    method: Name
    payload: bytes
    message_id: Name
    within_s: float
    """The caller's timeout, for errors."""
    trace_id: str | None = None
    chain: Depth = ()
    key: str | None = None
    discards: bool = False
    """Whether the caller only waits until the call is accepted, not for its result."""


class Broadcast(Struct, array_like=True, gc=False):
    """A call of all active entities of a type."""

    entity_type: Name
    method: Name
    payload: bytes
    within_s: float
    trace_id: str | None = None
    chain: Depth = ()


class BroadcastReply(Struct, array_like=True, gc=False):
    """The reply of one entity to a broadcast: a body as above, or an error of ours by code and facts."""

    entity_id: str
    body: bytes
    code: str = ""
    facts: bytes = b""


class NotMine(Struct, array_like=True, gc=False):
    """A runner does not hold a seat; the holder and its epoch, as far as it knows."""

    seat: str = ""
    holder: str = ""
    epoch: int = 0
    shards: int = 0
    """The number of shards of each group; 0 if it does not say. A caller with another number routes wrongly."""


MALFORMED = (ValueError, RecursionError)  # as in `transport.protocol`

encode = msgspec.msgpack.Encoder().encode
decode_call = msgspec.msgpack.Decoder(Envelope).decode
decode_broadcast = msgspec.msgpack.Decoder(Broadcast).decode
decode_broadcast_reply = msgspec.msgpack.Decoder(BroadcastReply).decode
_decode_not_mine = msgspec.msgpack.Decoder(NotMine).decode


def pack_not_mine(known: NotMine) -> bytes:
    """The answer of a runner that does not hold the seat."""
    return NOT_MINE + encode(known)


def read_marked(body: bytes) -> bytes | NotMine:
    """Decode an answer that starts with the mark: a failure, or "not mine". Never raises."""
    head, rest = body[:2], body[2:]
    if head != NOT_MINE:
        return rest if head == FAILED else b""  # of a newer version: a failure that cannot be decoded
    try:
        return _decode_not_mine(rest)
    except MALFORMED:
        return NotMine()
