"""History checkers for crons: each tick has one verdict, one body for each attempt, one outcome.

Reasons of skipped ticks have a file of their own, `skip_checkers`.

History checkers for what crons leave out: each skipped tick has a reason that fits, and catching up is bounded.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from coterie.kernel.ids import Seat
from tests.support.history.cron_events import (
    Attempted,
    BodyBegan,
    BodyEnded,
    Concluded,
    Confirmed,
    Defined,
    Effect,
    Given,
    Paused,
    Plan,
    Plans,
    Quiet,
    Resumed,
    Rewritten,
    Stepped,
    TickKey,
    Triggered,
)
from tests.support.history.ownership import Event, Grant, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from coterie.cron.decide import TickPolicy


INSTANT = timedelta(microseconds=1)
LOST_MOST = 4
"""How many attempts more than its policy allows a tick has because its runners were lost."""


@dataclass
class EachTickOnce:
    """INV-C1, C2: the verdicts of a cron are exactly the ticks of its schedule, each once, in order.

    Each definition has its period, from when it took effect. Of one that was replaced those ticks may lack a verdict
    that nobody came to before that; of the last one all have theirs that were due when it was quiet.
    """

    _plans: Plans = field(default_factory=Plans)
    _given: dict[str, list[Given]] = field(default_factory=lambda: defaultdict(list))
    _quiet: datetime | None = None

    def see(self, event: Event) -> None:
        """Remember all of it; verdicts come in order."""
        self._plans.learn(event)
        if isinstance(event, Given):
            given = self._given[event.cron]
            if given and event.at <= given[-1].until:
                raise Violation("INV-C1", f"{event.key} was decided after {given[-1].until:%H:%M:%S} was")
            given.append(event)
        elif isinstance(event, Quiet):
            self._quiet = event.now

    def finish(self) -> None:
        """Compare them with what the schedules say."""
        for cron, periods in self._plans.periods.items():
            given = self._given[cron]
            for period, following in pairwise([*periods, None]):
                assert period is not None
                self._compare(period, following, [each for each in given if _in(each, period, following)])
            if given and given[0].at < periods[0].effective_from:
                raise Violation("INV-C2", f"{given[0].key} lies before its schedule was known")

    def _compare(self, period: Defined, following: Defined | None, given: Sequence[Given]) -> None:
        last = given[-1].until if given else period.effective_from - INSTANT
        if following is None and self._quiet is not None:
            last = max(last, self._quiet - period.plan.policy.delay)
        ticks = list(period.plan.schedule.between(period.effective_from, last + INSTANT))
        done = 0
        for each in given:
            first, end = bisect_left(ticks, each.at), bisect_right(ticks, each.until)
            if [*ticks[first : first + 1], *ticks[end - 1 : end]] != [each.at, each.until]:
                raise Violation("INV-C2", f"{each.key} until {each.until:%H:%M:%S} is no tick of its schedule")
            if each.count != end - first:
                raise Violation("INV-C2", f"{each.key} stands for {each.count} ticks, there are {end - first}")
            _require_none(period.cron, ticks[done:first])
            done = end
        _require_none(period.cron, ticks[done:])


def _require_none(cron: str, left_out: Sequence[datetime]) -> None:
    for tick in left_out:
        raise Violation("INV-C2", f"{TickKey(cron, 'scheduled', tick)} has no verdict")


def _in(given: Given, period: Defined, following: Defined | None) -> bool:
    """Whether its instants lie in a period."""
    return period.effective_from <= given.at and (following is None or given.at < following.effective_from)


@dataclass
class NotBeforeDue:
    """C2: no tick has a verdict before it is due by the database's clock, and none begins while its cron is paused."""

    _plans: Plans = field(default_factory=Plans)
    _paused: set[str] = field(default_factory=set)

    def see(self, event: Event) -> None:
        """Compare a verdict with the clock of its commit."""
        self._plans.learn(event)
        if isinstance(event, Paused):
            self._paused.add(event.cron)
        elif isinstance(event, Resumed):
            self._paused.discard(event.cron)
        elif isinstance(event, Given):
            early_s = (event.until + self._plans.of(event.cron, event.at).policy.delay - event.now).total_seconds()
            if early_s > 0:
                raise Violation("C2", f"{event.key} was decided {early_s:.6f}s before it was due")
            if not event.reason and event.cron in self._paused:
                raise Violation("C2", f"{event.key} was claimed while its cron was paused")

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class TicksAreFenced:
    """INV-F2: whatever is written about ticks, or by their bodies, is written in the name of the seat's holder."""

    _granted: dict[str, int] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Compare a write with the newest grant."""
        if isinstance(event, Grant):
            self._granted[event.seat] = event.epoch
        elif isinstance(event, Given | Attempted | Concluded | Effect):
            granted = self._granted.get(Seat.cron(event.key.cron), 0)
            if event.epoch != granted:
                what = type(event).__name__.lower()
                raise Violation("INV-F2", f"{event.key}: {what} at epoch {event.epoch}, when {granted} was granted")

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class _Tick:
    """What is known of a tick that runs, or will."""

    epoch: int
    attempt: int
    outcome: str | None = None
    epochs: dict[int, int] = field(default_factory=dict)
    """Of each attempt, by its number."""
    began: set[int] = field(default_factory=set)
    ended: dict[int, str] = field(default_factory=dict)


@dataclass
class AttemptsAddUp:
    """INV-C1, C2: an attempt is one more than the one before, and has one body at most; an outcome is what that said.

    Another attempt follows one that raised, or a change of holder, and nothing else. What is claimed or triggered has
    exactly one outcome once it is quiet, and none is changed.
    """

    _plans: Plans = field(default_factory=Plans)
    _ticks: dict[TickKey, _Tick] = field(default_factory=dict)
    _confirmed: list[TickKey] = field(default_factory=list)

    def see(self, event: Event) -> None:
        """Follow each tick."""
        self._plans.learn(event)
        if isinstance(event, Given | Triggered):
            self._appear(event)
        elif isinstance(event, Confirmed):
            self._confirmed.append(event.key)
        elif isinstance(event, Attempted):
            self._require(event.key, self._attempted(event))
        elif isinstance(event, BodyBegan):
            self._require(event.key, self._began(event))
        elif isinstance(event, BodyEnded):
            self._ticks[event.key].ended[event.attempt] = event.how
        elif isinstance(event, Effect):
            self._require(event.key, self._affected(event))
        elif isinstance(event, Concluded):
            self._require(event.key, self._concluded(event))
        elif isinstance(event, Rewritten):
            raise Violation("INV-C2", f"{event.key} was changed after it was over")
        elif isinstance(event, Quiet):
            self._judge(event.now)

    def finish(self) -> None:
        """What was confirmed is there."""
        for key in self._confirmed:
            if key not in self._ticks:
                raise Violation("INV-C2", f"{key} was confirmed and is not there")

    def _appear(self, event: Given | Triggered) -> None:
        if event.key in self._ticks:
            raise Violation("INV-C1", f"{event.key} is there twice")
        if isinstance(event, Triggered):
            self._ticks[event.key] = _Tick(0, 0)
        elif not event.reason:
            self._ticks[event.key] = _Tick(event.epoch, event.attempt, epochs={event.attempt: event.epoch})
            self._require(event.key, iter([("INV-C1", "its first attempt is not 1")] if event.attempt != 1 else []))

    def _require(self, key: TickKey, problems: Iterator[tuple[str, str]]) -> None:
        for promise, problem in problems:
            raise Violation(promise, f"{key}: {problem}")

    def _attempted(self, event: Attempted) -> Iterator[tuple[str, str]]:
        tick = self._ticks[event.key]
        if event.attempt != tick.attempt + 1:
            yield "INV-C1", f"attempt {event.attempt} follows {tick.attempt}"
        if event.epoch == tick.epoch and not self._has_failed(event.key, tick):
            yield "INV-C1", f"attempt {event.attempt} by the same holder, when {tick.attempt} had not failed"
        if event.epoch < tick.epoch:
            yield "INV-F2", f"epoch {event.epoch} took it from {tick.epoch}"
        tick.epoch, tick.attempt = event.epoch, event.attempt
        tick.epochs[event.attempt] = event.epoch

    def _began(self, event: BodyBegan) -> Iterator[tuple[str, str]]:
        tick = self._ticks.get(event.key)
        if tick is None:
            yield "INV-C1", "a body began without a claim"
        elif tick.epochs.get(event.attempt) != event.epoch:
            yield "INV-C1", f"a body began at epoch {event.epoch}, attempt {event.attempt}, which nobody claimed"
        elif event.attempt in tick.began:
            yield "INV-C1", f"two bodies of attempt {event.attempt}"
        else:
            tick.began.add(event.attempt)

    def _affected(self, event: Effect) -> Iterator[tuple[str, str]]:
        tick = self._ticks[event.key]
        # One that was cut off, or was not answered, may have asked for it before.
        is_over = (event.epoch, event.attempt) != (tick.epoch, tick.attempt) or tick.outcome is not None
        if is_over and tick.ended.get(event.attempt) not in ("cut", "raised"):
            yield "INV-F2", f"attempt {event.attempt} at epoch {event.epoch} has written, it was not its turn"

    def _concluded(self, event: Concluded) -> Iterator[tuple[str, str]]:
        tick = self._ticks[event.key]
        if tick.outcome is not None:
            yield "INV-C2", f"{event.outcome} after {tick.outcome}"
        if (event.epoch, event.attempt) != (tick.epoch, tick.attempt):
            yield "INV-C1", f"{event.outcome} at epoch {event.epoch}, attempt {event.attempt}, which it is not at"
        tick.outcome = event.outcome
        if event.outcome == "ran" and tick.ended.get(event.attempt) != "returned":
            yield "INV-C2", f"ran, when its body {tick.ended.get(event.attempt, 'never ended')}"
        if event.outcome == "skipped" and (event.key.kind == "manual" or event.attempt in tick.began):
            yield "INV-C2", "skipped, when somebody had asked for it, or its body had begun in this attempt"
        if event.outcome == "failed":
            most = self._plans.of(event.key.cron, event.key.at).attempts
            if event.attempt < most:
                yield "INV-C2", f"failed in attempt {event.attempt} of {most}"
            if not self._has_failed(event.key, tick) and event.attempt <= most + LOST_MOST:
                yield "INV-C2", f"failed, when its body {tick.ended.get(event.attempt, 'never ended')}"

    def _has_failed(self, key: TickKey, tick: _Tick) -> bool:
        """Whether the attempt that it is at has failed."""
        how = tick.ended.get(tick.attempt)
        return how == "raised" or (how == "cut" and self._plans.of(key.cron, key.at).has_timeout)

    def _judge(self, now: datetime) -> None:
        for key, tick in self._ticks.items():
            if tick.outcome is None and key.at <= now:
                began = "has begun" if tick.began else "has never begun"
                raise Violation("INV-C2", f"{key} {began} and has no outcome, at attempt {tick.attempt}")


@dataclass
class OneAtATime:
    """With overlap "skip" and "queue" no body begins while another of the same holder runs."""

    _plans: Plans = field(default_factory=Plans)
    _busy: dict[tuple[str, int, str], TickKey] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Follow who runs."""
        self._plans.learn(event)
        if isinstance(event, BodyBegan):
            if self._plans.of(event.key.cron, event.key.at).policy.overlap == "allow":
                return
            other = self._busy.setdefault((event.key.cron, event.epoch, event.process), event.key)
            if other != event.key:
                raise Violation("C3", f"{event.key} began while {other} ran")
        elif isinstance(event, BodyEnded):
            self._busy.pop((event.key.cron, event.epoch, event.process), None)

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class CatchUpBounded:
    """INV-C4: one look begins at most as many ticks as the policy says; one, unless each is asked for."""

    _plans: Plans = field(default_factory=Plans)
    _begun: Counter[tuple[str, int]] = field(default_factory=Counter)

    def see(self, event: Event) -> None:
        """Count what is claimed together."""
        self._plans.learn(event)
        if isinstance(event, Given) and not event.reason:
            together = (event.cron, event.commit)
            self._begun[together] += 1
            most = _most(self._plans.of(event.cron, event.at).policy)
            if self._begun[together] > most:
                raise Violation("INV-C4", f"{event.key} is number {self._begun[together]} of a look, {most} may begin")

    def finish(self) -> None:
        """Nothing is left to judge."""


def _most(policy: TickPolicy) -> int:
    """How many ticks may begin at once."""
    is_each = policy.overlap == "allow" and (policy.catch_up == "all" or policy.from_previous)
    return policy.most if is_each else 1


@dataclass
class _Pause:
    since: datetime
    until: datetime | None = None


@dataclass
class _Cron:
    """What there was of one cron before a verdict."""

    pauses: list[_Pause] = field(default_factory=list)
    open: set[TickKey] = field(default_factory=set)
    ended: list[datetime] = field(default_factory=list)
    """When ticks ended that had begun."""
    failures: int = 0
    tripped: list[datetime] = field(default_factory=list)
    """When ticks failed, if so many in a row had."""
    last: tuple[int, int] = (0, 0)
    """Epoch and commit of the last verdict."""


@dataclass
class ReasonsFit:
    """INV-C2: whatever is skipped is skipped for a reason that was true when it was decided.

    A holder whose database's clock was set back may take it for later than it is until it is told: by that much what
    compares with the clock may be off.

    Args:
        heard_s: How long after a run has ended its holder may still wait to be told so, and take it for running.
        drift_s: By how much it may be off without that, as any two clocks are.
    """

    heard_s: float = 0.0
    drift_s: float = 0.0
    _plans: Plans = field(default_factory=Plans)
    _crons: dict[str, _Cron] = field(default_factory=lambda: defaultdict(_Cron))
    _back: timedelta = timedelta()
    _seen: Counter[str] = field(default_factory=Counter)

    def see(self, event: Event) -> None:
        """Compare a reason with all that was committed before."""
        self._plans.learn(event)
        if isinstance(event, Stepped):
            self._back += timedelta(seconds=max(0.0, -event.by_s))
        elif isinstance(event, Paused):
            self._crons[event.cron].pauses.append(_Pause(event.since))
        elif isinstance(event, Resumed):
            for pause in self._crons[event.cron].pauses:
                if pause.since == event.since:
                    pause.until = event.until
        elif isinstance(event, Attempted):
            self._crons[event.key.cron].open.add(event.key)
        elif isinstance(event, Concluded):
            self._conclude(self._crons[event.key.cron], event)
        elif isinstance(event, Given):
            self._judge(self._crons[event.cron], event)

    def finish(self) -> None:
        """Nothing is left to judge."""

    @property
    def reasons(self) -> Counter[str]:
        """How often each was given: what never occurs was not judged."""
        return self._seen

    @property
    def _off(self) -> timedelta:
        return self._back + timedelta(seconds=self.drift_s)

    def _conclude(self, cron: _Cron, event: Concluded) -> None:
        cron.open.discard(event.key)
        cron.ended.append(event.now)
        if event.outcome == "skipped":
            self._judge_cut_off(event)
            return
        cron.failures = cron.failures + 1 if event.outcome == "failed" else 0
        breaker = self._plans.of(event.key.cron, event.key.at).policy.breaker
        if breaker is not None and cron.failures >= breaker.failures:
            cron.tripped.append(event.now)

    def _judge(self, cron: _Cron, event: Given) -> None:
        self._seen[event.reason or "runs"] += 1
        if event.reason:
            plan = self._plans.of(event.cron, event.at)
            is_true = getattr(self, f"_is_{event.reason}")
            for tick in plan.schedule.between(event.at, event.until + INSTANT):
                if not is_true(cron, plan, event, tick):
                    key = TickKey(event.cron, "scheduled", tick)
                    raise Violation("INV-C2", f"{key} was skipped as {event.reason} at {event.now:%H:%M:%S.%f}")
        else:
            cron.open.add(event.key)
        cron.last = (event.epoch, event.commit)

    def _judge_cut_off(self, event: Concluded) -> None:
        """A tick that was begun and cut off is skipped only if it is older than allowed."""
        self._seen["cut off"] += 1
        policy = self._plans.of(event.key.cron, event.key.at).policy
        due, oldest = event.key.at + policy.delay, policy.skip_if_older_than
        if oldest is None or due >= event.now - oldest + self._off:
            raise Violation("INV-C2", f"{event.key} was skipped as cut off and too old at {event.now:%H:%M:%S.%f}")

    def _is_paused(self, cron: _Cron, plan: Plan, event: Given, tick: datetime) -> bool:
        """A pause had begun before this was decided, and had not ended when it was due."""
        del event
        due = tick + plan.policy.delay
        return any(pause.until is None or due < pause.until + self._off for pause in cron.pauses)

    def _is_stale(self, cron: _Cron, plan: Plan, event: Given, tick: datetime) -> bool:
        """It is older than allowed; or it passed before this holder had decided anything.

        If the clock was set back, much comes again that was over when it took the seat.
        """
        due, oldest = tick + plan.policy.delay, plan.policy.skip_if_older_than
        if oldest is not None and due < event.now - oldest + self._off:
            return True
        epoch, commit = cron.last
        is_first = epoch != event.epoch or commit == event.commit
        return plan.policy.catch_up == "none" and (is_first or bool(self._back))

    def _is_superseded(self, cron: _Cron, plan: Plan, event: Given, tick: datetime) -> bool:
        """As many later ones were due as may run."""
        del cron
        most = plan.policy.most if plan.policy.catch_up == "all" else 1
        end = event.now - plan.policy.delay + self._off + INSTANT
        return plan.schedule.count(tick + INSTANT, end) >= most

    def _is_overlapping(self, cron: _Cron, plan: Plan, event: Given, tick: datetime) -> bool:
        """A run goes on, or went on when it was due."""
        del event
        since = tick + plan.policy.delay - self._off - timedelta(seconds=self.heard_s)
        is_busy = bool(cron.open) or any(at >= since for at in cron.ended)
        return plan.policy.overlap == "skip" and is_busy

    def _is_breaker(self, cron: _Cron, plan: Plan, event: Given, tick: datetime) -> bool:
        """So many had failed in a row, not long before."""
        del event
        due, breaker = tick + plan.policy.delay, plan.policy.breaker
        return breaker is not None and any(due < at + breaker.reset + self._off for at in cron.tripped)
