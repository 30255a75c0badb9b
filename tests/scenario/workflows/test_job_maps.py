"""`workflow.map` of a task: its items are jobs, which run anywhere, while the run is suspended (W13)."""

from __future__ import annotations

import asyncio

import pytest

from coterie import Retry, Workflow, WorkflowFailed
from tests.scenario.workflows.workflow_cluster import (
    Diary,
    holder,
    new_cluster,
    over,
    restart,
    rows,
    simulated,
    suspended,
)


@pytest.mark.simulated(seeds=4)
async def test_w13_items_of_a_task_are_jobs_and_their_results_come_in_order() -> None:
    cluster, ran = new_cluster(), []

    @cluster.task
    async def square(number: int) -> int:
        ran.append(number)
        await asyncio.sleep(0.01 * ((number * 7) % 5))
        return number * number

    @cluster.workflow
    async def squares(workflow: Workflow, count: int) -> list[int]:
        return await workflow.map(square, range(count))

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(squares, 30, id="1")
        assert await over(run) == [number * number for number in range(30)]
        assert sorted(ran) == list(range(30))
        assert len(rows(sim, "jobs")) == 30
        empty = await cluster.start_workflow(squares, 0, id="2")
        assert await over(empty) == []
        assert not rows(sim, where="not done")


@pytest.mark.simulated(seeds=4)
async def test_w13_a_run_is_suspended_while_its_jobs_run_and_woken_by_their_end() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.task(retry=Retry(attempts=3, base="10ms"))
    async def work(number: int) -> int:
        return await diary.gated(f"job {number}", number)

    @cluster.workflow
    async def many(workflow: Workflow, _: None) -> list[int]:
        diary.body()
        return await workflow.map(work, range(5), name="work")

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(many, None, id="1")
        await suspended(sim, run)
        await sim.wait_until(lambda: len(diary.ran) == 5)
        before = len(diary.bodies)
        for number in range(4):
            diary.gates[f"job {number}"].set()
        await sim.advance(20)
        assert len(diary.bodies) == before, "it is not woken before all are over"
        at = sim.now()
        diary.gates["job 4"].set()
        assert await over(run) == list(range(5))
        assert (sim.now() - at).total_seconds() < 2
        assert sorted(diary.ran) == [f"job {number}" for number in range(5)], "each ran once"


@pytest.mark.simulated(seeds=6)
async def test_w13_the_end_of_jobs_is_found_by_who_comes_after_everybody_was_killed() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.task
    async def work(number: int) -> int:
        return await diary.do(f"job {number}", number)

    @cluster.workflow
    async def many(workflow: Workflow, _: None) -> list[int]:
        found: list[int] = await workflow.map(work, range(40))
        await workflow.step("gate", diary.gated, "gate")
        return found

    async with simulated(cluster, runners=3) as sim:
        run = await cluster.start_workflow(many, None, id="1")
        await sim.wait_until(lambda: len(diary.ran) > 3)
        await restart(sim, down_s=3)
        await sim.wait_until(lambda: len(rows(sim, where="kind = 'step' and done")) > 3)
        holder(sim, many).kill()
        await sim.wait_until(lambda: "gate" in diary.ran)
        holder(sim, many).kill()
        diary.gates["gate"].set()
        assert await over(run) == list(range(40))
        assert len(rows(sim, "jobs")) == 40, "each item has one job, whoever sent it"


@pytest.mark.simulated(seeds=4)
async def test_w13_a_job_that_fails_ends_the_map_and_the_others_are_cancelled() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.task(errors=[ValueError], retry=Retry(attempts=2, base="10ms"))
    async def work(number: int) -> int:
        if number == 3:
            return await diary.do("three")
        return await diary.gated(f"job {number}", number)

    @cluster.workflow
    async def many(workflow: Workflow, _: None) -> str:
        try:
            await workflow.map(work, range(6))
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        await workflow.step("gate", diary.gated, "gate")
        return said

    async with simulated(cluster) as sim:
        diary.fails["three"] = 9
        run = await cluster.start_workflow(many, None, id="1")
        await sim.wait_until(lambda: "gate" in diary.ran)
        await sim.wait_until(lambda: len(rows(sim, "jobs", where="state < 4")) == 0)
        assert sorted(set(diary.cancelled)) == [f"job {number}" for number in (0, 1, 2, 4, 5)]
        holder(sim, many).kill()
        await sim.wait_until(lambda: diary.ran.count("gate") == 2)
        diary.gates["gate"].set()
        said = await over(run)
        assert "three did not work" in said, said


@pytest.mark.simulated(seeds=4)
async def test_w13_w9_a_run_that_is_retried_sends_jobs_again_only_for_what_has_not_succeeded() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.task(retry=Retry(attempts=1))
    async def work(number: int) -> int:
        return await diary.do(f"job {number}", number)

    @cluster.workflow
    async def many(workflow: Workflow, _: None) -> list[int]:
        return await workflow.map(work, range(5))

    async with simulated(cluster) as sim:
        diary.fails["job 2"] = 1
        run = await cluster.start_workflow(many, None, id="1")
        assert isinstance(await over(run), WorkflowFailed)
        await sim.advance(2)
        await run.retry()
        assert await over(run) == list(range(5))
        assert len(rows(sim, "jobs", where="state = 4")) == 5, "the failed item was a job again, and no other one"
        assert diary.ran.count("job 2") == 2


@pytest.mark.simulated(seeds=4)
async def test_w13_jobs_of_a_run_that_is_interrupted_or_lost_a_race_are_cancelled() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.task
    async def work(number: int) -> int:
        return await diary.gated(f"job {number}", number)

    @cluster.workflow
    async def many(workflow: Workflow, _: None) -> list[int]:
        return await workflow.map(work, range(3))

    @cluster.workflow
    async def race(workflow: Workflow, _: None) -> int:
        diary.body()
        which, _result = await workflow.first(workflow.map(work, range(3, 6)), workflow.sleep("5s", name="late"))
        await workflow.sleep("1h", name="hour")
        return which

    async with simulated(cluster) as sim:
        first = await cluster.start_workflow(many, None, id="1")
        second = await cluster.start_workflow(race, None, id="2")
        await sim.wait_until(lambda: len(diary.ran) == 6)
        await sim.advance(2)
        await first.interrupt()
        await sim.wait_until(lambda: len(rows(sim, "jobs", where="state = 6")) == 6)
        await sim.advance(60)
        bodies = len(diary.bodies)
        await sim.advance(600)
        assert len(diary.bodies) == bodies, "what it gave up does not wake it"
        await sim.advance(3600)
        assert await over(second) == 1
        assert sorted(set(diary.cancelled)) == [f"job {number}" for number in range(6)]


@pytest.mark.simulated(seeds=1)
async def test_a_limit_of_jobs_and_a_job_as_a_step_are_refused() -> None:
    cluster, said = new_cluster(), []

    @cluster.task
    async def work(number: int) -> int:
        return number

    @cluster.workflow
    async def wrong(workflow: Workflow, _: None) -> None:
        for attempt in (
            lambda: workflow.map(work, range(3), limit=4),
            lambda: workflow.step("s", work.job(3)),  # type: ignore[call-overload]
        ):
            with pytest.raises(TypeError) as caught:
                await attempt()
            said.append(str(caught.value))

    async with simulated(cluster) as sim:
        await over(await cluster.start_workflow(wrong, None, id="1"))
        assert not rows(sim, "jobs")
        assert "the limits of jobs are those of the task's queue" in said[0]
        assert "map(task, items)" in said[1]
