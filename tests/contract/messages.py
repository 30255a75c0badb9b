"""What the contract suites of messages share: runners that hold seats, and messages by number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.storage.contracts.messages import Message, MessageRow, StateChange
from tests.contract.test_states import S1, S2, A, B, evict, joined, register, take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.interface import Storage

CANCELLED = b"it was cancelled"
"""What the row of a cancelled message says."""

__all__ = [
    "S1", "S2", "A", "B", "change", "due_ids", "evict", "id_of", "joined", "look", "message", "register", "statuses",
    "take",
]  # fmt: skip


def id_of(number: int) -> str:
    """Ids are 32 hexadecimal digits, and grow."""
    return f"{number:032x}"


def message(number: int, *, seat: str = S1, entity: str = "alice", method: str = "add", **more: Any) -> Message:
    """A message to an entity on a seat."""
    given = {"entity_type": "Account", "payload": b"%d" % number, **more}
    return Message(id=id_of(number), seat=seat, entity_id=entity, method=method, **given)


def change(key: str, value: bytes | None, version: int = 0) -> StateChange:
    """The state that follows a version."""
    return StateChange(key, value, version)


async def look(storage: Storage, number: int) -> MessageRow | None:
    """A message by its number, if it is there."""
    rows = await storage.messages.look([id_of(number)])
    return rows[0] if rows else None


async def statuses(storage: Storage, *numbers: int) -> list[str | None]:
    """The status of each of these messages, None for those that are not there."""
    found = {row.id: row.status for row in await storage.messages.look([id_of(number) for number in numbers])}
    return [found.get(id_of(number)) for number in numbers]


async def due_ids(storage: Storage, *seats: str, ahead_s: float = 0.0, most: int = 100) -> Sequence[int]:
    """The numbers of what a sweep over these seats finds, in its order."""
    found = await storage.messages.due(dict.fromkeys(seats or (S1,)), ahead_s=ahead_s, most=most)
    return [int(row.id, 16) for row in found.rows]
