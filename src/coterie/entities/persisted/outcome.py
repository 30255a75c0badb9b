"""The outcome of a persisted message for its sender: its reply, or an error. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from coterie.entities.calls.wire import FAILED, MARK, pack_cancelled, pack_discarded, read_failure, read_marked
from coterie.entities.host.work import Work, handling
from coterie.entities.idempotency_key import shown_key
from coterie.errors import InvalidArgument, KeyConflict, MalformedMessage, MessageDead, ReentrantCall, SendTimeout
from coterie.kernel.clock import require_instant
from coterie.kernel.context import refuse_in_transaction, transacting

if TYPE_CHECKING:
    from datetime import datetime

    from coterie.entities.definition import EntityType
    from coterie.entities.reference import Call, Sendable
    from coterie.kernel.serialization.codec import Codec
    from coterie.storage.contracts.messages import Message, MessageRow, Receipt, Transaction

_DELAY_MOST_S = 36_525 * 86_400.0
"""A century: not every database can represent much later instants."""


class ReplyType(Protocol):
    """How a reply is read: an rpc, or plain values where its class is unknown."""

    @property
    def result(self) -> Codec[Any]:
        """The codec of the result."""
        ...

    @property
    def result_what(self) -> str:
        """The name of the result in errors."""
        ...

    @property
    def errors(self) -> dict[str, type[Exception]]:
        """The declared errors, by name."""
        ...


def read_reply(body: bytes, rpc: ReplyType) -> Any:
    """Decode a stored reply. Returns the result, or raises the declared error."""
    if not body or body[0] != MARK:
        return rpc.result.decode(body, rpc.result_what)
    marked = read_marked(body)
    raise read_failure(marked if isinstance(marked, bytes) else b"", rpc.errors)


def cancelled(message_id: str) -> bytes:
    """The stored reply of a cancelled message."""
    return FAILED + pack_cancelled(message_id)


def discarded(work: Work, why: str) -> bytes:
    """The stored reply of a message that its handler has discarded."""
    return FAILED + pack_discarded(work.message_id, work.target, why)


def dead(row: MessageRow) -> MessageDead:
    """The error of a dead message."""
    last = row.errors[-1].error.partition("\n")[0] if row.errors else "nobody knows why"
    target = f"{row.entity_type}/{row.entity_id}.{row.method}"
    return MessageDead(message_id=row.id, target=target, attempts=row.attempts, problem=last)


def too_late(message: Message, waited_s: float) -> SendTimeout:
    """The error of a caller whose timeout passes before its message has ended."""
    target = f"{message.entity_type}/{message.entity_id}.{message.method}"
    hint = f"the message is stored and will run; cluster.result({message.id!r}) waits for it"
    return SendTimeout(target=target, waited_s=waited_s, hint=hint, message_id=message.id)


def require_same(call: Call[Any], message: Message, found: Receipt) -> None:
    """Refuse a key that was used before with other arguments [M4]."""
    if found.digest != message.digest:
        raise conflict(call, message, found.id)


def conflict(call: Call[Any], message: Message, found: str) -> KeyConflict:
    """The error of a key that was used before with other arguments."""
    return KeyConflict(target=repr(call), key=shown_key(message.key or ""), message_id=found)


def refuse_waiting_for_itself(call: Call[Any], entity_type: EntityType[Any], outer: Work) -> None:
    """Refuse a call that would wait until its deadline: an entity in the chain of callers runs one call at a time."""
    address = str(call.address)
    chain = outer.onward()
    if entity_type.concurrency == 1 and any(address == each for each, _ in chain):
        raise ReentrantCall(target=repr(call), chain=" → ".join([*(each for each, _ in chain), address]))


def refuse_far_away(call: Sendable[Any], *, at: datetime | None, delay_s: float) -> None:
    """Refuse an instant that not every database can represent."""
    if delay_s > _DELAY_MOST_S:
        days, most = f"{delay_s / 86_400:,.0f} days", _DELAY_MOST_S / 86_400
        problem = f"a message can wait for {most:,.0f} days"
        raise InvalidArgument(what=f"delay of {call!r}", value=days, problem=problem)
    if at is not None:
        require_instant(at, what=f"at of {call!r}")


def require_small(data: bytes, *, what: object, most_bytes: int) -> None:
    """Refuse data that is too large to store: it would delay other writes. `what` is formatted only then."""
    if len(data) > most_bytes:
        raise MalformedMessage(
            what=str(what),
            problem=f"{len(data):,} bytes, more than the {most_bytes:,} that are allowed",
            hint="put large data elsewhere and keep its name, or raise frame_limit on all runners",
        )


def refuse_commit_of_its_own(what: str, *, instead: str = "or after the rpc") -> None:
    """Refuse an operation with a commit of its own while the running work has a transaction open [C3].

    On SQLite it would wait for the transaction's lock; on PostgreSQL it would persist if the transaction is rolled
    back.
    """
    outer = handling.get()
    if outer is not None:
        refuse_inside_transaction(what, outer, instead=instead)
    refuse_in_transaction(what)


def transaction_here() -> Transaction | None:
    """The open transaction of the running work: of an rpc until it ends, of a leader or a tick inside its block."""
    outer = handling.get()
    if (
        outer is not None
        and outer.effects is not None
        and outer.effects.is_open
        and outer.effects.transaction is not None
    ):
        return outer.effects.transaction
    opened = transacting.get()
    return None if opened is None else opened.transaction


def refuse_inside_transaction(what: str, outer: Work, *, instead: str = "or give it to cluster.send(…)") -> None:
    """Refuse to wait for another commit while the transaction holds locks: on SQLite it needs the same lock [C3]."""
    if outer.effects is not None and outer.effects.is_open and outer.effects.transaction is not None:
        raise RuntimeError(
            f"{what} is awaited while {outer.target} has a transaction open, which holds locks until the rpc ends: "
            f"await it before the transaction, {instead}"
        )
