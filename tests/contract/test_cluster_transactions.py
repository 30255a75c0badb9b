"""`cluster.transaction()`: the user's SQL and what is sent in it commit together, on every engine (O1)."""

from __future__ import annotations

import asyncio
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from coterie import (
    Cluster,
    Entity,
    InvalidArgument,
    KeyConflict,
    Leader,
    MessageExpired,
    MessageId,
    PersistenceError,
    RemoteError,
    Tick,
    TransactionTimeout,
    Workflow,
    rpc,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

FAR = "2m"


class Orders(Entity[None]):
    """What is sent to, and sends within its own transactions."""

    @rpc(persisted=True, key="order")
    async def confirm(self, order: str, cents: int) -> int:
        return cents

    @rpc
    async def relay(self, order: str) -> str:
        """In its own transaction `via=` is what it sends anyway."""
        orders = self.cluster.ref(Orders, "b")
        async with self.transaction() as sql:
            await sql.execute("insert into rows (n) values (7)")
            await self.cluster.start_workflow(ship, order, id=order, via=sql)
            return await self.cluster.send(orders.confirm(order, 7), via=sql)

    @rpc
    async def misuse(self, how: str) -> None:
        if how == "inside":
            async with self.transaction() as sql:
                await sql.fetch("select 1 as one")
                async with self.cluster.transaction():
                    pass
        if how == "instead":
            async with self.cluster.transaction():
                pass
        async with self.transaction() as sql:
            pass
        if how == "after":
            await self.cluster.send(self.cluster.ref(Orders, "b").confirm("late", 1), via=sql)
        await self.cluster.start_workflow(ship, "late", id="late", via=sql)


async def ship(workflow: Workflow, order: str) -> str:
    return f"{order} is packed"


sent: dict[str, Any] = {}


async def hourly(tick: Tick) -> None:
    """In its transaction it sends what only commits with it."""
    cluster = tick.cluster
    async with tick.transaction() as sql:
        await sql.execute("insert into rows (n) values (9)")
        sent["tick"] = await cluster.send(cluster.ref(Orders, "a").confirm("tick", 9), via=sql)


@dataclass
class Progress:
    rows: int = 0


async def importer(leader: Leader[Progress]) -> None:
    """Row, state and message: one commit under its fence."""
    cluster = leader.cluster
    async with leader.transaction() as sql:
        await sql.execute("insert into rows (n) values (8)")
        await leader.save(Progress(8))
        sent["leader"] = await cluster.send(cluster.ref(Orders, "a").confirm("leader", 8), via=sql)
    await asyncio.Event().wait()


def program(url: str, *, name: str = "default") -> Cluster:
    cluster = Cluster(url, name=name, shards=3)
    cluster.entity(Orders)
    cluster.workflow(ship)
    cluster.cron("hourly", "0 * * * *")(hourly)
    return cluster


@pytest.fixture(params=["memory", "file", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "sqlite://" if request.param == "memory" else f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
async def cluster(place: str) -> AsyncIterator[Cluster]:
    cluster = program(place)
    async with cluster:
        await cluster.ready(timeout=FAR)
        async with cluster.transaction() as tx:
            await tx.execute("create table rows (n integer primary key)")
        yield cluster


async def rows(cluster: Cluster) -> list[int]:
    async with cluster.transaction() as tx:
        return [row["n"] for row in await tx.fetch("select n from rows order by n")]


async def test_rows_messages_and_runs_are_one_commit(cluster: Cluster) -> None:
    orders = cluster.ref(Orders, "a")
    async with cluster.transaction() as tx:
        assert await tx.execute("insert into rows (n) values ($1)", 1) == 1
        message = await cluster.send(orders.confirm("o-1", 500), via=tx)
        more = await cluster.send_many([orders.confirm(f"m-{n}", n) for n in range(3)], via=tx)
        run = await cluster.start_workflow(ship, "o-1", id="o-1", via=tx)
        assert await cluster.messages.list() == []
    assert await cluster.result(message, timeout=FAR) == 500
    assert [await cluster.result(each, timeout=FAR) for each in more] == [0, 1, 2]
    assert await run.result(timeout=FAR) == "o-1 is packed"
    assert await rows(cluster) == [1]


async def test_a_block_that_raises_leaves_nothing(cluster: Cluster) -> None:
    orders = cluster.ref(Orders, "a")
    with pytest.raises(ValueError, match="no"):  # noqa: PT012 it rolls back
        async with cluster.transaction() as tx:
            await tx.execute("insert into rows (n) values (1)")
            message = await cluster.send(orders.confirm("o-1", 500), via=tx)
            raise ValueError("no")
    with pytest.raises(MessageExpired):
        await cluster.result(message)
    assert await rows(cluster) == []
    for call in (orders.confirm("o-1", 500), orders.confirm("o-2", 500)):
        with pytest.raises(PersistenceError, match="rolled back"):
            await cluster.send(call, via=tx)


async def test_messages_alone_need_no_statement(cluster: Cluster) -> None:
    """And nothing at all commits nothing."""
    async with cluster.transaction():
        pass
    async with cluster.transaction() as tx:
        message = await cluster.send(cluster.ref(Orders, "a").confirm("o-1", 5), via=tx)
    assert await cluster.result(message, timeout=FAR) == 5


async def test_keys_are_as_with_a_plain_send(cluster: Cluster) -> None:
    orders = cluster.ref(Orders, "a")
    first = await cluster.send(orders.confirm("o-1", 500))
    async with cluster.transaction() as tx:
        assert await cluster.send(orders.confirm("o-1", 500), via=tx) == first
        second = await cluster.send(orders.confirm("o-2", 5), via=tx)
        assert await cluster.send(orders.confirm("o-2", 5), via=tx) == second
        for order in ("o-1", "o-2"):
            with pytest.raises(KeyConflict, match=order):
                await cluster.send(orders.confirm(order, 1), via=tx)
    assert await cluster.result(second, timeout=FAR) == 5


async def test_a_key_that_is_taken_before_the_commit_rolls_it_back(cluster: Cluster) -> None:
    """The id that the block was given would be none: it is run again, and finds the message."""
    orders = cluster.ref(Orders, "a")
    with pytest.raises(PersistenceError, match="run it again"):  # noqa: PT012 its end raises
        async with cluster.transaction() as tx:
            await cluster.send(orders.confirm("o-1", 500), via=tx)
            await asyncio.create_task(send_beside(cluster), context=Context())
    assert [each.key is not None for each in await cluster.messages.list()] == [True]


async def send_beside(cluster: Cluster) -> None:
    await cluster.send(cluster.ref(Orders, "a").confirm("o-1", 500))


async def test_a_send_in_the_block_without_via_is_refused(cluster: Cluster) -> None:
    """It would be committed by itself, and on SQLite wait for the lock that the block holds."""
    async with cluster.transaction() as tx:
        await tx.execute("insert into rows (n) values (1)")
        with pytest.raises(RuntimeError, match="send it with via="):
            await cluster.send(cluster.ref(Orders, "a").confirm("o-1", 500))
        with pytest.raises(RuntimeError, match="has a transaction open"):
            async with cluster.transaction():
                pass
    assert await rows(cluster) == [1]


async def test_it_is_over_after_its_limit(place: str) -> None:
    cluster = Cluster(place, shards=3, transaction_limit="100ms")
    cluster.entity(Orders)
    async with cluster.connect():
        with pytest.raises(TransactionTimeout):  # noqa: PT012 its end raises
            async with cluster.transaction() as tx:
                await tx.fetch("select 1 as one")
                await cluster.send(cluster.ref(Orders, "a").confirm("o-1", 500), via=tx)
                await asyncio.sleep(0.3)
        assert await cluster.messages.list() == []


async def test_a_transaction_of_another_cluster_is_refused(cluster: Cluster, place: str) -> None:
    other = program(place, name="other")
    async with other.connect(), cluster.transaction() as tx:
        with pytest.raises(InvalidArgument, match="another cluster"):
            await other.send(other.ref(Orders, "a").confirm("o-1", 5), via=tx)
        with pytest.raises(InvalidArgument, match="another cluster"):
            await other.start_workflow(ship, "x", id="x", via=tx)


async def test_in_an_rpc_the_transaction_is_that_of_the_rpc(cluster: Cluster) -> None:
    message: MessageId[int] = MessageId(await cluster.ref(Orders, "a").relay("o-1"))
    assert await cluster.result(message, timeout=FAR) == 7
    assert await cluster.workflow_handle(ship, "o-1").result(timeout=FAR) == "o-1 is packed"
    assert await rows(cluster) == [7]


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("inside", "has a transaction open"),
        ("instead", "self.transaction"),
        ("after", "inside its block"),
        ("start after", "inside its block"),
    ],
)
async def test_in_an_rpc_nothing_else_is_offered(cluster: Cluster, how: str, problem: str) -> None:
    with pytest.raises(RemoteError, match=problem):
        await cluster.ref(Orders, "a").misuse(how)


async def test_in_a_tick_it_is_part_of_the_fenced_commit(cluster: Cluster) -> None:
    await cluster.crons.trigger("hourly")
    async with asyncio.timeout(120):
        while "tick" not in sent:
            await asyncio.sleep(0.01)
        while await rows(cluster) != [9]:
            await asyncio.sleep(0.01)
    assert await cluster.result(sent.pop("tick"), timeout=FAR) == 9


async def test_a_leader_sends_with_its_rows_and_its_state(place: str) -> None:
    cluster = program(place)
    async with cluster.connect(), cluster.transaction() as tx:
        await tx.execute("create table rows (n integer primary key)")
    if place == "sqlite://":
        return  # in memory the table is gone with the client
    cluster = program(place)
    cluster.singleton("importer", state=Progress)(importer)
    async with cluster:
        async with asyncio.timeout(120):
            while await rows(cluster) != [8]:
                await asyncio.sleep(0.01)
        assert await cluster.result(sent.pop("leader"), timeout=FAR) == 8
        assert await cluster.singletons.state("importer", Progress) == Progress(8)


async def test_without_await_it_is_the_same(cluster: Cluster) -> None:
    def shop() -> list[Any]:
        with cluster.sync() as c:
            orders = c.ref(Orders, "a")
            with c.transaction() as tx:
                assert tx.execute("insert into rows (n) values ($1)", 1) == 1
                assert tx.fetch("select n from rows")[0]["n"] == 1
                message = c.send(orders.confirm("o-1", 5), via=tx)
                run = c.start_workflow(ship, "o-1", id="o-1", via=tx)
                with pytest.raises(RuntimeError, match="send it with via="):
                    c.send(orders.confirm("o-2", 5))
            with pytest.raises(ValueError, match="no"), c.transaction() as tx:  # noqa: PT012 it rolls back
                tx.execute("insert into rows (n) values ($1)", 2)
                c.send(orders.confirm("o-3", 5), via=tx)
                raise ValueError("no")
            return [c.result(message, timeout=FAR), run.result(timeout=FAR)]

    assert await asyncio.to_thread(shop) == [5, "o-1 is packed"]
    assert await rows(cluster) == [1]
    assert len(await cluster.messages.list()) == 1
