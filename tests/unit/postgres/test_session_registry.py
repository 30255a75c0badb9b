"""Evicting a runner that is frozen inside a transaction: its session is ended, nobody else's is [M12, incident 7]."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from coterie.errors import PersistenceError
from coterie.storage import statements
from coterie.storage.postgres.server.server_check import grants
from tests.unit.postgres.conftest import database_of, new_storage, stranger
from tests.unit.postgres.test_ownership import S1, S2, A, B, runner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.interface import Ownership
    from coterie.storage.postgres import PostgresStorage
    from tests.support.postgres import Server

pytestmark = pytest.mark.postgres

FENCE = statements.load("coterie.storage.postgres.sql", "fenced_writes.sql")["verify"]


@asynccontextmanager
async def frozen(url: str, *, name: str = f"coterie/{A}", idle_ms: int = 0) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A session of runner A inside a transaction that has taken the fence, and will not move again."""
    async with stranger(url) as session:
        await session.execute(f"set application_name = '{name}'; set idle_in_transaction_session_timeout = {idle_ms}")
        await session.execute("begin")
        assert await session.fetch(FENCE, "default", A, [S1], [1])
        yield session


async def lives(session: asyncpg.Connection[Any]) -> bool:
    try:
        async with asyncio.timeout(120):
            return await session.fetchval("select true") is True
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
        return False


async def test_a_victim_frozen_inside_a_transaction_is_evicted(
    storage: PostgresStorage, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with runner(storage, A) as a, runner(storage, B) as b:
        await a.acquire([S1, S2])
        async with frozen(postgres_url) as session:
            assert await b.evict(A, counter=1, expired=False)
            assert not await lives(session)
        assert f"of runner {A}, which holds up an eviction" in caplog.text
        assert [(grant.epoch, grant.clean) for grant in await b.acquire([S1])] == [(2, False)]
        assert await b.renew(ttl_s=60) is not None, "the evictor's own session goes on"
        assert await a.renew(ttl_s=60) is None


async def test_a_runner_that_froze_while_it_evicted_the_same_victim_is_in_nobodys_way_for_long(
    storage: PostgresStorage, postgres_url: str
) -> None:
    """Between the messages of a statement the server counts it as active, and none of its limits ends it."""
    held = asyncio.Event()

    async def silent() -> AsyncIterator[bytes]:
        held.set()
        await asyncio.Event().wait()
        yield b""

    async with runner(storage, A) as a, runner(storage, B) as b, stranger(postgres_url) as session:
        await a.acquire([S1])
        await session.execute("set application_name = 'coterie/frozen'; create temporary table t (x text); begin")
        await session.execute("select from coterie.leases where id = $1 for update", A)
        freezing = asyncio.create_task(session.copy_to_table("t", source=silent()))
        async with asyncio.timeout(120):
            await held.wait()
            with pytest.raises(PersistenceError, match="lock timeout"):
                await b.evict(A, counter=1, expired=False)  # it may be at work still
            while not await evicted(b):
                await asyncio.sleep(0.05)
        freezing.cancel()
        await asyncio.gather(freezing, return_exceptions=True)
        session.terminate()
        assert [each.id for each in (await b.view()).runners] == [B]


async def evicted(by: Ownership) -> bool:
    try:
        return await by.evict(A, counter=1, expired=False)
    except PersistenceError:
        return False


async def test_sessions_of_the_victim_that_are_in_nobodys_way_live_on(
    storage: PostgresStorage, postgres_url: str
) -> None:
    """M12: exactly those that block."""
    async with runner(storage, A) as a, runner(storage, B) as b, stranger(postgres_url) as idle:
        await a.acquire([S1])
        await idle.execute(f"set application_name = 'coterie/{A}'; begin; select 1")
        async with frozen(postgres_url):
            assert await b.evict(A, counter=1, expired=False)
        assert await lives(idle)


async def test_somebody_else_who_is_in_the_way_lives_on_and_the_victim_is_spared(
    storage: PostgresStorage, postgres_url: str
) -> None:
    async with runner(storage, A) as a, runner(storage, B) as b:
        await a.acquire([S1])
        async with frozen(postgres_url, name="psql") as session:
            with pytest.raises(PersistenceError, match="lock timeout") as caught:
                await b.evict(A, counter=1, expired=False)
            assert caught.value.outcome == "refused"
            assert await lives(session)
            await session.execute("rollback")
        assert await b.evict(A, counter=1, expired=False)


async def test_who_comes_back_while_its_session_is_ended_is_judged_anew(
    storage: PostgresStorage, postgres_url: str
) -> None:
    """C4: each try looks at the lease again."""
    async with runner(storage, A) as a, runner(storage, B) as b:
        await a.acquire([S1])
        async with frozen(postgres_url, name="psql") as session:
            evicting = asyncio.create_task(b.evict(A, counter=1, expired=False))
            renewal = await a.renew(ttl_s=60)  # waits while a try holds the lease, and comes between two of them
            assert renewal is not None
            assert not await evicting
            assert await lives(session)
        assert await a.renew(ttl_s=60) is not None


async def test_who_leaves_with_a_transaction_left_open_is_gone_all_the_same(
    storage: PostgresStorage, postgres_url: str
) -> None:
    """A runner whose loop is blocked evicts itself, with a commit of its own half way [M16]."""
    async with runner(storage, A) as a:
        await a.acquire([S1])
        async with frozen(postgres_url):
            await a.leave()
        assert (await storage.view()).runners == ()


async def test_other_roles_whose_sessions_could_not_be_ended_are_named_at_start(
    postgres_server: Server, postgres_url: str, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    """M12: told when it can still be mended, once, and only to the one who may not."""
    caplog.set_level(logging.WARNING)
    async with new_storage(postgres_url) as theirs, runner(theirs, A):
        postgres_server.execute(*grants(role).split("; "), database=database_of(postgres_url))
        async with new_storage(postgres_server.url(database_of(postgres_url), user=role)) as ours:
            async with runner(ours, B):
                pass
            async with ours.ownership(B):
                pass
    assert caplog.text.count("other runners use the database roles postgres,") == 1


async def test_where_ending_is_refused_the_servers_own_limit_decides_and_it_is_said_once(
    postgres_server: Server, postgres_url: str, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    """M12: one database role per runner."""
    caplog.set_level(logging.WARNING)
    async with new_storage(postgres_url) as theirs, runner(theirs, A) as a:
        await a.acquire([S1])
        postgres_server.execute(*grants(role).split("; "), database=database_of(postgres_url))
        ours = new_storage(postgres_server.url(database_of(postgres_url), user=role))
        async with ours, runner(ours, B) as b:
            async with frozen(postgres_url):
                with pytest.raises(PersistenceError) as caught:
                    await b.evict(A, counter=1, expired=False)
                assert caught.value.outcome == "refused"
            async with frozen(postgres_url, idle_ms=600):
                assert await b.evict(A, counter=1, expired=False)
    told = [message for message in caplog.messages if "may not end session" in message]
    assert len(told) == 1
    assert "grant them pg_signal_backend" in told[0]
