"""The checkers of crons are checked: each accepts good histories and rejects bad ones."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from coterie import Breaker
from coterie.cron.decide import TickPolicy
from coterie.cron.schedule import Schedule
from tests.support.history.cron_checkers import (
    AttemptsAddUp,
    CatchUpBounded,
    EachTickOnce,
    NotBeforeDue,
    OneAtATime,
    ReasonsFit,
    TicksAreFenced,
)
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
    Quiet,
    Resumed,
    Rewritten,
    Stepped,
    TickKey,
    Triggered,
)
from tests.support.history.ownership import Checker, Event, Grant, Violation, check

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EACH, THIRD = Schedule("* * * * * *"), Schedule("*/3 * * * * *")
BY_HAND = TickKey("c", "manual", NOON, 1)


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def tick(second: float) -> TickKey:
    return TickKey("c", "scheduled", at(second))


def defined(second: float = 0, *, schedule: Schedule = EACH, attempts: int = 1, **policy: Any) -> Defined:
    timeout = policy.pop("has_timeout", False)
    return Defined("c", Plan(schedule, TickPolicy(**policy), attempts, timeout), at(second))


def given(
    first: float,
    last: float | None = None,
    *,
    count: int = 1,
    reason: str = "",
    epoch: int = 1,
    now: float | None = None,
    commit: int = 0,
    attempt: int = 1,
) -> Given:
    last = first if last is None else last
    when = at(last + 0.001 if now is None else now)
    return Given("c", at(first), at(last), count, reason, epoch, attempt, when, commit)


def skipped(reason: str, first: float, last: float | None = None, *, count: int = 1, **more: Any) -> Given:
    return given(first, last, count=count, reason=reason, attempt=0, **more)


def began(second: float, *, epoch: int = 1, attempt: int = 1, process: str = "p") -> BodyBegan:
    return BodyBegan(tick(second), epoch, attempt, process)


def ended(second: float, how: Any = "returned", *, epoch: int = 1, attempt: int = 1, process: str = "p") -> BodyEnded:
    return BodyEnded(tick(second), epoch, attempt, process, how)


def over(second: float, outcome: str = "ran", *, epoch: int = 1, attempt: int = 1, now: float = 0) -> Concluded:
    return Concluded(tick(second), epoch, attempt, outcome, at(now))


def ran(second: float, **more: Any) -> list[Event]:
    return [began(second, **more), ended(second, **more), over(second, **more)]


def by_hand(*attempts: int) -> list[Event]:
    return [Triggered(BY_HAND), *(Attempted(BY_HAND, attempt, attempt) for attempt in attempts)]


WHOLE: list[Event] = [defined(), given(0), *ran(0), Quiet(at(0.5))]
TAKEN_OVER: list[Event] = [given(0), began(0), Attempted(tick(0), 2, 2)]
FAILED_ONCE: list[Event] = [defined(attempts=2), given(0), began(0), ended(0, "raised")]
ALL: dict[str, Any] = {"catch_up": "all"}
SKIP: dict[str, Any] = {"overlap": "skip"}
REST = Breaker(failures=2, reset="10s")
LOST = [Attempted(tick(0), epoch, epoch) for epoch in range(2, 7)]

ACCEPTED: list[tuple[Checker, list[Event]]] = [
    (EachTickOnce(), [defined(), given(0), skipped("stale", 1, 3, count=3), given(4), Quiet(at(4.9))]),
    (EachTickOnce(), [defined(0.5), given(1), Quiet(at(1.5))]),
    (EachTickOnce(), [defined(delay=timedelta(seconds=5)), given(0), Quiet(at(5.5))]),
    (EachTickOnce(), [defined(), given(0), given(1), defined(3.5, schedule=THIRD), given(6), Quiet(at(8))]),
    (EachTickOnce(), [defined(), given(0), defined(0), given(1), Quiet(at(1))]),
    (NotBeforeDue(), [defined(delay=timedelta(seconds=2)), given(0, now=2)]),
    (
        NotBeforeDue(),
        [defined(), Paused("c", at(0)), skipped("paused", 0, now=1), Resumed("c", at(0), at(1)), given(2)],
    ),
    (TicksAreFenced(), [Grant("cron:c", 1, "a"), given(0), Effect(tick(0), 1, 1), over(0)]),
    (TicksAreFenced(), [Grant("cron:c", 1, "a"), Grant("cron:c", 2, "b"), Attempted(tick(0), 2, 2)]),
    (AttemptsAddUp(), WHOLE),
    (AttemptsAddUp(), [defined(), *TAKEN_OVER, *ran(0, epoch=2, attempt=2), ended(0, "cut"), Quiet(at(1))]),
    (AttemptsAddUp(), [*FAILED_ONCE, Attempted(tick(0), 1, 2), *ran(0, attempt=2), Quiet(at(1))]),
    (AttemptsAddUp(), [defined(has_timeout=True), given(0), began(0), ended(0, "cut"), over(0, "failed")]),
    (AttemptsAddUp(), [defined(), given(0), *LOST, over(0, "failed", epoch=6, attempt=6)]),
    (AttemptsAddUp(), [defined(), *by_hand(1, 2), Confirmed(BY_HAND)]),
    (AttemptsAddUp(), [defined(), given(5), Quiet(at(1))]),
    (AttemptsAddUp(), [defined(), given(0), began(0), Effect(tick(0), 1, 1), ended(0), over(0)]),
    (AttemptsAddUp(), [*FAILED_ONCE, Attempted(tick(0), 1, 2), Effect(tick(0), 1, 1)]),
    (OneAtATime(), [defined(**SKIP), *ran(0), *ran(1), began(2), began(3, epoch=2), began(4, process="q")]),
    (OneAtATime(), [defined(), began(0), began(1)]),
    (CatchUpBounded(), [defined(), given(0, commit=1), given(1, commit=2)]),
    (CatchUpBounded(), [defined(**ALL, most=2), given(0, commit=1), given(1, commit=1)]),
    (ReasonsFit(), [defined(), given(0)]),
    (ReasonsFit(), [defined(skip_if_older_than=timedelta(seconds=5)), skipped("stale", 0, 2, count=3, now=8)]),
    (ReasonsFit(), [defined(catch_up="none"), skipped("stale", 0, epoch=2), given(1, epoch=2)]),
    (ReasonsFit(), [defined(), skipped("superseded", 0, 1, count=2, now=2.5)]),
    (ReasonsFit(), [defined(**ALL, most=3), skipped("superseded", 0, 1, count=2, now=4.5)]),
    (ReasonsFit(), [defined(**SKIP), given(0), skipped("overlapping", 1)]),
    (ReasonsFit(), [defined(**SKIP), given(0), over(0, now=1.5), skipped("overlapping", 1, now=2)]),
    (ReasonsFit(heard_s=1), [defined(**SKIP), given(0), over(0, now=0.5), skipped("overlapping", 1)]),
    (ReasonsFit(), [defined(), Paused("c", at(0)), Resumed("c", at(0), at(3)), skipped("paused", 1, 2, count=2)]),
    (ReasonsFit(), [defined(), Paused("c", at(2)), skipped("paused", 1, now=3)]),
    (
        ReasonsFit(),
        [defined(breaker=REST), over(0, "failed"), over(1, "failed", now=1), skipped("breaker", 2, 10, count=9)],
    ),
    (
        ReasonsFit(),
        [defined(skip_if_older_than=timedelta(seconds=5)), Stepped(-10.0), skipped("stale", 0, now=1)],
    ),
]

REJECTED: list[tuple[Checker, list[Event], str]] = [
    (EachTickOnce(), [defined(), given(0), given(0)], "was decided after"),
    (EachTickOnce(), [defined(), skipped("stale", 0, 3, count=4), given(2)], "was decided after"),
    (EachTickOnce(), [defined(), given(0), given(2)], r"12:00:01.* has no verdict"),
    (EachTickOnce(), [defined(), given(1)], r"12:00:00.* has no verdict"),
    (EachTickOnce(), [defined(), given(0), Quiet(at(1.5))], r"12:00:01.* has no verdict"),
    (EachTickOnce(), [defined(), Quiet(at(1.5))], "has no verdict"),
    (EachTickOnce(), [defined(), skipped("stale", 0, 3, count=3)], "stands for 3 ticks, there are 4"),
    (EachTickOnce(), [defined(), given(0), given(1.5)], "no tick of its schedule"),
    (EachTickOnce(), [defined(), given(0), defined(0.5, schedule=THIRD), given(1)], "no tick of its schedule"),
    (EachTickOnce(), [defined(2), given(1)], "before its schedule was known"),
    (EachTickOnce(), [defined(), given(0), given(2), defined(2.5, schedule=THIRD), given(3)], r"12:00:01.* no verdict"),
    (NotBeforeDue(), [defined(), given(1, now=0.999)], "before it was due"),
    (NotBeforeDue(), [defined(delay=timedelta(seconds=2)), given(0, now=1)], "before it was due"),
    (NotBeforeDue(), [defined(), Paused("c", at(0)), given(1)], "while its cron was paused"),
    (TicksAreFenced(), [Grant("cron:c", 1, "a"), Grant("cron:c", 2, "b"), given(0)], "when 2 was granted"),
    (TicksAreFenced(), [Grant("cron:c", 2, "b"), Effect(tick(0), 1, 1)], "effect at epoch 1"),
    (TicksAreFenced(), [Grant("cron:c", 2, "b"), over(0)], "concluded at epoch 1"),
    (TicksAreFenced(), [Grant("cron:c", 2, "b"), Attempted(tick(0), 1, 2)], "attempted at epoch 1"),
    (AttemptsAddUp(), [defined(), given(0), given(0)], "is there twice"),
    (AttemptsAddUp(), [defined(), given(0, attempt=2)], "first attempt is not 1"),
    (AttemptsAddUp(), [*WHOLE, began(0)], "two bodies of attempt 1"),
    (AttemptsAddUp(), [defined(), began(0)], "without a claim"),
    (AttemptsAddUp(), [defined(), skipped("stale", 0), began(0)], "without a claim"),
    (AttemptsAddUp(), [defined(), *by_hand(), BodyBegan(BY_HAND, 0, 0, "p")], "which nobody claimed"),
    (AttemptsAddUp(), [defined(), given(0), began(0, attempt=2)], "which nobody claimed"),
    (AttemptsAddUp(), [defined(), given(0), began(0, epoch=2)], "which nobody claimed"),
    (AttemptsAddUp(), [defined(), given(0), Attempted(tick(0), 2, 3)], "attempt 3 follows 1"),
    (AttemptsAddUp(), [defined(), given(0), Attempted(tick(0), 1, 2)], "by the same holder"),
    (AttemptsAddUp(), [defined(), given(0), began(0), ended(0, "cut"), Attempted(tick(0), 1, 2)], "by the same holder"),
    (AttemptsAddUp(), [defined(), given(0, epoch=2), Attempted(tick(0), 1, 2)], "took it from 2"),
    (AttemptsAddUp(), [defined(), *TAKEN_OVER, ended(0), over(0)], "which it is not at"),
    (AttemptsAddUp(), [defined(), *TAKEN_OVER, Effect(tick(0), 1, 1)], "it was not its turn"),
    (AttemptsAddUp(), [*WHOLE, Effect(tick(0), 1, 1)], "it was not its turn"),
    (AttemptsAddUp(), [*WHOLE, over(0)], "ran after ran"),
    (AttemptsAddUp(), [*WHOLE, Rewritten(tick(0))], "after it was over"),
    (AttemptsAddUp(), [defined(), given(0), over(0)], "ran, when its body never ended"),
    (AttemptsAddUp(), [defined(), given(0), began(0), ended(0, "raised"), over(0)], "ran, when its body raised"),
    (AttemptsAddUp(), [defined(), given(0), began(0), ended(0), over(0, "failed")], "failed, when its body returned"),
    (AttemptsAddUp(), [defined(), given(0), began(0), ended(0, "cut"), over(0, "failed")], "failed, when its body cut"),
    (AttemptsAddUp(), [*FAILED_ONCE, over(0, "failed")], "failed in attempt 1 of 2"),
    (AttemptsAddUp(), [defined(), given(0), began(0), Quiet(at(1))], "has begun and has no outcome"),
    (AttemptsAddUp(), [defined(), *by_hand(1), Quiet(at(1))], "has never begun and has no outcome"),
    (AttemptsAddUp(), [defined(), Confirmed(BY_HAND)], "was confirmed and is not there"),
    (OneAtATime(), [defined(**SKIP), began(0), began(1)], "began while"),
    (CatchUpBounded(), [defined(), given(0, commit=1), given(1, commit=1)], "number 2 of a look, 1 may"),
    (CatchUpBounded(), [defined(**ALL, most=1), given(0, commit=1), given(1, commit=1)], "number 2 of a look, 1 may"),
    (CatchUpBounded(), [defined(**ALL, **SKIP), given(0, commit=1), given(1, commit=1)], "1 may begin"),
    (ReasonsFit(), [defined(skip_if_older_than=timedelta(seconds=5)), skipped("stale", 0, 3, count=4, now=8)], ":03"),
    (ReasonsFit(), [defined(skip_if_older_than=None), skipped("stale", 0, now=99)], "skipped as stale"),
    (ReasonsFit(), [defined(catch_up="none"), given(0, commit=1), skipped("stale", 1, commit=2)], "skipped as stale"),
    (ReasonsFit(), [defined(), skipped("superseded", 0)], "skipped as superseded"),
    (ReasonsFit(), [defined(**ALL, most=3), skipped("superseded", 0, 2, count=3, now=4.5)], ":02"),
    (ReasonsFit(), [defined(**SKIP), skipped("overlapping", 1)], "skipped as overlapping"),
    (ReasonsFit(), [defined(**SKIP), given(0), over(0, now=0.5), skipped("overlapping", 1)], "as overlapping"),
    (ReasonsFit(), [defined(), given(0), skipped("overlapping", 1)], "skipped as overlapping"),
    (ReasonsFit(), [defined(), skipped("paused", 1)], "skipped as paused"),
    (ReasonsFit(), [defined(), Paused("c", at(0)), Resumed("c", at(0), at(1)), skipped("paused", 1)], "as paused"),
    (ReasonsFit(), [defined(breaker=REST), over(0, "failed"), skipped("breaker", 1)], "skipped as breaker"),
    (
        ReasonsFit(),
        [defined(breaker=REST), over(0, "failed"), over(1), over(2, "failed"), skipped("breaker", 3)],
        "skipped as breaker",
    ),
    (
        ReasonsFit(),
        [defined(breaker=REST), over(0, "failed"), over(1, "failed", now=1), skipped("breaker", 2, 11, count=10)],
        ":11",
    ),
]


@pytest.mark.parametrize(("checker", "history"), ACCEPTED)
def test_a_good_history_is_accepted(checker: Checker, history: list[Event]) -> None:
    assert check(history, copy.deepcopy(checker)) == len(history)


@pytest.mark.parametrize(("checker", "history", "problem"), REJECTED)
def test_a_bad_history_is_rejected(checker: Checker, history: list[Event], problem: str) -> None:
    with pytest.raises(Violation, match=problem):
        check(history, copy.deepcopy(checker))
