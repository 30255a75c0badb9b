"""The ticks of schedules against the oracle, in 20 zones over 10 years (INV-C3, incident 27)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

from coterie.cron.schedule import Schedule
from coterie.errors import ScheduleError
from tests.unit.cron.oracle import END, START, YEARS, ZONES, Meaning, changes, enumerate_ticks, expressions

SAMPLE = settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(SAMPLE, max_examples=2000)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)

changes_of = cache(changes)


def read(meaning: Meaning, zone: str) -> Schedule:
    try:
        return Schedule(meaning.text, timezone=zone)
    except ScheduleError as refused:
        if refused.problem != "no such day ever comes" or meaning.ever_comes():
            raise
        reject()


@st.composite
def moments(draw: st.DrawFn) -> tuple[str, datetime]:
    """A zone and a minute in it: mostly near a change of its clocks."""
    zone = draw(st.sampled_from(ZONES))
    near = draw(st.sampled_from([*changes_of(zone), START + draw(st.integers(1, 3650)) * DAY]))
    return zone, near + draw(st.sampled_from([0, 0, 1, -1, -30, 30, 60, 90])) * timedelta(minutes=1)


def judge(meaning: Meaning, zone: str, start: datetime, end: datetime, *, step_s: int) -> None:
    """All that a schedule says of a window is what the oracle says."""
    schedule = read(meaning, zone)
    expected = enumerate_ticks(meaning, ZoneInfo(zone), start, end, step_s)
    assert list(schedule.between(start, end)) == expected
    assert schedule.count(start, end) == len(expected)
    assert all(schedule.matches(tick) for tick in expected[:30])
    assert all(schedule.previous(later) == tick for tick, later in pairwise(expected[:30]))
    bounds = [start, *expected, end]
    for low, high in pairwise(bounds[:30]):
        middle = low + (high - low) / 2
        if low < middle < high:
            assert not schedule.matches(middle) or middle.replace(microsecond=0) in (low, high)
            assert high == end or schedule.next_after(middle) == high
            assert low == start or schedule.previous(middle) == low
    for index, tick in enumerate(expected[:10]):
        after = tick + timedelta(microseconds=1)
        assert (schedule.count(start, tick), schedule.count(tick, end)) == (index, len(expected) - index)
        assert (schedule.count(start, after), schedule.count(after, end)) == (index + 1, len(expected) - index - 1)


def by_minutes(meaning: Meaning, moment: tuple[str, datetime]) -> None:
    zone, near = moment
    judge(meaning, zone, near - 4 * HOUR, near + 5 * HOUR, step_s=60)


def by_seconds(meaning: Meaning, moment: tuple[str, datetime]) -> None:
    zone, near = moment
    judge(meaning, zone, near - HOUR / 4, near + HOUR / 4, step_s=1)


def over_years(meaning: Meaning, zone: str, begin: datetime, *, hour: str = "") -> None:
    """A time of day on rare days, which are looked at one by one: the next 100 ticks, or those of ten years."""
    minute = min(meaning.minutes)
    hours = sorted(meaning.hours)[:1] if not hour else [0, 12]
    text = f"{minute} {hour or hours[0]} {' '.join(meaning.fields[-3:])}"
    rare = replace(meaning, text=text, hours=frozenset(hours), minutes=frozenset([minute]))
    schedule = read(rare, zone)
    days = (begin.replace(tzinfo=None) + n * DAY for n in range(YEARS * 366))
    times = [timedelta(hours=each, minutes=minute) for each in hours]
    labels = islice((day + time for day in days if rare.has_day(day.date()) for time in times), 100)
    shown = (first_shown(label, zone) if rare.names_hours else all_shown(label, zone) for label in labels)
    expected = sorted({each for several in shown for each in several if each >= begin + DAY})
    assume(expected)
    assert list(schedule.between(begin + DAY, expected[-1] + HOUR / 60)) == expected
    assert schedule.count(begin + DAY, expected[-1]) == len(expected) - 1
    assert [schedule.previous(later) for later in expected[1:]] == expected[:-1]


def all_shown(label: datetime, zone: str) -> list[datetime]:
    """Whenever clocks show a label."""
    info = ZoneInfo(zone)
    both = [label.replace(tzinfo=info, fold=fold).astimezone(UTC) for fold in (0, 1)]
    return [at for at in both if at.astimezone(info).replace(tzinfo=None, fold=0) == label]


def first_shown(label: datetime, zone: str) -> list[datetime]:
    """The first minute at which clocks show a label or a later one."""
    if at := all_shown(label, zone):
        return at[:1]
    minutes = ((label - DAY).replace(tzinfo=UTC) + n * timedelta(minutes=1) for n in range(3 * 1440))
    return [next(at for at in minutes if at.astimezone(ZoneInfo(zone)).replace(tzinfo=None) >= label)]


@SAMPLE
@given(expressions(), moments())
def test_ticks_are_those_of_the_oracle_minute_by_minute(meaning: Meaning, moment: tuple[str, datetime]) -> None:
    """INV-C3, incident 27."""
    by_minutes(meaning, moment)


@settings(SAMPLE, max_examples=30)
@given(expressions(seconds=True), moments())
def test_ticks_are_those_of_the_oracle_second_by_second(meaning: Meaning, moment: tuple[str, datetime]) -> None:
    """INV-C3, incident 27."""
    by_seconds(meaning, moment)


@settings(SAMPLE, max_examples=30)
@given(expressions(likely_days=False), moments())
def test_rare_days_of_ten_years_are_those_of_the_oracle(meaning: Meaning, moment: tuple[str, datetime]) -> None:
    """INV-C3: leap days, ends of months and years, nth weekdays."""
    zone, near = moment
    over_years(meaning, zone, near.replace(hour=0, minute=0))
    over_years(meaning, zone, near.replace(hour=0, minute=0), hour="*/12")


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@LONG
@given(expressions(), expressions(seconds=True), expressions(likely_days=False), moments())
def test_the_same_for_long(minutes: Meaning, seconds: Meaning, rare: Meaning, moment: tuple[str, datetime]) -> None:
    """INV-C3, incident 27."""
    by_minutes(minutes, moment)
    by_seconds(seconds, moment)
    over_years(rare, moment[0], moment[1].replace(hour=0, minute=0))
    over_years(rare, moment[0], moment[1].replace(hour=0, minute=0), hour="*/12")


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("zone", ZONES)
@settings(SAMPLE, max_examples=2)
@given(meaning=expressions())
def test_every_minute_of_ten_years(zone: str, meaning: Meaning) -> None:
    """INV-C3, incident 27: no window, all of it. What is due very often is only counted."""
    schedule = read(meaning, zone)
    expected = enumerate_ticks(meaning, ZoneInfo(zone), START, END, 60)
    assert schedule.count(START, END) == len(expected)
    few = 20_000
    assert list(islice(schedule.between(START, END), few)) == expected[:few]
    assert [schedule.previous(later) for later in expected[1:few]] == expected[: few - 1][: len(expected) - 1]
