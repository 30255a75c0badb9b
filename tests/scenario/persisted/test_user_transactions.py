"""Transactions of users on a database that fails: all or nothing, and never beside a group's writes (D4, C3)."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Entity, current, rpc
from coterie.cluster import Cluster
from coterie.errors import PersistenceError, TransactionTimeout
from coterie.kernel.random import Random
from coterie.settings import Settings
from coterie.storage.contracts.messages import Commit, StateChange
from coterie.storage.interface import Claim, KvPut, Registration, SeatDeclaration
from coterie.storage.sqlite import SqliteStorage
from coterie.testing.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from coterie.testing.simulation import Simulation

CREATE = "create table if not exists counts (seat text primary key, n integer not null)"
ADD = "insert into counts values ($1, 1) on conflict (seat) do update set n = n + 1"


def storage_on(sim: Simulation, me: str) -> SqliteStorage:
    return SqliteStorage(
        Settings.load({"url": "sqlite://"}, environ={}),
        incarnation=me,
        clock=sim.database.clock,
        chance=Random(1),
        executors=sim.database.executors(me),
        witness=sim.database.witness,
    )


async def claimed(storage: SqliteStorage, me: str) -> Claim:
    session = await storage.ownership(me).__aenter__()
    row = Registration(id=me, name=me, address="", host_id="", groups=("default",))
    await session.register(row, [SeatDeclaration(f"seat:{me}", "default")], ttl_s=600)
    (grant,) = await session.acquire([f"seat:{me}"])
    return Claim(me, grant.name, grant.epoch)


async def add(storage: SqliteStorage, claim: Claim) -> str:
    """Count one more in a table and in the state, in the way that a handler does."""
    loaded = await storage.states.load(claim, claim.seat)
    assert loaded is not None
    transaction = storage.transaction(limit_s=2.0)
    try:
        await transaction.fetch("select n from counts where seat = $1", claim.seat)
        await transaction.execute(ADD, claim.seat)
        return await transaction.commit(Commit(claim, state=StateChange(claim.seat, b"", loaded.version)))
    finally:
        await transaction.rollback()


@pytest.mark.simulated(seeds=20)
async def test_rows_and_state_agree_whatever_is_lost_on_the_way() -> None:
    """D4: answers get lost before and after the commit, links are cut, others write; the two counts are the same."""
    async with simulate(Cluster("sqlite://"), runners=0) as sim:
        storages = [storage_on(sim, me) for me in ("a", "b")]
        claims = []
        for storage, me in zip(storages, ("a", "b"), strict=True):
            await storage.start()
            claims.append(await claimed(storage, me))
            first = storage.transaction(limit_s=2.0)
            await first.execute(CREATE)
            assert await first.commit(Commit(claims[-1])) == "written"
        weather = sim.database.weather
        weather.error_before = weather.error_after = 0.03
        told: list[str] = []

        async def work(storage: SqliteStorage, claim: Claim) -> None:
            for number in range(30):
                try:
                    told.append(await add(storage, claim))
                    await storage.kv.put(KvPut(claim.seat, b"%d" % number, number))
                except (PersistenceError, TransactionTimeout) as error:
                    told.append(error.code)

        await asyncio.gather(*(work(storage, claim) for storage, claim in zip(storages, claims, strict=True)))
        weather.error_before = weather.error_after = 0.0
        for storage, claim in zip(storages, claims, strict=True):
            loaded = await storage.states.load(claim, claim.seat)
            assert loaded is not None
            counted = sim.database.main.execute("select n from counts where seat = ?", (claim.seat,)).get
            assert counted == loaded.version > 10
        assert told.count("written") > 30


@pytest.mark.simulated(seeds=4)
async def test_one_that_hangs_holds_up_nobody_and_ends_at_its_limit() -> None:
    """C3, m18, in virtual time."""
    async with simulate(Cluster("sqlite://"), runners=0) as sim:
        storage = storage_on(sim, "a")
        await storage.start()
        claim = await claimed(storage, "a")
        transaction = storage.transaction(limit_s=2.0)
        await transaction.execute(CREATE)
        await transaction.execute(ADD, "x")
        before_ns = sim.loop.now_ns
        await storage.kv.put(KvPut("k", b"v", 1))
        assert sim.loop.now_ns - before_ns < 2e9
        await asyncio.sleep(2.1)
        with pytest.raises(TransactionTimeout):
            await transaction.commit(Commit(claim))
        assert sim.database.main.execute("select count(*) from sqlite_schema where name = 'counts'").get == 0


# In handlers

cluster = Cluster("sqlite://", shards=12, drain="5s", call_timeout="60s", transaction_limit="1m")
inside: list[str] = []
ended: list[object] = []


@dataclass
class Count:
    n: int = 0


@cluster.entity
class Till(Entity[Count]):
    @rpc(persisted=True)
    async def add(self) -> int:
        self.state.n += 1
        try:
            async with self.transaction() as sql:
                await sql.execute(CREATE)
                await sql.execute(ADD, self.id)
                inside.append(str(current().runner_id))
                await stubborn(asyncio.sleep(5 if len(inside) == 1 else 0))
        finally:
            ended.append(sys.exc_info()[1])
        return self.state.n


async def stubborn(waiting: Coroutine[Any, Any, None]) -> None:
    """Go on when it is cancelled, as if nothing was."""
    task = asyncio.ensure_future(waiting)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)


@pytest.mark.simulated(seeds=5)
async def test_a_handler_whose_shard_was_lost_commits_nothing_of_its_transaction() -> None:
    """C1, D4, INV-F2: its process froze inside of the block, another one took over, and it goes on to its end."""
    inside.clear()
    ended.clear()
    async with simulate(cluster, runners=2) as sim:
        await sim.wait_until(lambda: sorted(len(each.real.seats) for each in sim.runners) == [6, 6])
        victim, survivor = sim.runners
        lives = [victim.incarnation, survivor.incarnation]
        ids = (f"till-{number}" for number in range(10_000))
        who = next(each for each in ids if sim.owner(cluster.ref(Till, each)) is victim)
        adding = asyncio.create_task(cluster.ref(Till, who).add())
        await sim.wait_until(lambda: inside)
        victim.freeze()
        await sim.wait_until(lambda: len(inside) == 2)
        assert await adding == 1
        victim.thaw()
        await sim.wait_until(lambda: len(ended) == 2)
        await sim.advance("5s")
        assert ended == [None, None], "the former owner went to the end of its handler"
        assert sim.database.main.execute("select n from counts where seat = ?", (who,)).get == 1
        assert inside == lives
        assert await cluster.ref(Till, who).add() == 2
