"""What a lease keeper sees anyway: how late the loop is, how the database answers, how far the clocks are apart."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from coterie.kernel.clock import to_datetime
from coterie.ownership.runner_health import RunnerHealth
from tests.support.manual_clock import ManualClock

START = datetime(2026, 3, 27, tzinfo=UTC)


def new() -> tuple[RunnerHealth, ManualClock]:
    clock = ManualClock(START)
    return RunnerHealth(clock, silence_s=3.0), clock


def turn(vitals: RunnerHealth, clock: ManualClock, *, late_s: float) -> None:
    """The loop turns so long after it was asked to."""
    asked_ns = clock.steady_ns()
    clock.advance(timedelta(seconds=late_s))
    vitals.turned(asked_ns)


def test_the_lag_is_the_longest_of_the_last_ten_seconds() -> None:
    vitals, clock = new()
    assert vitals.lag_s == 0.0
    turn(vitals, clock, late_s=0.25)
    turn(vitals, clock, late_s=2.0)
    turn(vitals, clock, late_s=0.5)
    assert vitals.lag_s == pytest.approx(2.0)
    clock.advance(timedelta(seconds=9.5))
    assert vitals.lag_s == pytest.approx(2.0)
    clock.advance(timedelta(seconds=0.25))
    assert vitals.lag_s == pytest.approx(0.5)
    clock.advance(timedelta(seconds=10))
    assert vitals.lag_s == 0.0


def test_the_lag_is_remembered_in_a_few_numbers_however_often_the_loop_turns() -> None:
    vitals, clock = new()
    for _ in range(10_000):
        turn(vitals, clock, late_s=0.001)
    assert len(vitals._lags) < 10


def test_what_the_database_took_to_answer_is_told_until_it_is_silent_or_fails() -> None:
    vitals, clock = new()
    assert (vitals.storage_s, vitals.storage_problem) == (None, "")
    sent_ns = clock.steady_ns()
    clock.advance(timedelta(milliseconds=20))
    vitals.answered(sent_ns)
    assert vitals.storage_s == pytest.approx(0.02)
    assert vitals.storage_problem == ""
    vitals.failed("connection refused")
    assert (vitals.storage_s, vitals.storage_problem) == (None, "connection refused")
    vitals.answered(clock.steady_ns())
    assert (vitals.storage_s, vitals.storage_problem) == (0.0, "")
    clock.advance(timedelta(seconds=3))
    assert vitals.storage_problem == ""
    clock.advance(timedelta(seconds=0.4))
    assert (vitals.storage_s, vitals.storage_problem) == (None, "no answer for 3.4s")


@pytest.mark.parametrize("off_s", [0.0, 5.0, -5.0])
def test_the_clock_is_compared_with_the_databases(off_s: float) -> None:
    """Positive: ours is ahead. A clock that is set meanwhile is seen at once."""
    vitals, clock = new()
    assert vitals.clock_offset_s is None
    clock.step_wall(timedelta(seconds=off_s))
    vitals.answered(clock.steady_ns())
    assert vitals.clock_offset_s is None, "an answer without the time"
    vitals.answered(clock.steady_ns(), to_datetime(clock.wall_ns()) - timedelta(seconds=off_s))
    assert vitals.clock_offset_s == pytest.approx(off_s, abs=1e-3)
    clock.advance(timedelta(seconds=5))
    assert vitals.clock_offset_s == pytest.approx(off_s, abs=1e-3)
    clock.step_wall(timedelta(seconds=60))
    assert vitals.clock_offset_s == pytest.approx(off_s + 60, abs=1e-3)
