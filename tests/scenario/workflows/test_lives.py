"""Runs that end one life and begin the next under the same id (W12), and tokens of lives that are over (W15)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from coterie import AlreadyResolved, KeyConflict, Workflow, WorkflowFailed, WorkflowInterrupted
from tests.scenario.workflows.workflow_cluster import (
    SWEEP_S,
    Diary,
    holder,
    kill_here,
    new_cluster,
    over,
    rows,
    seconds,
    simulated,
    suspended,
)
from tests.support.chaos_points import At

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.simulated(seeds=2)
async def test_w12_a_run_goes_on_for_years_with_the_history_of_a_month() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def subscription(workflow: Workflow, month: int) -> str:
        paid = await workflow.step("charge", diary.do, f"charge {month}", month)
        await workflow.sleep("20s", name="a month")
        if month == 12:
            return f"over after {paid} months"
        return workflow.again(month + 1)

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(subscription, 1, id="1")
        most = 0
        for _ in range(12):
            await suspended(sim, run)
            most = max(most, len(rows(sim, "steps")))
            await sim.advance(21)
        assert await over(run) == "over after 12 months"
        assert diary.ran == [f"charge {month}" for month in range(1, 13)]
        assert most == 2
        same = await cluster.start_workflow(subscription, 1, id="1")
        assert await over(same) == "over after 12 months", "the same start is the same run"


@pytest.mark.simulated(seeds=4)
@pytest.mark.parametrize("point", ["workflows.before_step", "workflows.before_end"])
async def test_w12_a_life_is_lived_once_whoever_dies(point: str) -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def count(workflow: Workflow, n: int) -> int:
        assert await workflow.step("next", diary.do, f"next {n}", n) == n
        return n if n == 5 else workflow.again(n + 1)

    async with simulated(cluster, runners=3) as sim:
        At(point, lambda: kill_here(sim), time=3 if point == "workflows.before_step" else 1)
        run = await cluster.start_workflow(count, 1, id="1")
        assert await over(run) == 5
        assert sorted(set(diary.ran)) == [f"next {n}" for n in range(1, 6)]
        assert [each.name for each in await run.steps()] == ["next"]


@pytest.mark.simulated(seeds=2)
async def test_the_next_life_begins_at_once_and_compensates_only_what_it_did() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, n: int) -> int:
        workflow.compensate(f"undo {n}", diary.do, f"undo {n}")
        if n == 3:
            raise ValueError("enough")
        return workflow.again(n + 1)

    async with simulated(cluster) as sim:
        began_s = seconds(sim)
        assert isinstance(await over(await cluster.start_workflow(work, 1, id="1")), WorkflowFailed)
        assert diary.ran == ["undo 3"]
        assert seconds(sim) - began_s < SWEEP_S


@pytest.mark.simulated(seeds=2)
async def test_an_interruption_reaches_the_life_that_runs_then() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, n: int) -> int:
        await workflow.step("beat", diary.do, f"beat {n}", n)
        return workflow.again(n + 1)

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(work, 1, id="1")
        await sim.wait_until(lambda: len(diary.ran) > 5)
        await run.interrupt()
        assert isinstance(await over(run), WorkflowInterrupted)
        assert holder(sim, work).alive


@pytest.mark.simulated(seeds=2)
async def test_w15_a_token_of_a_former_life_is_refused_and_that_of_this_one_is_not() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, n: int) -> int:
        answer = workflow.deferred("answer", int)
        diary.give(f"{n}", answer)
        return await answer.wait() if n == 2 else workflow.again(n + 1)

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(work, 1, id="1")
        await suspended(sim, run)
        with pytest.raises(AlreadyResolved, match="the work it belonged to is over"):
            await cluster.resolve(diary.tokens["1"], 1)
        await cluster.resolve(diary.tokens["2"], 2)
        assert await over(run) == 2


@pytest.mark.simulated(seeds=1)
async def test_again_that_is_not_returned_fails_the_run_with_an_error_that_says_so() -> None:
    cluster = new_cluster()

    @cluster.workflow
    async def work(workflow: Workflow, n: int) -> int:
        again: Callable[[int], object] = workflow.again
        again(n + 1)
        return n

    async with simulated(cluster):
        assert "returned something else: return it" in str(await over(await cluster.start_workflow(work, 1, id="1")))


@pytest.mark.simulated(seeds=1)
async def test_a_payload_that_does_not_fit_fails_the_life_that_gives_it() -> None:
    cluster = new_cluster()

    @cluster.workflow
    async def work(workflow: Workflow, n: int) -> int:
        return workflow.again("text" if n == 1 else n)

    async with simulated(cluster):
        assert "payload of workflow:work/1" in str(await over(await cluster.start_workflow(work, 1, id="1")))


@pytest.mark.simulated(seeds=2)
async def test_the_same_id_again_after_its_end_is_another_life_if_that_is_asked_for() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, n: int) -> int:
        return await workflow.step("a", diary.do, f"a {n}", n)

    async with simulated(cluster):
        first = await cluster.start_workflow(work, 1, id="1", again=True)
        assert await over(first) == 1
        with pytest.raises(KeyConflict):
            await cluster.start_workflow(work, 2, id="1")
        assert (await cluster.start_workflow(work, 1, id="1")).life == first.life
        second, too = await asyncio.gather(*(cluster.start_workflow(work, 2, id="1", again=True) for _ in range(2)))
        assert second.life == too.life != first.life
        assert (await over(second), await over(first)) == (2, 2), "it is the same run"
        (info,) = await cluster.workflows.list()
        assert (info.life, diary.ran) == (second.life, ["a 1", "a 2"])
