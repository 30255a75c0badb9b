"""The ticks of a schedule as a set of instants, in three kinds; this is where the rules for changes of the clock live.

Each kind says the first tick from an instant on, the last one up to it, and how many lie between two. Instants are UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from coterie.cron.zones import NEAR

if TYPE_CHECKING:
    from coterie.cron.calendar import Calendar
    from coterie.cron.zones import Zone

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_INSTANT = timedelta(microseconds=1)


class Instants(Protocol):
    """A set of instants without end."""

    def first(self, at: datetime) -> datetime:
        """The first one from here on."""
        ...

    def last(self, at: datetime) -> datetime:
        """The last one up to here."""
        ...

    def count(self, start: datetime, end: datetime) -> int:
        """How many there are from start to before end."""
        ...


class Steady:
    """Every so often, whatever clocks show: the multiples of an interval since 1970, so that nothing must be stored."""

    def __init__(self, every: timedelta) -> None:
        self._every = every

    def first(self, at: datetime) -> datetime:
        return _EPOCH + -((_EPOCH - at) // self._every) * self._every

    def last(self, at: datetime) -> datetime:
        return _EPOCH + (at - _EPOCH) // self._every * self._every

    def count(self, start: datetime, end: datetime) -> int:
        return max((_EPOCH - start) // self._every - (_EPOCH - end) // self._every, 0)


class Flowing:
    """Wherever clocks show a label of the calendar: not in a gap, twice in an overlap. So `*/30` is every half hour."""

    def __init__(self, calendar: Calendar, zone: Zone) -> None:
        self._calendar = calendar
        self._zone = zone

    def first(self, at: datetime) -> datetime:
        # From one change of the offset to the next instants and labels move alike. Changes matter near here, where
        # clocks may go back to labels of before, and near the label that is found; what lies between is jumped over.
        while True:
            offset = self._zone.offset(at)
            found = self._calendar.first(self._zone.label(at)).replace(tzinfo=UTC)
            tick = found - offset
            if change := self._zone.change_after(at, min(tick, at + NEAR)):
                at = change.at
            elif tick <= at + NEAR:
                return tick
            else:
                at = max(at + NEAR, found - NEAR)

    def last(self, at: datetime) -> datetime:
        while True:
            offset = self._zone.offset(at)
            found = self._calendar.last(self._zone.label(at)).replace(tzinfo=UTC)
            tick = found - offset
            if change := self._zone.change_before(max(tick, at - NEAR), at):
                at = change.at - _INSTANT
            elif tick >= at - NEAR:
                return tick
            else:
                at = min(at - NEAR, found + NEAR)

    def count(self, start: datetime, end: datetime) -> int:
        total, offset = 0, self._zone.offset(start)
        for change in self._zone.changes(start, end):
            total += self._labels(start + offset, change.at + offset)
            start, offset = change.at, change.after
        return total + self._labels(start + offset, end + offset)

    def _labels(self, start: datetime, end: datetime) -> int:
        return self._calendar.count(start.replace(tzinfo=None), end.replace(tzinfo=None))


class Fixed:
    """When clocks first show a label of the calendar; for all that fall into one gap together, once when it ends."""

    def __init__(self, calendar: Calendar, zone: Zone) -> None:
        self._calendar = calendar
        self._zone = zone

    # A later label never has an earlier instant (see Zone.instant), so bounds of instants are bounds of labels.

    def first(self, at: datetime) -> datetime:
        return self._zone.instant(self._calendar.first(self._label_from(at)))

    def last(self, at: datetime) -> datetime:
        overlap = self._zone.overlap(at)
        label = overlap.old_label - _INSTANT if overlap else self._zone.label(at)
        return self._zone.instant(self._calendar.last(label))

    def count(self, start: datetime, end: datetime) -> int:
        if start >= end:
            return 0
        total = self._calendar.count(self._label_from(start), self._label_from(end))
        for change in self._zone.changes(start - _INSTANT, end - _INSTANT):
            if change.is_gap:
                together = self._calendar.count(change.old_label, change.new_label + _SECOND)
                total -= max(together - 1, 0)
        return total

    def _label_from(self, at: datetime) -> datetime:
        """The least label that is not first shown before this instant."""
        # Where a gap ends, its labels still count; in the second half of an overlap, only what comes after it.
        change = self._zone.change_before(at - _INSTANT, at) or self._zone.overlap(at)
        return change.old_label if change else self._zone.label(at)
