"""Rpcs, crons and steps that are plain functions, on real engines (T7)."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from coterie import (
    Cluster,
    Entity,
    Leader,
    RemoteError,
    Retry,
    SendTimeout,
    Tick,
    Workflow,
    WorkflowInterrupted,
    current,
    rpc,
)
from tests.scenario.persisted.entity_program import until

if TYPE_CHECKING:
    from collections.abc import Iterator

FAR = "2m"
NEVER = "0 0 29 2 *"  # not while this test runs


@dataclass
class Total:
    cents: int = 0
    orders: list[str] = field(default_factory=list)


class Refused(Exception):
    """Declared."""


def threads() -> str:
    return threading.current_thread().name


class Held:
    """Bodies that block until the test lets them go, and what happened to them."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun: list[str] = []
        self.told: list[str] = []
        self.at_once = 0
        self.most = 0

    def __call__(self, name: str) -> None:
        self.begun.append(name)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        assert self.gate.wait(120)
        self.at_once -= 1
        if current().cancelled:
            self.told.append(name)


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.gate.set()


class Program(Cluster):
    """With the entities that its tests call."""

    account: Any
    log: Any


def program(url: str, held: Held, **settings: Any) -> Program:
    cluster = Program(url, shards=4, **settings)

    @cluster.entity
    class Log(Entity[Total]):
        @rpc(persisted=True)
        async def add(self, order: str) -> None:
            self.state.orders.append(order)

        @rpc
        async def orders(self) -> list[str]:
            return self.state.orders

    @cluster.entity(retry=Retry(attempts=3, base="1ms"))
    class Account(Entity[Total]):
        @rpc(persisted=True, key="order", errors=[Refused])
        def deposit(self, order: str, cents: int) -> int:
            with cluster.sync() as c:
                c.send(c.ref(Log, "log").add(order))
                c.send(c.ref(Log, "log").add(f"{order} again"))
            self.state.cents += cents
            if cents < 0:
                raise Refused(order)
            return self.state.cents

        @rpc(persisted=True)
        def flaky(self) -> int:
            """Each attempt changes the state, and the first two fail."""
            self.state.cents += 1000
            if (current().attempt or 0) < 3:
                raise ValueError("no luck")
            return self.state.cents

        @rpc
        def where(self) -> tuple[str, str | None, bool]:
            return threads(), current().entity_id, current().deadline is not None

        @rpc(timeout=FAR)
        def hold(self, name: str) -> str:
            held(name)
            return name

        @rpc(timeout=FAR)
        def relay(self, way: list[str]) -> list[str]:
            """Call the first one on the way, which calls the next."""
            if not way:
                return [self.id]
            with cluster.sync() as c:
                return [self.id, *c.call(c.ref(Account, way[0], timeout=FAR).relay(way[1:]), timeout=FAR)]

        @rpc
        async def by_itself(self) -> tuple[str, str | None, bool]:
            return await self.where()

        @rpc(persisted=True)
        def with_sql(self) -> int:
            async def write() -> int:
                async with self.transaction() as sql:
                    return len(await sql.fetch("select 1 where 1 = $1", 1))

            with cluster.sync() as c:
                return c.run(write)

    cluster.log, cluster.account = Log, Account
    return cluster


def runner_of(cluster: Cluster) -> Any:
    return cluster._acting()


async def test_a_plain_rpc_runs_in_a_thread_with_its_context(url: str, held: Held) -> None:
    async with (cluster := program(url, held)):
        account = cluster.ref(cluster.account, "alice", timeout=FAR)
        name, entity, has_deadline = await account.where()
        assert (name.startswith("coterie-body-"), entity, has_deadline) == (True, "alice", True)
        assert (await account.by_itself())[0].startswith("coterie-body-"), "a method awaits it like any caller"


async def test_state_reply_and_messages_of_a_plain_handler_are_one_commit(url: str, held: Held) -> None:
    """B3: also those that it sent by cluster.sync(), which are numbered like those of a coroutine."""
    async with (cluster := program(url, held)):
        alice = cluster.ref(cluster.account, "alice", timeout=FAR)
        log = cluster.ref(cluster.log, "log", timeout=FAR)
        assert [await alice.deposit("first", 5), await alice.deposit("first", 5)] == [5, 5]
        with pytest.raises(Refused):
            await alice.deposit("refused", -7)
        assert await alice.deposit("second", 1) == 6, "an error undoes the state"
        async with asyncio.timeout(120):
            while len(orders := await log.orders()) < 4:
                await asyncio.sleep(0.01)
        assert sorted(orders) == ["first", "first again", "second", "second again"], "and what it has sent"
        assert await alice.flaky() == 1006
        assert await alice.with_sql() == 1


async def test_a_body_past_its_time_keeps_the_turn_of_its_entity_and_is_told(url: str, held: Held) -> None:
    async with (cluster := program(url, held)):
        alice = cluster.ref(cluster.account, "alice", timeout="300ms")
        with pytest.raises(SendTimeout):
            await alice.hold("first")
        second = asyncio.create_task(cluster.call(alice.hold("second"), timeout=FAR))
        bob = cluster.ref(cluster.account, "bob", timeout=FAR)
        assert (await bob.where())[1] == "bob", "others have their turns"
        async with asyncio.timeout(120):
            while not (reasons := (await cluster.health()).reasons):
                await asyncio.sleep(0.05)
        assert [(each.status, each.problem.partition(",")[0]) for each in reasons] == [
            ("degraded", "Account/alice.hold still runs in its thread")
        ]
        assert held.begun == ["first"]
        held.gate.set()
        assert await second == "second"
        assert (held.told, held.most) == (["first"], 1)
        await until(lambda: not cluster._acting().facts().stubborn)  # type: ignore[union-attr]


async def test_a_caller_who_leaves_is_told_to_the_body(url: str, held: Held) -> None:
    async with (cluster := program(url, held)):
        alice = cluster.ref(cluster.account, "alice")
        call = asyncio.create_task(alice.hold("left"))
        await until(lambda: held.begun)
        (body,) = runner_of(cluster).threads._running
        call.cancel()
        await until(lambda: body.cancellation.is_set)
        held.gate.set()
        await until(lambda: held.told)


async def test_entities_that_call_each_other_share_one_thread_without_waiting_for_ever(url: str, held: Held) -> None:
    async with (cluster := program(url, held, threads=1)):
        ways = [[f"{letter}{number}" for number in range(5)] for letter in "abc"]
        refs: Any = [cluster.ref(cluster.account, way[0], timeout=FAR) for way in ways]
        went = await asyncio.gather(*(ref.relay(way[1:]) for ref, way in zip(refs, ways, strict=True)))
        assert went == ways


async def test_so_do_those_that_wait_for_persisted_calls(url: str, held: Held) -> None:
    cluster = program(url, held, threads=2)

    @cluster.entity
    class Shop(Entity):
        @rpc(timeout=FAR)
        def buy(self, order: str) -> int:
            with cluster.sync() as c:
                return int(c.call(c.ref(cluster.account, self.id, timeout=FAR).deposit(order, 1), timeout=FAR))

    async with cluster:
        shops = [cluster.ref(Shop, f"shop-{number}", timeout=FAR) for number in range(10)]
        assert list(await asyncio.gather(*(shop.buy("x") for shop in shops))) == [1] * 10


async def test_what_a_body_sends_after_its_seat_was_lost_is_nowhere(url: str, held: Held) -> None:
    """The fence: its thread goes on, and nothing of it is committed."""
    cluster = program(url, held)

    @cluster.entity
    class Late(Entity[Total]):
        @rpc(persisted=True)
        def change(self) -> None:
            held("change")
            with cluster.sync() as c:
                c.send(c.ref(cluster.log, "late").add("late"))
            self.state.cents += 1

        @rpc
        async def cents(self) -> int:
            return self.state.cents

    async with cluster:
        late = cluster.ref(Late, "late", timeout=FAR)
        await cluster.send(late.change())
        await until(lambda: held.begun)
        host: Any = cluster._acting().calling.host
        shard = next(iter(host.handlers.waiting)).resident.shard
        shard.tenure.ended = True
        shard.abandon()
        (body,) = runner_of(cluster).threads._running
        await until(lambda: body.cancellation.is_set)
        held.gate.set()
        await until(lambda: held.told)
        await until(lambda: not host.handlers.waiting)
        rows = await cluster.messages.list()
        assert [(each.method, each.status) for each in rows] == [("change", "pending")]


async def test_a_plain_cron_runs_in_a_thread_and_its_heartbeats_and_steps_are_stored(url: str, held: Held) -> None:
    cluster = program(url, held)
    seen: list[Any] = []

    def count(number: int) -> int:
        return number + 1

    @cluster.cron("report", NEVER)
    def report(tick: Tick) -> None:
        tick.heartbeat("half way", done=1, total=2)
        with cluster.sync() as c:
            seen.append((threads()[:13], current().name, c.run(lambda: tick.step("count", count, 1))))

    async with cluster:
        await cluster.crons.trigger("report")
        async with asyncio.timeout(120):
            while not (ticks := [each for each in await cluster.crons.history("report") if each.outcome]):
                await asyncio.sleep(0.02)
        assert seen == [("coterie-body-", "report", 2)]
        assert (ticks[0].outcome, ticks[0].note, ticks[0].done, ticks[0].total) == ("ran", "half way", 1, 2)


async def test_no_attempt_of_a_tick_runs_beside_one_that_is_past_its_time(url: str, held: Held) -> None:
    cluster = program(url, held)

    @cluster.cron("slow", NEVER, timeout="50ms", retry=Retry(attempts=2, base="1ms"))
    def slow(tick: Tick) -> None:
        held(f"attempt {tick.attempt}")

    async with cluster:
        await cluster.crons.trigger("slow")
        await until(lambda: held.begun)
        await asyncio.sleep(3.5)  # longer than a coroutine gets to end
        assert held.begun == ["attempt 1"]
        held.gate.set()
        await until(lambda: len(held.begun) == 2)
        assert (held.told, held.most) == (["attempt 1"], 1)


async def test_steps_may_be_plain_functions_and_return_what_is_to_be_awaited(url: str, held: Held) -> None:
    cluster = program(url, held)
    undone: list[str] = []

    def charge(cents: int) -> str:
        return f"{threads()[:13]} {cents}"

    def undo(what: str) -> None:
        undone.append(f"{threads()[:13]} {what}")

    @cluster.workflow
    async def pay(workflow: Workflow, cents: int) -> str:
        workflow.compensate("undo", undo, "charge")
        account = cluster.ref(cluster.account, "alice", timeout=FAR)
        assert await workflow.step("call", account.deposit, "by reference", 1) == 1
        assert await workflow.step("lambda", lambda: account.deposit("by lambda", 1)) == 2
        charged = await workflow.step("charge", charge, cents)
        if cents < 0:
            raise ValueError("nothing to pay")
        return charged

    async with cluster:
        assert await (await cluster.start_workflow(pay, 7, id="seven")).result(timeout=FAR) == "coterie-body- 7"
        failing = await cluster.start_workflow(pay, -7, id="failing")
        with pytest.raises(Exception, match="nothing to pay"):
            await failing.result(timeout=FAR)
        assert undone == ["coterie-body- charge"]


async def test_the_time_limit_of_a_step_in_a_thread_is_over_when_the_step_is(url: str, held: Held) -> None:
    cluster = program(url, held)

    def step() -> str:
        held("attempt")
        return "done"

    @cluster.workflow
    async def flow(workflow: Workflow, number: int) -> str:
        limited = workflow.options(timeout="50ms", retry=Retry(attempts=2, base="1ms"))
        return await limited.step("slow", step)

    async with cluster:
        run = await cluster.start_workflow(flow, 1, id="x")
        await until(lambda: held.begun)
        await asyncio.sleep(0.3)
        assert held.begun == ["attempt"]
        held.gate.set()
        assert await run.result(timeout=FAR) == "done"
        assert (held.begun, held.told, held.most) == (["attempt"] * 2, ["attempt"], 1)


async def test_an_interrupted_run_undoes_nothing_before_its_step_has_ended(url: str, held: Held) -> None:
    cluster = program(url, held)
    happened: list[str] = []

    def step() -> None:
        held("step")
        happened.append("step")

    def undo() -> None:
        happened.append("undo")

    @cluster.workflow
    async def flow(workflow: Workflow, number: int) -> None:
        workflow.compensate("undo", undo)
        await workflow.step("step", step)

    async with cluster:
        run = await cluster.start_workflow(flow, 1, id="x")
        await until(lambda: held.begun)
        await run.interrupt()
        await asyncio.sleep(0.5)
        assert happened == []
        held.gate.set()
        with pytest.raises(WorkflowInterrupted):
            await run.result(timeout=FAR)
        assert happened == ["step", "undo"]


async def test_the_unit_of_a_leader_takes_plain_functions_as_steps(url: str, held: Held) -> None:
    cluster = program(url, held)
    seen: list[str] = []

    def read(source: str) -> str:
        return f"{threads()[:13]} {source}"

    @cluster.singleton("importer")
    async def importer(leader: Leader[None]) -> None:
        async with leader.unit("day 1") as unit:
            seen.append(await unit.step("read", read, "file"))

    async with cluster:
        await until(lambda: seen)
        assert seen == ["coterie-body- file"]


async def test_stop_waits_for_bodies_and_then_says_which_did_not_end(
    url: str, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = program(url, held, drain="300ms")
    async with cluster:
        alice = cluster.ref(cluster.account, "alice")
        call = asyncio.create_task(alice.hold("endless"))
        await until(lambda: held.begun)
    await asyncio.gather(call, return_exceptions=True)
    left = [each.message for each in caplog.records if each.message.startswith("1 plain functions")]
    assert left == ["1 plain functions did not end within 0.3s, and end with the process: Account/alice.hold"]
    assert held.told == []


async def test_a_blocking_body_does_not_hold_up_other_calls(url: str, held: Held) -> None:
    async with (cluster := program(url, held)):
        alice, bob = (cluster.ref(cluster.account, name, timeout=FAR) for name in ("alice", "bob"))
        blocked = asyncio.create_task(alice.hold("alice"))
        await until(lambda: held.begun)
        assert (await bob.where())[1] == "bob"
        assert not blocked.done()
        held.gate.set()
        assert await blocked == "alice"


async def test_an_undeclared_error_of_a_body_is_a_defect_like_any_other(url: str, held: Held) -> None:
    cluster = program(url, held)

    @cluster.entity
    class Broken(Entity):
        @rpc
        def go(self) -> int:
            time.sleep(0.001)
            return 1 // 0

    async with cluster:
        with pytest.raises(RemoteError, match="ZeroDivisionError"):
            await cluster.ref(Broken, "x", timeout=FAR).go()
