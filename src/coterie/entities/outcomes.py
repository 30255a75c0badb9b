"""What the sender of a stored message is told: its reply, or which error. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.entities.envelopes import MARK, read_marked
from coterie.entities.failures import read_failure
from coterie.entities.keys import shown_key
from coterie.errors import KeyConflict, MessageDead, ReentrantCall, SendTimeout

if TYPE_CHECKING:
    from coterie.entities.calls import Call
    from coterie.entities.definitions import EntityType
    from coterie.entities.rpcs import Rpc
    from coterie.entities.work import Work
    from coterie.storage.messages import Message, MessageRow, Receipt


def read_reply(body: bytes, rpc: Rpc) -> Any:
    """The result that a stored reply holds, or the declared error that it is."""
    if not body or body[0] != MARK:
        return rpc.decode_result(body)
    told = read_marked(body)
    raise read_failure(told if isinstance(told, bytes) else b"", rpc.errors)


def dead(row: MessageRow) -> MessageDead:
    """The error of a message that was set aside."""
    last = row.errors[-1].error.partition("\n")[0] if row.errors else "nobody knows why"
    target = f"{row.entity_type}/{row.entity_id}.{row.method}"
    return MessageDead(message_id=row.id, target=target, attempts=row.attempts, problem=last)


def too_late(message: Message, waited_s: float) -> SendTimeout:
    """The error of a caller whose patience has ended before its message."""
    target = f"{message.entity_type}/{message.entity_id}.{message.method}"
    hint = f"the message is stored and will run; cluster.result({message.id!r}) waits for it"
    return SendTimeout(target=target, waited_s=waited_s, hint=hint)


def require_same(call: Call[Any], message: Message, found: Receipt) -> None:
    """Refuse a key that was used before with other arguments [M4]."""
    if found.digest != message.digest:
        raise conflict(call, message, found.id)


def conflict(call: Call[Any], message: Message, found: str) -> KeyConflict:
    """The error of a key that was used before with other arguments."""
    return KeyConflict(target=repr(call), key=shown_key(message.key or ""), message_id=found)


def refuse_waiting_for_itself(call: Call[Any], entity_type: EntityType[Any], outer: Work) -> None:
    """Refuse what would wait until its deadline: an entity in the chain of callers runs one call at a time."""
    address = str(call.address)
    chain = outer.onward()
    if entity_type.concurrency == 1 and any(address == each for each, _ in chain):
        raise ReentrantCall(target=repr(call), chain=" → ".join([*(each for each, _ in chain), address]))


def refuse_inside_transaction(call: Call[Any], outer: Work) -> None:
    """Refuse to wait for another entity while the database's locks are held [C3]."""
    if outer.ledger is not None and outer.ledger.transaction is not None:
        raise RuntimeError(
            f"{call!r} is awaited while {outer.target} has a transaction open, which would hold its locks: "
            "await it before the transaction, or give it to cluster.send(…)"
        )
