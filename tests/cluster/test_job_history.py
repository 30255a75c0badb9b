"""The judge of jobs of real processes accepts what is right and refuses what is wrong."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import pytest

from tests.cluster.job_history import Notes, judge, judge_rate, peaks, rate_windows, starts_of
from tests.cluster.job_trail import LeftJob, Trail
from tests.support.history.jobs import (
    JobClaimed,
    JobEnded,
    JobFreed,
    JobReady,
    JobStored,
    QueueLimited,
    QueuePaused,
    RunnerLost,
)
from tests.support.history.ownership import Violation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.history.ownership import Event

S = 10**9
SEAT = "queue:narrow"


class History:
    """Two jobs of a queue that lets one run at a time: `a` on a runner that is lost, then again; then `b`."""

    def __init__(self) -> None:
        self.committed: list[tuple[int, Event]] = [
            (1 * S, QueueLimited(SEAT, concurrency=1, rate=1.0, burst=2.0)),
            (2 * S, JobStored("a", SEAT)),
            (3 * S, JobStored("b", SEAT)),
            (4 * S, JobClaimed("a", 1, "one", 4 * S)),
            (6 * S, RunnerLost("one")),
            (7 * S, JobFreed("a", 1)),
            (7 * S, JobReady("a", 7 * S)),
            (8 * S, JobClaimed("a", 2, "two", 8 * S)),
            (10 * S, JobFreed("a", 2)),
            (10 * S, JobEnded("a", "done", 2)),
            (10 * S, JobStored("c", "queue:default:1", "receipt")),
            (11 * S, JobClaimed("b", 1, "two", 11 * S)),
            (14 * S, JobFreed("b", 1)),
            (14 * S, JobEnded("b", "cancelled", 1)),
            (15 * S, JobClaimed("c", 1, "two", 15 * S)),
            (16 * S, JobFreed("c", 1)),
            (16 * S, JobEnded("c", "done", 1)),
        ]
        self.left = [
            LeftJob("a", "done", "narrow", 1),
            LeftJob("b", "cancelled", "narrow", 2),
            LeftJob("c", "done", "receipt", 1),
        ]
        self.notes = Notes(tried={1, 2, 3}, sent={1: "a", 2: "b"}, cancelled={"b": 13 * S})
        self.notes.told["a"].add("done")
        self.notes.bodies = [
            (5 * S, "began", "a", "one"),
            (9 * S, "began", "a", "two"),
            (9 * S + 1, "over", "a", "two"),
            (12 * S, "began", "b", "two"),
            (13 * S, "over", "b", "two"),
        ]

    def place(self, event: Event) -> int:
        return next(place for place, (_, each) in enumerate(self.committed) if each == event)

    def move(self, event: Event, before: Event) -> None:
        self.committed.remove(self.committed[self.place(event)])
        place = self.place(before)
        self.committed.insert(place, (self.committed[place][0], event))

    def judge(self) -> None:
        judge(self.committed, self.notes, self.left)


def test_a_good_history_is_accepted() -> None:
    history = History()
    counts = judge(history.committed, history.notes, history.left)
    assert (counts["done"], counts["cancelled"], counts["cut off"], counts["unanswered"]) == (2, 1, 1, 1)
    assert [each.running for each in peaks(history.committed)] == [1, 1]


def ended_twice(history: History) -> None:
    history.committed.append((17 * S, JobEnded("a", "done", 2)))


def lost(history: History) -> None:
    history.left = history.left[1:]


def never_ended(history: History) -> None:
    history.left[0] = history.left[0]._replace(state="ready")
    history.committed.remove((10 * S, JobEnded("a", "done", 2)))


def two_at_once(history: History) -> None:
    history.move(JobClaimed("b", 1, "two", 11 * S), before=JobFreed("a", 2))


def claimed_while_held(history: History) -> None:
    history.move(JobClaimed("a", 2, "two", 8 * S), before=JobFreed("a", 1))


def claim_reset(history: History) -> None:
    history.committed[history.place(JobClaimed("a", 2, "two", 8 * S))] = 8 * S, JobClaimed("a", 1, "two", 8 * S)


def begun_while_paused(history: History) -> None:
    history.committed.insert(history.place(JobClaimed("b", 1, "two", 11 * S)), (11 * S, QueuePaused(SEAT, True)))


def slot_freed_before_the_body_was_over(history: History) -> None:
    history.notes.bodies[2] = (13 * S, "over", "a", "two")


def too_fast(history: History) -> None:
    place = history.place(JobClaimed("b", 1, "two", 11 * S))
    history.committed[place] = 11 * S, JobClaimed("b", 1, "two", 4 * S)
    place = history.place(JobClaimed("a", 2, "two", 8 * S))
    history.committed[place] = 8 * S, JobClaimed("a", 2, "two", 4 * S)


def begun_without_claim(history: History) -> None:
    history.notes.bodies.append((12 * S, "began", "b", "one"))


def told_another_end(history: History) -> None:
    history.notes.told["b"].add("done")


def cancelled_and_done(history: History) -> None:
    history.notes.cancelled["a"] = 16 * S


def cancelled_and_then_done(history: History) -> None:
    history.notes.cancelled["a"] = 9 * S


def receipt_lost(history: History) -> None:
    del history.left[2]
    history.committed = [each for each in history.committed if getattr(each[1], "job", "") != "c"]


def receipt_of_what_was_cancelled(history: History) -> None:
    history.left[2] = history.left[2]._replace(number=2)


def key_stored_twice(history: History) -> None:
    history.left[1] = history.left[1]._replace(number=1)


@pytest.mark.parametrize(
    "plant",
    [
        ended_twice,
        lost,
        never_ended,
        two_at_once,
        claimed_while_held,
        claim_reset,
        begun_while_paused,
        slot_freed_before_the_body_was_over,
        too_fast,
        begun_without_claim,
        told_another_end,
        cancelled_and_done,
        cancelled_and_then_done,
        receipt_lost,
        receipt_of_what_was_cancelled,
        key_stored_twice,
    ],
)
def test_what_breaks_a_promise_is_refused(plant: Callable[[History], None]) -> None:
    history = History()
    plant(history)
    with pytest.raises((Violation, AssertionError)):
        history.judge()


def test_the_body_of_a_lost_runner_is_excused_and_that_of_another_one_is_not() -> None:
    history = History()
    history.notes.bodies.append((14 * S, "over", "a", "one"))  # it woke up long after
    history.judge()
    kept = deepcopy(history)
    kept.committed.remove((6 * S, RunnerLost("one")))
    with pytest.raises(Violation, match="bodies at once"):
        kept.judge()


STEADY = [number * S // 20 for number in range(20 * 80)]


def test_a_steady_rate_is_accepted_in_every_window() -> None:
    windows = rate_windows(STEADY, [(0, 79 * S)], rate=20)
    judge_rate(windows)
    assert windows.windows > 300
    assert 0.99 <= windows.least <= windows.most <= 1.01


@pytest.mark.parametrize(
    "starts",
    [
        [at_ns for at_ns in STEADY if not 30 * S < at_ns < 32 * S],  # a gap of two seconds
        [at_ns for number, at_ns in enumerate(STEADY) if number % 20],  # one in twenty is missing
        sorted([*STEADY, *(40 * S + number for number in range(30))]),  # too many at once
        [],
    ],
)
def test_a_window_that_differs_by_more_than_two_percent_is_refused(starts: list[int]) -> None:
    with pytest.raises(AssertionError, match="of the starts that its rate allows"):
        judge_rate(rate_windows(starts, [(0, 79 * S)], rate=20))


def test_nothing_is_said_of_a_rate_without_a_long_calm() -> None:
    with pytest.raises(AssertionError, match="no calm lasted"):
        rate_windows(STEADY, [(0, 30 * S), (40 * S, 70 * S)], rate=20)


def test_starts_are_those_of_one_queue() -> None:
    assert starts_of(History().committed, SEAT) == [4 * S, 8 * S, 11 * S]


async def test_the_trail_has_what_was_committed(url: str, tmp_path: Path) -> None:
    """Each kind of change, on each engine."""
    from coterie import Cluster
    from tests.cluster.job_load_program import define

    client = Cluster(url)
    tasks = define(client)
    async with client.connect():
        trail = Trail(url)
        await trail.begin()
        sent = await client.send(tasks.rated.job(7, "ok"), tags={"number": "7"})
        await client.cancel(sent)
        committed, left = await trail.committed(), await trail.left()
    assert [event for _, event in committed] == [
        JobStored(sent, "queue:rated"),
        JobEnded(sent, "cancelled", 0),
    ]
    assert left == [LeftJob(sent, "cancelled", "rated", 7)]
