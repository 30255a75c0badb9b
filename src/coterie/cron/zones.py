"""A time zone as an offset that changes now and then: where it changes, and which instants a label has."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from coterie.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterator

NEAR = timedelta(days=2)
"""Further than any change moves the clock (the date line was crossed by 24 hours), so that what a label was at any
distance beyond it cannot come again; and nearer than two changes of one zone are to each other (four days)."""

_SECOND = timedelta(seconds=1)


class Change(NamedTuple):
    """Where clocks go forward (a gap: labels that do not exist) or back (an overlap: labels that come twice)."""

    at: datetime
    """The first instant with the new offset, in UTC."""
    before: timedelta
    after: timedelta

    @property
    def is_gap(self) -> bool:
        return self.after > self.before

    @property
    def old_label(self) -> datetime:
        """What clocks would have shown: where a gap begins and an overlap ends."""
        return (self.at + self.before).replace(tzinfo=None)

    @property
    def new_label(self) -> datetime:
        """What clocks show: where a gap ends and an overlap begins."""
        return (self.at + self.after).replace(tzinfo=None)


class Zone:
    """A time zone of the tz database."""

    def __init__(self, name: str, info: tzinfo) -> None:
        self.name = name
        self.info = info

    def offset(self, at: datetime) -> timedelta:
        """What is added to UTC at an instant."""
        offset = at.astimezone(self.info).utcoffset()
        assert offset is not None  # the zones of zoneinfo always know
        return offset

    def label(self, at: datetime) -> datetime:
        """What clocks show at an instant."""
        return at.astimezone(self.info).replace(tzinfo=None, fold=0)

    def instant(self, label: datetime) -> datetime:
        """When clocks first show it. Of a label in a gap: when the gap ends."""
        first = label.replace(tzinfo=self.info).astimezone(UTC)
        if self.label(first) == label:
            return first
        # In a gap zoneinfo takes the old offset, by which this instant lies after the change; by the new one, before.
        change = self.change_after(label.replace(tzinfo=self.info, fold=1).astimezone(UTC), first)
        assert change is not None
        return change.at

    def overlap(self, at: datetime) -> Change | None:
        """The change after which clocks show at this instant what they have shown before, if they do."""
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
        """The one change between two instants, found by halving. Zones change at whole seconds."""
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
    """The zone of a name; UTC without asking the tz database, which small systems do not have.

    Raises:
        ScheduleError: There is none of this name.
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
