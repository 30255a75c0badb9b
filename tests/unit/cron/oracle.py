"""What a schedule means, said a second time and without cleverness: every minute or second is looked at.

`expressions()` draws a text together with what it means, so that nothing here reads cron expressions.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, TypeAlias
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterator

Days: TypeAlias = Callable[[date], bool]

ZONES = [
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/Asuncion",
    "America/Havana",
    "America/New_York",
    "America/Santiago",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Antarctica/Troll",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Asia/Tehran",
    "Australia/Lord_Howe",
    "Europe/Dublin",
    "Europe/London",
    "Europe/Zurich",
    "Pacific/Apia",
    "Pacific/Chatham",
]
START = datetime(2017, 1, 1, tzinfo=UTC)
YEARS = 10
END = START.replace(year=START.year + YEARS)

MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


@dataclass(frozen=True)
class Meaning:
    """A schedule and what it means."""

    text: str
    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    months: frozenset[int]
    by_date: Days
    by_weekday: Days

    @property
    def fields(self) -> list[str]:
        return self.text.split()

    @property
    def names_hours(self) -> bool:
        return not self.fields[-4].startswith("*")

    def has_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        if self.fields[-3].startswith("*") or self.fields[-1].startswith("*"):
            return self.by_date(day) and self.by_weekday(day)
        return self.by_date(day) or self.by_weekday(day)

    def ever_comes(self) -> bool:
        """Whether a day matches in the 28 years after which weekdays fall on the same dates again."""
        return any(self.has_day((START + timedelta(days=day)).date()) for day in range(28 * 366))

    def has_time(self, label: datetime) -> bool:
        return label.hour in self.hours and label.minute in self.minutes and label.second in self.seconds

    def has(self, label: datetime) -> bool:
        return self.has_time(label) and self.has_day(label.date())


def labels(zone: tzinfo, start: datetime, end: datetime, step_s: int) -> Iterator[tuple[datetime, datetime]]:
    """Each instant of a grid and what clocks show then."""
    for stamp in range(round(start.timestamp()), round(end.timestamp()), step_s):
        yield datetime.fromtimestamp(stamp, UTC), datetime.fromtimestamp(stamp, zone).replace(tzinfo=None, fold=0)


def enumerate_ticks(meaning: Meaning, zone: tzinfo, start: datetime, end: datetime, step_s: int) -> list[datetime]:
    """The ticks from start to before end. Begins three hours before, to know what clocks have shown: more than any goes
    back within these years."""
    step = timedelta(seconds=step_s)
    latest: datetime | None = None
    found = []
    for at, label in labels(zone, start - timedelta(hours=3), end, step_s):
        if not meaning.names_hours:
            due = meaning.has(label)
        elif latest is not None and label <= latest:
            due = False  # clocks have shown this before
        else:
            due = meaning.has(label)
            skipped = latest + step if latest else label
            while not due and skipped < label:
                due = meaning.has(skipped)
                skipped += step
            latest = label
        if due and at >= start:
            found.append(at)
    return found


def changes(name: str) -> list[datetime]:
    """When a zone's offset changes within the years, to the minute."""
    zone = ZoneInfo(name)
    found, before = [], None
    for at, label in labels(zone, START, END, 3600 * 6):
        offset = label.replace(tzinfo=UTC) - at
        if before is not None and offset != before:
            minutes = labels(zone, at - timedelta(hours=6), at + timedelta(minutes=1), 60)
            found.append(next(each for each, shown in minutes if shown.replace(tzinfo=UTC) - each != before))
        before = offset
    return found


# ── expressions, each with its meaning ──────────────────────────────────────────────────────────────────────────


@st.composite
def terms(draw: st.DrawFn, low: int, high: int, names: list[str] | None = None) -> tuple[str, frozenset[int]]:
    """What may stand between commas, and its values."""
    first = draw(st.integers(low, high))
    last = draw(st.integers(first, high))
    step = draw(st.integers(1, high - low))

    def shown(value: int) -> str:
        if not names or draw(st.booleans()):
            return str(value)
        name = names[value - low]
        return draw(st.sampled_from([name, name.lower(), name.title()]))

    form = draw(st.sampled_from(["*", "*/", "one", "a-b", "a-b/", "a/"]))
    match form:
        case "*":
            return "*", frozenset(range(low, high + 1))
        case "*/":
            return f"*/{step}", frozenset(range(low, high + 1, step))
        case "one":
            return shown(first), frozenset([first])
        case "a-b":
            return f"{shown(first)}-{shown(last)}", frozenset(range(first, last + 1))
        case "a-b/":
            return f"{shown(first)}-{shown(last)}/{step}", frozenset(range(first, last + 1, step))
        case _:
            return f"{shown(first)}/{step}", frozenset(range(first, high + 1, step))


@st.composite
def plain(draw: st.DrawFn, low: int, high: int, names: list[str] | None = None) -> tuple[str, frozenset[int]]:
    """A list of terms."""
    several = draw(st.lists(terms(low, high, names), min_size=1, max_size=3))
    return ",".join(text for text, _ in several), frozenset().union(*(values for _, values in several))


def last_day(day: date) -> int:
    return calendar.monthrange(day.year, day.month)[1]


def is_last_workday(day: date) -> bool:
    rest = [day.replace(day=each) for each in range(day.day + 1, last_day(day) + 1)]
    return day.weekday() < 5 and all(each.weekday() >= 5 for each in rest)


def is_nth(day: date, weekday: int, nth: int) -> bool:
    if day.isoweekday() % 7 != weekday:
        return False
    same = [each for each in range(1, last_day(day) + 1) if (each - day.day) % 7 == 0]
    return nth in (same.index(day.day) + 1, same.index(day.day) - len(same))


@st.composite
def month_days(draw: st.DrawFn) -> tuple[str, Days]:
    text, values = draw(plain(1, 31))
    match draw(st.sampled_from(["", "", "L", "LW", "with L"])):
        case "L":
            return "L", lambda day: day.day == last_day(day)
        case "LW":
            return "LW", is_last_workday
        case "with L":
            return f"{text},l", lambda day: day.day in values or day.day == last_day(day)
        case _:
            return text, lambda day: day.day in values


@st.composite
def weekdays(draw: st.DrawFn) -> tuple[str, Days]:
    day, nth = draw(st.integers(0, 6)), draw(st.integers(1, 5))
    name = draw(st.sampled_from([WEEKDAYS[day], str(day)]))
    match draw(st.sampled_from(["", "", "", "#", "L", "to SUN", "7", "with #"])):
        case "#":
            return f"{name}#{nth}", lambda each: is_nth(each, day, nth)
        case "L":
            return f"{name}L", lambda each: is_nth(each, day, -1)
        case "to SUN" if day:
            return f"{name}-SUN", lambda each: each.isoweekday() >= day
        case "7":
            return "7", lambda each: each.isoweekday() == 7
        case "with #":
            return f"WED,{name}#{nth}", lambda each: each.isoweekday() == 3 or is_nth(each, day, nth)
        case _:
            # Not up to 7, where 0 comes again: 5/2 is Friday and Sunday, which "a/" of 0 to 6 would not be.
            text, values = draw(plain(0, 6, WEEKDAYS).filter(lambda drawn: not _is_open_ended(drawn[0])))
            return text, lambda each: each.isoweekday() % 7 in values


def _is_open_ended(text: str) -> bool:
    return any("/" in term and not term.startswith("*") and "-" not in term for term in text.split(","))


@st.composite
def expressions(draw: st.DrawFn, *, seconds: bool = False, likely_days: bool = True) -> Meaning:
    """A schedule of every form; with `likely_days` half of them have all days, so that windows have ticks."""
    second = draw(plain(0, 59)) if seconds else ("0", frozenset([0]))
    minute, hour = draw(plain(0, 59)), draw(plain(0, 23))
    all_days: tuple[Any, ...] = (("*", lambda day: True), ("*", frozenset(range(1, 13))), ("*", lambda day: True))
    some_days = st.tuples(month_days(), plain(1, 12, MONTHS), weekdays())
    days, month, weekday = draw(st.just(all_days) | some_days if likely_days else some_days)
    fields = [minute, hour, days, month, weekday]
    return Meaning(
        text=" ".join(text for text, _ in ([second, *fields] if seconds else fields)),
        seconds=second[1],
        minutes=minute[1],
        hours=hour[1],
        months=month[1],
        by_date=days[1],
        by_weekday=weekday[1],
    )
