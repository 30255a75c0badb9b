"""What happens to ticks that are due: run, skipped with a reason, waiting; each exactly once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.cron.decide import (
    CronProgress,
    Decision,
    PauseSpan,
    RunTick,
    SkipTicks,
    TickPolicy,
    decide,
    goes_on,
    is_too_old,
    jitter_of,
)
from coterie.cron.schedule import Schedule
from coterie.kernel.retry import Breaker

if TYPE_CHECKING:
    from coterie.cron.decide import CatchUp, Reason

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
EACH_SECOND = Schedule("@every 1s")
SECOND = timedelta(seconds=1)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def known(
    *, last: float | None = 0, held: float = 0, busy: bool = False, pauses: tuple[PauseSpan, ...] = ()
) -> CronProgress:
    return CronProgress(BEGIN, at(held), None if last is None else at(last), pauses, busy)


def look(policy: TickPolicy, known: CronProgress, now: float, schedule: Schedule = EACH_SECOND) -> Decision:
    return decide(schedule, policy, known, at(now))


def runs(*seconds: int) -> tuple[RunTick, ...]:
    return tuple(RunTick(at(each)) for each in seconds)


def skip(first: int, last: int, reason: Reason, count: int | None = None) -> SkipTicks:
    return SkipTicks(at(first), at(last), last - first + 1 if count is None else count, reason)


def test_a_tick_runs_when_it_is_due_and_not_before() -> None:
    """The rest of a second does not matter, and the next look is at the next tick."""
    assert look(TickPolicy(), known(), 0.999) == Decision((), None, at(1))
    assert look(TickPolicy(), known(), 1) == Decision(runs(1), None, at(2))
    assert look(TickPolicy(), known(last=1), 1.5) == Decision((), None, at(2))


def test_ticks_from_before_the_definition_took_effect_are_not_its_ticks() -> None:
    """M8: 02:00 was not missed by a schedule that was deployed at 02:30."""
    nightly = Schedule("0 2 * * *")
    deployed = datetime(2026, 3, 2, 2, 30, tzinfo=UTC)
    state = CronProgress(deployed, deployed, last=datetime(2026, 3, 1, 3, tzinfo=UTC))
    decision = decide(nightly, TickPolicy(catch_up="all"), state, deployed + SECOND)
    assert decision == Decision((), None, datetime(2026, 3, 3, 2, tzinfo=UTC))


def test_a_tick_at_the_very_instant_at_which_the_definition_took_effect_is_one() -> None:
    assert look(TickPolicy(), known(last=None), 0).verdicts == runs(0)


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("latest", (skip(1, 999, "superseded"), *runs(1000))),
        ("all", (skip(1, 900, "superseded"), *runs(*range(901, 1001)))),
        ("none", (skip(1, 1000, "stale"),)),
    ],
)
def test_of_a_thousand_missed_ticks_a_bounded_number_runs_in_order(catch_up: CatchUp, expected: object) -> None:
    """INV-C4, INV-C2, incidents 24 and 25: and the next tick is on time."""
    decision = look(TickPolicy(catch_up=catch_up), known(held=1000.5), 1000.5)
    assert decision.verdicts == expected
    assert decision.decide_at == at(1001)
    assert look(TickPolicy(catch_up=catch_up), known(last=1000, held=1000.5), 1001).verdicts == runs(1001)


def test_a_week_of_missed_seconds_is_one_row_and_costs_no_walk() -> None:
    """M9: 604,800 ticks."""
    week = 7 * 86_400
    fields = Schedule("* * * * * *", timezone="Europe/Zurich")
    for schedule in (EACH_SECOND, fields):
        decision = look(TickPolicy(catch_up="none", skip_if_older_than=None), known(held=week), week, schedule)
        assert decision.verdicts == (skip(1, week, "stale"),)


def test_ticks_that_are_too_old_are_skipped_and_the_rest_is_caught_up_with() -> None:
    policy = TickPolicy(catch_up="all", skip_if_older_than=timedelta(seconds=3))
    assert look(policy, known(held=10), 10).verdicts == (skip(1, 6, "stale"), *runs(7, 8, 9, 10))
    assert look(policy, known(held=10), 10.5).verdicts == (skip(1, 7, "stale"), *runs(8, 9, 10))


def test_the_longest_age_there_is_lets_every_tick_run() -> None:
    assert look(TickPolicy(catch_up="all", skip_if_older_than=timedelta.max), known(held=2), 2).verdicts == runs(1, 2)


def test_what_passed_while_we_held_the_seat_is_not_missed() -> None:
    """C4: from the clock the newest runs, from the previous tick each of them."""
    assert look(TickPolicy(catch_up="none"), known(), 3).verdicts == (skip(1, 2, "superseded"), *runs(3))
    assert look(TickPolicy(catch_up="none", from_previous=True), known(), 3).verdicts == runs(1, 2, 3)
    mixed = look(TickPolicy(catch_up="none", from_previous=True), known(held=2), 4)
    assert mixed.verdicts == (skip(1, 2, "stale"), *runs(3, 4))
    latest = look(TickPolicy(catch_up="latest", from_previous=True), known(held=2), 4)
    assert latest.verdicts == (skip(1, 2, "superseded"), *runs(3, 4))


def test_from_previous_a_late_run_is_followed_by_the_next_instant_and_from_now_by_the_newest() -> None:
    """CRON-02: the first run is blocked for 3.2 seconds."""
    queue = TickPolicy(overlap="queue")
    from_now = look(queue, known(last=1, busy=True), 4.2)
    assert (from_now.verdicts, from_now.waiting) == ((skip(2, 3, "superseded"),), at(4))
    assert look(queue, known(last=3), 4.2).verdicts == runs(4)

    queue = TickPolicy(overlap="queue", from_previous=True)
    blocked = look(queue, known(last=1, busy=True), 4.2)
    assert (blocked.verdicts, blocked.waiting) == ((), at(2))
    for tick in (2, 3, 4):
        free = look(queue, known(last=tick - 1), 4.2)
        assert (free.verdicts, free.waiting) == (runs(tick), at(tick + 1) if tick < 4 else None)


def test_with_overlap_skip_what_comes_during_a_run_is_skipped() -> None:
    policy = TickPolicy(overlap="skip")
    assert look(policy, known(last=1, busy=True), 4).verdicts == (skip(2, 4, "overlapping"),)
    assert look(policy, known(last=4), 5).verdicts == runs(5)


def test_with_overlap_skip_what_was_missed_waits_for_its_turn() -> None:
    """Also when what goes on is a run of the former holder that was resumed."""
    policy = TickPolicy(overlap="skip", catch_up="all")
    decision = look(policy, known(last=1, held=4, busy=True), 5)
    assert (decision.verdicts, decision.waiting) == ((), at(2))
    decision = look(policy, known(last=1, held=4), 5)
    assert (decision.verdicts, decision.waiting) == (runs(2), at(3))


def test_with_overlap_allow_runs_do_not_wait_for_each_other() -> None:
    assert look(TickPolicy(catch_up="all"), known(busy=True), 3).verdicts == runs(1, 2, 3)


def test_ticks_of_a_pause_are_one_span_when_it_has_ended() -> None:
    """M9, C7."""
    ended = known(pauses=(PauseSpan(at(2), at(5)), PauseSpan(at(5), at(6)), PauseSpan(at(8), at(9))), held=10)
    assert look(TickPolicy(catch_up="all"), ended, 10).verdicts == (
        *runs(1),
        skip(2, 5, "paused"),
        *runs(6, 7),
        skip(8, 8, "paused"),
        *runs(9, 10),
    )


def test_while_a_cron_is_paused_nothing_begins_and_its_ticks_are_left_for_the_end_of_the_pause() -> None:
    """Neither what was missed before the pause, nor what waited for a run to end."""
    paused = known(pauses=(PauseSpan(at(4)),), held=10)
    assert look(TickPolicy(catch_up="all"), paused, 10).verdicts == (skip(1, 3, "paused"),)
    assert look(TickPolicy(catch_up="all"), replace(paused, last=at(3)), 20) == Decision((), None, at(21))


def test_a_pause_counts_for_ticks_that_are_too_old_as_well() -> None:
    policy = TickPolicy(skip_if_older_than=SECOND)
    paused = known(pauses=(PauseSpan(at(3), at(5)),))
    assert look(policy, paused, 9).verdicts == (
        skip(1, 2, "stale"),
        skip(3, 4, "paused"),
        skip(5, 7, "stale"),
        skip(8, 8, "superseded"),
        *runs(9),
    )


def test_c6_while_a_breaker_is_open_ticks_are_skipped_and_then_one_gets_through() -> None:
    """It opened with the third failure, at 3.5, and stays so for ten seconds."""
    policy = TickPolicy(breaker=Breaker(failures=3, reset="10s"))
    closed = replace(known(last=3), failures=2, failed_at=at(3.5))
    assert look(policy, closed, 4).verdicts == runs(4)
    opened = replace(closed, failures=3)
    assert look(policy, opened, 4).verdicts == (skip(4, 4, "breaker"),)
    assert look(policy, opened, 13).verdicts == (skip(4, 13, "breaker"),)
    assert look(policy, opened, 14).verdicts == (skip(4, 13, "breaker"), *runs(14))
    assert look(policy, replace(opened, last=at(13)), 14).verdicts == runs(14)
    assert look(policy, replace(opened, failures=4, failed_at=at(14.2), last=at(14)), 24).verdicts == (
        skip(15, 24, "breaker"),
    )
    assert look(TickPolicy(), opened, 4).verdicts == runs(4), "without a breaker failures do not count"
    assert look(policy, replace(opened, failed_at=None), 4).verdicts == runs(4)


def test_c6_a_tick_at_the_very_instant_at_which_a_breaker_closes_runs() -> None:
    policy = TickPolicy(breaker=Breaker(failures=1, reset="10s"))
    opened = replace(known(last=3), failures=1, failed_at=at(3))
    assert look(policy, opened, 13).verdicts == (skip(4, 12, "breaker"), *runs(13))


def test_c6_with_jitter_a_breaker_counts_for_when_ticks_are_due() -> None:
    policy = TickPolicy(breaker=Breaker(failures=1, reset="10s"), delay=timedelta(seconds=0.4))
    opened = replace(known(last=3), failures=1, failed_at=at(3.3))
    assert look(policy, opened, 13.4).verdicts == (skip(4, 12, "breaker"), *runs(13))
    opened = replace(opened, failed_at=at(3.5))
    assert look(policy, opened, 13.4).verdicts == (skip(4, 13, "breaker"),)


def test_c6_a_breaker_across_a_takeover_and_what_was_missed_after_it() -> None:
    """catch_up counts for the ticks that the breaker would have let through; the first of them is the try."""
    policy = TickPolicy(breaker=Breaker(failures=3, reset="10s"), catch_up="all")
    opened = replace(known(last=3, held=16), failures=3, failed_at=at(3.5))
    tried = look(policy, opened, 16)
    assert (tried.verdicts, tried.waiting) == ((skip(4, 13, "breaker"), *runs(14)), at(15))
    assert look(policy, replace(opened, last=at(14), failures=0), 16).verdicts == runs(15, 16)
    stale = replace(policy, skip_if_older_than=SECOND)
    assert look(stale, opened, 16).verdicts == (skip(4, 14, "stale"), *runs(15))


def test_c6_while_the_one_that_a_breaker_let_through_goes_on_no_other_begins() -> None:
    """Also with overlap="allow": a job that takes long to fail would be tried at each tick."""
    policy = TickPolicy(breaker=Breaker(failures=3, reset="10s"))
    opened = replace(known(last=14, busy=True), failures=3, failed_at=at(3.5))
    assert look(policy, opened, 15) == Decision((), at(15), at(16))
    assert look(policy, opened, 17).verdicts == (skip(15, 16, "superseded"),)
    assert look(policy, replace(opened, busy=False, failures=0), 17).verdicts == (skip(15, 16, "superseded"), *runs(17))


def test_c6_a_pause_comes_before_a_breaker() -> None:
    policy = TickPolicy(breaker=Breaker(failures=1, reset="10s"))
    opened = replace(known(last=3, pauses=(PauseSpan(at(5), at(7)),)), failures=1, failed_at=at(3.5))
    assert look(policy, opened, 8).verdicts == (skip(4, 4, "breaker"), skip(5, 6, "paused"), skip(7, 8, "breaker"))


def test_jitter_delays_when_a_tick_is_due_and_nothing_else() -> None:
    """The instant stays the schedule's; age, pauses and the seat count from when it is due."""
    policy = TickPolicy(delay=timedelta(seconds=0.4), skip_if_older_than=timedelta(seconds=2))
    assert look(policy, known(), 1.3) == Decision((), None, at(1.4))
    assert look(policy, known(), 1.4) == Decision(runs(1), None, at(2.4))
    assert look(policy, known(), 3.4).verdicts == (skip(1, 2, "superseded"), *runs(3))
    assert look(policy, known(), 3.5).verdicts == (skip(1, 1, "stale"), skip(2, 2, "superseded"), *runs(3))
    assert look(policy, known(pauses=(PauseSpan(at(1.2), at(1.5)),)), 1.5).verdicts == (skip(1, 1, "paused"),)
    assert look(replace(policy, catch_up="none"), known(held=1.3), 1.4).verdicts == runs(1)


def test_jitter_is_stable_by_name_and_spread_over_it() -> None:
    minute = timedelta(minutes=1)
    assert jitter_of("nightly", minute) == timedelta(seconds=22.472671)
    assert jitter_of("nightly", timedelta()) == timedelta()
    shares = [jitter_of(f"cron-{n}", minute) / minute for n in range(1000)]
    assert 0 <= min(shares) < 0.02
    assert 0.98 < max(shares) < 1
    assert 0.45 < sum(shares) / len(shares) < 0.55


# ── each tick exactly once ──────────────────────────────────────────────────────────────────────────────────────

policies = st.builds(
    TickPolicy,
    skip_if_older_than=st.sampled_from([None, SECOND, timedelta(seconds=7), timedelta(minutes=2)]),
    catch_up=st.sampled_from(["latest", "all", "none"]),
    overlap=st.sampled_from(["allow", "skip", "queue"]),
    from_previous=st.booleans(),
    delay=st.sampled_from([timedelta(), timedelta(seconds=0.25), timedelta(seconds=3)]),
    most=st.integers(1, 5),
    breaker=st.sampled_from([None, Breaker(failures=1, reset="8s"), Breaker(failures=2, reset="1m")]),
)
steps = st.lists(
    st.tuples(
        st.floats(0, 30, allow_nan=False),
        st.sampled_from(["look", "look", "look", "take over", "pause", "resume", "begin", "end", "fail", "succeed"]),
    ),
    max_size=30,
)
schedules = st.sampled_from(["@every 1s", "@every 5s", "*/7 * * * * *", "* * * * *"])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(schedules, policies, steps)
def test_each_tick_gets_exactly_one_verdict_whatever_happens(
    expression: str, policy: TickPolicy, steps: list[tuple[float, str]]
) -> None:
    """INV-C2, INV-C4."""
    schedule = Schedule(expression)
    state, now = known(last=None), 0.0
    told: list[RunTick | SkipTicks] = []
    for elapsed, act in steps:
        now += elapsed
        state = happen(state, act, at(now))
        decision = decide(schedule, policy, state, at(now))
        check(decision, policy, state, at(now))
        told += decision.verdicts
        if told:
            state = replace(state, last=last_of(told[-1]))
    reached = state.last + timedelta(microseconds=1) if state.last else BEGIN
    assert sum(1 if isinstance(each, RunTick) else each.count for each in told) == schedule.count(BEGIN, reached)
    expected = BEGIN - timedelta(microseconds=1)
    for each in told:
        assert schedule.next_after(expected) == first_of(each)
        expected = last_of(each)


def happen(state: CronProgress, act: str, now: datetime) -> CronProgress:
    is_paused = bool(state.pauses) and state.pauses[-1].until is None
    match act:
        case "take over":
            return replace(state, held_since=now)
        case "pause" if not is_paused:
            return replace(state, pauses=(*state.pauses, PauseSpan(now)))
        case "resume" if is_paused:
            return replace(state, pauses=(*state.pauses[:-1], PauseSpan(state.pauses[-1].since, now)))
        case "begin" | "end":
            return replace(state, busy=act == "begin")
        case "fail":
            return replace(state, failures=state.failures + 1, failed_at=now)
        case "succeed":
            return replace(state, failures=0)
        case _:
            return state


def check(decision: Decision, policy: TickPolicy, state: CronProgress, now: datetime) -> None:
    """What holds of every single look."""
    begun = [each for each in decision.verdicts if isinstance(each, RunTick)]
    breaker = policy.breaker
    tripped = breaker is not None and state.failed_at is not None and state.failures >= breaker.failures
    one_at_a_time = policy.overlap != "allow" or tripped
    assert len(begun) <= (policy.most if not one_at_a_time else 0 if state.busy else 1)
    assert decision.decide_at > now
    assert all(each.at + policy.delay <= now for each in begun)
    if policy.skip_if_older_than is not None:
        assert all(now - each.at - policy.delay <= policy.skip_if_older_than for each in begun)
    if state.pauses and state.pauses[-1].until is None:
        assert not begun
    if tripped and breaker is not None and state.failed_at is not None:
        assert all(each.at + policy.delay >= state.failed_at + breaker.reset for each in begun)
    if decision.waiting:
        assert one_at_a_time
        assert begun or state.busy
        assert decision.waiting + policy.delay <= now


def first_of(verdict: RunTick | SkipTicks) -> datetime:
    return verdict.at if isinstance(verdict, RunTick) else verdict.first


def last_of(verdict: RunTick | SkipTicks) -> datetime:
    return verdict.at if isinstance(verdict, RunTick) else verdict.last


@pytest.mark.parametrize(
    ("limit_s", "delay_s", "age_s", "too_old"),
    [
        (10, 0, 10, False),
        (10, 0, 10.000001, True),
        (10, 5, 15, False),
        (10, 5, 15.1, True),
        (None, 0, 1e9, False),
        (10, 0, -5, False),
    ],
)
def test_a_tick_is_too_old_once_it_is_due_for_longer_than_the_limit(
    limit_s: float | None, delay_s: float, age_s: float, too_old: bool
) -> None:
    limit = None if limit_s is None else timedelta(seconds=limit_s)
    policy = TickPolicy(skip_if_older_than=limit, delay=timedelta(seconds=delay_s))
    assert is_too_old(policy, BEGIN, at(age_s)) is too_old


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("has_steps", [False, True])
@pytest.mark.parametrize("late_s", [9, 11])
def test_a_tick_that_was_cut_off_is_skipped_only_if_it_is_too_old_and_nothing_of_it_is_stored(
    manual: bool, has_steps: bool, late_s: float
) -> None:
    policy = TickPolicy(skip_if_older_than=timedelta(seconds=10))
    found = goes_on(policy, BEGIN, manual=manual, has_steps=has_steps, now=at(late_s))
    assert found is (manual or has_steps or late_s < 10)
