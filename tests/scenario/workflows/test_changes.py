"""Programs that change while runs are in flight (W2, GAP-29): divergence, `patched`, types that a runner lacks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster, DeferredTimeout, PersistenceError, StepDiverged, Workflow, WorkflowInterrupted
from tests.scenario.workflows.workflow_cluster import (
    Diary,
    deploy,
    holder,
    new_cluster,
    over,
    rows,
    simulated,
    steps,
    suspended,
)

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
        await sim.wait_until(lambda: "is stuck" in caplog.text)
        await sim.advance(25)
        assert 2 <= len(diary.bodies) <= 5, "it is tried again now and then"
        assert (steps(sim), diary.ran) == (before, ran)
        assert await run.status() == "suspended"
        assert "was reached where" in caplog.text
        await replaced(sim, cluster)
        diary.gates["gate"].set()
        assert await over(run) == "old"
        assert diary.ran == ["a", "b", "gate", "gate"]


async def goes_on(workflow: Workflow, diary: Diary, leaf: Any, how: str) -> None:
    """Something that would be stored at a place where nothing is."""
    if how == "patch":
        workflow.patched("p")
    elif how == "step":
        await workflow.step("new", diary.do, "new")
    elif how == "failing step":
        diary.fails["new"] = 1
        await workflow.step("new", diary.do, "new")
    elif how == "sleep":
        await workflow.sleep("10ms", name="new")
    elif how == "deferred":
        await workflow.deferred("new", int).wait(timeout="10ms")
    elif how == "child":
        await workflow.child(leaf, 1, id="new")
    elif how == "branches":
        await asyncio.gather(*(workflow.step(f"new {each}", diary.do, "new") for each in range(3)))
    elif how == "compensation":
        workflow.compensate("undo new", diary.do, "new")
        raise ValueError("so that it is undone")
    elif how == "patch in a branch":

        async def branch() -> None:
            workflow.patched("p")

        await asyncio.create_task(branch())


HOWS = [
    "patch", "patch in a branch", "step", "failing step", "sleep", "deferred", "child", "branches", "compensation"
]  # fmt: skip


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.simulated(seeds=1)
async def test_w2_a_body_that_goes_on_after_it_has_diverged_stores_nothing(how: str) -> None:
    """Where the old code comes next it would find something that is not its own, and diverge for ever."""
    cluster, new, diary = new_cluster(), new_cluster(), Diary()
    work = old(cluster, diary)

    @new.workflow
    async def leaf(workflow: Workflow, n: int) -> int:
        return await workflow.step("leaf", diary.do, "new", n)

    def define(on: Cluster) -> None:
        @on.workflow
        async def work(workflow: Workflow, n: int) -> str:
            diary.body()
            workflow.compensate("undo", diary.do, "undo")
            for name in ("x", "y"):
                with suppress(Exception):
                    await workflow.step(name, diary.do, "new")
            if how == "compensation":
                await goes_on(workflow, diary, leaf, how)
            with suppress(Exception):
                await goes_on(workflow, diary, leaf, how)
            return "new"

    define(new)
    async with simulated(cluster, runners=1) as sim:
        run = await cluster.start_workflow(work, 1, id="1")
        await sim.wait_until(lambda: "gate" in diary.ran)
        before, ran = rows(sim), list(diary.ran)
        await replaced(sim, new)
        await sim.advance(25)
        assert len(diary.bodies) > 2, "it is tried again now and then"
        assert (rows(sim), diary.ran) == (before, ran)
        assert (len(rows(sim, "units")), rows(sim, "deferreds")) == (1, [])
        assert await run.status() == "suspended"
        await replaced(sim, cluster)
        diary.gates["gate"].set()
        assert await over(run) == "old"


@pytest.mark.parametrize("begun", ["sleep", "deferred", "resolved deferred"])
@pytest.mark.simulated(seeds=1)
async def test_w2_what_was_begun_before_it_diverged_is_not_ended(begun: str) -> None:
    """That a sleep is over, or which of both came, the value or the end of the time, is for the old code to say."""
    cluster, new, diary = new_cluster(), new_cluster(), Diary()

    def define(on: Cluster, first: str) -> Any:
        @on.workflow
        async def work(workflow: Workflow, _: None) -> str:
            diary.body()
            with suppress(Exception):
                await workflow.step(first, diary.do, first)
            if begun == "sleep":
                await workflow.sleep("8s", name="nap")
                return first
            deferred = workflow.deferred("value", str)
            diary.give("value", deferred)
            try:
                return f"{first} {await deferred.wait(timeout='8s')}"
            except DeferredTimeout:
                return f"{first} late"

        return work

    work = define(cluster, "old")
    define(new, "new")
    async with simulated(cluster, runners=1) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        await suspended(sim, run)
        before = rows(sim)
        await replaced(sim, new)
        if begun == "resolved deferred":
            await cluster.resolve(diary.tokens["value"], "told")
        await sim.advance(30)
        assert len(diary.bodies) > 1
        assert (rows(sim), diary.ran) == (before, ["old"])
        await replaced(sim, cluster)
        assert await over(run) == {"sleep": "old", "deferred": "old late", "resolved deferred": "old told"}[begun]


@pytest.mark.simulated(seeds=2)
async def test_w2_a_child_that_waits_for_the_database_is_not_started_after_another_branch_has_diverged() -> None:
    cluster, new, diary = new_cluster(), new_cluster(), Diary()
    work = old(cluster, diary)
    asked: list[str] = []
    start = new._program.workflows._start_child

    async def start_child(*args: Any, **options: Any) -> Any:
        asked.append(options["parent"])
        if len(asked) == 1:
            raise PersistenceError(doing="write", problem="it is away", outcome="unreachable")
        return await start(*args, **options)

    new._program.workflows._start_child = start_child

    @new.workflow
    async def leaf(workflow: Workflow, n: int) -> int:
        return n

    def define(on: Cluster) -> None:
        @on.workflow
        async def work(workflow: Workflow, n: int) -> str:
            async def branch() -> None:
                with suppress(StepDiverged):
                    await workflow.child(leaf, 1, id="1")
                diary.ended.append("child")

            waits = asyncio.create_task(branch())
            while not asked:
                await asyncio.sleep(0.001)
            with suppress(StepDiverged):
                await workflow.step("x", diary.do, "new")
            await asyncio.sleep(20)
            await waits
            return "new"

    define(new)
    async with simulated(cluster, runners=1) as sim:
        await cluster.start_workflow(work, 1, id="1")
        await sim.wait_until(lambda: "gate" in diary.ran)
        await replaced(sim, new)
        await sim.wait_until(lambda: "child" in diary.ended)
        assert (len(rows(sim, "units")), len(asked)) == (1, 1)


@pytest.mark.simulated(seeds=2)
async def test_w2_a_branch_that_diverges_counts_though_another_one_was_stopped_before() -> None:
    """A run that shall be interrupted stops where nothing is stored, and ends then, unless it has taken another way."""
    cluster, new, diary = new_cluster(), new_cluster(), Diary()

    def define(on: Cluster, second: str) -> Any:
        @on.workflow
        async def work(workflow: Workflow, _: None) -> None:
            diary.body()
            workflow.compensate(f"undo {second}", diary.do, f"undo {second}")

            async def branch() -> None:
                await workflow.step("first", diary.do, "first")
                if len(diary.bodies) > 1:
                    await asyncio.sleep(0.05)  # the other one stands still by then
                await workflow.step(second, diary.do, second)
                await workflow.step("gate", diary.gated, "gate")

            await asyncio.gather(workflow.step("other", diary.gated, "gate"), branch())

        return work

    work = define(cluster, "old")
    define(new, "new")
    async with simulated(cluster, runners=1) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        await sim.wait_until(lambda: diary.ran.count("gate") == 2)
        before = rows(sim)
        for runner in sim.runners:
            runner.kill()
        await run.interrupt()
        await deploy(sim, new)
        await sim.wait_until(lambda: len(diary.bodies) > 1)
        await sim.advance(25)
        assert rows(sim) == before
        assert await run.status() in ("running", "suspended")
        await replaced(sim, cluster)
        assert isinstance(await over(run), WorkflowInterrupted)
        assert [each for each in diary.ran if "undo" in each] == ["undo old"]


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


@pytest.mark.simulated(seeds=1)
async def test_a_run_that_nobody_knows_waits_for_a_runner_that_does_and_keeps_nobody_waiting(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.workflows.registry._MORE", 5)
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
        del cluster._program.workflows.known["elsewhere"]
        waits = [await cluster.start_workflow(mirrored, number, id=f"{number}") for number in range(17)]
        await sim.start(1)
        assert await over(await cluster.start_workflow(known, 5, id="1"), within="20s") == 5
        assert caplog.text.count("this program has no workflow 'elsewhere'") == 1
        assert {await run.status() for run in waits} == {"running"}
        assert holder(sim, known).alive
        await replaced(sim, other)
        assert [await over(run) for run in waits] == list(range(17))


def test_what_diverged_says_what_it_met() -> None:
    error = StepDiverged(unit="workflow:work/1", found="other", stored="a")
    assert error.message == 'workflow:work/1: step "other" was reached where "a" is stored'
    assert "patched" in str(error)
