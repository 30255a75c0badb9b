"""Time zones, calendars, and schedules as sets of instants: the rules for changes of the clock are here.

A *label* is what a wall clock shows. A calendar is a set of labels, without zones, so every day has 24 hours. A zone
maps labels to instants: an offset that changes now and then. The ticks of a schedule are a set of instants (UTC), in
three kinds; each kind finds the first tick from an instant on, the last one up to it, and how many lie between two.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from coterie.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date

    from coterie.cron.expression import Fields


NEAR = timedelta(days=2)
"""More than any change moves the clock (the date line was crossed by 24 hours), so that labels further away cannot
come again; and less than the distance of two changes of one zone (four days)."""

_SECOND = timedelta(seconds=1)


class Change(NamedTuple):
    """A change of the clock: forward (a gap: labels that do not exist) or back (an overlap: labels that come twice)."""

    at: datetime
    """The first instant with the new offset, in UTC."""
    before: timedelta
    after: timedelta

    @property
    def is_gap(self) -> bool:
        return self.after > self.before

    @property
    def old_label(self) -> datetime:
        """The label by the old offset: where a gap begins and an overlap ends."""
        return (self.at + self.before).replace(tzinfo=None)

    @property
    def new_label(self) -> datetime:
        """The label by the new offset: where a gap ends and an overlap begins."""
        return (self.at + self.after).replace(tzinfo=None)


class Zone:
    """A time zone of the tz database."""

    def __init__(self, name: str, info: tzinfo) -> None:
        self.name = name
        self.info = info

    def offset(self, at: datetime) -> timedelta:
        """The offset from UTC at an instant."""
        offset = at.astimezone(self.info).utcoffset()
        assert offset is not None  # the zones of zoneinfo always know
        return offset

    def label(self, at: datetime) -> datetime:
        """The label of an instant."""
        return at.astimezone(self.info).replace(tzinfo=None, fold=0)

    def instant(self, label: datetime) -> datetime:
        """When clocks first show a label. For a label in a gap: when the gap ends."""
        first = label.replace(tzinfo=self.info).astimezone(UTC)
        if self.label(first) == label:
            return first
        # In a gap zoneinfo uses the old offset, by which this instant lies after the change; by the new one, before.
        change = self.change_after(label.replace(tzinfo=self.info, fold=1).astimezone(UTC), first)
        assert change is not None
        return change.at

    def overlap(self, at: datetime) -> Change | None:
        """The change because of which the label of this instant occurs for the second time, if it does."""
        local = at.astimezone(self.info)
        if not local.fold:
            return None
        return self.change_before(at - NEAR, at)

    def change_after(self, start: datetime, end: datetime) -> Change | None:
        """The first change after start, up to and including end."""
        while start < end:
            step = min(start + NEAR, end)
            if self.offset(step) != self.offset(start):
                return self._change(start, step)
            start = step
        return None

    def change_before(self, start: datetime, end: datetime) -> Change | None:
        """The last change after start, up to and including end."""
        while end > start:
            step = max(end - NEAR, start)
            if self.offset(step) != self.offset(end):
                return self._change(step, end)
            end = step
        return None

    def changes(self, start: datetime, end: datetime) -> Iterator[Change]:
        """All changes after start, up to and including end."""
        while change := self.change_after(start, end):
            yield change
            start = change.at

    def _change(self, low: datetime, high: datetime) -> Change:
        """The one change between two instants, found by bisection. Zones change at whole seconds."""
        before, after = self.offset(low), self.offset(high)
        low, high = low.replace(microsecond=0), high.replace(microsecond=0)
        while high - low > _SECOND:
            middle = low + (high - low) // 2
            middle = middle.replace(microsecond=0)
            if self.offset(middle) == before:
                low = middle
            else:
                high = middle
        return Change(high, before, after)


def read_zone(name: str, *, expression: str, cron: str = "") -> Zone:
    """The zone of a name; UTC without the tz database, which small systems do not have.

    Raises:
        ScheduleError: There is no such zone.
    """
    if name == "UTC":
        return Zone(name, UTC)
    try:
        return Zone(name, ZoneInfo(name))
    except (LookupError, ValueError, OSError):  # also paths, folders, and bytes that are no zone
        raise ScheduleError(
            expression=expression,
            problem="its time zone is unknown",
            timezone=name[:60],
            cron=cron,
            hint=_suggest(name),
        ) from None


def _suggest(name: str) -> str:
    known = {each.lower(): each for each in available_timezones()}
    if not known:
        return "this system has no time zones: install its tzdata, or the package of that name from PyPI"
    close = get_close_matches(name[:60].lower(), known, n=1, cutoff=0.8)
    return f'did you mean "{known[close[0]]}"?' if close else 'zones are named like "Europe/Zurich"'


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INSTANT = timedelta(microseconds=1)


class Steady:
    """Fixed intervals, whatever clocks show: the multiples of an interval since an anchor.

    Without one since 1970, so that nothing is stored.
    """

    def __init__(self, every: timedelta, anchor: datetime | None = None) -> None:
        self._every = every
        self._anchor = anchor or _EPOCH

    def first(self, at: datetime) -> datetime:
        return self._anchor + -((self._anchor - at) // self._every) * self._every

    def last(self, at: datetime) -> datetime:
        return self._anchor + (at - self._anchor) // self._every * self._every

    def count(self, start: datetime, end: datetime) -> int:
        return max((self._anchor - start) // self._every - (self._anchor - end) // self._every, 0)


class Flowing:
    """Whenever clocks show a label of the calendar: not in a gap, twice in an overlap. So `*/30` is every half hour."""

    def __init__(self, calendar: Calendar, zone: Zone) -> None:
        self._calendar = calendar
        self._zone = zone

    def first(self, at: datetime) -> datetime:
        # Between two changes of the offset instants and labels move alike. Changes matter near here, where clocks may
        # go back to earlier labels, and near the label that is found; what lies between is skipped.
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
    """When clocks first show a label of the calendar; for all labels in one gap together, once when it ends."""

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


Instants = Steady | Flowing | Fixed
"""How a schedule finds its instants: the first from an instant on, the last up to it, and their number in between."""

_DAY = timedelta(days=1)

# Any date will do: whether a date ever comes does not depend on the start of the search, for cronsim looks 50 years
# ahead, and the rarest date (29 February on one weekday) comes within 40.
_SOME_DAY = datetime(2000, 1, 1)  # noqa: DTZ001 a label has no zone


class Calendar:
    """Labels that match all fields: the next, the last, how many. Iterated by cronsim, on naive datetimes."""

    def __init__(self, fields: Fields) -> None:
        self._text = fields.text
        self._hours, self._minutes, self._seconds = fields.hour.values, fields.minute.values, fields.second.values
        self._each_day = len(self._hours) * len(self._minutes) * len(self._seconds)

    @cached_property
    def _days(self) -> CronSim:
        """A cronsim that decides which days match."""
        return CronSim(self._text, _SOME_DAY)

    def is_possible(self) -> bool:
        """Whether such a day ever comes."""
        try:
            next(CronSim(self._text, _SOME_DAY))
        except (CronSimError, StopIteration):
            return False
        return True

    def first(self, label: datetime) -> datetime:
        """The first one from here on."""
        return next(CronSim(self._text, label - _INSTANT))

    def last(self, label: datetime) -> datetime:
        """The last one up to here."""
        # With a part of a second cronsim begins at the second itself, otherwise at the one before.
        return next(CronSim(self._text, label.replace(microsecond=1), reverse=True))

    def count(self, start: datetime, end: datetime) -> int:
        """How many there are from start to before end, without visiting each: a week of seconds has 604,800."""
        start, end = _whole_seconds(start), _whole_seconds(end)
        if start >= end:
            return 0
        matching, day = 0, start.date()
        while day < end.date():
            matching += self._has(day)
            day += _DAY
        return matching * self._each_day + self._within(end) - self._within(start)

    def _has(self, day: date) -> bool:
        return day.month in self._days.months and self._days.match_day(day)

    def _within(self, label: datetime) -> int:
        """How many labels of its day are before it."""
        if not self._has(label.date()):
            return 0
        hours, minutes, seconds = self._hours, self._minutes, self._seconds
        count = bisect_left(hours, label.hour)
        if label.hour not in hours:
            return count * len(minutes) * len(seconds)
        count = count * len(minutes) + bisect_left(minutes, label.minute)
        if label.minute not in minutes:
            return count * len(seconds)
        return count * len(seconds) + bisect_left(seconds, label.second)


def _whole_seconds(label: datetime) -> datetime:
    """The first whole second from here on."""
    return label.replace(microsecond=0) + _SECOND if label.microsecond else label
