"""A program with one of each thing that the page shows, and texts that try to be markup.

`coterie run page_program.py` is a runner, `python page_program.py` a client that sends messages and starts workflows.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from coterie import Cluster, CoterieError, Entity, Leader, Retry, Tick, Workflow, current, rpc

cluster = Cluster(drain="5s")

MARKUP = "<img src=x onerror=alert(1)>"
QUOTES = "a\"b'c`d&amp;"
TURNED = "evil\u202etxt.exe"
LONG = "long " * 2_000
LONG_ID = "i" * 1_000
LONG_KEY = f"orders/{'k' * 1_017}"
"""As long as an id and a key may be."""
HOSTILE = (MARKUP, QUOTES, TURNED, LONG_ID)


ACTED_ON = ("clicked", "typed", "purged", "reset", "selected")
"""Each is changed by one test only."""


@dataclass
class Balance:
    cents: int = 0


@cluster.entity(retry=Retry(attempts=1))
class Account(Entity[Balance]):
    @rpc
    async def balance(self) -> int:
        return self.state.cents

    @rpc(persisted=True, key="order_id")
    async def charge(self, order_id: str, cents: int) -> int:
        if cents < 0:
            raise ValueError(f"{MARKUP} {TURNED} {LONG}")
        self.state.cents += cents
        return self.state.cents

    @rpc(persisted=True)
    async def note(self, text: str) -> str:
        return text


@cluster.entity
class Visitor(Entity):
    """Stays in memory: an account leaves it when a charge fails."""

    @rpc
    async def greet(self) -> str:
        return f"hello {self.id}"


@dataclass
class Progress:
    last_id: int = 0
    name: str = MARKUP


@cluster.singleton("importer", state=Progress)
async def importer(leader: Leader[Progress]) -> None:
    while True:
        async with leader.update() as state:
            state.last_id += 1
        with contextlib.suppress(CoterieError):  # its runner may just have been killed
            await cluster.ref(Visitor, TURNED).greet()  # in memory again after its shard has moved
        await leader.sleep("500ms")


@cluster.cron("often", "@every 2s")
async def often(tick: Tick) -> None:
    await asyncio.sleep(0.2)


@cluster.cron("yearly", "0 3 1 1 *", timezone="Europe/Zurich")
async def yearly(tick: Tick) -> None:
    await asyncio.sleep(0)


@dataclass
class Approval:
    approved: bool
    by: str
    limit: int | None = None


async def reserve(order: str) -> str:
    return f"reserved {order} {MARKUP}"


@cluster.workflow
async def checkout(workflow: Workflow, order: str) -> str:
    await workflow.step("reserve", reserve, order)
    approval = await workflow.deferred("approval", Approval).wait()
    return f"{order}: {approval.by}"


@cluster.workflow(on_failure="hold")
async def delivery(workflow: Workflow, order: str) -> str:
    await workflow.publish("status", "packed")
    await workflow.start(checkout, order, id=f"of-{order}", on_parent_end="leave")
    by = await workflow.receive("dispatch", str)
    return await workflow.step("book", book, by)


@cluster.workflow
async def invoice(workflow: Workflow, order: str) -> str:
    raise NameError(f"name 'totl' is not defined {MARKUP}")


async def book(by: str) -> str:
    booked = await cluster.kv.modify(f"booked/{by}", lambda times: (times or 0) + 1)
    if booked == 1:
        raise ConnectionRefusedError("carrier.example")
    return f"{booked} by {by}"


emails = cluster.queue("emails", concurrency=3, rate="50/s", partition="tenant")


@cluster.task(queue=emails, retry=Retry(attempts=1))
async def send_email(tenant: str, text: str) -> str:
    if tenant != "acme":
        raise ValueError(f"no mailbox of {tenant}: {MARKUP} {TURNED} {LONG}")
    return text


@cluster.task(queue=emails)
async def import_rows(tenant: str) -> None:
    current().progress(5_000, 12_000, f"rows of {MARKUP}")
    await asyncio.Event().wait()


@cluster.task
async def resize(picture: str) -> str:
    return picture


async def fill() -> None:
    """Give the page something to show."""
    async with cluster.connect():
        await cluster.kv.set(LONG_KEY, 1)
        for name in (*HOSTILE, "alice", *ACTED_ON):
            account = cluster.ref(Account, name)
            await cluster.ref(Visitor, name).greet()
            await cluster.kv.set(f"orders/{name}", {"name": name, "text": LONG})
            await cluster.send(account.charge("o-1", 5))
            await cluster.send(account.charge("o-2", -5))
        await cluster.send(send_email.job("acme", MARKUP), tags={"order": "7"})
        await cluster.send_many(send_email.job(tenant, "hi") for tenant in (MARKUP, *ACTED_ON))
        await cluster.send_many([import_rows.job("acme"), import_rows.job("beta")], tags={"order": "8"})
        await cluster.send(resize.job("a.png"), delay="1h", tags={"markup": MARKUP})
        for name in ("report/acme", "report/acted-on", f"report/{MARKUP}"):
            await cluster.schedules.put(name, "* * * * *", cluster.ref(Account, name).note(MARKUP))
        for number in range(6):
            await cluster.start_workflow(checkout, f"{MARKUP} {number}", id=f"order-{number}")
        await cluster.start_workflow(delivery, "parcel", id="parcel")
        await cluster.start_workflow(invoice, "parcel", id="parcel")


if __name__ == "__main__":
    asyncio.run(fill())
