"""The dead man's switch, pure (H1): which sign counts, from when, and how long it may be missing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.singletons.heartbeat import Stale, judge
from coterie.storage.contracts.executions import ExecutionRecord
from tests.unit.singletons.fake_storage import NOW

MISSED = 2.0
HEARTBEAT_S = 30.0
SECONDS = st.integers(0, 10**6).map(float)
AGES = st.none() | SECONDS


def execution(
    *,
    known_s: float = 10**6,
    since_s: float = 0,
    ran_s: float | None = None,
    progress_s: float | None = None,
    alive_s: float = 0,
    expected_s: float | None = None,
    **more: Any,
) -> ExecutionRecord:
    """What was said so many seconds ago."""
    return ExecutionRecord(
        seat="singleton:x",
        epoch=1,
        leader="r1",
        known_at=ago(known_s),
        since_at=ago(since_s),
        runs=0,
        ran_at=None if ran_s is None else ago(ran_s),
        progress_at=None if progress_s is None else ago(progress_s),
        alive_at=ago(alive_s),
        error=None,
        error_at=None,
        note="",
        done=None,
        total=None,
        expected_s=expected_s,
        now=NOW,
        **more,
    )


def ago(seconds: float) -> Any:
    return NOW - timedelta(seconds=seconds)


def stale(**ages: Any) -> Stale | None:
    return judge(execution(**ages), heartbeat_s=HEARTBEAT_S, factor=MISSED)


def test_where_nothing_is_expected_being_alive_is_enough() -> None:
    """S10: unhealthy after two missed heartbeats."""
    assert stale(alive_s=60) is None
    assert stale(alive_s=61) == Stale("heartbeat", 61, 30)
    assert stale(alive_s=0, ran_s=10**6, progress_s=10**6) is None


def test_where_progress_is_expected_being_alive_is_not() -> None:
    """Incident 35: the leader lives, and its work stands still."""
    assert stale(expected_s=10, progress_s=20) is None
    assert stale(expected_s=10, progress_s=21) == Stale("progress", 21, 10)


def test_a_takeover_gives_no_grace() -> None:
    """H1: it proves that the leader is alive, not that it made progress."""
    assert stale(expected_s=10, progress_s=21, since_s=0, ran_s=0, alive_s=0) == Stale("progress", 21, 10)


def test_what_never_ran_is_told_as_such_from_the_day_it_was_known() -> None:
    """H2."""
    assert stale(expected_s=10, known_s=20) is None
    assert stale(expected_s=10, known_s=21, since_s=1) == Stale("execution", 21, 10)
    assert stale(expected_s=10, known_s=21, ran_s=3) == Stale("progress", 21, 10), "it ran, and came nowhere"


def test_how_many_may_be_missed_is_a_setting() -> None:
    said = execution(expected_s=10, progress_s=25)
    assert judge(said, heartbeat_s=HEARTBEAT_S, factor=2.0) is not None
    assert judge(said, heartbeat_s=HEARTBEAT_S, factor=3.0) is None


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Stale("progress", 21.4, 10), "no progress for 21s (expected every 10s)"),
        (Stale("heartbeat", 61, 30), "no heartbeat for 61s (expected every 30s)"),
        (Stale("execution", 21, 0.5), "never executed in 21s (expected every 0.5s)"),
    ],
    ids=["progress", "heartbeat", "execution"],
)
def test_it_says_so(found: Stale, text: str) -> None:
    assert str(found) == text


@given(known_s=SECONDS, since_s=SECONDS, ran_s=AGES, progress_s=AGES, alive_s=SECONDS, expected_s=st.none() | SECONDS)
def test_it_is_stale_exactly_if_the_sign_that_counts_is_older_than_twice_its_interval(
    known_s: float,
    since_s: float,
    ran_s: float | None,
    progress_s: float | None,
    alive_s: float,
    expected_s: float | None,
) -> None:
    found = stale(
        known_s=known_s,
        since_s=since_s,
        ran_s=ran_s,
        progress_s=progress_s,
        alive_s=alive_s,
        expected_s=expected_s,
    )
    if expected_s is None:
        age_s, interval_s = alive_s, HEARTBEAT_S
    else:
        age_s, interval_s = known_s if progress_s is None else progress_s, expected_s
    assert (found is not None) == (age_s > MISSED * interval_s)
    if found is not None:
        assert (found.silent_s, found.expected_s) == (age_s, interval_s)


@given(ages=st.fixed_dictionaries(dict.fromkeys(("known_s", "ran_s", "progress_s", "alive_s"), SECONDS)))
def test_more_progress_never_makes_it_worse(ages: dict[str, float]) -> None:
    if stale(expected_s=10, **ages) is None:
        assert stale(expected_s=10, **ages | {"progress_s": ages["progress_s"] / 2}) is None
