"""The schedule of a cron: an expression in a time zone, as a set of instants."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from coterie.cron.calendar import Calendar, Fixed, Flowing, Instants, Steady, Zone, read_zone
from coterie.cron.explain import explain_fields, explain_interval
from coterie.cron.expression import Expression, Fields

if TYPE_CHECKING:
    from collections.abc import Iterator


_INSTANT = timedelta(microseconds=1)


class Schedule:
    """A cron expression in a time zone, parsed once.

        >>> nightly = Schedule("30 2 * * *", timezone="Europe/Zurich")
        >>> nightly.explain()
        'every day at 02:30, Europe/Zurich'
        >>> nightly.next_after(datetime(2026, 3, 28, 12, tzinfo=UTC)).isoformat()  # 02:30 does not exist on this day
        '2026-03-29T01:00:00+00:00'

    Days: if day of month and day of week both list days, a day matches if one of them does; if one of them begins with
    a star, both must match (`*/2` is a star as well).

    Changes of the clock: a schedule that lists its hours (the hour field does not begin with a star) is due once a day
    for each time listed. Times in a gap are due together once, right after it; of times that come twice the first
    counts. All other schedules follow the clock: `0 * * * *` is due every real hour. `@every` ignores clocks: it is due
    at the multiples of its interval since 1970 in UTC.

    Promise:
        `previous(at) < at < next_after(at)`, and all methods agree on one set of ticks. Ticks are whole seconds, in
        UTC.

    Not promised:
        The same future for ever: governments change zones, and a new tz database then changes future ticks.

    Args:
        expression: Five fields, or six with seconds first; `@hourly`, `@daily` …, `@every 90s`.
        timezone: A name of the tz database.
        cron: The name of the cron, for errors.
        anchor: The instant from which intervals are counted. Default: 1970.

    Raises:
        ScheduleError: It cannot be parsed, its zone does not exist, or no such day ever comes.
    """

    def __init__(
        self, expression: str, *, timezone: str = "UTC", cron: str = "", anchor: datetime | None = None
    ) -> None:
        text = Expression(expression, cron)
        read = text.read()
        self.expression = " ".join(expression.split())
        self._zone = read_zone(timezone, expression=self.expression, cron=cron)
        self._read = read
        self._instants = self._interpret(text, read, anchor)

    def _interpret(self, text: Expression, read: Fields | timedelta, anchor: datetime | None) -> Instants:
        if isinstance(read, timedelta):
            return Steady(read, anchor)
        calendar = Calendar(read)
        if not calendar.is_possible():
            text.refuse_days("no such day ever comes")
        return Flowing(calendar, self._zone) if read.hour.is_star else Fixed(calendar, self._zone)

    def __repr__(self) -> str:
        return f"Schedule({self.expression!r}, timezone={self.timezone!r})"

    @property
    def timezone(self) -> str:
        """The name of its zone."""
        return self._zone.name

    @property
    def zone(self) -> Zone:
        """Its zone, for displaying its ticks."""
        return self._zone

    def next_after(self, at: datetime) -> datetime:
        """The first tick after an instant.

        Raises:
            OverflowError: It would lie beyond the years that Python supports.
        """
        return self._instants.first(_utc(at) + _INSTANT)

    def previous(self, at: datetime) -> datetime:
        """The last tick before an instant.

        Raises:
            OverflowError: It would lie before the years that Python supports.
        """
        return self._instants.last(_utc(at) - _INSTANT)

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """The ticks from start to before end."""
        tick, end = self._instants.first(_utc(start)), _utc(end)
        while tick < end:
            yield tick
            tick = self.next_after(tick)

    def count(self, start: datetime, end: datetime) -> int:
        """The number of ticks from start to before end, without visiting each."""
        return self._instants.count(_utc(start), _utc(end))

    def matches(self, at: datetime) -> bool:
        """Whether the second that contains an instant is a tick."""
        second = _utc(at).replace(microsecond=0)
        return self._instants.first(second) == second

    def explain(self) -> str:
        """The schedule in words: `every day at 03:00, Europe/Zurich`."""
        if isinstance(self._read, timedelta):
            return explain_interval(self._read)
        return explain_fields(self._read, self.timezone)


def _utc(at: datetime) -> datetime:
    if at.tzinfo is None:
        raise ValueError(f"naive datetime {at}: add a zone")
    return at.astimezone(UTC)
