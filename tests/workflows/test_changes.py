"""Programs that change while runs are in flight (W2, GAP-29): divergence, `patched`, types that a runner lacks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster, StepDiverged, Workflow, WorkflowInterrupted

from .diary import Diary, deploy, holder, new_cluster, over, rows, simulated, steps

if TYPE_CHECKING:
    from coterie.testing.simulation import Simulation


def old(cluster: Cluster, diary: Diary) -> Any:
    """Two steps, and a gate."""

    @cluster.workflow
    async def work(workflow: Workflow, n: int) -> str:
        diary.body()
        workflow.compensate("undo", diary.do, "undo")
        await workflow.step("a", diary.do, "a", n)
        await workflow.step("b", diary.do, "b")
        await workflow.step("gate", diary.gated, "gate")
        return "old"

    return work


def changed(cluster: Cluster, diary: Diary, how: str) -> Any:
    """Another version of it."""

    @cluster.workflow
    async def work(workflow: Workflow, n: int) -> str:
        diary.body()
        workflow.compensate("undo", diary.do, "undo")
        try:
            if how == "order":
                await workflow.step("b", diary.do, "b")
            if how == "kind":
                await workflow.sleep("1s", name="a")
            await workflow.step("other" if how in ("name", "caught") else "a", diary.do, "a", n + (how == "argument"))
            if how == "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(workflow.step("c", diary.do, "c"))
            await workflow.step("b", diary.do, "b")
        except Exception:
            if how != "caught":
                raise
        if how == "caught":
            await workflow.step("c", diary.do, "c")
        await workflow.step("gate", diary.gated, "gate")
        return "new"

    return work


async def replaced(sim: Simulation, cluster: Cluster, runners: int = 1) -> None:
    """The old runners are killed, and those of another version come."""
    for runner in sim.runners:
        if runner.alive:
            runner.kill()
    await deploy(sim, cluster, runners)


@pytest.mark.parametrize("how", ["name", "order", "argument", "kind", "caught", "group"])
@pytest.mark.simulated(seeds=1)
async def test_w2_gap_29_code_that_takes_another_way_is_told_so_and_changes_nothing(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the body makes of that. The old code ends it."""
    cluster, new, diary = new_cluster(), new_cluster(), Diary()
    work = old(cluster, diary)
    changed(new, diary, how)
    async with simulated(cluster, runners=1) as sim:
        run = await cluster.start_workflow(work, 1, id="1")
        await sim.wait_until(lambda: "gate" in diary.ran)
        before, ran = steps(sim), list(diary.ran)
        await replaced(sim, new)
        await sim.wait_until(lambda: "cannot go on" in caplog.text)
        await sim.advance(25)
        assert 2 <= len(diary.bodies) <= 5, "it is tried again now and then"
        assert (steps(sim), diary.ran) == (before, ran)
        assert await run.status() == "suspended"
        assert "was reached where" in caplog.text
        await replaced(sim, cluster)
        diary.gates["gate"].set()
        assert await over(run) == "old"
        assert diary.ran == ["a", "b", "gate", "gate"]


@pytest.mark.simulated(seeds=1)
async def test_w2_a_run_that_diverges_and_shall_be_interrupted_waits_for_the_old_code() -> None:
    """It cannot be known what is to be undone. Nobody is kept busy by it."""
    cluster, new, diary = new_cluster(), new_cluster(), Diary()
    work = old(cluster, diary)
    changed(new, diary, "name")
    async with simulated(cluster, runners=1) as sim:
        run = await cluster.start_workflow(work, 1, id="1")
        await sim.wait_until(lambda: "gate" in diary.ran)
        await replaced(sim, new)
        await sim.wait_until(lambda: len(diary.bodies) == 2)
        await run.interrupt()
        await sim.advance(60)
        assert len(diary.bodies) < 12
        assert await run.status() in ("running", "suspended")
        await replaced(sim, cluster)
        assert isinstance(await over(run), WorkflowInterrupted)
        assert diary.ran == ["a", "b", "gate", "undo"]


@pytest.mark.simulated(seeds=1)
async def test_w2_compensations_that_changed_are_told_so_too() -> None:
    cluster, new, diary = new_cluster(), new_cluster(), Diary()
    diary.fails["a"] = 1

    def define(on: Cluster, name: str) -> Any:
        @on.workflow
        async def work(workflow: Workflow, _: None) -> None:
            diary.body()
            workflow.compensate("first", diary.gated, "first")
            workflow.compensate(name, diary.do, name)
            await workflow.step("a", diary.do, "a")

        return work

    work = define(cluster, "second")
    define(new, "other")
    async with simulated(cluster, runners=1) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        await sim.wait_until(lambda: "first" in diary.ran)
        await replaced(sim, new)
        await sim.wait_until(lambda: len(diary.bodies) >= 2)
        await sim.advance(25)
        assert len(diary.bodies) <= 6
        assert diary.ran == ["a", "second", "first"]
        await replaced(sim, cluster)
        diary.gates["first"].set()
        assert "a did not work" in str(await over(run))
        assert diary.ran == ["a", "second", "first", "first"]


def define_patched(cluster: Cluster, diary: Diary) -> Any:
    @cluster.workflow
    async def work(workflow: Workflow, n: int) -> str:
        await workflow.step("a", diary.do, "a", n)
        is_new = workflow.patched("c before b")
        if is_new:
            await workflow.step("c", diary.do, "c")
        await workflow.step("b", diary.do, "b")
        await workflow.step("gate", diary.gated, "gate")
        return "patched" if is_new else "as it was"

    return work


@pytest.mark.simulated(seeds=2)
async def test_gap_29_patched_is_false_for_runs_that_were_past_it_and_stays_what_it_was() -> None:
    cluster, new, diary = new_cluster(), new_cluster(), Diary()
    work = old(cluster, diary)
    define_patched(new, diary)
    async with simulated(cluster, runners=1) as sim:
        past = await cluster.start_workflow(work, 1, id="past")
        await sim.wait_until(lambda: "gate" in diary.ran)
        await replaced(sim, new)
        fresh = await cluster.start_workflow(work, 1, id="fresh")
        await sim.wait_until(lambda: "c" in diary.ran)
        await sim.wait_until(lambda: diary.ran.count("gate") == 3)
        await replaced(sim, new)
        diary.gates["gate"].set()
        assert [await over(run) for run in (past, fresh)] == ["as it was", "patched"]
        assert diary.ran.count("c") == 1
        assert diary.ran.count("b") == diary.ran.count("a") == 2


@dataclass
class Old:
    n: int


@dataclass
class New:
    n: int
    more: str


@pytest.mark.simulated(seeds=1)
async def test_gap_29_what_the_new_code_cannot_read_fails_nothing() -> None:
    """A result, or a payload, of another type than it was."""
    cluster, new, diary = new_cluster(), new_cluster(), Diary()

    async def give_old() -> Old:
        return Old(await diary.do("give", 7))

    async def give_new() -> New:
        return New(0, "")

    @cluster.workflow
    async def work(workflow: Workflow, given: Old) -> int:
        found = await workflow.step("give", give_old)
        await workflow.step("gate", diary.gated, "gate")
        return found.n + given.n

    def define(on: Cluster, payload: Any) -> None:
        async def work(workflow: Workflow, given: Any) -> int:
            diary.body()
            return (await workflow.step("give", give_new)).n

        work.__annotations__ = {"given": payload, "return": int}
        on.workflow(work)

    other = new_cluster()
    define(new, Old)
    define(other, New)
    async with simulated(cluster, runners=1) as sim:
        run = await cluster.start_workflow(work, Old(1), id="1")
        await sim.wait_until(lambda: "gate" in diary.ran)
        await replaced(sim, new)
        await sim.wait_until(lambda: diary.bodies)
        await sim.advance(1)
        assert await run.status() == "suspended"
        await replaced(sim, other)
        await sim.advance(15)
        assert await run.status() == "suspended"
        await replaced(sim, cluster)
        diary.gates["gate"].set()
        assert await over(run) == 8


@pytest.mark.simulated(seeds=2)
async def test_gap_29_a_rolling_deploy_of_three_runners_with_runs_in_flight() -> None:
    """Each run ends by code that fits it; none fails."""
    cluster, new, diary = new_cluster(shards=4), new_cluster(shards=4), Diary()
    work = old(cluster, diary)
    define_patched(new, diary)
    async with simulated(cluster, runners=3) as sim:
        runs = [await cluster.start_workflow(work, 1, id=f"{number}") for number in range(8)]
        await sim.wait_until(lambda: diary.ran.count("gate") == 8)
        sim.cluster = new
        for runner in list(sim.runners):
            await asyncio.gather(runner.stop(), sim.start(1))
            await sim.advance(1)
        diary.gates["gate"].set()
        assert [await over(run) for run in runs] == ["as it was"] * 8
        assert diary.ran.count("a") == diary.ran.count("b") == 8
        assert rows(sim, "steps") == []


@pytest.mark.simulated(seeds=1)
async def test_a_run_that_nobody_knows_waits_for_a_runner_that_does_and_keeps_nobody_waiting(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.workflows.room._MORE", 5)
    cluster, other, diary = new_cluster(shards=1), new_cluster(shards=1), Diary()

    @cluster.workflow
    async def known(workflow: Workflow, n: int) -> int:
        return await workflow.step("known", diary.do, f"known {n}", n)

    @other.workflow
    async def elsewhere(workflow: Workflow, n: int) -> int:
        return n

    @cluster.workflow(name="elsewhere")
    async def mirrored(workflow: Workflow, n: int) -> int:
        return n

    async with simulated(cluster, runners=0) as sim:
        del cluster._workflow_room.known["elsewhere"]
        waits = [await cluster.start_workflow(mirrored, number, id=f"{number}") for number in range(17)]
        await sim.start(1)
        assert await over(await cluster.start_workflow(known, 5, id="1"), within="20s") == 5
        assert caplog.text.count("workflow 'elsewhere' is not known here") == 1
        assert {await run.status() for run in waits} == {"running"}
        assert holder(sim, known).alive
        await replaced(sim, other)
        assert [await over(run) for run in waits] == list(range(17))


def test_what_diverged_says_what_it_met() -> None:
    error = StepDiverged(unit="workflow:work/1", found="other", stored="a")
    assert error.message == 'workflow:work/1: step "other" was reached where "a" is stored'
    assert "patched" in str(error)
