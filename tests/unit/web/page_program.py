"""A cluster with something of everything that the page shows, and a browser's requests to it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from coterie import Cluster, Entity, Leader, Retry, Tick, Workflow, rpc, web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

LIMIT_S = 120.0  # for what takes a fraction of a second on an idle machine
SECRET = "hunter2"


@dataclass
class Balance:
    cents: int = 0
    secret: str = SECRET


@dataclass
class Progress:
    last_id: int = 0
    secret: str = SECRET


@dataclass
class Approval:
    approved: bool
    note: str = ""


class Account(Entity[Balance]):
    @rpc(persisted=True)
    async def deposit(self, cents: int, memo: str = "") -> int:
        self.state.cents += cents
        return self.state.cents

    @rpc(persisted=True)
    async def charge(self, cents: int, order: str) -> int:
        if cents < 0:
            raise ConnectionRefusedError(f"payments of {order}")
        return cents


async def checkout(workflow: Workflow, order: str) -> str:
    paid = await workflow.step("charge", _paid, order)
    approval = await workflow.deferred("approval", Approval).wait()
    return f"{paid} {approval.approved}"


CARRIERS: set[str] = set()
"""Orders that a carrier takes."""


async def delivery(workflow: Workflow, order: str) -> str:
    await workflow.publish("status", "packed")
    by = await workflow.receive("dispatch", str)
    return await workflow.step("book", _book, order) + by


async def _book(order: str) -> str:
    if order not in CARRIERS:
        raise ConnectionRefusedError("carrier.example")
    return "by train, "


async def _paid(order: str) -> str:
    return f"{order} is paid"


def program(url: str, **settings: Any) -> Cluster:
    steady = {"lease_ttl": "60s", "stall_limit": "60s"}  # on a busy machine no seat moves
    made = Cluster(url, runner_name="anna", shards=3, http_listen=None, **{**steady, **settings})
    made.entity(retry=Retry(attempts=1))(Account)
    made.workflow(checkout)
    made.workflow(on_failure="hold")(delivery)

    @made.singleton("importer", state=Progress, every="1h")
    async def importer(leader: Leader[Progress]) -> None:
        async with leader.update() as state:
            state.last_id += 1

    @made.cron("report", "@every 1h", retry=Retry(attempts=1))
    async def report(tick: Tick) -> None:
        raise ValueError(f"no {SECRET} today")

    return made


@asynccontextmanager
async def running(tmp_path: Path, **settings: Any) -> AsyncIterator[Cluster]:
    """The program, as a runner that is ready."""
    cluster = program(f"sqlite:///{tmp_path}/page.db", **settings)
    async with asyncio.timeout(LIMIT_S), cluster:
        await cluster.ready()
        yield cluster


@asynccontextmanager
async def browser(
    cluster: Cluster, *, client: str = "127.0.0.1", host: str = "localhost:7650", **more: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of its application."""
    transport = httpx.ASGITransport(web.app(cluster, **more), client=(client, 50_000))
    headers = {"host": host, "origin": f"http://{host}"}
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{client}", headers=headers) as http:
        yield http


async def until(holds: Callable[[], Awaitable[Any]]) -> Any:
    """Wait for a condition, and return what it returned."""
    async with asyncio.timeout(LIMIT_S):
        while not (found := await holds()):
            await asyncio.sleep(0.01)
    return found


async def dead(cluster: Cluster, entity: str = "alice", order: str = SECRET) -> str:
    """A message that is dead; its id."""
    sent = await cluster.send(cluster.ref(Account, entity).charge(-5, order))

    async def is_dead() -> bool:
        return (await cluster.messages.show(sent)).status == "dead"

    await until(is_dead)
    return str(sent)
