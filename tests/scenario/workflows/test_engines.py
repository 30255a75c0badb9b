"""Workflows and units on real engines, with several runners in one process (S11, B5, W1, W4)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from coterie import (
    AlreadyResolved,
    Cluster,
    KeyConflict,
    Leader,
    Retry,
    Tick,
    Workflow,
    WorkflowFailed,
    WorkflowInterrupted,
)
from tests.scenario.persisted.entity_program import evict, until

NEVER = "0 0 29 2 *"  # not while this test runs
HOSTILE = ["'; drop table units; --", '"x" \\ %_', "größe \u202e🙂", "a/b\nc"]


@dataclass
class Order:
    """What is paid for."""

    id: str
    cents: int


class Notes:
    """What the steps of several runners share."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []
        """Runner and step."""
        self.tokens: dict[str, str] = {}
        self.gate = asyncio.Event()
        self.left = 2

    def steps(self) -> list[str]:
        return [step for _, step in self.ran]


def program(url: str, name: str, notes: Notes) -> tuple[Cluster, Any]:
    """A process of the program. Seats move within half a second, and nothing else is hurried."""
    cluster = Cluster(url, runner_name=name, shards=2, lease_renew="200ms", drain="5s")

    async def do(what: str, gives: int = 0) -> int:
        notes.ran.append((name, what))
        return gives

    async def flaky() -> int:
        notes.left -= 1
        if notes.left >= 0:
            raise ValueError("not yet")
        return await do("flaky", 5)

    async def slow() -> None:
        notes.ran.append((name, "slow"))
        await notes.gate.wait()

    async def ship(workflow: Workflow, order: Order) -> Order:
        return Order(order.id, await workflow.step("ship", do, "ship", order.cents + 1))

    async def checkout(workflow: Workflow, order: Order) -> list[Order]:
        paid = await workflow.step("charge", do, "charge", order.cents)
        workflow.compensate("refund", do, "refund")
        approval = workflow.deferred("approval", str)
        notes.tokens[workflow.id] = approval.token
        said = await approval.wait(timeout="2m")
        if said == "fail":
            raise ValueError(said)
        await workflow.sleep("20ms", name="nap")
        odd = workflow.options(retry=Retry(attempts=3, base="5ms"))
        found = await asyncio.gather(odd.step("flaky", flaky), workflow.step("beside", do, "beside", 6))
        if said == "slow":
            await workflow.step("slow", slow)
        return [Order(said, paid + sum(found)), await workflow.child(ship, order, id=f"{workflow.id}/ship")]

    cluster.workflow(ship)
    cluster.workflow(checkout)

    @cluster.singleton("importer")
    async def lead(leader: Leader[None]) -> None:
        async with leader.unit("import 7") as unit:
            await unit.step("a", do, "lead a")
            await unit.step("b", slow)
            await unit.step("c", do, "lead c")
        notes.tokens["led"] = name
        await asyncio.Event().wait()

    @cluster.cron("bell", NEVER, retry=Retry(attempts=3, base="5ms"))
    async def ring(tick: Tick) -> None:
        await tick.step("once", do, "rung once")
        if tick.attempt == 1:
            raise ValueError("the first one")

    cluster.checkout = checkout  # type: ignore[attr-defined] # of this test
    return cluster, checkout


async def test_b5_a_run_is_paid_approved_delivered_and_starting_it_again_adds_nothing(url: str) -> None:
    notes = Notes()
    anna, checkout = program(url, "anna", notes)
    async with anna:
        for which in HOSTILE:
            notes.left = 2
            run = await anna.start_workflow(checkout, Order("7", 500), id=which)
            await until(lambda: which in notes.tokens)  # noqa: B023 it is waited for
            await anna.resolve(notes.tokens[which], "bob")
            assert await run.result(timeout="2m") == [Order("bob", 511), Order("7", 501)]
            again = await anna.start_workflow(checkout, Order("7", 500), id=which)
            assert await again.result(timeout="2m") == await run.result()
            with pytest.raises(KeyConflict):
                await anna.start_workflow(checkout, Order("7", 501), id=which)
            with pytest.raises(AlreadyResolved):
                await anna.resolve(notes.tokens[which], "eve")
        flow = [step for step in notes.steps() if not step.startswith("lead") and step != "slow"]
        assert sorted(flow) == sorted(["charge", "beside", "flaky", "ship"] * len(HOSTILE))
        assert {each.id for each in await anna.workflows.list(name="checkout", status="done")} == set(HOSTILE)
        notes.gate.set()


async def test_wf_02_wf_03_a_run_that_is_suspended_is_interrupted_or_fails_and_undoes(url: str) -> None:
    notes = Notes()
    anna, checkout = program(url, "anna", notes)
    client, _ = program(url, "client", notes)
    async with anna, client.connect():
        stops = await client.start_workflow(client.checkout, Order("7", 500), id="stops")  # type: ignore[attr-defined]
        fails = await client.start_workflow(client.checkout, Order("7", 500), id="fails")  # type: ignore[attr-defined]
        async with asyncio.timeout(120):
            while {await stops.status(), await fails.status()} != {"suspended"}:
                await asyncio.sleep(0.01)
        await stops.interrupt()
        with pytest.raises(WorkflowInterrupted):
            await stops.result(timeout="2m")
        await client.resolve(notes.tokens["fails"], "fail")
        with pytest.raises(WorkflowFailed, match="ValueError: fail") as caught:
            await fails.result(timeout="2m")
        assert isinstance(caught.value.__cause__, ValueError)
        assert notes.steps().count("charge") == notes.steps().count("refund") == 2
        assert await anna.workflow_handle(checkout, "stops").status() == "interrupted"
        notes.gate.set()


async def test_s11_w1_what_an_evicted_runner_had_begun_is_ended_by_another(url: str) -> None:
    """A run, a unit of a leader and a tick; what the evicted one still does is refused."""
    notes = Notes()
    anna, checkout = program(url, "anna", notes)
    bert, _ = program(url, "bert", notes)
    client, _ = program(url, "client", notes)
    async with client.connect(), anna:
        run = await anna.start_workflow(checkout, Order("7", 500), id="1")
        await until(lambda: "1" in notes.tokens)
        await client.resolve(notes.tokens["1"], "slow")
        await until(lambda: notes.steps().count("slow") == 2)
        starts = asyncio.create_task(bert.start())
        await evict(url, anna)
        await starts
        await until(lambda: notes.steps().count("slow") == 4)
        notes.gate.set()
        same = client.workflow_handle(client.checkout, "1")  # type: ignore[attr-defined] # of this test
        assert await same.result(timeout="2m") == [Order("slow", 511), Order("7", 501)]
        assert await run.result(timeout="2m") == await same.result()
        await until(lambda: "led" in notes.tokens)
        for step in ("charge", "beside", "flaky", "ship", "lead a", "lead c"):
            assert notes.steps().count(step) == 1, step
        rung = await client.crons.wait(await client.crons.trigger("bell"), timeout="2m")
        assert (rung.outcome, rung.attempt) == ("ran", 2)
        assert notes.steps().count("rung once") == 1
        async with asyncio.timeout(120):  # a tick's goes after its outcome
            while [each.kind for each in await client.workflows.list()] != ["workflow"] * 2:
                await asyncio.sleep(0.01)
        await bert.stop()
