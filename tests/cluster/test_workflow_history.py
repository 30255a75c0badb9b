"""The judge of steps accepts what is right and rejects what is wrong."""

from __future__ import annotations

import pytest

from tests.cluster.workflow_history import Effect, judge

KILLED, ALIVE = 1, 2


def effect(step: int, stamp: str, at: int, *, pid: int = ALIVE, run: str = "7") -> Effect:
    return Effect(run, step, stamp, pid, at)


# The first step is stored; the second one is cut with its runner, and runs again where the body begins anew.
RAN = [effect(0, "a", 1, pid=KILLED), effect(1, "b", 3, pid=KILLED), effect(1, "c", 6)]
SAW = [effect(0, "a", 2, pid=KILLED), effect(0, "a", 5), effect(1, "c", 7)]
RESULTS = {"7": ["a", "c"]}


def test_a_step_that_was_cut_may_run_again() -> None:
    counts = judge(RAN, SAW, RESULTS, dead={KILLED}, rows={"7": ["a", "c"]})
    assert counts == {"runs": 1, "steps": 2, "cut": 1, "replays": 1}
    assert judge([*RAN, effect(2, "d", 8, pid=KILLED)], SAW, RESULTS, dead={KILLED})["steps"] == 2, "not told yet"


@pytest.mark.parametrize(
    ("ran", "saw", "why"),
    [
        ([*RAN, effect(0, "d", 4)], [*SAW, effect(0, "d", 5)], "gave one body this and another one that"),
        (RAN, [*SAW, effect(0, "d", 5)], "gave one body this and another one that"),
        (RAN, [*SAW[:2], effect(1, "d", 7)], "gave what no run of it has given"),
        ([*RAN, effect(0, "d", 4, pid=KILLED)], SAW, "ran although it was stored"),
        ([*RAN, effect(1, "d", 6)], SAW, "was not cut, and what it gave is lost"),
        ([effect(1, "b", 3), *RAN[::2]], SAW, "was not cut, and what it gave is lost"),
    ],
)
def test_a_step_that_is_not_recorded_once_is_found(ran: list[Effect], saw: list[Effect], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        judge(ran, saw, {}, dead={KILLED})


@pytest.mark.parametrize("given", [["a"], ["a", "b"], ["c", "a"], ["a", "c", "c"]])
def test_a_result_that_is_not_what_the_body_was_told_is_found(given: list[str]) -> None:
    with pytest.raises(AssertionError, match="the result of 7"):
        judge(RAN, SAW, {"7": given}, dead={KILLED})


@pytest.mark.parametrize("given", [["c"], ["a", "b"], ["a", "c", "c"]])
def test_a_row_that_is_not_what_the_body_was_told_is_found(given: list[str]) -> None:
    assert judge(RAN, SAW, RESULTS, dead={KILLED}, rows={"7": ["a"]}), "the second step was not made yet"
    with pytest.raises(AssertionError, match="the rows of 7"):
        judge(RAN, SAW, RESULTS, dead={KILLED}, rows={"7": given})
