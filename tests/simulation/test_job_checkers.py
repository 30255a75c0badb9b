"""The checkers of jobs are checked: each accepts good histories and rejects bad ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.support.history.jobs import (
    BodiesWithinLimits,
    BodyBegan,
    BodyOver,
    CancelHolds,
    CancelTold,
    ClaimsGrow,
    EndTold,
    EveryJobEnds,
    FirstStartsInOrder,
    JobClaimed,
    JobEnded,
    JobFreed,
    JobLeft,
    JobParked,
    JobReady,
    JobRevived,
    JobSent,
    JobStored,
    QueueLimited,
    QueuePaused,
    QueueRefilled,
    RanksInOrder,
    RunnerLost,
    WithinLimits,
    checkers,
)
from tests.support.history.ownership import Checker, Event, Violation, check

S = 1_000_000_000


def stored(*jobs: str, part: str = "", **more: Any) -> list[Event]:
    return [JobStored(job, "q", part, **more) for job in jobs]


def claimed(job: str, at_s: float = 0.0, *, claim: int = 1) -> JobClaimed:
    return JobClaimed(job, claim, "r", int(at_s * S))


def limited(**limits: Any) -> QueueLimited:
    return QueueLimited("q", **limits)


def ended(job: str, how: Any = "done", claim: int = 1) -> list[Event]:
    return [JobFreed(job, claim), JobEnded(job, how, claim)]


ONE = limited(partition_concurrency=1)
TWO = limited(concurrency=2)
RATE = limited(rate=2.0, burst=2.0)
LEFT = JobLeft("m", "done")
LATE = JobStored("l", "q", "", 0, 5 * S, 5 * S)


ACCEPTED: list[tuple[Checker, list[Event]]] = [
    (EveryJobEnds(), []),
    (EveryJobEnds(), [*stored("m"), JobSent("m"), claimed("m"), *ended("m"), LEFT]),
    (EveryJobEnds(), [*stored("m"), claimed("m"), JobFreed("m", 1), JobReady("m", 1), *ended("m", "dead"),
                      JobRevived("m"), JobReady("m", 2), *ended("m"), LEFT]),
    (EveryJobEnds(), [JobSent("m", "failed"), JobSent("n", "unknown")]),
    (EveryJobEnds(), [JobSent("m", "failed"), JobSent("m"), *stored("m"), *ended("m"), LEFT]),
    (EveryJobEnds(pending_allowed=True), [*stored("m"), JobSent("m"), JobLeft("m", "later")]),
    (ClaimsGrow(), [claimed("m"), BodyBegan("m", 1), JobFreed("m", 1), claimed("m", claim=2), BodyBegan("m", 2),
                    *ended("m", claim=2)]),
    (ClaimsGrow(), [claimed("m"), claimed("n"), *ended("m"), *ended("n", "cancelled"), JobEnded("o", "cancelled")]),
    (ClaimsGrow(), [claimed("m"), EndTold("m", 1), *ended("m")]),
    (ClaimsGrow(), [claimed("m"), BodyBegan("m", 1), BodyOver("m", 1), BodyBegan("m", 1), *ended("m")]),
    (WithinLimits(), [TWO, *stored("m", "n", "o"), claimed("m"), claimed("n"), JobFreed("m", 1), claimed("o")]),
    (WithinLimits(), [*stored("m", "n", "o"), claimed("m"), claimed("n"), claimed("o"), TWO]),
    (WithinLimits(), [ONE, *stored("m"), *stored("n", part="b"), claimed("m"), claimed("n")]),
    (WithinLimits(), [RATE, *stored(*"mnop"), claimed("m"), claimed("n"), claimed("o", 0.5), claimed("p", 1.0)]),
    (WithinLimits(), [RATE, *stored(*"mnop"), claimed("m", 9), claimed("n", 8), claimed("o", 8.5), claimed("p", 9.0)]),
    (WithinLimits(), [RATE, *stored(*"mno"), claimed("m", 9), claimed("n", 9), QueueRefilled("q", 5 * S),
                      claimed("o", 9)]),
    (WithinLimits(), [RATE, *stored(*"mnop"), claimed("m"), claimed("n"), limited(), claimed("o"), claimed("p")]),
    (WithinLimits(), [*stored("m"), QueuePaused("q", paused=True), QueuePaused("q", paused=False), claimed("m")]),
    (BodiesWithinLimits(), [ONE, *stored("m", "n"), BodyBegan("m", 1), BodyOver("m", 1), BodyBegan("n", 1)]),
    (BodiesWithinLimits(), [TWO, *stored("m", "n"), claimed("m"), claimed("n"), limited(concurrency=1),
                            BodyBegan("m", 1), BodyBegan("n", 1)]),
    (BodiesWithinLimits(), [ONE, *stored("m", "n"), BodyBegan("m", 1, "r"), RunnerLost("r"), BodyBegan("n", 1, "s")]),
    (FirstStartsInOrder(), [ONE, *stored("m", "n"), claimed("m"), JobFreed("m", 1), claimed("n"),
                            claimed("m", claim=2)]),
    (FirstStartsInOrder(), [*stored("m", "n"), claimed("n"), claimed("m")]),
    (FirstStartsInOrder(), [ONE, *stored("m"), *stored("n", priority=1), claimed("n"), claimed("m")]),
    (FirstStartsInOrder(), [ONE, *stored("m"), *stored("n", part="b"), claimed("n"), claimed("m")]),
    (FirstStartsInOrder(), [ONE, *stored("m", "n", "o"), JobParked("m"), JobEnded("n", "cancelled"), claimed("o")]),
    (FirstStartsInOrder(), [ONE, LATE, *stored("n"), claimed("n"), claimed("l")]),
    (RanksInOrder(), [*stored("m", rank_ns=2), *stored("n", rank_ns=1), claimed("n", 5), claimed("m", 6)]),
    (RanksInOrder(), [*stored("m", rank_ns=2), *stored("n", rank_ns=1), claimed("m", 5), claimed("n", 5)]),
    (RanksInOrder(), [*stored("m", rank_ns=2), *stored("n", rank_ns=1, at_ns=4 * S), claimed("m", 5)]),
    (RanksInOrder(), [*stored("m", rank_ns=2), *stored("n", rank_ns=1, part="b"), claimed("m", 5)]),
    (RanksInOrder(), [*stored("m", rank_ns=2), *stored("n", rank_ns=1), JobParked("n"), claimed("m", 5)]),
    (RanksInOrder(), [*stored("m", rank_ns=2 * S), LATE, JobReady("l", 2 * S), claimed("m", 9), claimed("l", 9)]),
    (RanksInOrder(), [*stored("m", rank_ns=2), *stored("n", rank_ns=1), claimed("n", 3), JobReady("n", 3 * S, lost=1),
                      claimed("m", 9)]),
    (CancelHolds(), [JobEnded("n", "done"), CancelTold("m"), JobEnded("m", "cancelled")]),
]  # fmt: skip

REFUSED: list[tuple[str, Checker, list[Event]]] = [
    ("acknowledged, and is not there", EveryJobEnds(), [JobSent("m")]),
    ("said to have failed", EveryJobEnds(), [*stored("m"), *ended("m"), LEFT, JobSent("m", "failed")]),
    ("is done, and was done", EveryJobEnds(), [*stored("m"), *ended("m"), *ended("m")]),
    ("is cancelled, and was done", EveryJobEnds(), [*stored("m"), *ended("m"), JobEnded("m", "cancelled")]),
    ("goes on, and was done", EveryJobEnds(), [*stored("m"), *ended("m"), claimed("m", claim=2)]),
    ("goes on, and was dead", EveryJobEnds(), [*stored("m"), *ended("m", "dead"), JobReady("m", 0)]),
    ("revived, and was not dead", EveryJobEnds(), [*stored("m"), *ended("m"), JobRevived("m")]),
    ("is dead at the end", EveryJobEnds(), [*stored("m"), *ended("m"), JobLeft("m", "dead")]),
    ("has not ended", EveryJobEnds(), [*stored("m"), JobLeft("m", "ready")]),
    ("the row of m is gone", EveryJobEnds(pending_allowed=True), [*stored("m")]),
    ("claim 1 held it", ClaimsGrow(), [claimed("m"), claimed("m", claim=2)]),
    ("claim 1 came after 1", ClaimsGrow(), [claimed("m"), JobFreed("m", 1), claimed("m")]),
    ("claim 1 was given up", ClaimsGrow(), [claimed("m", claim=2), JobFreed("m", 1)]),
    ("claim 1 was given up", ClaimsGrow(), [claimed("m"), JobFreed("m", 1), JobFreed("m", 1)]),
    ("claim 1 ended it", ClaimsGrow(), [claimed("m"), JobFreed("m", 1), claimed("m", claim=2),
                                        JobEnded("m", "done", 1)]),
    ("was told that it had ended", ClaimsGrow(), [claimed("m", claim=2), *ended("m", claim=2), EndTold("m", 1)]),
    ("two of its bodies", ClaimsGrow(), [claimed("m"), BodyBegan("m", 1), BodyBegan("m", 1)]),
    ("3 of 2 at q", WithinLimits(), [TWO, *stored("m", "n", "o"), claimed("m"), claimed("n"), claimed("o")]),
    ("2 of 1 in partition", WithinLimits(), [ONE, *stored("m", "n"), claimed("m"), claimed("n")]),
    ("2 of 1 in partition", WithinLimits(), [*stored("m", "n"), claimed("m"), ONE, claimed("n")]),
    ("starts more than", WithinLimits(), [RATE, *stored(*"mno"), claimed("m"), claimed("n"), claimed("o", 0.4)]),
    ("starts more than", WithinLimits(), [RATE, *stored(*"mno"), claimed("m"), claimed("n"), RATE, claimed("o")]),
    ("starts more than", WithinLimits(), [RATE, *stored(*"mnopqs"), claimed("m"), claimed("n", 9), claimed("o", 9.1),
                                          claimed("p", 9.3)]),
    ("starts more than", WithinLimits(), [RATE, *stored(*"mno"), claimed("m", 9), claimed("n", 9), claimed("o", 5)]),
    ("q was paused", WithinLimits(), [*stored("m"), QueuePaused("q", paused=True), claimed("m")]),
    ("2 bodies at once", BodiesWithinLimits(), [ONE, *stored("m", "n"), BodyBegan("m", 1), BodyBegan("n", 1)]),
    ("2 bodies at once", BodiesWithinLimits(), [ONE, *stored("m"), BodyBegan("m", 1), BodyBegan("m", 2)]),
    ("2 bodies at once", BodiesWithinLimits(), [TWO, *stored("m", "n"), limited(concurrency=1), claimed("m"),
                                                claimed("n"), BodyBegan("m", 1), BodyBegan("n", 1)]),
    ("2 bodies at once", BodiesWithinLimits(), [limited(concurrency=1), *stored("m", "n"), BodyBegan("m", 1, "r"),
                                                RunnerLost("s"), BodyBegan("n", 1, "s")]),
    ("n began before m", FirstStartsInOrder(), [ONE, *stored("m", "n"), claimed("n")]),
    ("n began before m", FirstStartsInOrder(), [ONE, *stored("m", "n"), JobParked("m"), JobReady("m", 0),
                                                claimed("n")]),
    ("m was ready", RanksInOrder(), [*stored("m", rank_ns=1), *stored("n", rank_ns=2), claimed("n", 5)]),
    ("m was ready", RanksInOrder(), [*stored("m", "n"), claimed("n", 5), claimed("m", 6)]),
    ("l was ready", RanksInOrder(), [*stored("m", rank_ns=9 * S), LATE, JobReady("l", 5 * S), claimed("m", 9)]),
    ("m was ready", RanksInOrder(), [*stored("m", "n"), claimed("m", 3), JobReady("m", 3 * S, -1), claimed("n", 9)]),
    ("is done, and was cancelled", CancelHolds(), [CancelTold("m"), *ended("m")]),
    ("is dead, and was cancelled", CancelHolds(), [*stored("m"), CancelTold("m"), *ended("m", "dead")]),
]  # fmt: skip


@pytest.mark.parametrize(("checker", "history"), ACCEPTED, ids=lambda each: type(each).__name__)
def test_a_good_history_is_accepted(checker: Checker, history: list[Event]) -> None:
    check(history, copy.deepcopy(checker))


@pytest.mark.parametrize(("problem", "checker", "history"), REFUSED, ids=lambda each: str(each)[:30])
def test_a_bad_history_is_refused(problem: str, checker: Checker, history: list[Event]) -> None:
    with pytest.raises(Violation, match=problem):
        check(history, copy.deepcopy(checker))


def test_each_checker_refuses_something() -> None:
    refusing = {type(checker) for _, checker, _ in REFUSED}
    assert refusing == {type(checker) for checker in checkers()} == {type(checker) for checker, _ in ACCEPTED}


def test_the_numbers_of_a_violation_can_be_read() -> None:
    history = [RATE, *stored(*"mno"), claimed("m"), claimed("n"), claimed("o", 0.25)]
    with pytest.raises(Violation, match=r"T2: o began: 2.500 starts more than 2/s allow, burst 2"):
        check(history, *checkers(pending_allowed=True))
