"""The lease keeper: renews in time, trusts no longer than it may, and gives itself up when the loop is blocked."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coterie.ownership.lease import LeasePolicy, LeaseStep, LeaseTimes

S = 1_000_000_000
MS = 1_000_000
TIMES = LeaseTimes(ttl_ns=6 * S, renew_ns=1 * S, margin_ns=1_500 * MS, stall_ns=8 * S)
TRUST = 4_500 * MS


def kept(sent_ns: int = 0) -> LeasePolicy:
    keeper = LeasePolicy(TIMES)
    keeper.registered(sent_ns)
    return keeper


def drive(keeper: LeasePolicy, *, start_ns: int, end_ns: int, pulse_ns: int | None = None) -> list[tuple[int, str]]:
    """What it asks for and when, with renewals that succeed at once, and a loop that turns always or last at a time."""
    done: list[tuple[int, str]] = []
    now_ns = start_ns
    while now_ns < end_ns:
        step = keeper.step(now_ns, now_ns if pulse_ns is None else pulse_ns)
        if step.action == "renew":
            keeper.renewed(now_ns, now_ns)
        if step.action != "wait":
            done.append((now_ns, step.action))
        now_ns = max(step.wake_ns, now_ns + 1)
    return done


# The lease


def test_nothing_is_done_before_the_registration() -> None:
    keeper = LeasePolicy(TIMES)
    assert keeper.step(100 * S, 0).action == "wait"
    assert (keeper.state, keeper.trusted_until_ns) == ("new", 0)


def test_trust_begins_at_the_moment_before_the_statement_was_sent_INV_F4() -> None:
    keeper = kept(10 * S)
    assert keeper.trusted_until_ns == 10 * S + TRUST
    keeper.renewed(11 * S, 14 * S)
    assert keeper.trusted_until_ns == 11 * S + TRUST


def test_renewals_follow_each_other_by_the_time_between_them() -> None:
    assert [at for at, _ in drive(kept(), start_ns=0, end_ns=4 * S + 1)] == [1 * S, 2 * S, 3 * S, 4 * S]


def test_one_renewal_is_under_way_at_a_time() -> None:
    keeper = kept()
    assert keeper.step(1 * S, 1 * S).action == "renew"
    assert keeper.step(9 * S, 9 * S).action == "wait"


def test_after_a_renewal_that_was_cut_off_another_one_is_asked_for() -> None:
    keeper = asked(1 * S)
    keeper.interrupted(1 * S + 5 * MS)
    step = keeper.step(2 * S, 2 * S)
    assert (keeper.state, step.action) == ("failing", "renew")
    keeper.renewed(2 * S, 2 * S)
    keeper.interrupted(2 * S)
    assert keeper.state == "kept", "none was under way"


def asked(now_ns: int) -> LeasePolicy:
    """One with a renewal under way since then."""
    keeper = kept(now_ns - 1 * S)
    assert keeper.step(now_ns, now_ns).action == "renew"
    return keeper


@pytest.mark.parametrize(("took_ms", "next_ms"), [(100, 1000), (101, 899), (450, 550), (600, 600), (3000, 3000)])
def test_after_a_slow_renewal_the_next_one_starts_early_m6(took_ms: int, next_ms: int) -> None:
    """By as much as it took, so that answers come in time; never more than twice as often as planned."""
    keeper = asked(1 * S)
    keeper.renewed(1 * S, 1 * S + took_ms * MS)
    assert drive(keeper, start_ns=1 * S + took_ms * MS, end_ns=9 * S)[0] == (1 * S + next_ms * MS, "renew")


def fail(keeper: LeasePolicy, now_ns: int) -> int:
    """Let the renewal that is under way fail; when the next one is asked for."""
    keeper.failed(now_ns)
    while (step := keeper.step(now_ns, now_ns)).action != "renew":
        now_ns = step.wake_ns
    return now_ns


def test_a_failed_renewal_is_tried_again_soon_then_more_rarely_never_later_than_planned() -> None:
    keeper, now_ns, pauses = asked(1 * S), 1 * S, []
    for _ in range(8):
        again_ns = fail(keeper, now_ns + 10 * MS)
        pauses.append((again_ns - now_ns) // MS)
        now_ns = again_ns
    assert pauses == [60, 110, 210, 410, 810, 1000, 1000, 1000]
    assert keeper.trusted_until_ns == TRUST


def test_a_renewal_that_took_long_to_fail_is_tried_again_at_once() -> None:
    assert fail(asked(1 * S), 4 * S) == 4 * S


def test_a_session_lost_between_renewals_delays_none() -> None:
    keeper = kept()
    for _ in range(5):
        keeper.failed(990 * MS)
    assert keeper.step(990 * MS, 990 * MS) == LeaseStep("wait", 1 * S)
    assert keeper.state == "failing"


def test_after_failures_one_success_makes_all_well() -> None:
    keeper = asked(1 * S)
    for second in range(2, 5):
        fail(keeper, second * S)
    keeper.renewed(5 * S, 5 * S)
    assert (keeper.state, keeper.trusted_until_ns) == ("kept", 5 * S + TRUST)
    assert keeper.step(6 * S, 6 * S).action == "renew"
    assert fail(keeper, 6 * S) == 6 * S + 50 * MS  # the first pause again


def test_an_evicted_keeper_trusts_nothing_and_does_nothing_any_more() -> None:
    keeper = kept()
    keeper.step(1 * S, 1 * S)
    keeper.evicted()
    keeper.renewed(1 * S, 1 * S)  # an answer that came late
    keeper.failed(2 * S)
    assert (keeper.state, keeper.trusted_until_ns) == ("ended", 0)
    assert drive(keeper, start_ns=2 * S, end_ns=30 * S, pulse_ns=0) == []


# The loop


def test_a_blocked_loop_is_reported_each_second_and_then_given_up_once_M16() -> None:
    keeper = kept()
    done = [(at, action) for at, action in drive(keeper, start_ns=0, end_ns=20 * S, pulse_ns=0) if action != "renew"]
    reports = [at for at, action in done if action == "report_stall"]
    assert [at // S for at in reports] == [1, 2, 3, 4, 5, 6, 7]
    assert done[-1] == (8 * S, "evict_self")
    assert (keeper.state, keeper.trusted_until_ns) == ("ended", 0)


def test_it_is_given_up_at_the_limit_to_the_point_M16() -> None:
    keeper = LeasePolicy(LeaseTimes(ttl_ns=6 * S, renew_ns=1 * S, margin_ns=1_500 * MS, stall_ns=7_345 * MS))
    keeper.registered(0)
    assert drive(keeper, start_ns=0, end_ns=9 * S, pulse_ns=0)[-1] == (7_345 * MS, "evict_self")


def test_the_lease_is_kept_while_the_loop_is_blocked_for_less_than_the_limit() -> None:
    renewals = [at for at, action in drive(kept(), start_ns=0, end_ns=8 * S, pulse_ns=0) if action == "renew"]
    assert [at // S for at in renewals] == [1, 2, 3, 4, 5, 6, 7]


def test_it_is_given_up_also_while_a_renewal_hangs() -> None:
    keeper, now_ns, actions = kept(), 0, []
    while keeper.state != "ended":
        step = keeper.step(now_ns, 0)
        actions.append(step.action)
        now_ns = max(step.wake_ns, now_ns + 1)
    assert now_ns < 10 * S
    assert actions.count("renew") == 1


def test_each_blockage_is_counted_anew() -> None:
    keeper = kept()
    assert "evict_self" not in [action for _, action in drive(keeper, start_ns=0, end_ns=7 * S, pulse_ns=0)]
    done = drive(keeper, start_ns=7 * S, end_ns=16 * S, pulse_ns=7 * S)
    assert [at // S for at, action in done if action == "report_stall"] == [8, 9, 10, 11, 12, 13, 14]
    assert done[-1] == (15 * S, "evict_self")


def test_a_loop_that_is_asked_at_each_step_answers_before_it_is_reported() -> None:
    """The driver asks the loop at each step, and it answers at once: steps must come oftener than reports.

    Also while a renewal hangs, and with a driver that wakes up late.
    """
    keeper, now_ns, pulse_ns, actions = kept(), 0, 0, []
    while now_ns < 20 * S:
        step = keeper.step(now_ns, pulse_ns)
        actions.append(step.action)
        pulse_ns, now_ns = now_ns + MS, step.wake_ns + 20 * MS
    assert set(actions) == {"wait", "renew"}


@settings(deadline=None)
@given(frozen_s=st.integers(10, 10_000), turns_after_ms=st.integers(0, 900))
def test_a_frozen_process_is_not_a_blocked_loop(frozen_s: int, turns_after_ms: int) -> None:
    """After the thaw the keeper may be the first to run: the loop gets time to turn."""
    keeper = kept()
    pulse_ns = 100 * MS
    keeper.step(200 * MS, pulse_ns)
    thaw_ns = frozen_s * S
    done = drive(keeper, start_ns=thaw_ns, end_ns=thaw_ns + turns_after_ms * MS, pulse_ns=pulse_ns)
    done += drive(keeper, start_ns=thaw_ns + turns_after_ms * MS, end_ns=thaw_ns + 3 * S)
    assert {action for _, action in done} <= {"renew", "report_stall"}


def test_a_loop_blocked_before_a_freeze_has_a_second_to_turn_after_it() -> None:
    keeper = kept()
    drive(keeper, start_ns=0, end_ns=7_900 * MS, pulse_ns=0)
    assert drive(keeper, start_ns=60 * S, end_ns=61 * S, pulse_ns=0)[-1][1] != "evict_self"
    assert drive(keeper, start_ns=61 * S, end_ns=62 * S, pulse_ns=0)[-1][1] == "evict_self"


def test_a_loop_that_stays_blocked_after_a_freeze_is_given_up() -> None:
    keeper = kept()
    keeper.step(0, 0)
    done = drive(keeper, start_ns=60 * S, end_ns=80 * S, pulse_ns=0)
    assert done[-1][1] == "evict_self"
    assert done[-1][0] <= 60 * S + TIMES.stall_ns


def test_a_freeze_does_not_forgive_what_comes_after_it() -> None:
    keeper = kept()
    keeper.step(0, 0)
    keeper.step(60 * S, 60 * S - MS)  # the loop was the first to turn, and is blocked from now on
    assert drive(keeper, start_ns=60 * S, end_ns=80 * S, pulse_ns=60 * S - MS)[-1] == (68 * S, "evict_self")


def test_a_keeper_that_is_always_late_still_finds_a_blocked_loop() -> None:
    """C code that holds the interpreter's lock lets us look now and then only: each time is counted a little."""
    keeper, now_ns = kept(), 0
    while keeper.step(now_ns, 0).action != "evict_self":
        now_ns += 2 * S
        assert now_ns < 60 * S


# Properties


@settings(deadline=None)
@given(
    took_ms=st.lists(st.integers(0, 1000), min_size=20, max_size=20),
    late_ms=st.lists(st.integers(0, 20), min_size=200, max_size=200),
)
def test_renewals_are_no_further_apart_than_planned_while_nothing_fails(took_ms: list[int], late_ms: list[int]) -> None:
    """With a driver that wakes up to 20 ms late; a renewal under way is the only reason to be later."""
    keeper, now_ns, sent, answer_ns = kept(), 0, [0], 0
    for late in late_ms:
        if 0 < answer_ns <= now_ns:
            keeper.renewed(sent[-1], now_ns)
            answer_ns = 0
        step = keeper.step(now_ns, now_ns)
        if step.action == "renew":
            assert now_ns - sent[-1] <= 1040 * MS
            sent.append(now_ns)
            answer_ns = now_ns + took_ms[len(sent) % 20] * MS or now_ns
        now_ns = max(min(step.wake_ns, answer_ns or step.wake_ns), now_ns + 1) + late * MS
    assert len(sent) > 10


class Life(RuleBasedStateMachine):
    """Successes, failures, jumps and blockages in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.keeper = LeasePolicy(TIMES)
        self.now_ns = self.pulse_ns = self.wake_ns = 1_000 * S
        self.sent_ns: int | None = None
        self.asked_ns: int | None = None
        self.over = False

    @initialize(sent_before_ms=st.integers(0, 500))
    def register(self, sent_before_ms: int) -> None:
        self.sent_ns = self.now_ns - sent_before_ms * MS
        self.keeper.registered(self.sent_ns)

    @rule(ms=st.integers(1, 20_000))
    def pass_time(self, ms: int) -> None:
        self.now_ns += ms * MS

    @rule(blocked=st.booleans())
    def wake(self, blocked: bool) -> None:
        self.now_ns = max(self.now_ns, self.wake_ns)
        if not blocked:
            self.pulse_ns = self.now_ns
        step = self.keeper.step(self.now_ns, self.pulse_ns)
        assert step.wake_ns >= self.now_ns
        assert step.wake_ns <= self.now_ns + TIMES.renew_ns
        assert not self.over or step.action == "wait"
        assert step.action != "renew" or self.asked_ns is None
        assert step.action != "evict_self" or self.now_ns - self.pulse_ns >= TIMES.stall_ns
        assert step.action != "report_stall" or self.now_ns - self.pulse_ns >= TIMES.stack_ns
        self.wake_ns = step.wake_ns
        self.over |= step.action == "evict_self"
        if step.action == "renew":
            self.asked_ns = self.now_ns

    @rule()
    def succeed(self) -> None:
        if self.asked_ns is not None:
            self.keeper.renewed(self.asked_ns, self.now_ns)
            self.sent_ns, self.asked_ns = self.asked_ns, None

    @rule()
    def fail(self) -> None:
        self.keeper.failed(self.now_ns)
        self.asked_ns = None
        step = self.keeper.step(self.now_ns, self.now_ns)
        self.wake_ns, self.pulse_ns = step.wake_ns, self.now_ns
        if step.action == "renew":
            self.asked_ns = self.now_ns

    @rule()
    def be_evicted(self) -> None:
        self.keeper.evicted()
        self.over = True

    @invariant()
    def trust_is_bounded(self) -> None:
        assert self.keeper.trusted_until_ns <= (self.sent_ns or 0) + TIMES.ttl_ns - TIMES.margin_ns

    @invariant()
    def the_end_is_the_end(self) -> None:
        assert (self.keeper.state == "ended") == self.over
        assert not self.over or self.keeper.trusted_until_ns == 0


TestLife = Life.TestCase
TestLife.settings = settings(deadline=None)
