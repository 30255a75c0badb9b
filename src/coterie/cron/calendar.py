"""The labels of a schedule: what a clock on the wall shows when it is due. No zones here, so every day has 24 hours."""

from __future__ import annotations

from bisect import bisect_left
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from cronsim import CronSim, CronSimError

if TYPE_CHECKING:
    from datetime import date

    from coterie.cron.expression import Fields

_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_INSTANT = timedelta(microseconds=1)

# Any: whether a date ever comes does not depend on where the search begins, for cronsim looks 50 years ahead, and the
# rarest date (29 February on one weekday) comes within 40.
_SOME_DAY = datetime(2000, 1, 1)  # noqa: DTZ001 a label has no zone


class Calendar:
    """Labels that match all fields: the next, the last, how many. Walked by cronsim, on naive datetimes."""

    def __init__(self, fields: Fields) -> None:
        self._text = fields.text
        self._hours, self._minutes, self._seconds = fields.hour.values, fields.minute.values, fields.second.values
        self._each_day = len(self._hours) * len(self._minutes) * len(self._seconds)

    @cached_property
    def _days(self) -> CronSim:
        """cronsim's judge of days."""
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
        """Those of its day before it."""
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
