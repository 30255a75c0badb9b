"""Schedules that were made at run time, as plain values for JSON: what is due, and what became of the last instants."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.entities.persisted.api import plain_value
from coterie.errors import ScheduleError
from coterie.kernel.ids import Seat
from coterie.kernel.plain import plain
from coterie.schedules.timetable import timetable_of
from coterie.schedules.verdict import outcomes_of
from coterie.storage.contracts.schedules import SCHEDULE, schedule_key

if TYPE_CHECKING:
    from datetime import datetime

    from coterie.client import Client
    from coterie.storage.contracts.schedules import ScheduleRow

_COMING_MOST = 100
"""Instants to come that are named, of one schedule."""
_UPCOMING = 10


async def schedules(
    here: Client, prefix: str, *, after: str | None, limit: int, until: datetime | None
) -> dict[str, Any]:
    """Schedules whose names begin so, by name, each with its last verdicts and its instants up to `until`: an hour."""
    now = await here.storage.now()
    end = until or now + timedelta(hours=1)
    last = "" if after is None else schedule_key(after)
    rows = await here.storage.schedules.list(SCHEDULE + prefix, after=last, most=limit + 1)
    told = [_line(row, now=now, until=end) for row in rows[:limit]]
    return {"now": now, "until": end, "schedules": told, "more": len(rows) > limit}


async def schedule(here: Client, name: str, *, texts: bool) -> dict[str, Any] | None:
    """One schedule with the call that it sends; None: there is none of this name."""
    row = await here.storage.schedules.get(schedule_key(name))
    if row is None:
        return None
    now = await here.storage.now()
    told = _line(row, now=now, until=None)
    told["arguments"] = plain(plain_value(row.payload)) if texts else None
    return {"schedule": told}


def _line(row: ScheduleRow, *, now: datetime, until: datetime | None) -> dict[str, Any]:
    """A schedule; one that cannot be read has a problem instead of instants."""
    told: dict[str, Any] = {
        "name": row.key.removeprefix(SCHEDULE),
        "calls": row.calls,
        "shard": Seat.split(row.seat)[1],
        "next_at": None if row.paused_at is not None else row.next_at,
        "last_at": row.last_at,
        "last_message": row.last_id,
        "paused_at": row.paused_at,
        "since": row.since_at,
        "is_over": row.next_at is None and row.paused_at is None,
        "schedule": "",
        "explained": "",
        "timezone": "UTC",
        "start": None,
        "end": None,
        "catch_up": "",
        "overlap": "",
        "outcomes": [],
        "coming": [],
        "problem": "",
    }
    try:
        timetable = timetable_of(row.definition, row.since_at)
        outcomes = outcomes_of(row)
    except (msgspec.MsgspecError, ScheduleError, ValueError) as error:
        return {**told, "problem": f"it cannot be read: {error}"}
    terms = timetable.terms
    at = "" if terms.at is None else terms.at.isoformat()
    coming: list[datetime] = []
    if told["next_at"] is not None:
        coming = list(islice(timetable.between(now, until or timetable.end), _COMING_MOST if until else _UPCOMING))
    return {
        **told,
        "schedule": terms.schedule or at,
        "explained": f"once, at {at}" if timetable.schedule is None else timetable.schedule.explain(),
        "timezone": terms.timezone,
        "start": terms.start,
        "end": terms.end,
        "catch_up": terms.catch_up,
        "overlap": terms.overlap,
        "outcomes": [
            {
                "at": each.at,
                "until": each.until,
                "count": each.count,
                "message": each.message or None,
                "reason": each.reason or None,
            }
            for each in outcomes
        ],
        "coming": coming,
    }
