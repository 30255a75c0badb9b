"""What was done is undone when a run fails or is interrupted (B5): in which order, how often, across kills."""

from __future__ import annotations

import asyncio

import pytest

from coterie import Workflow, WorkflowFailed, WorkflowInterrupted
from tests.scenario.workflows.workflow_cluster import (
    SWEEP_S,
    Diary,
    holder,
    kill_here,
    new_cluster,
    over,
    seconds,
    simulated,
    suspended,
    token_of,
)
from tests.support.chaos_points import At


@pytest.mark.parametrize("time", range(1, 7))
@pytest.mark.simulated(seeds=1)
async def test_b5_the_last_one_first_each_at_least_once_across_a_kill(time: int) -> None:
    """What fails is recorded, and the others run."""
    cluster, diary = new_cluster(), Diary()
    diary.fails.update({"three": 1 + (time == 3), "undo two": 1})  # it fails again if it runs again

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> None:
        for name in ("one", "two", "three"):
            workflow.compensate(f"undo {name}", diary.do, f"undo {name}")
            await workflow.step(name, diary.do, name)

    async with simulated(cluster) as sim:
        At("workflows.before_step", lambda: kill_here(sim), time=time)
        failed = await over(await cluster.start_workflow(work, None, id="1"))
        assert isinstance(failed, WorkflowFailed)
        expected = ["one", "two", "three", "undo three", "undo two", "undo one"]
        expected.insert(time, expected[time - 1])
        assert diary.ran == expected
        names = [each.name for each in await cluster.workflow_handle(work, "1").steps()]
        assert sorted(names) == sorted(set(expected)), "W8: each is recorded, also after the end"


@pytest.mark.simulated(seeds=2)
async def test_wf_02_an_interruption_cancels_the_step_that_runs() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> None:
        await workflow.compensate("undo a", diary.do, "undo a")
        workflow.compensate("undo b", diary.do, "undo b")
        try:
            await workflow.step("slow", diary.gated, "slow")
        finally:
            await workflow.step("last", diary.do, "last")

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        await sim.wait_until(lambda: diary.ran)
        began_s = seconds(sim)
        await run.interrupt()
        interrupted = await over(run)
        assert isinstance(interrupted, WorkflowInterrupted)
        assert interrupted.message == "workflow work/1 was interrupted"
        assert seconds(sim) - began_s < SWEEP_S
        assert (diary.ran, diary.cancelled) == (["slow", "undo b", "undo a"], ["slow"])
        (told,) = await cluster.workflows.list(status="interrupted")
        assert told.interrupting


@pytest.mark.parametrize("hides", ["except", "group", "gather"])
@pytest.mark.simulated(seeds=2)
async def test_an_interruption_stays_one_whatever_the_body_makes_of_it(hides: str) -> None:
    """Suspended in a branch: its replay ends at what is not stored, in a task whose group ignores that."""
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> str:
        async def branch(name: str) -> None:
            workflow.compensate(f"undo {name}", diary.do, f"undo {name}")
            await workflow.step("first", diary.do, name)
            await workflow.deferred(name, int).wait()

        try:
            if hides == "gather":
                await asyncio.gather(branch("a"), branch("b"), return_exceptions=True)
            else:
                async with asyncio.TaskGroup() as group:
                    for name in "ab":
                        group.create_task(branch(name))
        except BaseException:
            if hides == "except":
                raise ValueError("something else") from None
            raise
        return "done"

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        await suspended(sim, run)
        await run.interrupt()
        assert isinstance(await over(run), WorkflowInterrupted)
        assert sorted(diary.ran) == ["a", "b", "undo a", "undo b"]


@pytest.mark.parametrize("how", ["fails", "interrupted"])
@pytest.mark.simulated(seeds=2)
async def test_an_interruption_while_it_is_undone_changes_nothing(how: str) -> None:
    cluster, diary = new_cluster(), Diary()
    diary.fails["one"] = how == "fails"

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> None:
        workflow.compensate("first", diary.do, "first")
        workflow.compensate("second", diary.gated, "second")
        await workflow.step("one", diary.do, "one")
        await workflow.step("two", diary.gated, "two")

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        if how == "interrupted":
            await sim.wait_until(lambda: "two" in diary.ran)
            await run.interrupt()
        await sim.wait_until(lambda: "second" in diary.ran)
        await run.interrupt()
        await run.interrupt()
        await sim.advance(7)
        diary.gates["second"].set()
        assert isinstance(await over(run), WorkflowFailed if how == "fails" else WorkflowInterrupted)
        two = ["two"] * (how == "interrupted")
        assert diary.ran == ["one", *two, "second", "first"]


@pytest.mark.simulated(seeds=2)
async def test_a_runner_that_leaves_while_it_undoes_has_another_one_go_on() -> None:
    cluster, diary = new_cluster(), Diary()
    diary.fails["one"] = 1

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> None:
        workflow.compensate("first", diary.do, "first")
        workflow.compensate("second", diary.gated, "second")
        await workflow.step("one", diary.do, "one")

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        await sim.wait_until(lambda: "second" in diary.ran)
        leaving = holder(sim, work)
        stops = asyncio.ensure_future(leaving.stop())
        await sim.advance(0.5)
        diary.gates["second"].set()
        await stops
        assert isinstance(await over(run), WorkflowFailed)
        assert diary.ran == ["one", "second", "first"]
        assert not diary.lines[2].runner.startswith(leaving.name)


@pytest.mark.parametrize("delay_ms", [0, 1, 2, 3, 5, 8, 12, 20])
@pytest.mark.simulated(seeds=1)
async def test_an_interruption_while_a_run_is_taken_over_forgets_nothing_that_was_done(delay_ms: int) -> None:
    """It comes while the body is begun again, which has not said yet what is to be undone."""
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> None:
        diary.body()
        for name in ("one", "two"):
            await workflow.step(name, diary.do, name)
            workflow.compensate(f"undo {name}", diary.do, f"undo {name}")
        await workflow.step("slow", diary.gated, "slow")

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        await sim.wait_until(lambda: "slow" in diary.ran)
        holder(sim, work).kill()
        while len(diary.bodies) < 2:
            await asyncio.sleep(0.0005)
        await asyncio.sleep(delay_ms / 1000)
        await run.interrupt()
        assert isinstance(await over(run), WorkflowInterrupted)
        assert [what for what in diary.ran if what.startswith("undo")] == ["undo two", "undo one"]


@pytest.mark.simulated(seeds=2)
async def test_an_interruption_whose_hint_got_lost_is_found() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> None:
        await workflow.step("slow", diary.gated, "slow")

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        await sim.wait_until(lambda: diary.ran)
        await cluster._acting().storage.units.interrupt("workflow:work/1")
        assert isinstance(await over(run, within="15s"), WorkflowInterrupted)


@pytest.mark.simulated(seeds=2)
async def test_a_frozen_runner_undoes_nothing_that_is_not_its_own_any_more() -> None:
    """It learns of its loss inside of a group of tasks, which makes another error of it."""
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> str:
        workflow.compensate("undo", diary.do, "undo")
        async with asyncio.TaskGroup() as group:
            group.create_task(workflow.step("a", diary.gated, "a"))
            group.create_task(workflow.step("b", diary.gated, "b"))
        return "done"

    async with simulated(cluster, runners=3) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        await sim.wait_until(lambda: len(diary.ran) == 2)
        frozen = holder(sim, work)
        frozen.freeze()
        await sim.wait_until(lambda: len(diary.ran) == 4)
        for name in "ab":
            diary.gates[name].set()
        frozen.thaw()
        assert await over(run) == "done"
        await sim.advance(10)
        assert diary.ran == ["a", "b", "a", "b"]


@pytest.mark.parametrize("time", range(5, 10))
@pytest.mark.simulated(seeds=1)
async def test_what_branches_have_to_undo_is_known_again_though_their_order_was_another(time: int) -> None:
    """In the first run one branch is slower than in the second one, where all is stored."""
    cluster, diary = new_cluster(), Diary()
    diary.fails["bad"] = 1

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> None:
        async def branch(name: str, pause_s: float) -> None:
            for number in range(2):
                await workflow.step(f"{name}{number}", asyncio.sleep, pause_s)
                workflow.compensate(f"undo {name}{number}", diary.do, f"undo {name}{number}")

        await asyncio.gather(branch("a", 0.05), branch("b", 0.001))
        await workflow.step("bad", diary.do, "bad")

    async with simulated(cluster) as sim:
        At("workflows.before_step", lambda: kill_here(sim), time=time)
        diary.fails["bad"] += time == 5
        failed = await over(await cluster.start_workflow(work, None, id="1"))
        assert isinstance(failed, WorkflowFailed)
        undone = [what for what in diary.ran if what != "bad"]
        assert set(undone) == {"undo a0", "undo a1", "undo b0", "undo b1"}
        assert len(undone) <= 5


@pytest.mark.parametrize("how", ["gather", "group"])
@pytest.mark.simulated(seeds=1)
async def test_b5_a_replay_that_fails_at_once_undoes_what_slower_branches_have_done(how: str) -> None:
    """What fails is known when the run begins anew, before a branch with branches of its own is where it was."""
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> None:
        async def deep(levels: int) -> None:
            await (asyncio.gather(deep(levels - 1)) if levels else workflow.step("a", diary.do, "a"))

        async def slow() -> None:
            await deep(6)
            workflow.compensate("undo a", diary.do, "undo a")

        async def quick() -> None:
            await workflow.deferred("gate", int).wait()

        if how == "gather":
            await asyncio.gather(quick(), slow())
        else:
            async with asyncio.TaskGroup() as group:
                group.create_task(quick())
                group.create_task(slow())

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        await suspended(sim, run)
        await cluster.reject(await token_of(cluster, "workflow:work/1", "gate"), "no")
        assert isinstance(await over(run), WorkflowFailed)
        assert diary.ran == ["a", "undo a"]
