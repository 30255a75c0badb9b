"""What the contract suites of schedules share: rows, and what a holder makes of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from coterie.storage.contracts.schedules import Fire, ScheduleRow, schedule_key
from tests.contract.messages import S1, message

if TYPE_CHECKING:
    from coterie.storage.interface import Claim, Storage


def at(minute: float) -> datetime:
    """An instant long ago, to the microsecond."""
    return datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC) + timedelta(minutes=minute)


_DUE = at(1)


def row(name: str = "nightly", *, seat: str = S1, next_at: datetime | None = _DUE, **more: Any) -> ScheduleRow:
    """A schedule that is due since long ago."""
    given: dict[str, Any] = {
        "key": schedule_key(name),
        "seat": seat,
        "life": 7,
        "definition": '{"schedule": "@daily"}',
        "target": S1,
        "entity_type": "Account",
        "entity_id": "alice",
        "method": "add",
        "payload": b"\x00\xffpayload",
        "since_at": at(0),
        "next_at": next_at,
        "stamp": 1,
    }
    return ScheduleRow(**given | more)


def fire(
    claim: Claim, name: str = "nightly", *, mark: tuple[int, int] = (7, 1), send: int | None = 1, **more: Any
) -> Fire:
    """A fire of the instant at minute 1; the next one is in a thousand years."""
    given: dict[str, Any] = {
        "claim": claim,
        "key": schedule_key(name),
        "mark": mark,
        "due_at": at(1),
        "next_at": datetime(3000, 1, 1, tzinfo=UTC),
        "last_at": at(1),
        "last_id": None if send is None else message(send).id,
        "outcomes": "[1]",
        "sends": () if send is None else (message(send),),
    }
    return Fire(**given | more)


async def names_due(storage: Storage, *seats: str, without: tuple[str, ...] = (), most: int = 100) -> list[str]:
    """The names of the rows of these seats that are due."""
    found = await storage.schedules.due(seats or (S1,), without=[schedule_key(each) for each in without], most=most)
    return [each.key.partition("/")[2] for each in found.rows]
