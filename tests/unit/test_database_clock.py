"""The database's clock, as it is known in a process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kernel.clock import Dial

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Steady:
    """A steady time that a test sets."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def noon(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def dial(first: datetime = NOON) -> tuple[Steady, Dial]:
    time = Steady()
    return time, Dial(time, first.timestamp())


def shows(dial: Dial) -> float:
    return round((dial.now() - NOON).total_seconds(), 6)


def test_until_the_first_answer_it_believes_what_it_was_told() -> None:
    time, found = dial(noon(5))
    assert shows(found) == 5
    time.now_s += 2.5
    assert shows(found) == 7.5
    assert found.until_s(noon(10)) == pytest.approx(2.5)


@pytest.mark.parametrize("off_s", [-300, 300])
def test_the_first_answer_counts_whatever_was_believed(off_s: float) -> None:
    """A wall clock that is off by minutes."""
    _, found = dial(noon(off_s))
    found.observe(NOON)
    assert shows(found) == 0


def test_a_slower_answer_says_less_and_does_not_count() -> None:
    time, found = dial()
    found.observe(noon(0))
    time.now_s += 10
    found.observe(noon(9.7))  # it took 0.3 s longer than the first
    assert shows(found) == 10
    found.observe(noon(10.1))  # and this one arrived faster
    assert shows(found) == 10.1


def test_after_a_while_what_was_heard_last_counts() -> None:
    """A clock that goes slower than ours, or was set back a bit, is followed."""
    time, found = dial()
    found.observe(noon(0))
    time.now_s += 30
    found.observe(noon(29))
    assert shows(found) == 30
    time.now_s += 0.5
    found.observe(noon(29.5))
    assert shows(found) == 29.5


def test_an_answer_that_is_older_than_its_question_tells_of_a_clock_that_was_set_back() -> None:
    """Unlike a slow answer, which says less as well."""
    time, found = dial()
    found.observe(noon(0))
    asked = found.now()
    time.now_s += 3
    found.observe(noon(0.5), asked=asked)  # it took 2.5 s to arrive
    assert shows(found) == 3
    asked = found.now()
    time.now_s += 1
    found.observe(noon(-6), asked=asked)
    assert shows(found) == -6


def test_a_correction_counts_at_once() -> None:
    time, found = dial()
    found.observe(noon(0))
    time.now_s += 5
    found.correct(noon(-60))
    assert shows(found) == -60
    assert found.until_s(noon(-50)) == pytest.approx(10)
    assert found.until_s(noon(-70)) == pytest.approx(-10)


answers = st.lists(st.tuples(st.floats(0, 9), st.floats(0, 0.5)), min_size=1, max_size=20)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(answers)
def test_it_is_never_ahead_and_in_a_short_time_as_good_as_the_fastest_answer(
    answers: list[tuple[float, float]],
) -> None:
    """So nobody asks for a tick before it is due."""
    time, found = dial(noon(300))
    begin, fastest_s = time.now_s, 1.0
    for passed_s, took_s in answers:
        time.now_s += passed_s + took_s
        found.observe(noon(time.now_s - begin - took_s))  # read then, here now
        fastest_s = min(fastest_s, took_s)
        behind_s = time.now_s - begin - (found.now() - NOON).total_seconds()
        assert -1e-5 <= behind_s <= 0.5 + 1e-5
        if time.now_s - begin < 30:
            assert behind_s == pytest.approx(fastest_s, abs=1e-5)
