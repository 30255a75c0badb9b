"""Schedules by example: forms, the rule of days, and what happens where clocks change (C1, LORE of zones)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.cron.schedule import Schedule
from coterie.errors import ScheduleError

ZURICH = "Europe/Zurich"


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def shown(schedule: Schedule, start: str, count: int) -> list[str]:
    """The first ticks after a day began in UTC, by the clocks of the zone."""
    ticks = islice(schedule.between(instant(start), instant("2100-01-01")), count)
    return [f"{tick.astimezone(ZoneInfo(schedule.timezone)):%d %H:%M %Z}" for tick in ticks]


@pytest.mark.parametrize(
    ("expression", "timezone", "start", "expected"),
    [
        # Clocks go from 02:00 to 03:00 on 29 March, and from 03:00 to 02:00 on 25 October.
        ("30 2 * * *", ZURICH, "2026-03-28", ["28 02:30 CET", "29 03:00 CEST", "30 02:30 CEST"]),
        ("30 2 * * *", ZURICH, "2026-10-24", ["24 02:30 CEST", "25 02:30 CEST", "26 02:30 CET"]),
        ("0 30 2 * * *", ZURICH, "2026-03-28", ["28 02:30 CET", "29 03:00 CEST", "30 02:30 CEST"]),
        ("0 30 2 * * *", ZURICH, "2026-10-24", ["24 02:30 CEST", "25 02:30 CEST", "26 02:30 CET"]),
        ("0,20,40 2 * * *", ZURICH, "2026-03-29", ["29 03:00 CEST", "30 02:00 CEST", "30 02:20 CEST"]),
        ("*/20 2 * * *", ZURICH, "2026-03-29", ["29 03:00 CEST", "30 02:00 CEST", "30 02:20 CEST"]),
        ("0 2,3 * * *", ZURICH, "2026-03-29", ["29 03:00 CEST", "30 02:00 CEST", "30 03:00 CEST"]),
        ("0 * * * *", ZURICH, "2026-03-29", ["29 01:00 CET", "29 03:00 CEST", "29 04:00 CEST"]),
        ("0 * * * *", ZURICH, "2026-10-25", ["25 02:00 CEST", "25 02:00 CET", "25 03:00 CET"]),
        ("*/30 * * * *", ZURICH, "2026-10-25", ["25 02:00 CEST", "25 02:30 CEST", "25 02:00 CET", "25 02:30 CET"]),
        ("30 */2 * * *", ZURICH, "2026-03-28T23:00", ["29 00:30 CET", "29 04:30 CEST"]),
        # Clocks go by half an hour: from 02:00 to 02:30 on 4 October, back to 01:30 on 5 April.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03", ["04 02:30 +11", "05 02:15 +11"]),
        (
            "*/15 * * * *",
            "Australia/Lord_Howe",
            "2026-10-03T15:00",
            ["04 01:30 +1030", "04 01:45 +1030", "04 02:30 +11"],
        ),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T14:00", ["05 01:45 +11", "06 01:45 +1030"]),
        ("*/15 * * * *", "Australia/Lord_Howe", "2026-04-04T14:30", ["05 01:30 +11", "05 01:45 +11", "05 01:30 +1030"]),
        # Midnight does not exist on 6 September; on 4 April clocks go back from 24:00 to 23:00.
        ("0 0 * * *", "America/Santiago", "2026-09-06", ["06 01:00 -03", "07 00:00 -03"]),
        ("*/30 0 * * *", "America/Santiago", "2026-09-06", ["06 01:00 -03", "07 00:00 -03", "07 00:30 -03"]),
        ("30 23 * * *", "America/Santiago", "2026-04-04T12:00", ["04 23:30 -03", "05 23:30 -04"]),
        # By two hours: 01:00 to 03:00 on 29 March.
        ("0,30 1,2 * * *", "Antarctica/Troll", "2026-03-29", ["29 03:00 +02", "30 01:00 +02"]),
        # A whole day was left out: 30 December 2011.
        ("0 12 * * *", "Pacific/Apia", "2011-12-29T20:00", ["29 12:00 -10", "31 00:00 +14", "31 12:00 +14"]),
        ("0 */12 * * *", "Pacific/Apia", "2011-12-29T20:00", ["29 12:00 -10", "31 00:00 +14", "31 12:00 +14"]),
        # No changes, half an hour off.
        ("0 3 * * *", "Asia/Kolkata", "2026-03-01", ["02 03:00 IST", "03 03:00 IST"]),
        ("45 2 * * *", "Pacific/Chatham", "2026-09-25T20:00", ["27 03:45 +1345", "28 02:45 +1345"]),
    ],
)
def test_where_clocks_change_named_times_run_once_and_others_follow_real_time(
    expression: str, timezone: str, start: str, expected: list[str]
) -> None:
    """Incident 27."""
    schedule = Schedule(expression, timezone=timezone)
    assert shown(schedule, start, len(expected)) == expected
    ticks = list(islice(schedule.between(instant(start), instant("2100-01-01")), len(expected)))
    assert [schedule.previous(later) for later in ticks[1:]] == ticks[:-1]


def test_in_the_second_half_of_an_overlap_a_named_time_is_over() -> None:
    """Incident 27: 02:30 has run at 00:30 UTC, and it is 02:10 again."""
    schedule = Schedule("30 2 * * *", timezone=ZURICH)
    again = instant("2026-10-25T01:10")
    assert schedule.next_after(again) == instant("2026-10-26T01:30")
    assert schedule.previous(again) == instant("2026-10-25T00:30")
    assert not schedule.matches(instant("2026-10-25T01:30"))
    assert schedule.count(instant("2026-10-25T01:00"), instant("2026-10-25T02:00")) == 0


@pytest.mark.parametrize(
    ("shorthand", "same"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * SUN"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 JAN *"),
        ("@annually", "0 0 1 JAN *"),
        ("@Daily", "0 0 * * *"),
        ("0 3 * * FRI-SUN", "0 3 * * 5,6,7"),
        ("0 3 * * 0-3", "0 3 * * SUN,MON,TUE,WED"),
        ("0 3 * * 1/2", "0 3 * * 1,3,5,0"),
        ("0 3 * * 5-5/2", "0 3 * * 5"),
        ("0 0 3 * * *", "0 3 * * *"),
        ("\t00  03 * *\n*", "0 3 * * *"),
    ],
)
def test_forms_that_mean_the_same(shorthand: str, same: str) -> None:
    first, second = Schedule(shorthand, timezone=ZURICH), Schedule(same, timezone=ZURICH)
    begin, end = instant("2024-02-20"), instant("2024-04-10")
    assert list(first.between(begin, end)) == list(second.between(begin, end))
    assert first.explain() == second.explain()


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        ("0 0 13 * FRI", [2, 9, 13, 16, 23, 30]),  # both name days: one suffices
        ("0 0 * * FRI", [2, 9, 16, 23, 30]),
        ("0 0 */2 * FRI", [9, 23]),  # one begins with a star: both count
        ("0 0 13-20 * */5", [16, 18]),
    ],
)
def test_the_rule_of_the_two_day_fields(expression: str, days: list[int]) -> None:
    ticks = Schedule(expression).between(instant("2026-01-01"), instant("2026-02-01"))
    assert [tick.day for tick in ticks] == days


def test_an_interval_is_counted_from_1970_and_does_not_look_at_clocks() -> None:
    schedule = Schedule("@every 90s", timezone=ZURICH)
    ticks = list(schedule.between(instant("2026-03-29T00:59"), instant("2026-03-29T01:05")))
    assert [f"{tick:%H:%M:%S}" for tick in ticks] == ["01:00:00", "01:01:30", "01:03:00", "01:04:30"]
    assert all(tick.timestamp() % 90 == 0 for tick in ticks)
    assert schedule.explain() == "every 90 seconds"


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.integers(1, 100_000),
    st.timedeltas(timedelta(days=-3650), timedelta(days=36500)).map(lambda since: instant("1970-01-01") + since),
    st.timedeltas(timedelta(), timedelta(seconds=1000)),
)
def test_an_interval_is_the_multiples_of_its_length(every_s: int, start: datetime, length: timedelta) -> None:
    schedule = Schedule(f"@every {every_s}s")
    following, before = schedule.next_after(start), schedule.previous(start)
    assert before < start < following
    assert before.timestamp() % every_s == following.timestamp() % every_s == 0
    is_tick = start.timestamp() % every_s == 0
    assert following - before == timedelta(seconds=every_s) * (1 + is_tick)
    assert schedule.count(start, start + length) == len(list(schedule.between(start, start + length)))


def test_an_instant_matches_if_its_second_is_a_tick() -> None:
    schedule = Schedule("30 2 * * *", timezone=ZURICH)
    assert schedule.matches(instant("2026-03-01T01:30:00.9"))
    assert not schedule.matches(instant("2026-03-01T01:30:01"))
    assert schedule.matches(instant("2026-03-29T01:00"))
    assert schedule.matches(datetime(2026, 3, 1, 2, 30, tzinfo=ZoneInfo(ZURICH)))


def test_next_and_previous_are_never_the_instant_itself() -> None:
    schedule = Schedule("0 3 * * *")
    tick = instant("2026-03-01T03:00")
    assert schedule.next_after(tick) == instant("2026-03-02T03:00")
    assert schedule.previous(tick) == instant("2026-02-28T03:00")
    assert schedule.next_after(tick - timedelta(microseconds=1)) == tick
    assert schedule.previous(tick + timedelta(microseconds=1)) == tick
    assert list(schedule.between(tick, tick)) == []
    assert list(schedule.between(tick, tick + timedelta(microseconds=1))) == [tick]


def test_a_rare_date_is_found_over_the_year_2100_which_has_no_leap_day() -> None:
    """29 February on a Saturday: 2076 and 2116, with 40 years between."""
    schedule = Schedule("0 0 */28 2 SAT#5", timezone=ZURICH)
    first = schedule.next_after(instant("2076-06-01"))
    assert f"{first:%Y-%m-%d}" == "2116-02-28"  # midnight in Zurich is the day before in UTC
    assert f"{schedule.previous(first):%Y-%m-%d}" == "2076-02-28"


def test_an_instant_without_zone_is_refused() -> None:
    naive = instant("2026-03-01").replace(tzinfo=None)
    schedule = Schedule("0 3 * * *")
    for ask in (schedule.next_after, schedule.previous, schedule.matches):
        with pytest.raises(ValueError, match="naive"):
            ask(naive)


def test_beyond_the_calendar_of_python_there_is_an_error_and_no_endless_search() -> None:
    """Incident 27."""
    for expression in ("0 3 * * *", "*/5 * * * *", "0 0 29 2 *", "@every 90s"):
        schedule = Schedule(expression, timezone=ZURICH)
        with pytest.raises(OverflowError):
            schedule.next_after(datetime.max.replace(tzinfo=UTC))
        with pytest.raises(OverflowError):
            schedule.previous(datetime.min.replace(tzinfo=UTC))


@pytest.mark.parametrize(
    "name",
    ["Europe/Zuerich", "../UTC", "/etc/passwd", "", "America", "\0", "x" * 10_000, "😀"],
    ids=["misspelt", "path", "file", "empty", "folder", "nul", "long", "emoji"],
)
def test_a_zone_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(ScheduleError, match="needs a time zone that exists") as caught:
        Schedule("0 3 * * *", timezone=name)
    assert caught.value.hint
    assert caught.value.pointer == ""


def test_utc_needs_no_tz_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small systems have none."""
    monkeypatch.setattr("coterie.cron.calendar.ZoneInfo", lambda name: {}[name])
    monkeypatch.setattr("coterie.cron.calendar.available_timezones", set)
    assert Schedule("0 3 * * *").next_after(instant("2026-03-01")) == instant("2026-03-01T03:00")
    with pytest.raises(ScheduleError, match="install its tzdata"):
        Schedule("0 3 * * *", timezone=ZURICH)
