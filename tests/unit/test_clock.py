"""Clocks: two in one, driven by tests, exact to the microsecond [H6]."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kernel.clock import SystemClock, to_datetime, to_ns
from tests.support.manual_clock import ManualClock

START_AT = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_manual_clock_stands_still_until_it_is_told_to_move_h6() -> None:
    clock = ManualClock(START_AT)
    assert (clock.wall_ns(), clock.steady_ns()) == (clock.wall_ns(), clock.steady_ns())
    clock.advance(timedelta(seconds=1.5))
    assert to_datetime(clock.wall_ns()) == START_AT + timedelta(seconds=1.5)
    assert clock.steady_ns() == 1_500_000_000


def test_the_wall_may_step_back_while_the_steady_clock_does_not_move_m13() -> None:
    clock = ManualClock(START_AT)
    clock.step_wall(timedelta(hours=-1))
    assert to_datetime(clock.wall_ns()) == START_AT - timedelta(hours=1)
    assert clock.steady_ns() == 0


def test_time_does_not_pass_backwards() -> None:
    with pytest.raises(ValueError, match=r"step_wall\(\)"):
        ManualClock(START_AT).advance(timedelta(microseconds=-1))


def test_the_system_clock_tells_todays_time_and_a_steady_one_that_never_goes_back() -> None:
    clock = SystemClock()
    assert abs(to_datetime(clock.wall_ns()) - datetime.now(UTC)) < timedelta(minutes=1)
    readings = [clock.steady_ns() for _ in range(1000)]
    assert readings == sorted(readings)


@settings(deadline=None)
@given(st.datetimes(timezones=st.timezones()))
def test_an_instant_survives_the_way_to_nanoseconds_and_back(instant: datetime) -> None:
    assert to_datetime(to_ns(instant.astimezone(UTC))) == instant.astimezone(UTC)


def test_the_zone_of_an_instant_does_not_matter() -> None:
    assert to_ns(START_AT.astimezone(timezone(timedelta(hours=5)))) == to_ns(START_AT)


def test_an_instant_without_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="naive"):
        to_ns(datetime(2026, 1, 1))  # noqa: DTZ001
