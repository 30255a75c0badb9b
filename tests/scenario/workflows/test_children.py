"""Children: workflows that others wait for (B5, WF-14)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from coterie import Cluster, KeyConflict, Workflow, WorkflowFailed, WorkflowInterrupted
from tests.scenario.workflows.workflow_cluster import (
    SWEEP_S,
    Diary,
    holder,
    new_cluster,
    over,
    restart,
    rows,
    seconds,
    simulated,
    suspended,
)


@dataclass
class Parcel:
    """What a child gives."""

    number: int


def define(cluster: Cluster, diary: Diary) -> tuple[Any, Any]:
    """A child that does what it is told, and its parent."""

    @cluster.workflow
    async def child(workflow: Workflow, what: str) -> Parcel:
        workflow.compensate("undo", diary.do, "undo child")
        await workflow.step("child", diary.do, f"child {what}")
        if what == "fail":
            raise ValueError("no luck")
        if what == "wait":
            gate = workflow.deferred("gate", int)
            diary.give("gate", gate)
            return Parcel(await gate.wait())
        return Parcel(7)

    @cluster.workflow
    async def parent(workflow: Workflow, what: str) -> str:
        try:
            parcel = await workflow.child(child, what, id="c")
        except (WorkflowFailed, WorkflowInterrupted) as error:
            await workflow.step("sorry", diary.do, "sorry")
            return f"{type(error).__name__}: {error.message}"
        await workflow.step("gate", diary.gated, "parent gate")
        return f"{type(parcel).__name__} {parcel.number}"

    return child, parent


@pytest.mark.simulated(seeds=2)
async def test_a_childs_failure_is_told_to_its_parent() -> None:
    cluster, diary = new_cluster(), Diary()
    _, parent = define(cluster, diary)
    async with simulated(cluster):
        run = await cluster.start_workflow(parent, "fail", id="1")
        assert await over(run) == "WorkflowFailed: workflow child/c failed: ValueError: no luck"
        assert diary.ran == ["child fail", "undo child", "sorry"]


@pytest.mark.simulated(seeds=2)
async def test_a_childs_interruption_is_told_to_its_parent() -> None:
    cluster, diary = new_cluster(), Diary()
    child, parent = define(cluster, diary)
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(parent, "wait", id="1")
        await suspended(sim, run)
        began_s = seconds(sim)
        await cluster.workflow_handle(child, "c").interrupt()
        assert await over(run) == "WorkflowInterrupted: workflow child/c was interrupted"
        assert seconds(sim) - began_s < SWEEP_S


@pytest.mark.simulated(seeds=2)
async def test_a_result_is_what_the_child_says_across_a_kill_and_the_child_runs_once() -> None:
    """Also if its row was cleared away meanwhile: it is known what came of it."""
    cluster, diary = new_cluster(), Diary()
    _, parent = define(cluster, diary)
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(parent, "good", id="1")
        await sim.wait_until(lambda: "parent gate" in diary.ran)
        sim.database.main.execute("delete from units where name = 'child'")
        holder(sim, parent).kill()
        await sim.wait_until(lambda: diary.ran.count("parent gate") == 2)
        diary.gates["parent gate"].set()
        assert await over(run) == "Parcel 7"
        assert diary.ran == ["child good", "parent gate", "parent gate"]


@pytest.mark.parametrize("when", ["over", "running", "another parent's"])
@pytest.mark.simulated(seeds=2)
async def test_a_child_that_is_there_already_is_waited_for(when: str) -> None:
    cluster, diary = new_cluster(), Diary()
    child, parent = define(cluster, diary)
    diary.gates["parent gate"].set()
    async with simulated(cluster) as sim:
        what = "good" if when == "over" else "wait"
        first = await (
            cluster.start_workflow(parent, what, id="0")
            if when == "another parent's"
            else cluster.start_workflow(child, what, id="c")
        )
        if when == "over":
            await over(first)
        else:
            await sim.wait_until(lambda: diary.tokens)
        run = await cluster.start_workflow(parent, what, id="1")
        if when != "over":
            await suspended(sim, run)
            await sim.advance(20)
            await cluster.resolve(diary.tokens["gate"], 7)
        assert await over(run) == "Parcel 7"
        assert diary.ran.count(f"child {what}") == 1


@pytest.mark.simulated(seeds=1)
async def test_a_child_with_another_payload_is_a_conflict() -> None:
    cluster, diary = new_cluster(), Diary()
    child, parent = define(cluster, diary)
    async with simulated(cluster):
        await over(await cluster.start_workflow(child, "other", id="c"))
        failed = await over(await cluster.start_workflow(parent, "good", id="1"))
        assert isinstance(failed.__cause__, KeyConflict)


@pytest.mark.simulated(seeds=2)
async def test_many_children_side_by_side_are_all_started_whoever_is_suspended() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def leaf(workflow: Workflow, number: int) -> int:
        await workflow.sleep("3s", name="nap")
        return await workflow.step("leaf", diary.do, f"leaf {number}", number)

    @cluster.workflow
    async def tree(workflow: Workflow, n: int) -> int:
        found = await asyncio.gather(*(workflow.child(leaf, each, id=f"leaf {each}") for each in range(n)))
        return sum(found)

    async with simulated(cluster) as sim:
        sim.database.weather.slow = 0.3
        run = await cluster.start_workflow(tree, 12, id="1")
        await sim.wait_until(lambda: len(rows(sim, "units")) > 6 and holder(sim, tree).alive)
        holder(sim, tree).kill()
        assert await over(run) == 66
        assert sorted(diary.ran) == sorted(f"leaf {number}" for number in range(12))


@pytest.mark.simulated(seeds=2)
async def test_a_child_is_started_across_a_restart_of_the_database() -> None:
    cluster, diary = new_cluster(), Diary()
    _, parent = define(cluster, diary)
    diary.gates["parent gate"].set()
    async with simulated(cluster) as sim:
        runs = []
        for number in range(6):
            runs.append(await cluster.start_workflow(parent, "good", id=f"{number}"))
            await sim.advance(0.004)
            sim.restart_storage(down="300ms")
            await sim.advance(1)
        assert {await over(run) for run in runs} == {"Parcel 7"}
        assert diary.ran.count("child good") == 1


def define_twins(cluster: Cluster) -> tuple[Any, Any]:
    """Two workflows whose functions share a name, as a factory makes them; a parent that asks both."""

    def child_of(name: str) -> Any:
        @cluster.workflow(name=name)
        async def work(workflow: Workflow, _: None) -> str:
            return f"{name} {workflow.id}"

        return work

    first, second = child_of("first"), child_of("second")

    @cluster.workflow
    async def both(workflow: Workflow, _: None) -> list[str]:
        one = await workflow.child(first, None, id="c")
        other = await workflow.child(second, None, id="c")
        return [one, other, *await asyncio.gather(*(workflow.child(each, None, id="d") for each in (first, second)))]

    return first, both


@pytest.mark.simulated(seeds=2)
async def test_a_parent_is_given_the_result_of_the_child_that_it_named_though_functions_share_a_name() -> None:
    cluster = new_cluster()
    _, both = define_twins(cluster)
    async with simulated(cluster):
        run = await cluster.start_workflow(both, None, id="1")
        assert await over(run) == ["first c", "second c", "first d", "second d"]


@pytest.mark.simulated(seeds=1)
async def test_a_parent_that_version_01_began_goes_on_with_its_child() -> None:
    """It knew children by the names of their functions."""
    cluster, gate = new_cluster(), asyncio.Event()

    @cluster.workflow(name="other name")
    async def child(workflow: Workflow, _: None) -> int:
        await workflow.step("wait", gate.wait)
        return 7

    @cluster.workflow
    async def parent(workflow: Workflow, _: None) -> int:
        return await workflow.child(child, None, id="c")

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(parent, None, id="1")
        await suspended(sim, run)
        sim.database.main.execute("update steps set name = 'child/c' where kind = 'child'")
        sim.database.main.execute("update units set waited_as = 'child:c:child' where parent is not null")
        await restart(sim, down_s=1)
        gate.set()
        assert await over(run) == 7


def define_family(cluster: Cluster, diary: Diary) -> Any:
    """A run with two children, one of which has a child of its own; the payload says how it ends."""

    @cluster.workflow
    async def grandchild(workflow: Workflow, _: None) -> None:
        await workflow.step("do", diary.do, "grandchild")
        workflow.compensate("undo", diary.do, "undo grandchild")
        await workflow.deferred("never", int).wait()

    @cluster.workflow
    async def child(workflow: Workflow, which: str) -> None:
        await workflow.step("do", diary.do, f"child {which}")
        workflow.compensate("undo", diary.do, f"undo child {which}")
        if which == "a":
            await workflow.child(grandchild, None, id="g")
        await workflow.deferred("never", int).wait()

    @cluster.workflow
    async def stranger(workflow: Workflow, _: None) -> None:
        await workflow.deferred("never", int).wait()

    @cluster.workflow
    async def parent(workflow: Workflow, ends: str) -> None:
        async with asyncio.TaskGroup() as group:
            for which in ("a", "b"):
                group.create_task(workflow.child(child, which, id=which))
            group.create_task(workflow.child(stranger, None, id="s"))
            if ends == "fails":
                await workflow.step("gate", diary.gated, "gate")
                raise ValueError("no luck")

    return grandchild, child, stranger, parent


@pytest.mark.simulated(seeds=3)
@pytest.mark.parametrize("how", ["interrupted", "fails", "interrupted, and its runner is killed"])
async def test_w10_children_of_a_run_that_fails_or_is_interrupted_are_interrupted(how: str) -> None:
    """Also theirs; what they did is undone. Who was started by somebody else goes on."""
    cluster, diary = new_cluster(), Diary()
    grandchild, child, stranger, parent = define_family(cluster, diary)
    async with simulated(cluster) as sim:
        others = await cluster.start_workflow(stranger, None, id="s")
        run = await cluster.start_workflow(parent, how, id="1")
        await sim.wait_until(lambda: {"child a", "child b", "grandchild"} <= set(diary.ended))
        await sim.advance(1)
        if how == "fails":
            diary.gates["gate"].set()
        else:
            await run.interrupt()
        if how.endswith("killed"):
            await sim.wait_until(lambda: rows(sim, "units", where="interrupts_children or status = 'interrupted'"))
            holder(sim, parent).kill()
            await sim.start(1)
        assert isinstance(await over(run), WorkflowFailed if how == "fails" else WorkflowInterrupted)
        for each, which in ((child, "a"), (child, "b"), (grandchild, "g")):
            assert isinstance(await over(cluster.workflow_handle(each, which)), WorkflowInterrupted)
        undone = {"undo child a", "undo child b", "undo grandchild"}
        assert undone <= set(diary.ran)
        assert await others.status() == "suspended"
        await sim.wait_until(lambda: not rows(sim, "units", where="interrupts_children"))


def define_managed(cluster: Cluster, diary: Diary) -> tuple[Any, Any]:
    """A child that waits for a message, and a parent that starts some and does what it is told."""

    @cluster.workflow
    async def worker(workflow: Workflow, number: int) -> Parcel:
        await workflow.step("book", diary.do, f"book {number}")
        workflow.compensate("cancel", diary.do, f"cancel {number}")
        return Parcel(await workflow.receive("number", int))

    @cluster.workflow
    async def manager(workflow: Workflow, policy: Any) -> str:
        for number in range(2):
            run = await workflow.start(worker, number, id=f"w{number}", on_parent_end=policy)
            await workflow.publish("started", run.id)
        await workflow.step("gate", diary.gated, "gate")
        if await workflow.receive("fail", bool):
            raise ValueError("told to")
        return "done"

    return worker, manager


@pytest.mark.simulated(seeds=3)
async def test_w10_the_children_of_a_parent_that_fails_are_interrupted_and_undo_what_they_did() -> None:
    cluster, diary = new_cluster(), Diary()
    worker, manager = define_managed(cluster, diary)
    diary.gates["gate"].set()
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(manager, "interrupt", id="1")
        await sim.wait_until(lambda: {"book 0", "book 1"} <= set(diary.ran))
        await run.send("fail", True)
        assert isinstance(await over(run), WorkflowFailed)
        for number in range(2):
            assert isinstance(await over(cluster.workflow_handle(worker, f"w{number}")), WorkflowInterrupted)
        assert {"cancel 0", "cancel 1"} <= set(diary.ran)


@pytest.mark.parametrize("end", ["failed", "interrupted"])
@pytest.mark.simulated(seeds=2)
async def test_w10_those_that_are_to_be_left_go_on(end: str) -> None:
    cluster, diary = new_cluster(), Diary()
    worker, manager = define_managed(cluster, diary)
    diary.gates["gate"].set()
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(manager, "leave", id="1")
        await sim.wait_until(lambda: {"book 0", "book 1"} <= set(diary.ran))
        await (run.send("fail", True) if end == "failed" else run.interrupt())
        await over(run)
        await sim.advance(10.0)
        left = cluster.workflow_handle(worker, "w0")
        await left.send("number", 5)
        assert await over(left) == Parcel(5)
        assert "cancel 0" not in diary.ran


@pytest.mark.simulated(seeds=3)
async def test_w10_across_a_kill_each_child_is_started_once_and_a_parent_that_is_done_leaves_it() -> None:
    cluster, diary = new_cluster(), Diary()
    worker, manager = define_managed(cluster, diary)
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(manager, "interrupt", id="1")
        await sim.wait_until(lambda: "gate" in diary.ran)
        sim.database.main.execute("delete from units where id = 'w1'")  # as if it were over and cleared away
        holder(sim, manager).kill()
        await sim.wait_until(lambda: diary.ran.count("gate") == 2)
        diary.gates["gate"].set()
        await run.send("fail", False)
        assert await over(run) == "done"
        await sim.advance(10.0)
        assert await cluster.workflow_handle(worker, "w0").status() == "suspended"
        assert diary.ran.count("book 1") <= 1
        assert [status async for status in run.follow("started", str)] == ["w0", "w1"]
        assert rows(sim, "units", where="id = 'w1'") == []


@pytest.mark.simulated(seeds=2)
async def test_w10_a_child_that_was_started_can_be_waited_for() -> None:
    cluster, diary = new_cluster(), Diary()
    worker, _ = define_managed(cluster, diary)

    @cluster.workflow
    async def patient(workflow: Workflow, _: None) -> int:
        started = await workflow.start(worker, 3, id="w3")
        await workflow.publish("id", started.id)
        found: Parcel = await workflow.child(worker, 3, id="w3")
        return found.number

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(patient, None, id="1")
        await suspended(sim, run)
        began_s = seconds(sim)
        await cluster.workflow_handle(worker, "w3").send("number", 9)
        assert await over(run) == 9
        assert seconds(sim) - began_s < SWEEP_S


@pytest.mark.simulated(seeds=1)
async def test_w10_a_policy_that_is_none_is_refused() -> None:
    cluster, diary = new_cluster(), Diary()
    _, manager = define_managed(cluster, diary)
    async with simulated(cluster):
        error = await over(await cluster.start_workflow(manager, "abandon", id="1"))
        assert """on_parent_end is 'abandon', expected "interrupt" or "leave\"""" in str(error)
