"""Runners that are lost, replaced, frozen or told to leave while workflows run (W1, W3, WFM-01 to WFM-10)."""

from __future__ import annotations

import asyncio

import pytest

from coterie import Retry, Workflow, WorkflowFailed, WorkflowInterrupted
from tests.scenario.workflows.workflow_cluster import (
    SWEEP_S,
    Diary,
    deploy,
    holder,
    kill_here,
    new_cluster,
    over,
    restart,
    rows,
    seconds,
    simulated,
    steps,
    suspended,
)
from tests.support.chaos_points import At


@pytest.mark.simulated(seeds=2)
async def test_wfm_01_two_who_start_the_same_run_at_once_get_the_same_result() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def answer(workflow: Workflow, _: None) -> int:
        return await workflow.step("think", diary.do, "think", 42)

    async with simulated(cluster, runners=0) as sim:
        told: list[int] = []

        async def body(runner: object) -> None:
            told.append(await (await cluster.start_workflow(answer, None, id="1")).result(timeout="30s"))

        sim.body = body
        await sim.start(3)
        await sim.wait_until(lambda: len(told) == 3)
        assert told == [42, 42, 42]
        assert diary.ran == ["think"]


@pytest.mark.parametrize("point", ["workflows.before_step", "workflows.before_suspend", "workflows.before_end"])
@pytest.mark.parametrize("time", [1, 2, 3])
@pytest.mark.simulated(seeds=2)
async def test_w1_w3_killed_at_any_point_a_run_goes_on_and_no_stored_step_runs_again(point: str, time: int) -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, n: int) -> int:
        total = 0
        for number in range(n):
            total += await workflow.step(f"step {number}", diary.do, f"{number}", number)
            await workflow.sleep("2s", name=f"nap {number}")
        return total

    async with simulated(cluster) as sim:
        At(point, lambda: kill_here(sim), time=time)
        run = await cluster.start_workflow(work, 3, id="1")
        assert await over(run) == 3
        twice = point == "workflows.before_step"
        assert diary.ran == sorted([str(time - 1)] * twice + ["0", "1", "2"])
        assert seconds(sim) < 6 + 15


@pytest.mark.simulated(seeds=2)
async def test_wfm_03_everybody_is_replaced_while_it_is_suspended() -> None:
    """The value comes from somebody who does not hold it."""
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def wait(workflow: Workflow, _: None) -> str:
        deferred = workflow.deferred("go", str)
        diary.give("go", deferred)
        await workflow.step("before", diary.do, "before")
        return await deferred.wait()

    async with simulated(cluster, runners=3) as sim:
        run = await cluster.start_workflow(wait, None, id="1")
        await suspended(sim, run)
        await restart(sim, down_s=1)
        await sim.wait_until(lambda: holder(sim, wait).alive)
        await cluster.resolve(diary.tokens["go"], "gone")
        assert await over(run) == "gone"
        assert diary.ran == ["before"]


@pytest.mark.simulated(seeds=2)
async def test_wfm_05_a_suspended_run_whose_holder_is_killed_fails_and_is_undone_once() -> None:
    cluster, diary = new_cluster(), Diary()
    diary.fails["ship"] = 1

    @cluster.workflow
    async def order(workflow: Workflow, _: None) -> None:
        await workflow.step("charge", diary.do, "charge")
        workflow.compensate("refund", diary.do, "refund")
        gate = workflow.deferred("gate", int)
        diary.give("gate", gate)
        await gate.wait()
        await workflow.step("ship", diary.do, "ship")

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(order, None, id="1")
        await suspended(sim, run)
        holder(sim, order).kill()
        await cluster.resolve(diary.tokens["gate"], 1)
        failed = await over(run)
        assert isinstance(failed, WorkflowFailed)
        assert isinstance(failed.__cause__, ValueError)
        assert diary.ran == ["charge", "ship", "refund"]


@pytest.mark.simulated(seeds=1)
async def test_wfm_07_a_step_is_tried_as_often_as_it_says() -> None:
    cluster = new_cluster()
    tried: list[int] = []

    async def third_time() -> int:
        tried.append(len(tried) + 1)
        if len(tried) % 3 or len(tried) > 3:
            raise ValueError(f"attempt {len(tried)}")
        return len(tried)

    async def slow() -> None:
        tried.append(0)
        await asyncio.sleep(60)

    @cluster.workflow
    async def work(workflow: Workflow, what: str) -> int:
        patient = workflow.options(retry=Retry(attempts=3, base="10ms"), timeout="1s")
        if what == "slow":
            await patient.step("slow", slow)
        return await patient.step("third time", third_time)

    async with simulated(cluster):
        assert await over(await cluster.start_workflow(work, "good", id="1")) == 3
        assert tried == [1, 2, 3]
        failed = await over(await cluster.start_workflow(work, "bad", id="2"))
        assert str(failed.__cause__) == "attempt 6"
        failed = await over(await cluster.start_workflow(work, "slow", id="3"))
        assert isinstance(failed.__cause__, TimeoutError)
        assert tried[6:] == [0, 0, 0]


@pytest.mark.simulated(seeds=2)
async def test_wfm_08_wfm_09_wfm_10_sleeps_queued_runs_and_interruptions_across_a_restart_of_everybody() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def nap(workflow: Workflow, length_s: float) -> None:
        await workflow.sleep(length_s, name="nap")
        await workflow.step("woke", diary.do, f"woke {workflow.id}")

    @cluster.workflow
    async def stuck(workflow: Workflow, _: None) -> None:
        workflow.compensate("undo", diary.do, "undo")
        await workflow.deferred("never", int).wait()

    async with simulated(cluster, runners=3) as sim:
        short = await cluster.start_workflow(nap, 1.0, id="short")
        long = await cluster.start_workflow(nap, 12.0, id="long")
        blocked = await cluster.start_workflow(stuck, None, id="1")
        await suspended(sim, blocked)
        for runner in sim.runners:
            runner.kill()
        await blocked.interrupt()
        queued = await cluster.start_workflow(nap, 0.0, id="queued")
        await sim.advance(2)
        await sim.start(3)
        assert isinstance(await over(blocked), WorkflowInterrupted)
        assert [await over(each) for each in (short, queued, long)] == [None, None, None]
        at = {line.what: line.at_s for line in diary.lines}
        assert sorted(diary.ran) == ["undo", "woke long", "woke queued", "woke short"]
        assert at["woke short"] >= 0.9
        assert 12 <= at["woke long"] < 12.5


@pytest.mark.simulated(seeds=2)
async def test_incident_19_two_holders_of_one_run_and_only_the_new_one_writes() -> None:
    """W1: the old one is frozen in the middle of a step, and wakes up when another has ended it."""
    cluster, diary = new_cluster(), Diary()
    gives = iter([1, 2])

    async def pick() -> int:
        value = next(gives)
        await diary.gated(f"pick {value}")
        return value

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> list[int]:
        picked = await workflow.step("pick", pick)
        return [picked, await workflow.step("tell", diary.do, f"tell {picked}", picked)]

    async with simulated(cluster, runners=3) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        await sim.wait_until(lambda: diary.ran == ["pick 1"])
        frozen = holder(sim, work)
        frozen.freeze()
        await sim.wait_until(lambda: "pick 2" in diary.ran)
        diary.gates["pick 1"].set()
        diary.gates["pick 2"].set()
        assert await over(run) == [2, 2]
        frozen.thaw()
        await sim.advance(10)
        assert await over(run) == [2, 2]
        assert diary.ran == ["pick 1", "pick 2", "tell 2"]


@pytest.mark.simulated(seeds=2)
async def test_incident_15_a_database_that_restarts_during_recovery_strands_nothing() -> None:
    """W3: 60 runs are taken over while it goes away twice."""
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, number: int) -> int:
        await workflow.step("first", diary.do, f"first {number}")
        await workflow.step("gate", diary.gated, "gate")
        return await workflow.step("last", diary.do, f"last {number}", number)

    async with simulated(cluster) as sim:
        runs = [await cluster.start_workflow(work, number, id=f"{number}") for number in range(60)]
        await sim.wait_until(lambda: diary.ran.count("gate") == 60)
        holder(sim, work, "0").kill()
        at = At("workflows.before_step", lambda: sim.restart_storage(down="700ms"), time=5)
        diary.gates["gate"].set()
        await sim.advance(0.2)
        sim.restart_storage(down="500ms")
        assert [await over(run) for run in runs] == list(range(60))
        assert at.happened
        assert diary.ran.count("first 7") == 1
        assert await cluster.workflows.list(status="running") == []


@pytest.mark.simulated(seeds=2)
async def test_incident_16_a_runner_that_drains_begins_nothing_while_a_new_one_starts() -> None:
    cluster, diary = new_cluster(shards=1), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, number: int) -> int:
        await workflow.step("first", diary.gated, f"first {number}")
        return await workflow.step("second", diary.do, f"second {number}", number)

    async with simulated(cluster, runners=1) as sim:
        runs = [await cluster.start_workflow(work, number, id=f"{number}") for number in range(3)]
        await sim.wait_until(lambda: len(diary.ran) == 3)
        old = holder(sim, work)
        stops = asyncio.ensure_future(old.stop())
        starts = asyncio.ensure_future(deploy(sim, cluster))
        await sim.advance(0.3)
        runs.append(await cluster.start_workflow(work, 3, id="3"))
        diary.gates["first 3"].set()
        await sim.advance(0.3)
        for number in range(3):
            diary.gates[f"first {number}"].set()
        await asyncio.gather(stops, starts)
        assert [await over(run) for run in runs] == [0, 1, 2, 3]
        assert sorted(diary.ran) == sorted(f"{what} {number}" for what in ("first", "second") for number in range(4))
        late = [line for line in diary.lines if line.runner.startswith(old.name)]
        assert [line.what for line in late] == ["first 0", "first 1", "first 2"], "what ran has ended, and no more"
        assert diary.cancelled == []


@pytest.mark.simulated(seeds=1)
async def test_a_step_that_does_not_end_in_time_runs_again_elsewhere() -> None:
    cluster, diary = new_cluster(drain="1s"), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> int:
        return await workflow.step("slow", diary.gated, "slow", 5)

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        await sim.wait_until(lambda: diary.ran)
        await holder(sim, work).stop()
        await sim.wait_until(lambda: len(diary.ran) == 2)
        diary.gates["slow"].set()
        assert await over(run) == 5
        assert diary.cancelled == ["slow"]


@pytest.mark.simulated(seeds=1)
async def test_what_stands_in_finally_begins_no_step_when_a_run_leaves_memory() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> int:
        try:
            gate = workflow.deferred("gate", int)
            diary.give("gate", gate)
            return await gate.wait()
        finally:
            await workflow.step("last", diary.do, "last")

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        await suspended(sim, run)
        await sim.advance(5)
        assert diary.ran == []
        assert [name for *_, name in steps(sim)] == ["gate"]
        await cluster.resolve(diary.tokens["gate"], 1)
        assert await over(run) == 1
        assert diary.ran == ["last"]


@pytest.mark.simulated(seeds=1)
async def test_a_body_that_is_cancelled_by_itself_has_failed() -> None:
    """It must not be begun again and again."""
    cluster, diary = new_cluster(), Diary()

    async def cancels() -> None:
        diary.bodies.append("step")
        raise asyncio.CancelledError

    @cluster.workflow
    async def work(workflow: Workflow, in_step: bool) -> None:
        diary.body()
        if in_step:
            await workflow.step("cancels", cancels)
        raise asyncio.CancelledError

    async with simulated(cluster, runners=1) as sim:
        for number, in_step in enumerate([True, False]):
            failed = await over(await cluster.start_workflow(work, in_step, id=f"{number}"))
            assert "it was cancelled, by itself" in str(failed)
        await sim.advance(1)
        assert diary.bodies == ["runner-1", "step", "runner-1"]


@pytest.mark.simulated(seeds=2)
async def test_incident_18_an_id_that_was_purged_is_a_new_run() -> None:
    """W5: a row goes with all its steps, and not before the retention time."""
    cluster, diary = new_cluster(retention="90s", key_retention="90s", call_timeout="60s"), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, gives: int) -> int:
        return await workflow.step("give", diary.do, f"give {gives}", gives)

    async with simulated(cluster) as sim:
        assert await over(await cluster.start_workflow(work, 1, id="1")) == 1
        await sim.advance(85)
        assert await over(cluster.workflow_handle(work, "1")) == 1
        await sim.wait_until(lambda: not rows(sim, "units"), within="120s")
        assert await over(await cluster.start_workflow(work, 2, id="1")) == 2
        assert diary.ran == ["give 1", "give 2"]


@pytest.mark.simulated(seeds=2)
async def test_w3_a_run_is_told_of_at_once_after_its_holder_was_killed() -> None:
    """The sweep is not needed: whoever is given a shard looks at once."""
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def work(workflow: Workflow, _: None) -> int:
        return await workflow.step("slow", diary.gated, "slow", 5)

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(work, None, id="1")
        await sim.wait_until(lambda: diary.ran)
        victim = holder(sim, work)
        victim.kill()
        await sim.wait_until(lambda: holder(sim, work) is not victim)
        moved_s = seconds(sim)
        await sim.wait_until(lambda: len(diary.ran) == 2)
        assert diary.lines[1].at_s - moved_s < SWEEP_S / 2
        diary.gates["slow"].set()
        assert await over(run) == 5
