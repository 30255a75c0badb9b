"""Messages to runs, and what these publish: in order and once, whoever runs them (W6, W7)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from coterie import Cluster, KeyConflict, MalformedMessage, ReceiveTimeout, Workflow, WorkflowEnded, WorkflowNotFound
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
class Approval:
    """What a person says."""

    who: str
    cents: int


def define_collect(cluster: Cluster, diary: Diary, *, timeout: str | None = None) -> Any:
    """It receives as many approvals as it is told to, and publishes each."""

    @cluster.workflow
    async def collect(workflow: Workflow, count: int) -> list[str]:
        diary.body()
        found = []
        for number in range(count):
            approval = await workflow.receive("approve", Approval, timeout=timeout)
            await workflow.publish("status", {"count": number + 1})
            found.append(f"{approval.who} {approval.cents}")
        return found

    return collect


@pytest.mark.simulated(seeds=3)
async def test_w6_messages_are_received_in_order_before_and_after_a_restart() -> None:
    cluster, diary = new_cluster(), Diary()
    collect = define_collect(cluster, diary)
    async with simulated(cluster) as sim:
        handle = cluster.workflow_handle(collect, "1")
        await handle.send("approve", Approval("early", 1))
        await cluster.start_workflow(collect, 4, id="1")
        await suspended(sim, handle)
        await handle.send("approve", Approval("bob", 2), key="k")
        await handle.send("approve", Approval("bob", 2), key="k")
        with pytest.raises(KeyConflict):
            await handle.send("approve", Approval("bob", 3), key="k")
        await suspended(sim, handle)
        await restart(sim, down_s=1.0)
        await handle.send("other", Approval("nobody", 0))
        await handle.send("approve", Approval("carol", 3))
        await handle.send("approve", Approval("dave", 4))
        assert await over(handle) == ["early 1", "bob 2", "carol 3", "dave 4"]
        with pytest.raises(WorkflowEnded, match="is done, and receives no messages any more"):
            await handle.send("approve", Approval("late", 5))


@pytest.mark.simulated(seeds=2)
async def test_w4_a_suspended_run_goes_on_at_once_when_something_is_sent() -> None:
    cluster, diary = new_cluster(), Diary()
    collect = define_collect(cluster, diary)
    async with simulated(cluster) as sim:
        handle = await cluster.start_workflow(collect, 1, id="1")
        await suspended(sim, handle)
        await sim.advance(60.0)
        before_s = seconds(sim)
        await handle.send("approve", Approval("bob", 2))
        assert await over(handle) == ["bob 2"]
        assert seconds(sim) - before_s < SWEEP_S


@pytest.mark.simulated(seeds=2)
async def test_w6_it_times_out_and_what_comes_later_waits_for_the_next_one() -> None:
    cluster = new_cluster()

    @cluster.workflow
    async def patient(workflow: Workflow, _: None) -> str:
        try:
            await workflow.receive("approve", str, timeout="1h")
        except ReceiveTimeout as error:
            said = str(error)
        return said + " then " + await workflow.receive("approve", str)

    async with simulated(cluster) as sim:
        handle = await cluster.start_workflow(patient, None, id="1")
        await suspended(sim, handle)
        await sim.advance(1800.0)
        await restart(sim, down_s=1.0)
        assert await handle.status() == "suspended"
        await sim.advance(1800.0 + SWEEP_S)
        await suspended(sim, handle)
        await handle.send("approve", "yes")
        assert await over(handle) == (
            'workflow:patient/1 received no message "approve" within 3600s: what comes later waits for the next '
            "receive of this name then yes"
        )


@pytest.mark.simulated(seeds=2)
async def test_what_does_not_fit_is_received_and_told_to_the_body() -> None:
    cluster = new_cluster()

    @cluster.workflow
    async def strict(workflow: Workflow, _: None) -> str:
        try:
            await workflow.receive("number", int)
        except MalformedMessage as error:
            await workflow.publish("odd", error.what)
        return f"then {await workflow.receive('number', int)}"

    async with simulated(cluster) as sim:
        handle = await cluster.start_workflow(strict, None, id="1")
        await handle.send("number", "five")
        await sim.wait_until(lambda: rows(sim, "published"))
        assert await handle.published("odd", str) == "message 'number' to workflow:strict/1"
        await restart(sim, down_s=1.0)
        await handle.send("number", 5)
        assert await over(handle) == "then 5"
        with pytest.raises(MalformedMessage):
            await handle.send("number", object())


@pytest.mark.simulated(seeds=3)
async def test_w7_what_is_published_is_read_while_it_runs_and_after_and_is_there_once() -> None:
    cluster, diary = new_cluster(), Diary()
    collect = define_collect(cluster, diary)
    async with simulated(cluster) as sim:
        unknown = cluster.workflow_handle(collect, "none")
        with pytest.raises(WorkflowNotFound):
            await unknown.published("status", dict)
        with pytest.raises(WorkflowNotFound):
            await anext(unknown.follow("status", dict))
        handle = await cluster.start_workflow(collect, 3, id="1")
        assert await handle.published("status", dict[str, int]) is None
        followed = asyncio.ensure_future(_all(handle.follow("status", dict[str, int])))
        for number in range(3):
            await suspended(sim, handle)
            if number == 1:
                await restart(sim, down_s=1.0)
            await handle.send("approve", Approval("bob", number))
        assert await over(handle) == ["bob 0", "bob 1", "bob 2"]
        assert await followed == [{"count": 1}, {"count": 2}, {"count": 3}]
        assert await handle.published("status", dict[str, int]) == {"count": 3}
        assert await _all(handle.follow("status", dict[str, int], after=2)) == [{"count": 3}]
        with pytest.raises(MalformedMessage):
            await handle.published("status", int)
        assert len(rows(sim, "published")) == 3


@pytest.mark.simulated(seeds=2)
async def test_inside_of_a_step_nothing_is_published_or_received() -> None:
    cluster = new_cluster()

    @cluster.workflow
    async def nested(workflow: Workflow, _: None) -> list[str]:
        async def inner() -> list[str]:
            said = []
            for work in (lambda: workflow.publish("s", 1), lambda: workflow.receive("s", int)):
                try:
                    work()
                except RuntimeError as error:
                    said.append(str(error))
            return said

        return await workflow.step("inner", inner)

    async with simulated(cluster) as sim:
        found = await over(await cluster.start_workflow(nested, None, id="1"))
        assert len(found) == 2
        assert all("called inside of a step, and steps do not nest" in said for said in found)
        assert rows(sim, "published") == []


@pytest.mark.simulated(seeds=2)
async def test_a_run_that_waits_for_a_message_is_interrupted() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def undone(workflow: Workflow, _: None) -> None:
        await workflow.step("book", diary.do, "book")
        workflow.compensate("cancel", diary.do, "cancel")
        await workflow.receive("never", int)

    async with simulated(cluster) as sim:
        handle = await cluster.start_workflow(undone, None, id="1")
        await suspended(sim, handle)
        await handle.interrupt()
        assert "was interrupted" in str(await over(handle))
        assert diary.ran == ["book", "cancel"]
        with pytest.raises(WorkflowEnded, match="is interrupted"):
            await handle.send("never", 1)


@pytest.mark.simulated(seeds=2)
async def test_a_message_and_a_deferred_in_branches_wake_it_each() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def both(workflow: Workflow, _: None) -> list[Any]:
        deferred = workflow.deferred("paid", int)
        diary.tokens["paid"] = deferred.token
        return list(await asyncio.gather(deferred.wait(), workflow.receive("approve", str)))

    async with simulated(cluster) as sim:
        handle = await cluster.start_workflow(both, None, id="1")
        await suspended(sim, handle)
        await handle.send("approve", "yes")
        await sim.advance(5.0)
        await suspended(sim, handle)
        holder(sim, both).kill()
        await cluster.resolve(diary.tokens["paid"], 7)
        assert await over(handle) == [7, "yes"]


async def _all(values: Any) -> list[Any]:
    return [value async for value in values]
