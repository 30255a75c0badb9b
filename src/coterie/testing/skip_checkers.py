"""History checkers for what crons leave out: each skipped tick has a reason that fits, and catching up is bounded."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from coterie.testing.checkers import Event, Violation
from coterie.testing.cron_checkers import INSTANT
from coterie.testing.cron_events import (
    Attempted,
    Concluded,
    Given,
    Paused,
    Plan,
    Plans,
    Resumed,
    Stepped,
    TickKey,
)

if TYPE_CHECKING:
    from coterie.cron.decide import Policy


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


def _most(policy: Policy) -> int:
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
