"""State under the fence on a real server: strangers' locks, and the audit of what was refused."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage.interface import Claim, KvPut, Registration, SeatDeclaration, StateLoaded, StateSave
from tests.unit.postgres.conftest import database_of, new_storage, stranger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.postgres import PostgresStorage
    from tests.support.postgres import Server

pytestmark = pytest.mark.postgres

ME, SEAT = "a" * 32, "shard:default:1"


@asynccontextmanager
async def holding(url: str, **values: Any) -> AsyncIterator[tuple[PostgresStorage, Claim]]:
    """A storage, and what to write under in the name of a runner that holds a seat."""
    me = Registration(id=ME, name="a", address="", host_id="", groups=("default",))
    async with new_storage(url, **values) as storage, storage.ownership(ME) as session:
        await session.register(me, [SeatDeclaration(SEAT, "default")], ttl_s=60)
        (grant,) = await session.acquire([SEAT])
        yield storage, Claim(ME, SEAT, grant.epoch)


async def refused(url: str) -> list[tuple[Any, ...]]:
    async with stranger(url) as connection:
        columns = "runner, seat, epoch, note, cluster, xmin::text"
        rows = await connection.fetch(f"select {columns} from coterie.audit where kind = 'refused' order by id")
    return [tuple(row) for row in rows]


async def test_a_strangers_lock_on_one_state_holds_up_nobody_else(postgres_url: str) -> None:
    """M3."""
    async with holding(postgres_url) as (storage, claim), stranger(postgres_url) as other:
        for n in range(3):
            await storage.states.save(StateSave(claim, f"k{n}", b"old", 0))
        await other.execute("begin; select from coterie.states where key = 'k1' for update")
        saves = (storage.states.save(StateSave(claim, f"k{n}", b"new", 1)) for n in range(3))
        told = await asyncio.gather(*saves, return_exceptions=True)
        assert [getattr(each, "outcome", each) for each in told] == ["written", "refused", "written"]
        await other.execute("rollback")
        assert await storage.states.load(claim, "k1") == StateLoaded(b"old", 1)


async def test_what_the_fence_refuses_is_noted_in_the_transaction_of_its_group(postgres_url: str) -> None:
    """The audit: refused saves with their keys, and nothing of conflicts and of what was written."""
    async with holding(postgres_url, audit=True, name="c") as (storage, claim):
        lost = Claim(ME, SEAT, claim.epoch + 1)
        writes = [
            storage.states.save(StateSave(lost, "k1", b"", 0)),
            storage.states.save(StateSave(claim, "k2", b"", 0)),
            storage.states.save(StateSave(claim, "k3", b"", 4)),
            storage.states.save(StateSave(lost, "k4", b"", 4)),
            storage.kv.put(KvPut("k", b"", 1)),
        ]
        assert await asyncio.gather(*writes) == ["fenced", "written", "conflict", "fenced", None]
        rows = await refused(postgres_url)
        assert [row[:5] for row in rows] == [(ME, SEAT, lost.epoch, key, "c") for key in ("k1", "k4")]
        async with stranger(postgres_url) as connection:
            written = await connection.fetchval("select xmin::text from coterie.states where key = 'k2'")
        assert {row[5] for row in rows} == {written}
        assert await storage.states.save(StateSave(lost, "k5", b"", 0)) == "fenced"
        assert [row[3] for row in await refused(postgres_url)] == ["k1", "k4", "k5"]


async def test_an_audit_that_cannot_be_written_undoes_its_group_and_then_fails_alone(
    postgres_server: Server, postgres_url: str
) -> None:
    """In the same transaction, also where one statement carries all saves; then member by member [M3]."""
    async with holding(postgres_url, audit=True) as (storage, claim):
        postgres_server.execute(
            "alter table coterie.audit add check (note <> 'bad')", database=database_of(postgres_url)
        )
        saves = [StateSave(claim, "good", b"", 0), StateSave(Claim(ME, SEAT, claim.epoch + 1), "bad", b"", 0)]
        told = await asyncio.gather(*map(storage.states.save, saves), return_exceptions=True)
        assert [getattr(each, "outcome", each) for each in told] == ["written", "refused"]
        assert await storage.states.load(claim, "good") == StateLoaded(b"", 1)


async def test_without_the_setting_nothing_is_noted(postgres_url: str) -> None:
    async with holding(postgres_url) as (storage, claim):
        lost = Claim(ME, SEAT, claim.epoch + 1)
        assert await storage.states.save(StateSave(lost, "k", b"", 0)) == "fenced"
        assert await refused(postgres_url) == []
