"""Shops: entities that write rows of their own, for suites that compare what state, table and messages say."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coterie import Cluster, Entity, PersistenceError, Retry, Transaction, rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

INSERT = "insert into orders (id, shop) values ($1, $2)"


class Refused(Exception):
    """Declared."""


class HandlerControls:
    """Where handlers and tests meet."""

    def __init__(self) -> None:
        self.runs = 0
        """How often a handler has sold something."""
        self.inside = asyncio.Event()
        self.go = asyncio.Event()
        self.left: list[asyncio.Task[Any]] = []
        """What handlers left running."""


stage = HandlerControls()


@dataclass
class Sold:
    count: int = 0


@dataclass
class Noted:
    numbers: list[int] = field(default_factory=list)


class Audit(Entity[Noted]):
    @rpc(persisted=True)
    async def note(self, number: int) -> None:
        self.state.numbers.append(number)

    @rpc
    async def numbers(self) -> list[int]:
        return sorted(self.state.numbers)


class Clerk(Entity):
    """Has no state, so that most of its calls have nothing to commit."""

    @rpc
    async def send_later(self, number: int) -> None:
        stage.left.append(asyncio.create_task(self._send(number)))

    async def _send(self, number: int) -> None:
        await stage.go.wait()
        await self.cluster.send(self.cluster.ref(Audit, "all").note(number))


class Shop(Entity[Sold]):
    """Sells: a row, a count in its state, a message to the audit.

    The words of `how` say what happens in the block, or "then …" after it.
    """

    @rpc
    async def open(self) -> None:
        async with self.transaction() as sql:
            await sql.execute("create table orders (id integer primary key, shop text)")

    @rpc
    async def books(self) -> tuple[int, list[int]]:
        """What its state says, and what the table does."""
        async with self.transaction() as sql:
            rows = await sql.fetch("select id from orders where shop = $1 order by id", self.id)
        return self.state.count, [row["id"] for row in rows]

    @rpc(persisted=True, errors=[Refused])
    async def order(self, number: int, how: str = "") -> int:
        return await self._sell(number, how)

    @rpc(errors=[Refused])
    async def order_volatile(self, number: int, how: str = "") -> int:
        return await self._sell(number, how)

    @rpc(errors=[Refused])
    async def order_two(self, one: int, two: int, how: str = "") -> int:
        """Two blocks; what the second one raises is caught."""
        await self._sell(one)
        try:
            await self._sell(two, how)
        except KeyError:
            self.state.count += 100
        return self.state.count

    @rpc
    async def order_and_catch(self, number: int) -> int:
        try:
            await self._sell(number, "raise")
        except KeyError:
            self.state.count += 100
        return self.state.count

    @rpc
    async def forget_to_leave(self, number: int) -> None:
        sql = await self.transaction().__aenter__()
        await sql.execute(INSERT, number, self.id)
        await asyncio.sleep(0.01)
        self.state.count += 1

    @rpc
    async def leave_running(self, number: int) -> None:
        """A task that is still inside of the block when the handler ends."""
        stage.left.append(asyncio.create_task(self._sell(number, "wait")))
        await stage.inside.wait()

    @rpc
    async def use_late(self, number: int) -> list[str]:
        """Behind the block; and by tasks, when the handler has ended."""
        async with self.transaction() as sql:
            await sql.execute(INSERT, number, self.id)
            self.state.count += 1
        stage.left += [
            asyncio.create_task(self._later(lambda: _told(sql))),
            asyncio.create_task(self._later(self._new)),
        ]
        return await _told(sql)

    async def _sell(self, number: int, how: str = "") -> int:
        stage.runs += 1
        async with self.transaction() as sql:
            if how == "wait first":
                await sql.fetch("select id from orders")
                await self._act("wait", sql)
            assert await sql.execute(INSERT, number, self.id) == 1
            self.state.count += 1
            await self._send(number)
            await self._act(how, sql)
        if how.startswith("then "):
            await self._act(how.removeprefix("then "), sql)
        return self.state.count

    async def _act(self, how: str, sql: Transaction) -> None:
        match how:
            case "raise":
                raise KeyError(self.id)
            case "refuse":
                raise Refused(self.id)
            case "wait":
                stage.inside.set()
                await stage.go.wait()
            case "nest":
                async with self.transaction():
                    raise AssertionError("never gets here")
            case "call":
                await self.cluster.ref(Shop, "other").order(7)
            case "keep":
                await self.cluster.kv.set("k", 1)
            case "go on after an error":
                try:
                    await sql.execute("insert into nowhere values (1)")
                except PersistenceError:
                    self.state.count += 100

    async def _send(self, number: int) -> None:
        await self.cluster.send(self.cluster.ref(Audit, "all").note(number))

    async def _later(self, work: Callable[[], Awaitable[Any]]) -> Any:
        await stage.go.wait()
        return await work()

    async def _new(self) -> str:
        try:
            async with self.transaction():
                return "it could be used"
        except RuntimeError as error:
            return str(error)


async def _told(sql: Transaction) -> list[str]:
    told = []
    for use in (sql.execute(INSERT, 99, "late"), sql.fetch("select 1 as one")):
        try:
            await use
        except RuntimeError as error:
            told.append(str(error))
    return told


UNHURRIED = {"call_timeout": "2m", "transaction_limit": "1m"}
"""Limits that nothing reaches, on however busy a machine."""


def shops(url: str, **settings: Any) -> Cluster:
    """A cluster that knows them."""
    cluster = Cluster(url, shards=2, **{**UNHURRIED, "retry": Retry(2, base="10ms"), **settings})
    for known in (Shop, Audit, Clerk):
        cluster.entity(known)
    return cluster


@asynccontextmanager
async def running(url: str, **settings: Any) -> AsyncIterator[Cluster]:
    """A runner that holds all shards, and the table."""
    cluster = shops(url, **settings)
    async with cluster:
        await cluster.ready(timeout="2m")
        await cluster.ref(Shop, "owner").open()
        yield cluster


async def books(cluster: Cluster, shop: str = "a") -> tuple[int, list[int]]:
    """What a shop's state and table say."""
    return await cluster.ref(Shop, shop).books()


async def audited(cluster: Cluster) -> list[int]:
    """The numbers that were sent, once all messages have been run."""
    async with asyncio.timeout(120):
        while await cluster.messages.list(status="pending"):
            await asyncio.sleep(0.01)
    return await cluster.ref(Audit, "all").numbers()
