"""Many runs at once (GAP-30): all end, and none of them waits until somebody looks at all shards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.scenario.workflows.workflow_cluster import NOON, SWEEP_S, Diary, new_cluster, seconds, simulated

if TYPE_CHECKING:
    from coterie import Workflow


@pytest.mark.simulated(seeds=1)
async def test_gap_30_300_runs_of_4_steps_20_at_a_time_and_none_waits_for_a_poll() -> None:
    cluster, diary = new_cluster(shards=8), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, n: int) -> int:
        for number in range(4):
            n += await workflow.step(f"step {number}", diary.do, f"{workflow.id}/{number}", 1)
        return n

    async with simulated(cluster, runners=3) as sim:
        turn = asyncio.Semaphore(20)

        async def run(number: int) -> float:
            async with turn:
                handle = await cluster.start_workflow(work, number, id=f"{number}")
                assert await handle.result(timeout="60s") == number + 4
            sql = "select (ended_at_ns - started_at_ns) / 1e9 from units where id = ?"
            found: float = sim.database.main.execute(sql, (f"{number}",)).get
            return found

        took = await asyncio.gather(*map(run, range(300)))
        assert max(took) < SWEEP_S
        assert len(diary.ran) == len(set(diary.ran)) == 1200
        assert len(await cluster.workflows.list(status="done", limit=1000)) == 300


@pytest.mark.simulated(seeds=2)
async def test_gap_30_w4_40_runs_that_are_resolved_at_the_moment_of_their_suspension() -> None:
    cluster, diary = new_cluster(shards=4), Diary()

    @cluster.workflow
    async def wait(workflow: Workflow, n: int) -> int:
        gate = workflow.deferred("gate", int)
        diary.give(workflow.id, gate)
        n += await gate.wait()
        again = workflow.deferred("again", int)
        diary.give(f"{workflow.id} again", again)
        return n + await again.wait()

    async with simulated(cluster, runners=3) as sim:

        async def run(number: int) -> float:
            handle = await cluster.start_workflow(wait, number, id=f"{number}")
            for name in (f"{number}", f"{number} again"):
                while name not in diary.tokens:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.19 + number / 2000)  # from before it leaves memory until after
                began_s = seconds(sim)
                await cluster.resolve(diary.tokens[name], 100)
            assert await handle.result(timeout="60s") == number + 200
            return seconds(sim) - began_s

        took = await asyncio.gather(*map(run, range(40)))
        assert max(took) < 1, "nobody waited for a poll"
        assert sim.now() > NOON


@pytest.mark.simulated(seeds=1)
async def test_lists_are_by_status_name_and_age() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def good(workflow: Workflow, n: int) -> int:
        return n

    @cluster.workflow
    async def stuck(workflow: Workflow, n: int) -> None:
        await workflow.step("gate", diary.gated, "gate")

    async with simulated(cluster) as sim:
        for number in range(3):
            await (await cluster.start_workflow(good, number, id=f"{number}")).result(timeout="10s")
        await cluster.start_workflow(stuck, 0, id="old")
        await sim.advance(10)
        await cluster.start_workflow(stuck, 0, id="new")
        assert [run.id for run in await cluster.workflows.list(name="good")] == ["2", "1", "0"]
        assert [run.id for run in await cluster.workflows.list(status="running")] == ["new", "old"]
        assert [run.id for run in await cluster.workflows.list(status="running", older_than="5s")] == ["old"]
        assert len(await cluster.workflows.list(limit=2)) == 2
        for limit in (-1, 1001):
            with pytest.raises(ValueError, match=f"limit is {limit}, expected 0 to 1000"):
                await cluster.workflows.list(limit=limit)
        diary.gates["gate"].set()
