"""Runs that have failed and go on from the step that failed (W9)."""

from __future__ import annotations

import asyncio

import pytest

from coterie import AlreadyUndone, Workflow, WorkflowFailed, WorkflowInterrupted, WorkflowNotFailed, WorkflowNotFound
from tests.scenario.workflows.workflow_cluster import (
    SWEEP_S,
    Diary,
    kill_here,
    new_cluster,
    over,
    rows,
    seconds,
    simulated,
    suspended,
)
from tests.support.chaos_points import At


@pytest.mark.simulated(seeds=2)
async def test_w9_only_the_step_that_ended_the_run_runs_again() -> None:
    """One that failed and was caught stays as it is."""
    cluster, diary = new_cluster(), Diary()
    diary.fails.update({"ship": 1, "mail": 1})

    @cluster.workflow
    async def order(workflow: Workflow, cents: int) -> int:
        await workflow.step("charge", diary.do, "charge", cents)
        try:
            await workflow.step("mail", diary.do, "mail")
        except ValueError:
            await workflow.step("note", diary.do, "note")
        return await workflow.step("ship", diary.do, "ship", cents)

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(order, 500, id="1")
        assert isinstance(await over(run), WorkflowFailed)
        life = (await cluster.workflows.list())[0].life
        began_s = seconds(sim)
        await run.retry()
        assert await over(run) == 500
        assert diary.ran == ["charge", "mail", "note", "ship", "ship"]
        assert seconds(sim) - began_s < SWEEP_S, "its holder is told"
        assert (await cluster.workflows.list())[0].life == life
        with pytest.raises(WorkflowNotFailed, match="is done"):
            await run.retry()
        with pytest.raises(WorkflowNotFound):
            await cluster.workflow_handle(order, "2").retry()


@pytest.mark.simulated(seeds=2)
async def test_w9_an_error_that_the_body_made_of_that_of_a_step_leads_to_the_step() -> None:
    cluster, diary = new_cluster(), Diary()
    diary.fails.update({"a": 1, "b": 1})

    @cluster.workflow
    async def chained(workflow: Workflow, _: None) -> int:
        try:
            return await workflow.step("a", diary.do, "a", 1)
        except ValueError as error:
            raise RuntimeError("no a") from error

    @cluster.workflow
    async def grouped(workflow: Workflow, _: None) -> int:
        async with asyncio.TaskGroup() as group:
            found = [group.create_task(workflow.step(name, diary.do, name, 1)) for name in ("b", "c")]
        return sum(each.result() for each in found)

    async with simulated(cluster):
        for work, result in ((chained, 1), (grouped, 2)):
            run = await cluster.start_workflow(work, None, id="1")
            assert isinstance(await over(run), WorkflowFailed)
            await run.retry()
            assert await over(run) == result


@pytest.mark.simulated(seeds=2)
async def test_w9_the_body_that_failed_by_itself_runs_again_from_what_is_stored() -> None:
    cluster, diary = new_cluster(), Diary()
    diary.fails["the body"] = 1

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> int:
        await workflow.step("a", diary.do, "a")
        if diary.fails["the body"]:
            diary.fails["the body"] = 0
            raise KeyError("a bug")
        return 7

    async with simulated(cluster):
        run = await cluster.start_workflow(work, None, id="1")
        assert isinstance(await over(run), WorkflowFailed)
        await run.retry()
        assert (await over(run), diary.ran) == (7, ["a"])


@pytest.mark.simulated(seeds=2)
async def test_w9_a_run_that_has_begun_to_undo_is_not_retried() -> None:
    cluster, diary = new_cluster(), Diary()
    diary.fails["b"] = 1

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> int:
        await workflow.step("a", diary.do, "a")
        workflow.compensate("undo a", diary.do, "undo a")
        return await workflow.step("b", diary.do, "b")

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        assert isinstance(await over(run), WorkflowFailed)
        before = rows(sim, "units")
        with pytest.raises(AlreadyUndone, match="has begun to undo"):
            await run.retry()
        assert (rows(sim, "units"), diary.ran) == (before, ["a", "b", "undo a"])


@pytest.mark.simulated(seeds=2)
@pytest.mark.parametrize("decision", ["retry", "interrupt"])
async def test_w9_a_run_that_is_held_undoes_nothing_until_somebody_decides(decision: str) -> None:
    cluster, diary = new_cluster(retention="40s", key_retention="40s"), Diary()
    diary.fails["b"] = 1

    @cluster.workflow(on_failure="hold")
    async def work(workflow: Workflow, _: None) -> int:
        await workflow.step("a", diary.do, "a")
        workflow.compensate("undo a", diary.do, "undo a")
        return await workflow.step("b", diary.do, "b", 5)

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        assert isinstance(await over(run), WorkflowFailed)
        await sim.advance(120)
        assert diary.ran == ["a", "b"]
        assert await run.status() == "failed", "it is not purged"
        if decision == "retry":
            await run.retry()
            assert (await over(run), diary.ran) == (5, ["a", "b", "b"])
        else:
            await run.interrupt()
            assert isinstance(await over(run), WorkflowInterrupted)
            assert diary.ran == ["a", "b", "undo a"]
            with pytest.raises(WorkflowNotFailed):
                await run.retry()
        await sim.wait_until(lambda: not rows(sim, "units"), within="5m")


@pytest.mark.simulated(seeds=2)
async def test_w9_a_child_that_failed_is_retried_with_its_parent() -> None:
    cluster, diary = new_cluster(), Diary()
    diary.fails["ship"] = 1

    @cluster.workflow
    async def leaf(workflow: Workflow, n: int) -> int:
        await workflow.step("pack", diary.do, "pack")
        return await workflow.step("ship", diary.do, "ship", n)

    @cluster.workflow
    async def branch(workflow: Workflow, n: int) -> int:
        return await workflow.child(leaf, n, id="leaf")

    @cluster.workflow
    async def tree(workflow: Workflow, n: int) -> int:
        await workflow.step("begin", diary.do, "begin")
        return await workflow.child(branch, n, id="branch")

    async with simulated(cluster, runners=3):
        run = await cluster.start_workflow(tree, 7, id="1")
        assert isinstance(await over(run), WorkflowFailed)
        await run.retry()
        assert (await over(run), diary.ran) == (7, ["begin", "pack", "ship", "ship"])


@pytest.mark.simulated(seeds=2)
async def test_w9_a_rejected_deferred_waits_again_with_the_same_token() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, timeout: str | None) -> str:
        approval = workflow.deferred("approval", str)
        diary.give(f"{timeout}", approval)
        return await approval.wait(timeout=timeout)

    async with simulated(cluster) as sim:
        for timeout in (None, "1h"):
            run = await cluster.start_workflow(work, timeout, id=f"{timeout}")
            await suspended(sim, run)
            token = diary.tokens[f"{timeout}"]
            await cluster.reject(token, "no")
            assert isinstance(await over(run), WorkflowFailed)
            await run.retry()
            await cluster.resolve(token, "yes")
            assert await over(run) == "yes"


@pytest.mark.simulated(seeds=4)
async def test_w9_a_retry_is_not_ended_by_the_end_before_it() -> None:
    """The runner is killed around its end, again and again, and each failure is retried."""
    cluster, diary = new_cluster(), Diary()
    diary.fails["b"] = 4

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> int:
        await workflow.step("a", diary.do, "a")
        return await workflow.step("b", diary.do, "b", 5)

    async with simulated(cluster, runners=3) as sim:
        sim.database.weather.slow = 0.3
        run = await cluster.start_workflow(work, None, id="1")
        for turn in range(4):
            if turn == 2:
                At("workflows.before_end", lambda: kill_here(sim), time=1)
            assert isinstance(await over(run), WorkflowFailed)
            await run.retry()
        assert await over(run) == 5
        assert diary.ran == ["a", *["b"] * 5]
