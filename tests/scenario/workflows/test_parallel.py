"""Steps side by side: branches, their order, and what becomes of them when a runner is lost (M10)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.scenario.workflows.workflow_cluster import (
    Diary,
    holder,
    kill_here,
    new_cluster,
    over,
    seconds,
    simulated,
    steps,
)
from tests.support.chaos_points import At

if TYPE_CHECKING:
    from coterie import Workflow


@pytest.mark.parametrize("how", ["gather", "group"])
@pytest.mark.simulated(seeds=2)
async def test_w1_branches_go_on_where_they_were(how: str) -> None:
    """Each is a task of its own, with several steps; none was called before they begin."""
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def fan(workflow: Workflow, n: int) -> list[int]:
        diary.body()

        async def branch(name: str) -> int:
            first = await workflow.step("first", diary.do, f"{name}1", 1)
            second = await workflow.step("second", diary.do, f"{name}2", 10)
            return first + second + await workflow.step("third", diary.gated, f"{name}3", 100)

        names = [f"{chr(97 + i)}" for i in range(n)]
        if how == "gather":
            return list(await asyncio.gather(*map(branch, names)))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(name)) for name in names]
        return [task.result() for task in tasks]

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(fan, 3, id="1")
        await sim.wait_until(lambda: {"a3", "b3", "c3"} <= set(diary.ran))
        diary.gates["b3"].set()
        await sim.wait_until(lambda: "b3" in diary.ended)
        await sim.advance(0.1)
        holder(sim, fan).kill()
        for name in "ac":
            diary.gates[f"{name}3"].set()
        assert await over(run) == [111, 111, 111]
        assert sorted(diary.ran) == sorted(["a1", "a2", "a3", "b1", "b2", "b3", "c1", "c2", "c3", "a3", "c3"])
        assert len(diary.bodies) == 2


@pytest.mark.simulated(seeds=2)
async def test_branches_in_branches_across_a_kill() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def tree(workflow: Workflow, depth: int) -> int:
        async def node(name: str, left: int) -> int:
            own = await workflow.step(f"node {name}", diary.do, name, 1)
            if not left:
                return own
            below = await asyncio.gather(node(f"{name}0", left - 1), node(f"{name}1", left - 1))
            return own + sum(below) + await workflow.step(f"after {name}", diary.do, f"after {name}", 0)

        return await node("x", depth)

    async with simulated(cluster) as sim:
        for time in range(1, 22, 4):
            at = At("workflows.before_step", lambda: kill_here(sim), time=time)
            run = await cluster.start_workflow(tree, 2, id=f"{time}")
            assert await over(run) == 7
            assert at.happened == (time <= 10)
            for runner in sim.runners:
                if not runner.alive:
                    runner.start()
            await sim.advance(3)


@pytest.mark.simulated(seeds=1)
async def test_steps_in_one_gather_have_the_order_of_their_calls() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def pair(workflow: Workflow, _: None) -> list[int]:
        slow, fast = workflow.step("slow", diary.gated, "slow", 1), workflow.step("fast", diary.do, "fast", 2)
        both = list(await asyncio.gather(slow, fast))
        await workflow.step("last", diary.gated, "last")
        return both

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(pair, None, id="1")
        await sim.wait_until(lambda: "fast" in diary.ended)
        diary.gates["slow"].set()
        await sim.wait_until(lambda: "last" in diary.ran)
        assert [(position, name) for _, position, _, name in steps(sim)] == [(0, "slow"), (1, "fast")]
        holder(sim, pair).kill()
        diary.gates["last"].set()
        assert await over(run) == [1, 2]
        assert diary.ran == ["slow", "fast", "last", "last"]
        assert seconds(sim) < 20


@pytest.mark.parametrize("how", ["gather", "group"])
@pytest.mark.simulated(seeds=1)
async def test_a_runner_that_leaves_lets_the_steps_of_all_branches_end_and_begins_no_more(how: str) -> None:
    """A task that is cancelled is ignored by its group, which must not make a run look finished."""
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def fan(workflow: Workflow, _: None) -> str:
        async def branch(name: str) -> None:
            await workflow.step("first", diary.gated, f"{name}1")
            await workflow.step("second", diary.do, f"{name}2")

        if how == "gather":
            await asyncio.gather(branch("a"), branch("b"))
            return "both"
        async with asyncio.TaskGroup() as group:
            group.create_task(branch("a"))
            group.create_task(branch("b"))
        return "both"

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(fan, None, id="1")
        await sim.wait_until(lambda: len(diary.ran) == 2)
        stops = asyncio.ensure_future(holder(sim, fan).stop())
        await sim.advance(0.1)
        diary.gates["a1"].set()
        await sim.advance(1)
        diary.gates["b1"].set()
        began_s = seconds(sim)
        await stops
        assert seconds(sim) - began_s < 1
        assert await over(run) == "both"
        assert sorted(diary.ran) == ["a1", "a2", "b1", "b2"]
        assert diary.cancelled == []


@pytest.mark.simulated(seeds=1)
async def test_a_sibling_of_a_step_that_fails_does_not_go_on_behind_its_back() -> None:
    cluster, diary = new_cluster(), Diary()
    diary.fails["bad"] = 1

    @cluster.workflow
    async def pair(workflow: Workflow, _: None) -> None:
        async def slow() -> None:
            await workflow.step("slow", diary.gated, "slow")
            await workflow.step("after", diary.do, "after")

        workflow.compensate("undo", diary.do, "undo")
        await asyncio.gather(slow(), workflow.step("bad", diary.do, "bad"))

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(pair, None, id="1")
        assert "bad did not work" in str(await over(run))
        assert diary.cancelled == ["slow"]
        diary.gates["slow"].set()
        await sim.advance(3)
        assert diary.ran == ["slow", "bad", "undo"]
