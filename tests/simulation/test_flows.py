"""Workflows and units of leaders under all faults: steps are stored once, and nothing waits for ever (W1-W5, B5).

A fixed sample of seeds here, thousands with `make sim`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from coterie import Cluster, Retry, Workflow, WorkflowInterrupted
from coterie.kernel import chaos
from coterie.testing.simulation import simulate
from coterie.workflows.execution import IDLE_S
from tests.simulation.workloads import flows
from tests.simulation.workloads.flow_history import judge
from tests.simulation.workloads.flow_plans import Act
from tests.simulation.workloads.flow_program import new_stage
from tests.support.history.workflow_events import Calm, Ended, Silence

if TYPE_CHECKING:
    from coterie.testing.simulation import Runner, Simulation
    from tests.support.history.ownership import Event

SOON_S = 2.0
"""Sooner than anybody looks at all shards, or at what it waits for."""


@pytest.mark.simulated(seeds=2)
async def test_w1_w5_b5_durable_work_goes_on_under_all_faults() -> None:
    await flows.main()


@pytest.mark.simulated(seeds=1)
async def test_inv_f2_w1_writes_that_arrive_late_change_nothing() -> None:
    await flows.late()


@pytest.mark.simulated(seeds=1)
async def test_b5_branches_in_branches_undo_all_they_have_done() -> None:
    await flows.nested()


@pytest.mark.simulated(seeds=1)
async def test_gap_30_w4_300_runs_and_40_resolved_as_they_are_suspended_wait_for_no_poll() -> None:
    """20 at a time, of 4 steps; the others are resolved in the very moments around their suspension."""
    events = await many(steps=300, waits=40)
    ended = [event for event in events if isinstance(event, Ended) and event.unit.startswith("workflow:")]
    assert len(ended) == 340
    assert {event.status for event in ended} == {"done"}


async def many(*, steps: int, waits: int) -> list[Event]:
    """Runs without any fault, judged by how soon they go on."""
    chaos.install(None)
    stage = new_stage(shards=8)
    stage.fails, stage.is_over = 0.0, True
    async with simulate(stage.cluster, runners=0) as sim:
        sim.database.weather.slow = 0.0
        stage.history.watch(sim)
        await sim.start(3)
        await stage.cluster.ready()
        stage.history.note(Calm(stage.history.now_s))
        turns = asyncio.Semaphore(20)

        async def run(number: int) -> None:
            plan = [Act("step", f"step {n}", 0.03) for n in range(4)]
            async with turns:
                handle = await stage.cluster.start_workflow(stage.flow, plan, id=f"{number}")
                await handle.result(timeout="60s")

        async def wait(number: int) -> None:
            handle = await stage.cluster.start_workflow(stage.flow, [Act("wait", "gate")], id=f"waits {number}")
            await handle.result(timeout="60s")

        async def resolve(number: int) -> None:
            """One after the other a bit later: the suspension is between them. Some when it is over."""
            _, _, token = await stage.asks.get()
            await asyncio.sleep(IDLE_S + (0.0001 * (number % 20 - 5) if number % 4 else 0.05))
            await stage.cluster.resolve(token, number)

        await asyncio.gather(*map(run, range(steps)), *map(wait, range(waits)), *map(resolve, range(waits)))
        stage.history.note(Silence(stage.history.now_s))
        events = stage.history.events()
    judge(events, within_s=SOON_S)
    return events


@pytest.mark.simulated(seeds=2)
async def test_w1_who_was_frozen_between_two_tries_does_not_try_what_its_successor_has_stored() -> None:
    cluster, ran = Cluster("sqlite://", shards=1), list[int]()

    @cluster.workflow(retry=Retry(5, base="2s"))
    async def work(workflow: Workflow, _: None) -> int:
        return await workflow.step("try", attempt)

    async def attempt() -> int:
        ran.append(len(ran))
        if len(ran) == 1:
            raise ValueError("not yet")
        return len(ran)

    async with simulate(cluster, runners=2) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        await sim.wait_until(lambda: ran)
        frozen = _holder(sim)
        frozen.freeze()
        assert await run.result(timeout="60s") == 2
        frozen.thaw()
        await sim.advance(10)
        assert ran == [0, 1]


@pytest.mark.simulated(seeds=2)
async def test_w4_a_value_that_came_in_time_counts_though_nobody_could_look_when_the_time_was_over() -> None:
    """Its hint is lost, too."""
    cluster, waits = Cluster("sqlite://", shards=1), list[str]()

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> int:
        gate = workflow.deferred("gate", int)
        waits.append(gate.token)
        return await gate.wait(timeout="900ms")

    async with simulate(cluster, runners=1) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        await sim.wait_until(lambda: waits and sim.database.main.execute("select count(*) from steps").get)
        sim.network.cut(sim.loop.test.name, sim.runners[0].name)
        sim.runners[0].cut("storage", "requests")
        await cluster.resolve(waits[0], 7)
        await sim.advance(1)
        sim.runners[0].heal()
        assert await run.result(timeout="60s") == 7


@pytest.mark.simulated(seeds=2)
async def test_s11_a_sleep_lasts_though_the_clock_of_the_database_was_set_back_before() -> None:
    cluster, began = Cluster("sqlite://", shards=1), list[int]()

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> None:
        began.append(sim.loop.now_ns)
        await workflow.sleep("800ms", name="a moment")

    async with simulate(cluster, runners=1) as sim:
        await sim.advance(5)
        sim.database.step_clock(-10)
        run = await cluster.start_workflow(work, None, id="1")
        await run.result(timeout="60s")
        assert sim.loop.now_ns - began[0] >= 800_000_000


@pytest.mark.simulated(seeds=2)
async def test_b5_a_sleep_that_is_over_stays_so_and_what_came_after_it_is_undone() -> None:
    """The clock of the database is set back to before its end, and the run is interrupted."""
    cluster, ran = Cluster("sqlite://", shards=1), list[str]()

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> None:
        await workflow.sleep("800ms", name="a moment")
        await workflow.step("do", note, "do")
        workflow.compensate("undo", note, "undo")
        await workflow.deferred("gate", int).wait()

    async def note(what: str) -> None:
        ran.append(what)

    async with simulate(cluster, runners=1) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        await sim.wait_until(lambda: sim.database.main.execute("select status = 'suspended' from units").get)
        sim.database.step_clock(-10)
        await run.interrupt()
        with pytest.raises(WorkflowInterrupted):
            await run.result(timeout="60s")
    assert ran == ["do", "undo"]


def _holder(sim: Simulation) -> Runner:
    return sim.owner("shard:default:0")
