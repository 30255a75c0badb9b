"""The checkers of durable work are checked: each accepts good histories and rejects bad ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.support.history.cron_events import Stepped
from tests.support.history.ownership import Checker, Event, Grant, Violation, check
from tests.support.history.workflow_checkers import (
    EveryRunEnds,
    FirstResolveWins,
    FlowsAreFenced,
    InterruptsCount,
    InTimeIsInTime,
    NothingIsLeft,
    NoWakeUpIsLost,
    ResultsAreRight,
    SleepsLast,
    StepsStoredOnce,
    WhatWasDoneIsUndone,
)
from tests.support.history.workflow_events import (
    Begun,
    Calm,
    Changed,
    Dropped,
    Ended,
    Interrupting,
    Planned,
    Promised,
    ResolveTold,
    Saw,
    Silence,
    StartTold,
    StepBegan,
    Stored,
    Suspended,
    Valued,
    Waits,
    Woken,
)

BEGUN = Begun("u", "s")
LED = Begun("u", "s", "leader")
DONE = Ended("u", "done")


def began(name: str = "a", *, epoch: int = 1, **more: Any) -> StepBegan:
    return StepBegan("u", name, epoch, **more)


def stored(name: str = "a", given: str = "1", **more: Any) -> Stored:
    return Stored("u", name, given, **more)


def waited(name: str = "d", *, due_s: float | None = None, **more: Any) -> Stored:
    return Stored("u", name, kind="deferred", done=False, due_s=due_s, **more)


def asleep(due_s: float) -> Stored:
    return Stored("u", "z", kind="sleep", done=False, due_s=due_s)


def saw(name: str = "a", given: str = "1", kind: str = "step", *, now_s: float = 0) -> Saw:
    return Saw("u", name, given, kind, now_s)


def valued(given: str = "7", *, now_s: float = 0) -> Valued:
    return Valued("u", "d", given, now_s)


def told(outcome: Any, given: str = "7") -> ResolveTold:
    return ResolveTold("u", "d", given, outcome)


def undone(name: str) -> list[Event]:
    return [began(name, is_undo=True), stored(name, kind="compensation")]


def promised(*names: str, branch: str = "") -> list[Event]:
    return [Promised("u", name, branch) for name in names]


RAN: list[Event] = [BEGUN, began(), stored(), saw()]
GRANTED: list[Event] = [Grant("s", 1, "r"), BEGUN]
LOST: list[Event] = [*GRANTED, Grant("s", 2, "q")]
ASKED: list[Event] = [*GRANTED, Interrupting("u")]
PLANNED: list[Event] = [Planned("u", ("a", "c")), BEGUN, stored()]
CHILD: list[Event] = [Planned("u", ("c",)), BEGUN, Ended("c", "done", ("x=1",))]
DUE: list[Event] = [BEGUN, waited(due_s=5)]
WAITING: list[Event] = [BEGUN, Calm(0), Waits("u", "d")]

ACCEPTED: list[tuple[Checker, list[Event]]] = [
    (StepsStoredOnce(), [*RAN, saw(), saw(), DONE]),
    (StepsStoredOnce(), [BEGUN, began(), began(epoch=2), stored(), saw()]),
    (StepsStoredOnce(), [*RAN, DONE, BEGUN, began(), stored(given="2"), saw(given="2"), saw()]),
    (StepsStoredOnce(), [BEGUN, waited(), stored("d", "timeout", kind="deferred"), saw("d", "timeout", "timed")]),
    (StepsStoredOnce(), [BEGUN, waited(), valued(), saw("d", "7", "wait"), Changed("u", "d", is_value=True)]),
    (ResultsAreRight(), [*PLANNED, stored("c", "2"), Ended("u", "done", ("a=1", "c=2"))]),
    (ResultsAreRight(), [*PLANNED, Valued("u", "c", "2"), Ended("u", "done", ("a=1", "c=2"))]),
    (ResultsAreRight(), [*PLANNED, Ended("u", "failed")]),
    (ResultsAreRight(), [*CHILD, saw("c", "done & x=1", "child"), Ended("u", "done", ("c=done & x=1",))]),
    (FirstResolveWins(), [BEGUN, valued(), told("ok"), told("already", "8"), saw("d", "7", "wait")]),
    (FirstResolveWins(), [valued(), BEGUN, told("unknown"), told("already")]),
    (FirstResolveWins(), [BEGUN, DONE, told("already")]),
    (FirstResolveWins(), [BEGUN, saw("d", "timeout", "timed")]),
    (FirstResolveWins(), [BEGUN, valued(), DONE, Dropped("u", "d", is_value=True), valued("8"), told("ok", "8")]),
    (InTimeIsInTime(), [*DUE, stored("d", "timeout", kind="deferred")]),
    (InTimeIsInTime(), [*DUE, valued(now_s=6), stored("d", "timeout", kind="deferred")]),
    (InTimeIsInTime(), [*DUE, valued(now_s=4), stored("d", "7", kind="deferred")]),
    (InTimeIsInTime(), [*DUE, valued(now_s=4), Stepped(10), stored("d", "timeout", kind="deferred")]),
    (
        FlowsAreFenced(),
        [*GRANTED, stored(epoch=1), Grant("s", 2, "q"), stored("b", epoch=2), Ended("u", "done", (), 2)],
    ),
    (FlowsAreFenced(), [*LOST, stored(), Ended("u", "failed")]),
    (
        WhatWasDoneIsUndone(),
        [*promised("x", "y"), *promised("x", "y"), *undone("y"), *undone("x"), Ended("u", "failed")],
    ),
    (WhatWasDoneIsUndone(), [*promised("x", "y"), DONE]),
    (WhatWasDoneIsUndone(), [*promised("x"), *promised("y", branch="0"), *undone("x"), *undone("y")]),
    (WhatWasDoneIsUndone(), [*promised("x"), *undone("x"), *promised("y"), *undone("y"), Ended("u", "interrupted")]),
    (WhatWasDoneIsUndone(), [*promised("x"), *undone("x"), began(branch="0"), Ended("u", "failed")]),
    (InterruptsCount(), [*ASKED, began(), Ended("u", "interrupted")]),
    (InterruptsCount(), [*ASKED, Ended("u", "done", (), 1)]),
    (InterruptsCount(), [*ASKED, Grant("s", 2, "q"), began("undo", epoch=2, is_undo=True), Ended("u", "interrupted")]),
    (InterruptsCount(), [*LOST, began(epoch=2), Ended("u", "done", (), 2)]),
    (NoWakeUpIsLost(2), [BEGUN, Suspended("u"), valued(), Woken("u"), saw("d", "7", "wait", now_s=99)]),
    (NoWakeUpIsLost(2), [BEGUN, Suspended("u"), Ended("c", "done"), valued(), Dropped("c", "x"), Woken("u"), DONE]),
    (NoWakeUpIsLost(2), [*WAITING, valued(now_s=1), saw("d", "7", "wait", now_s=3), Silence(99)]),
    (NoWakeUpIsLost(2), [*WAITING, valued(now_s=1), Ended("u", "interrupted"), Silence(99)]),
    (NoWakeUpIsLost(2), [BEGUN, Calm(0), valued(now_s=1), Waits("u", "d"), saw("d", "7", "wait", now_s=9)]),
    (NoWakeUpIsLost(2), [BEGUN, Calm(0), asleep(5), saw("z", "", "sleep", now_s=6)]),
    (NoWakeUpIsLost(2), [BEGUN, Suspended("u"), Woken("u"), valued(), DONE]),
    (SleepsLast(0.1), [BEGUN, asleep(5), saw("z", "", "sleep", now_s=4.95)]),
    (SleepsLast(0.1), [BEGUN, asleep(5), Stepped(-10), saw("z", "", "sleep", now_s=1)]),
    (SleepsLast(0.1), [BEGUN, asleep(5), Stepped(-10), stored("z", kind="sleep", due_s=5), saw("z", "", "sleep")]),
    (EveryRunEnds(), [BEGUN, StartTold("u"), DONE, StartTold("u"), Silence(1)]),
    (EveryRunEnds(), [Begun("l", "s", "leader"), Silence(1)]),
    (NothingIsLeft(), [BEGUN, stored(), valued(), DONE, Silence(1)]),
    (
        NothingIsLeft(),
        [LED, stored(), valued(), Ended("u", "gone"), Dropped("u", "a"), Dropped("u", "d", is_value=True), Silence(1)],
    ),
    (NothingIsLeft(), [Begun("u", "s", "leader"), Ended("u", "gone"), Silence(1), valued(), Begun("u", "s", "leader")]),
    (NothingIsLeft(), [valued(), Dropped("u", "d", is_value=True)]),
]

REJECTED: list[tuple[Checker, list[Event], str]] = [
    (StepsStoredOnce(), [*RAN, began()], "a of u ran again"),
    (StepsStoredOnce(), [*RAN, stored(given="2")], "a of u was stored twice"),
    (StepsStoredOnce(), [BEGUN, waited(), waited()], "d of u was stored twice"),
    (StepsStoredOnce(), [*RAN, Changed("u", "a")], "was written over"),
    (StepsStoredOnce(), [*RAN, saw(given="2")], "u saw 2 of a, and stored is 1"),
    (StepsStoredOnce(), [BEGUN, began(), saw()], "stored is nothing"),
    (StepsStoredOnce(), [BEGUN, waited(), saw("d", "timeout", "timed")], "u saw timeout of d"),
    (StepsStoredOnce(), [*RAN, DONE, stored("b")], "was stored when u was over"),
    (ResultsAreRight(), [*PLANNED, Ended("u", "done", ("a=1",))], "planned was"),
    (ResultsAreRight(), [*PLANNED, stored("c"), Ended("u", "done", ("c=1", "a=1"))], "planned was"),
    (ResultsAreRight(), [*PLANNED, stored("c"), Ended("u", "done", ("a=1", "c=2"))], "u ends with 2 of c"),
    (ResultsAreRight(), [*CHILD, saw("c", "done & x=2", "child")], "u saw done & x=2 of c"),
    (ResultsAreRight(), [BEGUN, saw("c", "done", "child")], "None is so"),
    (ResultsAreRight(), [*CHILD, Ended("u", "done", ("c=failed",))], "u ends with failed of c"),
    (FirstResolveWins(), [BEGUN, valued(), valued("8")], "has two values"),
    (FirstResolveWins(), [BEGUN, valued(), Changed("u", "d", is_value=True)], "was written over"),
    (FirstResolveWins(), [BEGUN, valued(), told("ok", "8")], "8 was acknowledged"),
    (FirstResolveWins(), [BEGUN, told("ok")], "7 was acknowledged"),
    (FirstResolveWins(), [BEGUN, told("already")], "said to be resolved, and is not"),
    (FirstResolveWins(), [BEGUN, valued(), saw("d", "8", "wait")], "u saw 8 of d"),
    (FirstResolveWins(), [BEGUN, saw("d", "timeout", "wait")], "it has no value"),
    (InTimeIsInTime(), [*DUE, valued(now_s=4), stored("d", "timeout", kind="deferred")], r"come 1.000s before"),
    (FlowsAreFenced(), [*LOST, stored(epoch=1)], "a by epoch 1, when 2 was granted"),
    (FlowsAreFenced(), [*LOST, Ended("u", "done", (), 1)], "done by epoch 1, when 2 was granted"),
    (WhatWasDoneIsUndone(), [*promised("x", "y"), *undone("x")], "x of u was undone before y"),
    (WhatWasDoneIsUndone(), [*promised("x", "y"), *undone("y"), Ended("u", "failed")], "'x'. never ran"),
    (WhatWasDoneIsUndone(), [*promised("x"), Ended("u", "interrupted")], "'x'. never ran"),
    (WhatWasDoneIsUndone(), [*promised("x"), stored("x", kind="compensation")], "was stored, and never ran"),
    (WhatWasDoneIsUndone(), undone("x"), "nobody has said so"),
    (WhatWasDoneIsUndone(), [*promised("x"), *undone("x"), DONE], "u is done, and"),
    (WhatWasDoneIsUndone(), [*promised("x"), *undone("x"), began()], "began when it was being undone"),
    (InterruptsCount(), [*GRANTED, Ended("u", "interrupted")], "nobody wanted that"),
    (InterruptsCount(), [*ASKED, Grant("s", 2, "q"), began(epoch=2)], "began after a takeover"),
    (InterruptsCount(), [*ASKED, Grant("s", 2, "q"), Ended("u", "done", (), 2)], "done by a later holder"),
    (NoWakeUpIsLost(2), [BEGUN, Suspended("u"), valued(), saw("d", "7", "wait")], "stays suspended"),
    (NoWakeUpIsLost(2), [BEGUN, Suspended("u"), valued(), Woken("v"), Silence(1)], "stays suspended"),
    (NoWakeUpIsLost(2), [*WAITING, valued(now_s=1), saw("d", "7", "wait", now_s=4)], r"waited 3.000s for d"),
    (NoWakeUpIsLost(2), [*WAITING, valued(now_s=1), Silence(99)], r"waited 98.000s for d"),
    (NoWakeUpIsLost(2), [BEGUN, Calm(0), asleep(5), saw("z", "", "sleep", now_s=8)], r"waited 3.000s for z"),
    (SleepsLast(0.1), [BEGUN, asleep(5), saw("z", "", "sleep", now_s=4.8)], "was over 0.200s before"),
    (EveryRunEnds(), [BEGUN, Silence(1)], "have never ended"),
    (EveryRunEnds(), [StartTold("u")], "said to be started, and is not there"),
    (EveryRunEnds(), [BEGUN, DONE, Ended("u", "failed")], "ended twice, now as failed"),
    (NothingIsLeft(), [LED, stored(), Ended("u", "gone"), Silence(1)], "rows of it are left"),
    (NothingIsLeft(), [LED, valued(), Ended("u", "gone"), Silence(1)], "rows of it are left"),
    (NothingIsLeft(), [BEGUN, stored(), DONE, Dropped("u", "a")], "gone before its retention is over"),
    (NothingIsLeft(), [BEGUN, stored(), Dropped("u", "a")], "is gone, and that goes on"),
    (NothingIsLeft(), [BEGUN, DONE, Silence(1), stored()], "which is over"),
    (NothingIsLeft(), [BEGUN, DONE, Silence(1), valued()], "which is over"),
]


@pytest.mark.parametrize(("checker", "history"), ACCEPTED)
def test_a_good_history_is_accepted(checker: Checker, history: list[Event]) -> None:
    assert check(history, copy.deepcopy(checker)) == len(history)


@pytest.mark.parametrize(("checker", "history", "problem"), REJECTED)
def test_a_bad_history_is_rejected(checker: Checker, history: list[Event], problem: str) -> None:
    with pytest.raises(Violation, match=problem):
        check(history, copy.deepcopy(checker))
