"""A program that checkers must pass: references are typed as their entities, calls as coroutines. Never run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, assert_type

from coterie import (
    Breaker,
    CallNext,
    ClusterContext,
    CronInfo,
    Deferred,
    Durable,
    ExecutionMeta,
    FailedAttempt,
    Health,
    Job,
    JobInfo,
    JobProgress,
    Leader,
    QueueInfo,
    Retry,
    SavedState,
    ScheduleInfo,
    ScheduleOutcome,
    SingletonInfo,
    SyncCluster,
    SyncKeyValueStore,
    SyncWorkflowHandle,
    Tick,
    TickInfo,
    Transaction,
    Upcoming,
    Workflow,
    WorkflowHandle,
    WorkflowInfo,
    WorkInfo,
    current,
)
from coterie.cluster import Cluster
from coterie.entities.definition import define
from coterie.entities.entity import Entity
from coterie.entities.rpc import rpc
from coterie.kernel.ids import MessageId, ShardId

if TYPE_CHECKING:
    from coterie.entities.reference import Sender

T = TypeVar("T")


@dataclass
class Balance:
    cents: int = 0


class Overdrawn(Exception): ...


class Account(Entity[Balance]):
    @rpc
    async def balance(self) -> int:
        assert_type(self.state, Balance)
        assert_type(self.id, str)
        assert_type(self.cluster, Cluster)
        return self.state.cents

    @rpc(persisted=True, key="order_id", errors=[Overdrawn], timeout="5s")
    async def charge(self, order_id: str, cents: int = 100, *, note: str | None = None) -> int:
        self.keep_alive()
        connection = await self.resource("db", connect)
        assert_type(connection, bytes)
        assert_type(await self.balance(), int)
        return 0

    @rpc(persisted=True)
    async def expire(self, after_s: float = 0.0) -> None:
        me: Account = self.me
        await me.expire()
        self.timer("expire", self.me.expire(5.0), after="10m")
        self.timer("again", self.me.expire(), every=60)
        self.cancel_timer("expire")

    @rpc(persisted=True, key=("a", "b"))
    async def pair(self, a: int, b: int) -> tuple[int, int]:
        return a, b

    @rpc
    async def watch(self, above: int) -> AsyncIterator[Balance]:
        yield self.state

    def initial_state(self) -> Balance:
        return Balance(1)

    async def on_activate(self) -> None: ...


class Threaded(Entity[Balance]):
    @rpc
    def balance(self) -> int:
        return self.state.cents

    @rpc(persisted=True, key="order", timeout="5s")
    def charge(self, order: str, cents: int = 100) -> Balance:
        return self.state

    @rpc
    async def both(self) -> int:
        return await self.balance()


class Ping(Entity):
    @rpc()
    async def ping(self) -> str:
        assert_type(self.state, None)
        return "pong"


class Queue(Entity[list[T]], Generic[T]):
    @rpc
    async def put(self, item: T) -> int:
        self.state.append(item)
        return len(self.state)


class Orders(Queue[str]):
    @rpc
    async def last(self) -> str:
        return self.state[-1]


@asynccontextmanager
async def connect() -> AsyncIterator[bytes]:
    yield b""


async def call(sender: Sender) -> None:
    account = define(Account, mailbox=10, max_idle="5m").ref("alice", sender, timeout_s=2)
    assert_type(account, Account)
    assert_type(account.id, str)
    assert_type(await account.charge("order-7", 500), int)
    assert_type(await account.charge(order_id="order-7", note="gift"), int)
    assert_type(await define(Ping).ref("x", sender).ping(), str)
    assert_type(await define(Orders).ref("x", sender).put("a"), int)
    threaded = define(Threaded).ref("x", sender)
    assert_type(await threaded.balance(), int)
    assert_type(await threaded.charge("order-7", cents=5), Balance)
    async for balance in account.watch(5):
        assert_type(balance, Balance)


cluster = Cluster("sqlite://")


@cluster.entity
class Plain(Entity):
    @rpc
    async def ping(self, text: str = "") -> int:
        return len(text)


@cluster.entity(group="special", max_idle="5m", mailbox=10)
class Special(Entity):
    @rpc
    async def ping(self) -> None: ...


async def by_cluster() -> None:
    plain = cluster.ref(Plain, "a", timeout="2s")
    assert_type(plain, Plain)
    assert_type(await plain.ping("x"), int)
    assert_type(await cluster.ref(Special, "a").ping(), None)
    assert_type(await cluster.call(plain.ping(), timeout=1.5), int)
    replies = await cluster.broadcast(Plain.ping, "x")
    assert_type(replies.values, dict[str, int])
    assert_type(replies.silent, list[str])
    assert_type(cluster.is_local(plain), bool)
    assert_type(cluster.shard_of(Plain, "a"), ShardId)


async def stored() -> None:
    account = cluster.ref(Account, "alice")
    sent = await cluster.send(account.charge("order-7", 500), delay="5m", key="k")
    async with cluster.transaction() as tx:
        rows: int = await tx.execute("insert into orders (id) values ($1)", "order-7")
        assert_type(await cluster.send(account.pair(rows, 2), via=tx), MessageId[tuple[int, int]])
    assert_type(sent, MessageId[int])
    assert_type(await cluster.result(sent, timeout="2s"), int)
    assert_type(await cluster.cancel(sent), bool)
    pair = await cluster.send(account.pair(1, 2), at=datetime.now(UTC))
    assert_type(await cluster.result(pair), tuple[int, int])
    assert_type(await cluster.call(account.charge("order-7"), key="k"), int)
    assert_type(await cluster.reset(Account, "alice"), int)
    shown = await cluster.messages.show(sent)
    assert_type(shown.status, Literal["pending", "done", "dead"])
    assert_type(shown.errors, tuple[FailedAttempt, ...])
    assert_type(await cluster.messages.purge(status="done", older_than="1d"), int)


class Shop(Entity[Balance]):
    @rpc(persisted=True)
    async def order(self, number: int) -> int:
        async with self.transaction() as sql:
            assert_type(sql, Transaction)
            assert_type(await sql.execute("insert into orders (id) values ($1)", number), int)
            assert_type(await sql.fetch("select id from orders"), Sequence[Mapping[str, Any]])
        sent = await self.cluster.send(cluster.ref(Account, self.id).charge("order-7"))
        assert_type(sent, MessageId[int])
        await self.forget()
        return self.state.cents


async def become(leader: Leader[Balance]) -> None:
    assert_type(leader.state, Balance)


@cluster.singleton("importer", state=Balance, on_become_leader=become, retry=Retry(attempts=3), ttl="7d")
async def importer(leader: Leader[Balance]) -> None:
    assert_type(leader.state, Balance)
    assert_type(leader.name, str)
    assert_type(leader.epoch, int)
    assert_type(leader.is_leader, bool)
    assert_type(leader.cluster, Cluster)
    assert_type(leader.meta, ExecutionMeta)
    assert_type(leader.meta.last_run_at, datetime | None)
    async with leader.update() as state:
        assert_type(state, Balance)
        state.cents = 5
    await leader.save(Balance(5))
    async with leader.transaction() as sql:
        assert_type(sql, Transaction)
    leader.heartbeat("pages", done=3, total=10)
    await leader.verify()
    await leader.sleep("1s")


@cluster.singleton("made", state=lambda: Balance(7), version=2, migrations={1: lambda values: values})
async def made(leader: Leader[Balance]) -> None: ...


@cluster.singleton("counted", state=dict[str, int])
async def counted(leader: Leader[dict[str, int]]) -> None:
    assert_type(leader.state, dict[str, int])


@cluster.singleton("sweeper", every="10m", group="special", takeover_delay="30s", expected_interval="1h")
async def sweeper(leader: Leader) -> None:
    assert_type(leader.state, None)


async def standing(leader: Leader[Balance]) -> None:
    await importer(leader)  # it stays what it is
    assert_type(await cluster.singletons.list(), Sequence[SingletonInfo])
    info = await cluster.singletons.get("importer")
    assert_type(info.leader, str | None)
    assert_type(await cluster.singletons.state("importer", Balance), Balance | None)
    assert_type(await cluster.singletons.history("importer"), Sequence[SavedState])
    assert_type(await cluster.singletons.resign("importer", timeout="5s"), str | None)


@cluster.cron("nightly", "0 3 * * *", timezone="Europe/Zurich", skip_if_older_than="1h")
async def nightly(tick: Tick) -> None:
    assert_type(tick.name, str)
    assert_type(tick.scheduled_at, datetime)
    assert_type(tick.attempt, int)
    assert_type(tick.manual, bool)
    assert_type(tick.epoch, int)
    assert_type(tick.cluster, Cluster)
    tick.heartbeat("invoices", done=3, total=10)
    await tick.verify()
    async with tick.transaction() as sql:
        assert_type(sql, Transaction)


@cluster.cron(
    "all of it",
    "@every 90s",
    group="special",
    skip_if_older_than=None,
    catch_up="all",
    overlap="queue",
    from_previous=True,
    jitter="1m",
    timeout=timedelta(minutes=5),
    retry=Retry(attempts=3),
    breaker=Breaker(failures=5, reset="10m"),
    takeover_delay="30s",
)
async def all_of_it(tick: Tick) -> None: ...


@cluster.cron("in a thread", "@hourly")
def in_a_thread(tick: Tick) -> None:
    tick.heartbeat("invoices")
    assert_type(current().cancelled, bool)


@cluster.middleware
async def around(work: WorkInfo, call_next: CallNext) -> object:
    assert_type(work.kind, Literal["rpc", "stream", "tick", "step", "compensation", "job"])
    assert_type(work.target, str)
    assert_type(work.context, ClusterContext)
    return await call_next()


async def price(order: str, *, cents: int = 0) -> Balance:
    return Balance(cents)


def blocking_price(order: str, *, cents: int = 0) -> Balance:
    return Balance(cents)


async def approve(work: Durable) -> str:
    assert_type(await work.step("price", price, "order-7", cents=5), Balance)
    assert_type(await work.sleep("1h", name="wait"), None)
    approval = work.deferred("approval", str)
    assert_type(approval, Deferred[str])
    assert_type(approval.token, str)
    return await approval.wait(timeout="7d")


@cluster.task
def pack(order: str, fragile: bool = False) -> int:
    return len(order)


@cluster.workflow
async def checkout(workflow: Workflow, order: str) -> Balance:
    assert_type(await workflow.step("blocking", blocking_price, order, cents=5), Balance)
    workflow.compensate("blocking", blocking_price, order)
    paid = await workflow.options(retry=Retry(attempts=3), timeout=timedelta(seconds=5)).step("price", price, order)
    assert_type(paid, Balance)
    workflow.compensate("undo", price, order, cents=1)
    await workflow.compensate("undo", price, order)
    assert_type(workflow.patched("tax"), bool)
    both = await asyncio.gather(workflow.step("a", price, "a"), workflow.step("b", price, "b"))
    assert_type(both, tuple[Balance, Balance])
    await approve(workflow)
    assert_type(await workflow.child(deliver, 7, id="7"), list[str])
    child = await workflow.start(deliver, 7, id="8", on_parent_end="leave")
    assert_type(child, WorkflowHandle[list[str]])
    assert_type(await workflow.receive("approve", Balance, timeout="2d"), Balance)
    await workflow.publish("status", "paid")
    assert_type(await workflow.map(price, ["a", "b"], limit=3, name="prices"), list[Balance])
    assert_type(await workflow.map(blocking_price, ["a"]), list[Balance])
    assert_type(await workflow.map(pack, ["a", "b"], name="packing"), list[int])
    raced = await workflow.first(workflow.receive("accept", str), workflow.step("price", price, "x"))
    assert_type(raced, tuple[Literal[0], str] | tuple[Literal[1], Balance])
    return paid


@cluster.workflow(name="Deliver", group="far", retry=Retry(attempts=3))
async def deliver(workflow: Workflow, number: int) -> list[str]:
    assert_type(workflow.id, str)
    assert_type(workflow.cluster, Cluster)
    return [str(number)]


async def workflows(leader: Leader[None], tick: Tick) -> None:
    run = await cluster.start_workflow(checkout, "order-7", id="7")
    assert_type(run, WorkflowHandle[Balance])
    assert_type(await run.result(timeout="5s"), Balance)
    assert_type(await run.status(), Literal["running", "suspended", "done", "failed", "interrupted"])
    await run.interrupt()
    await run.resume()
    assert_type(cluster.workflow_handle(deliver, "7"), WorkflowHandle[list[str]])
    await run.send("approve", Balance(), key="k")
    assert_type(await run.published("status", str), str | None)
    async for value in run.follow("status", str, after=0):
        assert_type(value, str)
    await run.retry()
    forked = await run.fork(before="price", id="8")
    assert_type(forked, WorkflowHandle[Balance])
    assert_type(await cluster.workflows.list(status="done", older_than="1h", limit=5), Sequence[WorkflowInfo])
    await cluster.resolve("token", {"any": "thing"})
    await cluster.reject("token", "why")
    async with leader.unit("import 7") as unit:
        assert_type(await unit.step("price", price, "x"), Balance)
        await approve(unit)
    await approve(tick)


def blocking(account: Account) -> None:
    with cluster.sync() as c:
        assert_type(c, SyncCluster)
        assert_type(c.ref(Account, "alice"), Account)
        assert_type(c.call(account.balance(), timeout="5s"), int)
        message = c.send(account.pair(1, 2), delay="5s", key="k")
        with c.transaction() as tx:
            assert_type(tx.execute("delete from orders"), int)
            assert_type(c.send(account.pair(1, 2), via=tx), MessageId[tuple[int, int]])
        assert_type(message, MessageId[tuple[int, int]])
        assert_type(c.result(message, timeout=5), tuple[int, int])
        assert_type(c.cancel(message), bool)
        assert_type(c.send_many(account.pair(n, 2) for n in range(3)), list[MessageId[tuple[int, int]]])
        run = c.start_workflow(checkout, "order-7", id="7")
        assert_type(run, SyncWorkflowHandle[Balance])
        assert_type(run.result(timeout="5s"), Balance)
        assert_type(run.status(), Literal["running", "suspended", "done", "failed", "interrupted"])
        assert_type(c.workflow_handle(deliver, "7"), SyncWorkflowHandle[list[str]])
        c.resolve("token", {"any": "thing"})
        c.reject("token", "why")
        c.kv.set("a", 1, ttl="1h")
        balances = c.kv.prefix("balance:").typed(Balance)
        assert_type(balances, SyncKeyValueStore[Balance])
        assert_type(balances.get("alice"), Balance | None)
        assert_type(balances.modify("alice", lambda old: old or Balance()), Balance | None)
        assert_type(list(balances.items()), list[tuple[str, Balance]])
        assert_type(c.next_id(), int)
        assert_type(c.health(), Health)
        assert_type(c.shards(), Mapping[ShardId, str | None])
        assert_type(c.run(cluster.crons.list), Sequence[CronInfo])


async def calendar(tick: Tick) -> None:
    await nightly(tick)  # it stays what it is
    assert_type(await cluster.crons.list(), Sequence[CronInfo])
    info = await cluster.crons.get("nightly")
    assert_type(info.next_at, datetime | None)
    assert_type(info.latest, TickInfo | None)
    assert_type(await cluster.crons.preview("0 3 * * *", timezone="Europe/Zurich", count=3), Sequence[Upcoming])
    assert_type(await cluster.crons.explain("nightly"), str)
    triggered = await cluster.crons.trigger("nightly", at=datetime.now(UTC))
    assert_type(triggered, TickInfo)
    ended = await cluster.crons.wait(triggered, timeout="5s")
    assert_type(ended.outcome, Literal["ran", "failed", "skipped"] | None)
    assert_type(ended.kind, Literal["scheduled", "manual"])
    assert_type(ended.late, timedelta | None)
    assert_type(await cluster.crons.pause("nightly"), bool)
    assert_type(await cluster.crons.resume("nightly"), bool)
    assert_type(await cluster.crons.history("nightly", limit=5, before=ended.scheduled_at), Sequence[TickInfo])


async def scheduled(account: Account) -> None:
    put = await cluster.schedules.put("x", "0 3 * * *", account.expire(), timezone="Europe/Zurich", overlap="skip")
    assert_type(put, ScheduleInfo)
    await cluster.schedules.put("y", datetime.now(UTC), account.expire(), catch_up="all", skip_if_older_than=None)
    assert_type(await cluster.schedules.list("x"), Sequence[ScheduleInfo])
    assert_type(await cluster.schedules.preview("x", count=3), Sequence[Upcoming])
    assert_type(await cluster.schedules.history("x"), Sequence[ScheduleOutcome])
    assert_type(await cluster.schedules.backfill("x", put.since, datetime.now(UTC)), Sequence[MessageId])
    assert_type(await cluster.schedules.pause("x"), bool)
    assert_type(await cluster.schedules.resume("x"), bool)
    assert_type(await cluster.schedules.remove("x", cancel=True), bool)


async def together(account: Account) -> None:
    one: Coroutine[Any, Any, int] = account.balance()
    assert_type(await asyncio.create_task(one), int)
    numbers = await asyncio.gather(account.balance(), account.pair(1, 2))
    assert_type(numbers, tuple[int, tuple[int, int]])
    async with asyncio.TaskGroup() as group:
        task = group.create_task(account.charge("order-7"))
    assert_type(task.result(), int)
    async with asyncio.timeout(5):
        await account.balance()


mails = cluster.queue("mails", concurrency=5, rate="5/s", partition="tenant", partition_concurrency=1, age="1h")


@cluster.task
async def resize(picture: str, width: int = 200) -> str:
    return picture


@cluster.task(queue=mails, key=("tenant", "mail"), errors=[Overdrawn], retry=Retry(attempts=2), timeout="30s")
def send_email(tenant: str, mail: str, *, text: str = "") -> Balance:
    return Balance()


@cluster.task(name="sum", queue="mails", priority=5, pool="process", group="default")
def add(tenant: int, other: int) -> int:
    return tenant + other


@cluster.task()
async def nothing() -> None: ...


async def jobs() -> None:
    assert_type(await resize("a.png"), str)
    assert_type(await resize.job("a.png", width=7), str)
    assert_type(send_email("acme", "m", text="hi"), Balance)
    job = send_email.job("acme", "m", text="hi")
    assert_type(job, Job[Balance])
    assert_type(await job, Balance)
    message = await cluster.send(add.job(1, 2), delay="10m", priority=5, tags={"order": "7"}, key="k")
    assert_type(message, MessageId[int])
    assert_type(await cluster.result(message), int)
    assert_type(await cluster.send_many(add.job(n, n) for n in range(5)), list[MessageId[int]])
    assert_type(await cluster.call(nothing.job(), timeout="5s"), None)
    assert_type(await cluster.cancel(message), bool)
    assert_type(await asyncio.gather(resize.job("a"), add.job(1, 2)), tuple[str, int])
    assert_type(await asyncio.create_task(resize.job("a")), str)
    for info in await cluster.jobs.list(state="dead", task="add", queue="mails", tag=("order", "7"), newest=True):
        assert_type(info, JobInfo)
        assert_type(info.progress, JobProgress | None)
        assert_type(await cluster.jobs.retry(info.id), bool)
        assert_type(await cluster.jobs.edit(info.id, {"tenant": 1}), MessageId[Any])
    assert_type(await cluster.jobs.purge(state="done", older_than="1d"), int)
    assert_type(await cluster.queues.limits("mails", concurrency=None, rate="1/s"), QueueInfo)
    assert_type(await cluster.queues.limits("mails", reset=True), QueueInfo)
    assert_type(await cluster.queues.pause("mails"), bool)
    with cluster.sync() as c:
        assert_type(c.call(resize.job("a")), str)
        assert_type(c.result(c.send(add.job(1, 2), priority=1)), int)
