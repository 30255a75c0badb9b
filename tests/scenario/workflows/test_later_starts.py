"""Starts that begin later, debounced ones, time limits and tags: the verbs of `start_workflow` (W14)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from coterie import ConfigurationError, InvalidArgument, KeyConflict, Workflow, WorkflowInterrupted
from tests.scenario.workflows.workflow_cluster import Diary, kill_here, new_cluster, over, seconds, simulated, suspended
from tests.support.chaos_points import At


@pytest.mark.simulated(seeds=2)
async def test_w14_a_run_that_is_to_begin_later_is_not_begun_before() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def remind(workflow: Workflow, n: int) -> int:
        return await workflow.step("remind", diary.do, f"remind {n}", n)

    async with simulated(cluster, runners=2) as sim:
        began_s = seconds(sim)
        delayed = await cluster.start_workflow(remind, 1, id="1", delay="1m")
        (info,) = await cluster.workflows.list(name="remind")
        at = info.started_at + timedelta(minutes=2)
        dated = await cluster.start_workflow(remind, 2, id="2", at=at)
        await delayed.send("early", "kept")
        await delayed.resume()
        await sim.advance(55)
        assert diary.ran == []
        assert await delayed.status() == "suspended"
        assert at in {info.starts_at for info in await cluster.workflows.list(name="remind")}
        assert await delayed.result() == 1
        assert 60 <= seconds(sim) - began_s < 63
        assert await dated.result() == 2
        assert 120 <= seconds(sim) - began_s < 123
        assert diary.ran == ["remind 1", "remind 2"]


@pytest.mark.simulated(seeds=3)
async def test_w14_it_begins_on_whoever_holds_it_then() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def remind(workflow: Workflow, n: int) -> int:
        return await workflow.step("remind", diary.do, f"remind {n}", n)

    async with simulated(cluster, runners=3) as sim:
        run = await cluster.start_workflow(remind, 1, id="1", delay="30s")
        At("workflows.before_step", lambda: kill_here(sim), time=1)
        assert await over(run) == 1


@pytest.mark.simulated(seeds=2)
async def test_one_that_is_interrupted_before_it_begins_never_does() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def remind(workflow: Workflow, n: int) -> None:
        diary.ran.append("begun")

    async with simulated(cluster):
        run = await cluster.start_workflow(remind, 1, id="1", delay="1h")
        await run.interrupt()
        with pytest.raises(WorkflowInterrupted) as raised:
            await run.result()
        assert raised.value.reason == ""
        assert diary.ran == []


@pytest.mark.simulated(seeds=3)
@pytest.mark.parametrize("is_killed", [False, True])
async def test_w14_a_run_whose_time_is_over_is_interrupted_and_undone(is_killed: bool) -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def order(workflow: Workflow, n: int) -> None:
        await workflow.step("pay", diary.do, "pay", n)
        workflow.compensate("refund", diary.do, "refund", n)
        await workflow.sleep("1h", name="wait")

    async with simulated(cluster, runners=3) as sim:
        began_s = seconds(sim)
        run = await cluster.start_workflow(order, 1, id="1", timeout="1m")
        await suspended(sim, run)
        if is_killed:
            At("workflows.before_step", lambda: kill_here(sim), time=1)
        with pytest.raises(WorkflowInterrupted, match="was interrupted: its time was over"):
            await run.result()
        assert seconds(sim) - began_s >= 60
        assert set(diary.ran) == {"pay", "refund"}
        (info,) = await cluster.workflows.list(name="order")
        assert (info.status, info.error) == ("interrupted", "interrupted: its time was over")


@pytest.mark.simulated(seeds=2)
async def test_the_time_of_a_run_is_that_of_all_its_lives_and_counts_from_its_begin() -> None:
    cluster = new_cluster()

    @cluster.workflow
    async def poll(workflow: Workflow, n: int) -> int:
        await workflow.sleep("10s", name="wait")
        return workflow.again(n + 1)

    async with simulated(cluster) as sim:
        began_s = seconds(sim)
        run = await cluster.start_workflow(poll, 1, id="1", delay="30s", timeout="1m")
        with pytest.raises(WorkflowInterrupted, match="its time was over"):
            await run.result()
        assert 90 <= seconds(sim) - began_s < 100


@pytest.mark.simulated(seeds=3)
async def test_w14_starts_put_it_off_and_the_last_one_counts() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def index(workflow: Workflow, version: int) -> int:
        return await workflow.step("index", diary.do, f"index {version}", version)

    async with simulated(cluster, runners=2) as sim:
        for version in range(1, 6):
            began_s = seconds(sim)
            run = await cluster.start_workflow(index, version, id="doc", debounce="10s")
            await sim.advance(6)
        assert diary.ran == []
        assert await over(run) == 5
        assert 10 <= seconds(sim) - began_s < 13
        assert diary.ran == ["index 5"]


@pytest.mark.simulated(seeds=2)
async def test_w14_at_latest_bounds_how_far_it_is_put_off() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def index(workflow: Workflow, version: int) -> int:
        return await workflow.step("index", diary.do, f"index {version}", version)

    async with simulated(cluster) as sim:
        for version in range(1, 6):
            await cluster.start_workflow(index, version, id="doc", debounce="10s", at_latest="20s")
            await sim.advance(6)
        assert diary.ran == ["index 4"], "the fifth came after the first 20 seconds"


@pytest.mark.simulated(seeds=4)
async def test_w14_what_comes_while_it_runs_is_its_next_life() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def index(workflow: Workflow, version: int) -> int:
        await workflow.step("begin", diary.do, f"begin {version}", version)
        await workflow.sleep("20s", name="wait")
        return await workflow.step("end", diary.do, f"end {version}", version)

    async with simulated(cluster, runners=2) as sim:
        await cluster.start_workflow(index, 1, id="doc", debounce="5s")
        await sim.advance(10)
        assert diary.ran == ["begin 1"]
        for version in (2, 3):
            run = await cluster.start_workflow(index, version, id="doc", debounce="5s")
        assert await over(run) == 3
        assert diary.ran == ["begin 1", "end 1", "begin 3", "end 3"]
        again = await cluster.start_workflow(index, 4, id="doc", debounce="5s")
        assert await over(again) == 4, "one that is over begins a new life"


@pytest.mark.simulated(seeds=1)
async def test_runs_are_found_by_their_tags() -> None:
    cluster = new_cluster()

    @cluster.workflow
    async def ship(workflow: Workflow, n: int) -> int:
        return n

    async with simulated(cluster):
        for n in (1, 2, 3):
            await over(await cluster.start_workflow(ship, n, id=f"{n}", tags={"order": f"{n % 2}", "tenant": "acme"}))
        found = await cluster.workflows.list(tag=("order", "1"))
        assert {info.id for info in found} == {"1", "3"}
        assert found[0].tags == {"order": "1", "tenant": "acme"}
        assert not await cluster.workflows.list(tag=("order", "2"))


@pytest.mark.simulated(seeds=1)
async def test_what_contradicts_itself_is_refused_before_anything_is_stored() -> None:
    cluster = new_cluster()

    @cluster.workflow
    async def ship(workflow: Workflow, n: int) -> int:
        return n

    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (TypeError, "at= and delay=: give one", {"at": datetime.now(UTC), "delay": "1s"}),
        (TypeError, "debounce= and at=", {"debounce": "1s", "delay": "1s"}),
        (TypeError, "debounce= and at=", {"debounce": "1s", "again": True}),
        (TypeError, "at_latest= without debounce=", {"at_latest": "1s"}),
        (ValueError, "no time zone", {"at": datetime(2030, 1, 1)}),  # noqa: DTZ001 that is what is refused
        (ValueError, "no time zone", {"debounce": "1s", "at_latest": datetime(2030, 1, 1)}),  # noqa: DTZ001
        (InvalidArgument, "delay of start_workflow", {"delay": timedelta(days=40_000)}),
        (InvalidArgument, "at of start_workflow", {"at": datetime(9000, 1, 1, tzinfo=UTC)}),
        (ConfigurationError, "longer than zero", {"timeout": "0s"}),
        (TypeError, "tags are texts", {"tags": {"order": 7}}),
    ]
    async with simulated(cluster):
        for error, text, options in wrong:
            with pytest.raises(error, match=text):
                await cluster.start_workflow(ship, 1, id="1", **options)
        assert not await cluster.workflows.list(name="ship")
        await cluster.start_workflow(ship, 1, id="1", delay="1h")
        with pytest.raises(KeyConflict):
            await cluster.start_workflow(ship, 2, id="1")
