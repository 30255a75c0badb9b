"""Runs of workflows, one after another through their life (WF-01 to WF-20, WFE-01 to WFE-06)."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from coterie import (
    Cluster,
    CoterieError,
    KeyConflict,
    LeadershipLost,
    RemoteError,
    Retry,
    Workflow,
    WorkflowEnded,
    WorkflowFailed,
    WorkflowInterrupted,
    WorkflowNotFound,
    WorkflowTimeout,
)
from tests.scenario.workflows.workflow_cluster import (
    SWEEP_S,
    Diary,
    holder,
    kill_here,
    new_cluster,
    noon,
    over,
    seat,
    seconds,
    simulated,
    steps,
    suspended,
)
from tests.support.chaos_points import At

QUICK = Retry(attempts=5, base="10ms")


class Broke(Exception):
    """Of a step."""

    def __init__(self, cents: int) -> None:
        super().__init__(cents)
        self.cents = cents


def define_order(cluster: Cluster, diary: Diary):  # type: ignore[no-untyped-def]
    """A step that fails four times, a sleep, and then a deferred."""

    @cluster.workflow(retry=QUICK)
    async def order(workflow: Workflow, cents: int) -> int:
        diary.body()
        try:
            charged = await workflow.step("charge", diary.do, "charge", cents)
            workflow.compensate("refund", diary.do, "refund")
            await workflow.sleep("10s", name="think")
            approval = workflow.deferred("approval", int)
            diary.give("approval", approval)
            return charged + await approval.wait()
        finally:
            diary.ended.append("finally")

    return order


@pytest.mark.simulated(seeds=3)
async def test_wf_01_a_run_fails_sleeps_waits_and_ends_and_starting_it_again_adds_nothing() -> None:
    cluster, diary = new_cluster(), Diary()
    order = define_order(cluster, diary)
    diary.fails["charge"] = 4
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(order, 500, id="1")
        await sim.wait_until(lambda: "approval" in diary.tokens, within="15s")
        await suspended(sim, run)
        assert 10 <= seconds(sim) < 12
        assert steps(sim) == [("", 0, "step", "charge"), ("", 1, "sleep", "think"), ("", 2, "deferred", "approval")]
        assert diary.ran == ["charge"] * 5
        assert "finally" in diary.ended, "what is plain ran when it left memory"
        (told,) = await cluster.workflows.list(status="suspended", name="order")
        assert (told.id, told.kind, told.steps, told.wake_at, told.error) == ("1", "workflow", 2, None, None)
        began_s = seconds(sim)
        await cluster.resolve(diary.tokens["approval"], 7)
        assert await over(run) == 507
        assert seconds(sim) - began_s < SWEEP_S
        again = await cluster.start_workflow(order, 500, id="1")
        assert (await over(again), await again.status()) == (507, "done")
        assert diary.ran == ["charge"] * 5
        (told,) = await cluster.workflows.list()
        assert (told.status, told.steps, told.version != "", told.interrupting) == ("done", 2, True, False)
        assert told.ended_at is not None
        assert told.started_at < told.ended_at


@pytest.mark.simulated(seeds=2)
async def test_the_steps_of_a_run_lie_on_a_line_of_time() -> None:
    """By the database's clock, which time of the simulator is."""
    cluster, diary = new_cluster(), Diary()
    order = define_order(cluster, diary)
    diary.fails["charge"] = 2
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(order, 500, id="1")
        await sim.wait_until(lambda: "approval" in diary.tokens, within="15s")
        await suspended(sim, run)
        label = holder(sim, order).name
        charge, think, approval = await cluster._acting().storage.units.records("workflow:order/1")
        assert [each.runner for each in (charge, think, approval)] == [label] * 3
        assert [each.attempts for each in (charge, think, approval)] == [3, None, None]
        began_s = (charge.began_at - noon(0)).total_seconds()  # type: ignore[operator] # it is known
        assert diary.lines[0].at_s - 0.1 <= began_s <= diary.lines[0].at_s, "the clock is known within a reply's time"
        times = [charge.began_at, charge.ended_at, think.began_at, think.ended_at, approval.began_at]
        assert times == sorted(times)  # type: ignore[type-var] # all are known
        assert timedelta(seconds=10) <= think.ended_at - think.began_at < timedelta(seconds=12)  # type: ignore[operator]
        assert approval.ended_at is None


@pytest.mark.simulated(seeds=2)
async def test_wf_02_a_suspended_run_that_is_interrupted_undoes_what_it_did() -> None:
    cluster, diary = new_cluster(), Diary()
    order = define_order(cluster, diary)
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(order, 500, id="1")
        await suspended(sim, run)
        assert len(steps(sim)) == 2
        await run.interrupt()
        assert isinstance(await over(run), WorkflowInterrupted)
        assert diary.ran == ["charge", "refund"]
        assert seconds(sim) < SWEEP_S
        assert [name for *_, name in steps(sim)] == ["charge", "think", "refund"]
        await run.interrupt()
        assert await run.status() == "interrupted", "a run that is over stays as it is"


@pytest.mark.simulated(seeds=1)
async def test_wf_03_wf_19_a_typed_error_is_caught_or_undoes_what_was_done_and_tells_the_caller() -> None:
    cluster, diary = new_cluster(), Diary()

    async def pay(cents: int) -> int:
        diary.lines.append(await _line(diary, "pay"))
        raise Broke(cents)

    @cluster.workflow
    async def shop(workflow: Workflow, catches: bool) -> str:
        await workflow.step("reserve", diary.do, "reserve")
        workflow.compensate("release", diary.do, "release")
        try:
            await workflow.step("pay", pay, 500)
        except Broke as error:
            if not catches:
                raise
            return f"{type(error).__name__} {error.cents} {await workflow.step('ask', diary.do, 'ask', 1)}"
        return "paid"

    async with simulated(cluster):
        assert await over(await cluster.start_workflow(shop, True, id="1")) == "Broke 500 1"
        assert diary.ran == ["reserve", "pay", "ask"]
        failed = await over(await cluster.start_workflow(shop, False, id="2"))
        assert isinstance(failed, WorkflowFailed)
        assert str(failed) == "workflow shop/2 failed: Broke: 500"
        assert isinstance(failed.__cause__, Broke)
        assert failed.__cause__.cents == 500
        assert diary.ran[3:] == ["reserve", "pay", "release"]


async def _line(diary: Diary, what: str):  # type: ignore[no-untyped-def]
    await diary.do(what)
    return diary.lines.pop()


@pytest.mark.simulated(seeds=2)
async def test_wf_19_an_error_that_was_caught_is_the_same_one_for_the_next_runner() -> None:
    cluster, diary = new_cluster(), Diary()

    async def pay() -> int:
        diary.bodies.append("paid")
        raise Broke(7)

    @cluster.workflow
    async def shop(workflow: Workflow, _: None) -> int:
        try:
            await workflow.step("pay", pay)
        except Broke as error:
            await workflow.step("ask", diary.gated, "ask")
            return error.cents
        return 0

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(shop, None, id="1")
        await sim.wait_until(lambda: diary.ran)
        holder(sim, shop).kill()
        diary.gates["ask"].set()
        assert await over(run) == 7
        assert diary.bodies == ["paid"]


@pytest.mark.simulated(seeds=1)
async def test_wf_20_an_error_that_is_no_data_is_stored_with_what_it_said() -> None:
    cluster, diary = new_cluster(), Diary()

    class Local(Exception):
        pass

    async def odd() -> None:
        raise Local("about", object())

    @cluster.workflow
    async def shop(workflow: Workflow, _: None) -> str:
        try:
            await workflow.step("odd", odd)
        except RemoteError as error:
            await workflow.step("ask", diary.do, "ask")
            return error.type_name
        return ""

    async with simulated(cluster):
        told = await over(await cluster.start_workflow(shop, None, id="1"))
        assert told.endswith("Local")


@pytest.mark.simulated(seeds=2)
async def test_wf_13_the_first_of_many_that_are_waited_for_has_the_run_go_on() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def three(workflow: Workflow, _: None) -> list[int]:
        async def branch(name: str) -> int:
            deferred = workflow.deferred(name, int)
            diary.give(name, deferred)
            value = await deferred.wait()
            return await workflow.step(f"got {name}", diary.do, name, value)

        return list(await asyncio.gather(*map(branch, "abc")))

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(three, None, id="1")
        for number, name in enumerate("bca", 1):
            await suspended(sim, run)
            began_s = seconds(sim)
            await cluster.resolve(diary.tokens[name], number)
            await sim.wait_until(lambda: diary.ended[-1:] == [name])  # noqa: B023 it is waited for
            assert seconds(sim) - began_s < SWEEP_S
        assert await over(run) == [3, 1, 2]
        assert diary.ran == ["b", "c", "a"]


@pytest.mark.simulated(seeds=2)
async def test_wf_14_a_parent_is_suspended_with_its_child_and_ends_with_it() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def child(workflow: Workflow, name: str) -> list[str]:
        deferred = workflow.deferred("go", str)
        diary.give(name, deferred)
        return [name, await deferred.wait()]

    @cluster.workflow
    async def parent(workflow: Workflow, name: str) -> list[str]:
        found = await workflow.child(child, name, id=f"{workflow.id}/child")
        return [*found, "parent"]

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(parent, "x", id="1")
        await suspended(sim, run)
        await suspended(sim, cluster.workflow_handle(child, "1/child"))
        began_s = seconds(sim)
        await cluster.resolve(diary.tokens["x"], "go")
        assert await over(run) == ["x", "go", "parent"]
        assert seconds(sim) - began_s < SWEEP_S
        assert await cluster.workflow_handle(child, "1/child").result() == ["x", "go"]


@pytest.mark.simulated(seeds=2)
async def test_wf_15_wf_16_a_sleep_and_a_deferred_of_another_group_are_that_groups() -> None:
    """A sleep is due by the database's clock, whatever the runner's says."""
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow(group="far")
    async def far(workflow: Workflow, _: None) -> str:
        deferred = workflow.deferred("go", str)
        diary.give("go", deferred)
        await workflow.step("first", diary.do, "first")
        await workflow.sleep(10.0005, name="nap")
        await workflow.step("second", diary.do, "second")
        return await deferred.wait()

    async with simulated(cluster, runners=1) as sim:
        run = await cluster.start_workflow(far, None, id="1")
        await sim.advance(3)
        assert diary.ran == [], "nobody serves that group"
        await sim.start(1, groups=["far"])
        await sim.wait_until(lambda: diary.ran)
        await suspended(sim, run)
        began_s = diary.lines[0].at_s
        (told,) = await cluster.workflows.list()
        assert told.wake_at is not None
        assert began_s + 10 < (told.wake_at - noon(0)).total_seconds() < began_s + 10.2
        due_ns = sim.database.main.execute("select due_at_ns from steps where kind = 'sleep'").get
        assert "far" in seat(sim, far, "1")
        await sim.wait_until(lambda: "second" in diary.ran)
        assert sim.now() >= datetime.fromtimestamp(due_ns / 1e9, sim.now().tzinfo) - timedelta(microseconds=2)
        assert diary.lines[1].at_s < began_s + 10.5
        assert {line.runner for line in diary.lines} == {"runner-2"}
        await suspended(sim, run)
        began_s = seconds(sim)
        await cluster.resolve(diary.tokens["go"], "went")
        assert await over(run) == "went"
        assert seconds(sim) - began_s < SWEEP_S


@pytest.mark.simulated(seeds=1)
async def test_wfe_01_started_twice_or_by_handle_there_is_one_run() -> None:
    cluster, diary = new_cluster(), Diary()

    class Shop:
        async def __call__(self, cents: int) -> int:
            return await diary.do("charge", cents)

    @cluster.workflow(name="Order")
    async def order(workflow: Workflow, cents: int) -> int:
        return await workflow.step("charge", Shop(), cents)

    async with simulated(cluster):
        with pytest.raises(WorkflowNotFound, match='there is no run "1" of workflow "Order"'):
            await cluster.workflow_handle(order, "1").status()
        for verb in ("interrupt", "resume", "result"):
            with pytest.raises(WorkflowNotFound, match="there is no run"):
                await getattr(cluster.workflow_handle(order, "1"), verb)()
        both = await asyncio.gather(*(cluster.start_workflow(order, 5, id="1") for _ in range(2)))
        assert [await each.result(timeout="10s") for each in both] == [5, 5]
        assert await cluster.workflow_handle(order, "1").result() == 5
        assert diary.ran == ["charge"]
        assert repr(both[0]) == "<WorkflowHandle Order/1>"


@pytest.mark.simulated(seeds=1)
async def test_whoever_waits_too_briefly_is_told_for_what_and_what_to_do() -> None:
    cluster = new_cluster()

    @cluster.workflow
    async def waits(workflow: Workflow, _: None) -> None:
        await workflow.sleep("1h", name="long")

    async with simulated(cluster):
        run = await cluster.start_workflow(waits, None, id="1")
        with pytest.raises(WorkflowTimeout, match=r"workflow waits/1 has not ended within 5s: it is suspended") as told:
            await run.result(timeout="5s")
        assert isinstance(told.value, TimeoutError)
        assert "it goes on: wait again with a longer timeout=" in told.value.hint


@pytest.mark.simulated(seeds=1)
async def test_a_run_that_is_over_refuses_to_be_resumed() -> None:
    """It did nothing before, without a word."""
    cluster = new_cluster()

    @cluster.workflow
    async def fails(workflow: Workflow, _: None) -> None:
        raise ValueError("no")

    async with simulated(cluster):
        run = await cluster.start_workflow(fails, None, id="1")
        with pytest.raises(WorkflowFailed):
            await run.result(timeout="10s")
        with pytest.raises(WorkflowEnded, match="workflow fails/1 is failed, and cannot be resumed"):
            await run.resume()
        assert await run.status() == "failed"


@pytest.mark.simulated(seeds=1)
async def test_the_same_id_with_another_payload_is_a_conflict() -> None:
    cluster, diary = new_cluster(), Diary()
    order = define_order(cluster, diary)
    async with simulated(cluster):
        await cluster.start_workflow(order, 1, id="1")
        with pytest.raises(KeyConflict) as caught:
            await cluster.start_workflow(order, 2, id="1")
        assert "'order'" in str(caught.value)
        assert caught.value.key == "1"
        assert len(await cluster.workflows.list()) == 1


@pytest.mark.parametrize("id", ["", " ", "\t\n", None, 7, "x" * 2000, "nul\x00"])
@pytest.mark.simulated(seeds=1)
async def test_incident_17_an_id_that_is_none_is_refused_everywhere(id: str) -> None:
    cluster, diary = new_cluster(), Diary()
    order = define_order(cluster, diary)

    @cluster.workflow
    async def parent(workflow: Workflow, _: None) -> None:
        await workflow.child(order, 1, id=id)

    async with simulated(cluster, runners=1):
        with pytest.raises((ValueError, TypeError, CoterieError)):
            await cluster.start_workflow(order, 1, id=id)
        with pytest.raises((ValueError, TypeError, CoterieError)):
            cluster.workflow_handle(order, id)
        assert await cluster.workflows.list() == []
        failed = await over(await cluster.start_workflow(parent, None, id="p"))
        assert isinstance(failed, WorkflowFailed)
        assert len(await cluster.workflows.list()) == 1


@pytest.mark.simulated(seeds=2)
async def test_wfe_02_a_value_wakes_a_run_that_has_a_slow_branch_beside() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def pair(workflow: Workflow, _: None) -> int:
        async def waits() -> int:
            deferred = workflow.deferred("go", int)
            diary.give("go", deferred)
            value = await deferred.wait()
            return await workflow.step("got", diary.do, "got", value)

        async def slow() -> None:
            await workflow.step("slow", asyncio.sleep, 10)

        got, _ = await asyncio.gather(waits(), slow())
        return got

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(pair, None, id="1")
        await sim.wait_until(lambda: diary.tokens)
        await sim.advance(1)
        await cluster.resolve(diary.tokens["go"], 3)
        await sim.advance(0.2)
        assert diary.ran == ["got"]
        assert await over(run) == 3
        assert 10 < seconds(sim) < 11


@pytest.mark.simulated(seeds=1)
async def test_wfe_03_whoever_waits_for_a_result_where_a_runner_stops_is_told_so() -> None:
    cluster, diary = new_cluster(), Diary()
    order = define_order(cluster, diary)
    async with simulated(cluster) as sim:
        told: list[object] = []

        async def body(runner: object) -> None:
            run = await cluster.start_workflow(order, 1, id="1")
            try:
                told.append(await over(run, within="300s"))
            except asyncio.CancelledError as error:
                told.append(error)
                raise

        sim.body = body
        await sim.start(1)
        await sim.advance(1)
        await sim.runners[-1].stop()
        await sim.advance(1)
        assert [isinstance(each, CoterieError | asyncio.CancelledError) for each in told] == [True], told
        assert (await cluster.workflow_handle(order, "1").status()) == "suspended"


@pytest.mark.simulated(seeds=2)
async def test_wfe_06_a_run_that_was_interrupted_stays_so_whatever_comes_later() -> None:
    cluster, diary = new_cluster(), Diary()
    order = define_order(cluster, diary)
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(order, 500, id="1")
        await sim.wait_until(lambda: "approval" in diary.tokens, within="15s")
        await suspended(sim, run)
        at = At("workflows.before_step", lambda: kill_here(sim))
        await run.interrupt()
        await sim.wait_until(lambda: at.happened)
        await cluster.resolve(diary.tokens["approval"], 1)
        assert isinstance(await over(run), WorkflowInterrupted)
        assert diary.ran == ["charge", "refund", "refund"], "at least once"


@pytest.mark.simulated(seeds=2)
async def test_a_run_that_is_left_to_another_runner_is_not_begun_again_at_once_by_the_same_one() -> None:
    """It may end so each time: then it would keep the runner and its database busy, and no time would pass."""
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def lost(workflow: Workflow, cents: int) -> int:
        diary.body()
        if len(diary.bodies) > 100:
            return cents
        raise LeadershipLost(seat="singleton:other", epoch=3)

    async with simulated(cluster, runners=1) as sim:
        await cluster.start_workflow(lost, 1, id="1")
        await sim.wait_until(lambda: diary.bodies)
        await sim.advance(10)
        assert 3 <= len(diary.bodies) <= 12
