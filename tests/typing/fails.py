"""A program that checkers must refuse at each line with an ignore comment, and nowhere else. Never run.

Both checkers report an ignore comment that is not needed, so this file passes exactly if each marked line fails.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=error

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.cluster import Cluster
from coterie.entities.definition import define
from coterie.entities.entity import Entity
from coterie.entities.rpc import rpc

if TYPE_CHECKING:
    from coterie import CallNext, Leader, Tick, Workflow, WorkInfo
    from coterie.entities.reference import Sender


@dataclass
class Balance:
    cents: int = 0


class Account(Entity[Balance]):
    @rpc
    async def charge(self, order_id: str, cents: int, *, note: str = "") -> int:
        self.state.euros = 5  # type: ignore[attr-defined] # the state has no such field
        return self.state.cents

    @rpc
    async def watch(self) -> AsyncIterator[int]:
        yield 1

    @rpc(persisted=True)
    async def expire(self, after_s: float) -> None:
        text: str = self.me  # type: ignore[assignment] # a reference to itself
        del text
        self.timer("expire", self.me.expire("soon"), after="10m")  # type: ignore[arg-type] # text for a number
        self.timer("expire", self.me.expire, after="10m")  # type: ignore[arg-type] # not called
        self.timer("expire", self.me.expyre(), after="10m")  # type: ignore[attr-defined] # misspelt
        self.timer("expire", self.me.expire(1.0), befor="10m")  # type: ignore[call-arg] # misspelt

    @rpc
    def plain(self, cents: int) -> int:
        return cents

    @rpc(persistent=True)  # type: ignore[call-overload, untyped-decorator] # no such option
    async def misspelt(self) -> None: ...

    @rpc(errors=[ValueError("x")])  # type: ignore[list-item] # an error instead of its class
    async def instance(self) -> None: ...

    def initial_state(self) -> int:  # type: ignore[override] # another state than declared
        return 1


class Bare(Entity):
    async def helper(self) -> None:
        self.state.cents = 5  # type: ignore[attr-defined] # there is no state


async def call(account: Account) -> str:
    number: int = account.plain(5)  # type: ignore[assignment] # a plain def is awaited too
    await account.plain("5")  # type: ignore[arg-type] # text for a number
    del number
    await account.charge("order-7", "500")  # type: ignore[arg-type] # text for a number
    await account.charge("order-7")  # type: ignore[call-arg] # an argument too few
    await account.charge("order-7", 5, "gift")  # type: ignore[call-arg] # by keyword only
    await account.charge("order-7", 5, nota="gift")  # type: ignore[call-arg] # misspelt
    await account.chagre("order-7", 5)  # type: ignore[attr-defined] # misspelt
    text: str = await account.charge("order-7", 5)  # type: ignore[assignment] # a number
    await account.watch()  # type: ignore[misc] # a stream is not awaited
    asyncio.create_task(account.watch())  # type: ignore[arg-type] # noqa: RUF006 nor run as a task
    async for item in account.watch():
        return item  # type: ignore[return-value] # a number
    return text


cluster = Cluster("sqlite://")


@cluster.entity(max_idel="5m")  # type: ignore[call-overload] # no such option
class Misspelt(Entity): ...


async def by_cluster(account: Account) -> None:
    cluster.ref(int, "a")  # type: ignore[type-var] # no entity
    cluster.ref(Account, 5)  # type: ignore[arg-type] # ids are text
    bare: Bare = cluster.ref(Account, "a")  # type: ignore[assignment] # another entity
    text: str = await cluster.call(account.charge("order-7", 5))  # type: ignore[arg-type] # a number
    await cluster.broadcast(Account.charge, "order-7", "500")  # type: ignore[arg-type] # text for a number
    await cluster.broadcast(Account.charge)  # type: ignore[call-arg] # arguments too few
    cluster.is_local(5)  # type: ignore[arg-type] # no reference
    print(bare, text)


async def scheduled(account: Account) -> None:
    await cluster.schedules.put("x", "@daily", account.expire)  # type: ignore[arg-type] # not called
    await cluster.schedules.put("x", 5, account.expire(1.0))  # type: ignore[arg-type] # no schedule
    await cluster.schedules.put("x", "@daily", account.expire(1.0), overlap="never")  # type: ignore[arg-type] # no such


async def stored(account: Account) -> str:
    sent = await cluster.send(account.charge("order-7", 5))
    await cluster.send(account.charge)  # type: ignore[arg-type] # not called
    await cluster.send(account.watch())  # type: ignore[arg-type] # a stream
    await cluster.send(account.charge("order-7", 5), delay=object())  # type: ignore[arg-type] # no duration
    await cluster.send(account.charge("order-7", 5), at="noon")  # type: ignore[arg-type] # text for an instant
    await cluster.send(account.charge("order-7", 5), dealy="5m")  # type: ignore[call-arg] # misspelt
    await cluster.call(account.charge("order-7", 5), key=7)  # type: ignore[arg-type] # keys are text
    await cluster.result("1234")  # type: ignore[arg-type] # any text is no message id
    await cluster.messages.purge(status="pending")  # type: ignore[arg-type] # what waits stays
    async with account.transaction() as sql:
        sql.commit  # type: ignore[attr-defined] # noqa: B018 it is committed when the rpc ends
    return await cluster.result(sent)  # type: ignore[arg-type] # a number


@cluster.singleton("other", state=Balance)  # type: ignore[arg-type] # of another state than declared
async def other(leader: Leader[int]) -> None: ...


@cluster.singleton("plain")  # type: ignore[arg-type] # a plain def
def plain(leader: Leader) -> None: ...


@cluster.singleton("misspelt", evry="10m")  # type: ignore[call-overload, untyped-decorator] # no such option
async def misspelt(leader: Leader) -> None: ...


@cluster.singleton("stateless", ttl="1h")  # type: ignore[call-overload, untyped-decorator] # there is no state to expire
async def stateless(leader: Leader) -> None: ...


@cluster.singleton("instance", state=Balance())  # type: ignore[call-overload, untyped-decorator] # not its class
async def instance(leader: Leader[Balance]) -> None: ...


async def leading(leader: Leader[Balance]) -> None:
    leader.state = Balance()  # type: ignore[misc] # it is saved
    leader.state.euros = 5  # type: ignore[attr-defined] # the state has no such field
    await leader.save(5)  # type: ignore[arg-type] # another state
    async with leader.update() as state:
        state.euros = 5  # type: ignore[attr-defined] # the state has no such field
    leader.heartbeat("pages", 3)  # type: ignore[call-arg] # by keyword only
    leader.heartbeat(done="3")  # type: ignore[arg-type] # text for a number
    await leader.sleep(object())  # type: ignore[arg-type] # no duration
    found: int = await cluster.singletons.state("importer", Balance)  # type: ignore[arg-type, assignment] # another type
    print(found)


@cluster.cron("without schedule")  # type: ignore[call-arg] # when?
async def without_schedule(tick: Tick) -> None: ...


@cluster.cron("plain", "@daily")  # type: ignore[type-var] # its result goes nowhere
def plain_job(tick: Tick) -> int:
    return 1


@cluster.middleware  # type: ignore[type-var] # a plain def
def plain_middleware(work: WorkInfo, call_next: CallNext) -> None: ...


@cluster.middleware  # type: ignore[type-var] # it is given call_next, too
async def half_middleware(work: WorkInfo) -> None: ...


@cluster.cron("without tick", "@daily")  # type: ignore[type-var] # its tick is given to it
async def without_tick() -> None: ...


@cluster.cron("other", "@daily")  # type: ignore[type-var] # that is a leader's
async def other_job(leader: Leader) -> None: ...


@cluster.cron("misspelt", "@daily", cach_up="all")  # type: ignore[call-arg] # no such option
async def misspelt_job(tick: Tick) -> None: ...


@cluster.cron("choices", "@daily", catch_up="most", overlap="wait")  # type: ignore[arg-type] # none of the choices
async def choices(tick: Tick) -> None: ...


@cluster.cron("numbers", "@daily", retry=3, breaker=5)  # type: ignore[arg-type] # policies, not numbers
async def numbers(tick: Tick) -> None: ...


async def ticking(tick: Tick) -> None:
    tick.epoch = 7  # type: ignore[misc] # it is granted
    tick.heartbeat("invoices", 3)  # type: ignore[call-arg] # by keyword only
    tick.heartbeat(done="3")  # type: ignore[arg-type] # text for a number
    tick.state  # type: ignore[attr-defined] # noqa: B018 a tick has none
    async with tick.transaction() as sql:
        sql.commit  # type: ignore[attr-defined] # noqa: B018 it is committed at the end of the block
    await cluster.crons.trigger("nightly", at="noon")  # type: ignore[arg-type] # text for an instant
    await cluster.crons.trigger("nightly", tick.scheduled_at)  # type: ignore[call-arg] # by keyword only
    await cluster.crons.wait("nightly")  # type: ignore[arg-type] # which one of its ticks?
    await cluster.crons.preview("nightly", count="5")  # type: ignore[arg-type] # text for a number


async def price(order: str, *, cents: int = 0) -> Balance:
    return Balance(cents)


@cluster.workflow
async def checkout(workflow: Workflow, order: str) -> Balance:
    await workflow.step("price", price, 7)  # type: ignore[call-overload] # a number for text
    await workflow.step("price", price)  # type: ignore[call-overload] # an argument too few
    await workflow.step("price", price, "x", euros=5)  # type: ignore[call-arg] # misspelt
    await workflow.step(price, "x")  # type: ignore[call-overload] # a step has a name
    text: str = await workflow.step("price", price, "x")  # type: ignore[call-overload] # a balance
    workflow.compensate("undo", price, 7)  # type: ignore[arg-type] # a number for text
    await workflow.sleep("1h")  # type: ignore[call-arg] # a sleep has a name
    number: int = await workflow.deferred("approval", str).wait()  # type: ignore[assignment] # text
    await workflow.child(checkout, 7, id="7")  # type: ignore[arg-type] # a number for text
    await workflow.child(price, "x", id="7")  # type: ignore[arg-type] # no workflow
    await workflow.start(checkout, 7, id="7")  # type: ignore[arg-type] # a number for text
    await workflow.start(checkout, "x", id="7", on_parent_end="stop")  # type: ignore[arg-type] # none of the choices
    await workflow.receive("approve")  # type: ignore[call-arg] # of which type?
    number = await workflow.receive("approve", str)  # type: ignore[arg-type] # text
    await workflow.publish("status")  # type: ignore[call-arg] # what?
    await workflow.map(price, [7])  # type: ignore[arg-type] # numbers for text
    await workflow.map(price, ["x"], limit="3")  # type: ignore[call-overload] # text for a number
    await workflow.first(workflow.sleep("1h", name="late"))  # type: ignore[call-arg] # a race of one
    del text, number
    return Balance()


async def workflows(tick: Tick) -> None:
    await cluster.start_workflow(checkout, 7, id="7")  # type: ignore[arg-type] # a number for text
    await cluster.start_workflow(checkout, "x")  # type: ignore[call-arg] # which one?
    await cluster.start_workflow(price, "x", id="7")  # type: ignore[arg-type] # no workflow
    text: str = await cluster.workflow_handle(checkout, "7").result()  # type: ignore[assignment] # a balance
    await cluster.workflows.list(status="over")  # type: ignore[arg-type] # none of the choices
    await tick.step("price", price, 7)  # type: ignore[call-overload] # a number for text
    tick.patched("x")  # type: ignore[attr-defined] # a workflow's
    del text


mails = cluster.queue("mails", concurrency=5, rate="5/s", partition="tenant", partition_concurrency=1)
cluster.queue("mails", concurrency="5")  # type: ignore[arg-type] # text for a number
cluster.queue("mails", rate=5)  # type: ignore[arg-type] # how many in which time?
cluster.queue("mails", concurency=5)  # type: ignore[call-arg] # misspelt


@cluster.task
async def resize(picture: str, width: int) -> str:
    return picture


@cluster.task(queue=mails, key="mail", timeout="30s", pool="process")
def send_email(tenant: str, mail: str, *, text: str = "") -> Balance:
    return Balance()


@cluster.task(queue=5)  # type: ignore[call-overload, untyped-decorator] # neither queue nor name
async def of_no_queue() -> None: ...


@cluster.task(retries=5)  # type: ignore[call-overload, untyped-decorator] # misspelt
async def misspelt_task() -> None: ...


@cluster.task(pool="loop")  # type: ignore[call-overload, untyped-decorator] # none of the choices
def of_no_pool() -> None: ...


async def jobs() -> None:
    await resize("a.png")  # type: ignore[call-arg] # an argument too few
    await resize.job("a.png")  # type: ignore[call-arg] # an argument too few
    await resize.job("a.png", "200")  # type: ignore[arg-type] # text for a number
    number: int = await resize.job("a.png", 200)  # type: ignore[assignment] # text
    send_email.job("acme", "m", "hi")  # type: ignore[call-arg] # by keyword only
    send_email.job("acme", mial="m")  # type: ignore[call-arg] # misspelt
    await send_email("acme", "m")  # type: ignore[misc] # a plain function, called here and now
    await cluster.send(resize)  # type: ignore[arg-type] # not called
    await cluster.send(resize.job)  # type: ignore[arg-type] # not called
    await cluster.send(send_email("acme", "m"))  # type: ignore[arg-type] # called here and now
    await cluster.send(resize.job("a", 1), priority="high")  # type: ignore[arg-type] # text for a number
    sent = await cluster.send(send_email.job("acme", "m"))
    text: str = await cluster.result(sent)  # type: ignore[arg-type] # a balance
    ids = await cluster.send_many([resize.job("a", 1)])
    number = await cluster.result(ids[0])  # type: ignore[arg-type] # text
    await cluster.jobs.list(state="pending")  # type: ignore[arg-type] # none of the choices
    await cluster.jobs.purge(state="ready")  # type: ignore[arg-type] # what waits stays
    await cluster.queues.limits("mails", rate=5)  # type: ignore[arg-type] # how many in which time?
    del text, number


def blocking(account: Account) -> None:
    with cluster.sync() as c:
        text: str = c.call(account.charge("a", 1))  # type: ignore[assignment] # a number
        c.call(7)  # type: ignore[arg-type] # no call
        c.start_workflow(checkout, 7, id="7")  # type: ignore[arg-type] # a number for text
        text = c.workflow_handle(checkout, "7").result()  # type: ignore[assignment] # a balance
        c.kv.typed(int).set("a", "x")  # type: ignore[arg-type] # text for a number
        c.ready()  # type: ignore[attr-defined] # of runners
    cluster.sync().call(account.charge("a", 1))  # type: ignore[attr-defined] # without a block
    del text


def definitions(sender: Sender) -> Bare:
    define(int)  # type: ignore[type-var] # no entity
    define(Account, max_idel="5m")  # type: ignore[call-arg] # no such option
    define(Account, mailbox="many")  # type: ignore[arg-type] # text for a number
    return define(Account).ref("alice", sender)  # type: ignore[return-value] # another entity
