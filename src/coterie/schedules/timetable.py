"""The instants at which a schedule or timer is due: those of a cron from a beginning on, or a single one. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from coterie.cron.decide import CatchUp, Overlap, TickPolicy
from coterie.cron.schedule import Schedule
from coterie.storage.contracts.schedules import ScheduleTerms

if TYPE_CHECKING:
    from collections.abc import Iterator

NEVER = datetime(9000, 1, 1, tzinfo=UTC)
"""Instead of an instant after the last one."""
_LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)
_INSTANT = timedelta(microseconds=1)


class Timetable:
    """A set of instants with a beginning, and perhaps an end (`cron.decide.Ticks`).

    Args:
        terms: What is stored of it.
        since: When it was put: instants up to then do not belong to it.
        anchor: From when an interval is counted, to the second. Default: since it was put.

    Raises:
        ScheduleError: The schedule or its time zone cannot be parsed.
    """

    def __init__(self, terms: ScheduleTerms, since: datetime, *, anchor: datetime | None = None) -> None:
        self.terms = terms
        self.first = since + _INSTANT if terms.start is None else max(since + _INSTANT, terms.start)
        """The first instant that may belong to it."""
        self.end = NEVER if terms.end is None else terms.end
        """The first one that may not, any more."""
        self.schedule: Schedule | None = None
        """None: it is due once."""
        if terms.schedule:
            anchor = (anchor or since).replace(microsecond=0)
            self.schedule = Schedule(terms.schedule, timezone=terms.timezone, anchor=anchor)

    @property
    def policy(self) -> TickPolicy:
        """What happens to instants that are missed, or overlap."""
        oldest_s = self.terms.skip_if_older_than_s
        return TickPolicy(
            skip_if_older_than=None if oldest_s is None else timedelta(seconds=oldest_s),
            catch_up=cast("CatchUp", self.terms.catch_up),
            overlap=cast("Overlap", self.terms.overlap),
            delay=self.delay,
        )

    @property
    def delay(self) -> timedelta:
        """How long after its instant it is due."""
        return timedelta(seconds=self.terms.delay_s)

    def next_after(self, at: datetime) -> datetime:
        """The first one after an instant; `NEVER` if there is none."""
        at = max(at, self.first - _INSTANT)
        found = self._once_after(at) if self.schedule is None else self.schedule.next_after(at)
        return found if found < self.end else NEVER

    def previous(self, at: datetime) -> datetime:
        """The last one before an instant; long ago if there is none."""
        at = min(at, self.end)
        if self.schedule is None:
            once = self._once_after(self.first - _INSTANT)
            found = once if once < at else _LONG_AGO
        else:
            found = self.schedule.previous(at)
        return found if found >= self.first else _LONG_AGO

    def count(self, start: datetime, end: datetime) -> int:
        """The number of them from start to before end."""
        start, end = max(start, self.first), min(end, self.end)
        if start >= end:
            return 0
        if self.schedule is None:
            return int(start <= self._once_after(start - _INSTANT) < end)
        return self.schedule.count(start, end)

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Those from start to before end."""
        at = self.next_after(start - _INSTANT)
        while at < end and at < NEVER:
            yield at
            at = self.next_after(at)

    def due_after(self, at: datetime) -> datetime | None:
        """When the first one after an instant is due; None: there is none."""
        found = self.next_after(at)
        return found + self.delay if found < NEVER else None

    def _once_after(self, at: datetime) -> datetime:
        once = self.terms.at
        return once if once is not None and once > at else NEVER


@lru_cache(maxsize=4096)
def timetable_of(definition: str, since: datetime) -> Timetable:
    """The timetable of a row. Parsing it takes longer than all else that is done when it is due.

    Raises:
        ValueError: What is stored cannot be read.
        ScheduleError: Its schedule cannot.
    """
    return Timetable(ScheduleTerms.decode(definition), since)
