"""The ticks to come, as people want to see them: by their own clocks, with a word where clocks change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from coterie.cron.schedule import Schedule
    from coterie.cron.zones import Change


@dataclass(frozen=True, slots=True)
class Upcoming:
    """A tick to come.

    Args:
        at: When, in UTC.
        local: The same by the clocks of the schedule's zone.
        note: That clocks change between the tick before and this one, or nothing.
    """

    at: datetime
    local: datetime
    note: str = ""


def preview(schedule: Schedule, *, after: datetime, count: int = 5) -> list[Upcoming]:
    """The next ticks after an instant.

    >>> from datetime import UTC, datetime
    >>> from coterie.cron.schedule import Schedule
    >>> nightly = Schedule("0 3 * * *", timezone="Europe/Zurich")
    >>> for tick in preview(nightly, after=datetime(2026, 3, 28, tzinfo=UTC), count=2):
    ...     print(f"{tick.local:%a %H:%M %Z}: {tick.note or 'as ever'}")
    Sat 03:00 CET: as ever
    Sun 03:00 CEST: clocks go forward at 02:00
    """
    ticks: list[Upcoming] = []
    for _ in range(count):
        at = schedule.next_after(after)
        local = at.astimezone(schedule.zone.info)
        change = schedule.zone.change_before(after, at)
        ticks.append(Upcoming(at, local, _note(change, local) if change else ""))
        after = at
    return ticks


def _note(change: Change, local: datetime) -> str:
    way = "forward" if change.is_gap else "back"
    when = change.old_label
    if when.date() == local.date():
        return f"clocks go {way} at {when:%H:%M}"
    return f"clocks go {way} on {when:%a} {when.day} {when:%b} at {when:%H:%M}"
