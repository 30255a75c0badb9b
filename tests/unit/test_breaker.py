"""Breaker: opens after failures in a row, lets one through after the reset, closes on a success."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import ConfigurationError
from coterie.kernel.retry import Breaker, BreakerState, Phase

SECOND_NS = 1_000_000_000
POLICY = Breaker(failures=3, reset="10s")


def opened(at_ns: int = 0) -> BreakerState:
    state = BreakerState(POLICY)
    for _ in range(3):
        state = state.failed(at_ns)
    return state


def test_a_new_breaker_is_closed() -> None:
    assert BreakerState(POLICY).phase(0) is Phase.CLOSED
    assert BreakerState(POLICY).allows(0)


def test_it_opens_at_the_nth_failure_in_a_row() -> None:
    state = BreakerState(POLICY).failed(0).failed(0)
    assert state.phase(0) is Phase.CLOSED
    assert state.failed(0).phase(0) is Phase.OPEN
    assert not state.failed(0).allows(0)


def test_a_success_in_between_starts_the_count_anew() -> None:
    state = BreakerState(POLICY).failed(0).failed(0).succeeded().failed(0).failed(0)
    assert state.allows(0)


def test_after_the_reset_exactly_one_try_gets_through() -> None:
    state = opened()
    assert not state.allows(10 * SECOND_NS - 1)
    assert state.phase(10 * SECOND_NS) is Phase.HALF_OPEN
    state = state.tried(10 * SECOND_NS)
    assert not state.allows(10 * SECOND_NS)


def test_the_one_that_got_through_closes_it_by_success() -> None:
    state = opened().tried(10 * SECOND_NS).succeeded()
    assert state == BreakerState(POLICY)


def test_the_one_that_got_through_opens_it_again_by_failure() -> None:
    state = opened().tried(10 * SECOND_NS).failed(14 * SECOND_NS)
    assert not state.allows(24 * SECOND_NS - 1)
    assert state.allows(24 * SECOND_NS)


def test_one_that_is_never_heard_of_again_does_not_keep_it_open_for_ever() -> None:
    state = opened().tried(10 * SECOND_NS)
    assert state.allows(20 * SECOND_NS)


def test_tries_leave_a_closed_breaker_alone() -> None:
    state = BreakerState(POLICY).failed(0)
    assert state.tried(5) is state


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["try", "fail", "succeed"]), st.integers(0, 15)), max_size=60))
def test_it_never_lets_two_through_within_the_reset_without_a_success(events: list[tuple[str, int]]) -> None:
    state, now_ns = BreakerState(POLICY), 0
    quiet_from_ns: int | None = None  # the last failure or try while not closed
    for event, seconds in events:
        now_ns += seconds * SECOND_NS
        if event == "succeed":
            state, quiet_from_ns = state.succeeded(), None
        elif event == "fail":
            state = state.failed(now_ns)
            quiet_from_ns = now_ns if state.phase(now_ns) is not Phase.CLOSED else None
        elif state.allows(now_ns):
            assert quiet_from_ns is None or now_ns - quiet_from_ns >= 10 * SECOND_NS
            state = state.tried(now_ns)
            quiet_from_ns = now_ns if quiet_from_ns is not None else None
        else:
            assert quiet_from_ns is not None
            assert now_ns - quiet_from_ns < 10 * SECOND_NS


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"failures": 0}, "failures of Breaker is 0: it must be a whole number from 1 on"),
        ({"reset": "0s"}, 'reset of Breaker is "0s": it must be longer than zero'),
        ({"reset": "60"}, 'reset of Breaker is "60": a duration needs a unit'),
    ],
)
def test_a_breaker_that_makes_no_sense_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Breaker(**options)
    assert caught.value.message == problem
