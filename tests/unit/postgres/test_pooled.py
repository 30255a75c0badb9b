"""Behind a pooler that lends sessions per transaction: nothing relies on a session, leases decide (GAP-07, P28)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from coterie import Cluster, Entity, rpc
from coterie.errors import ConfigurationError
from coterie.storage import statements
from coterie.storage.interface import KvPut
from coterie.storage.postgres import ConnectionLimits
from coterie.storage.postgres.session import deadline
from tests.support.pooler import Pooler
from tests.unit.postgres.conftest import new_storage, stranger, until
from tests.unit.postgres.test_ownership import S1, A, B, runner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from coterie.storage.postgres import PostgresStorage
    from coterie.storage.postgres.session import PostgresSession

pytestmark = pytest.mark.postgres

OWNERSHIP = statements.load("coterie.storage.postgres.sql", "ownership.sql")
FENCE = statements.load("coterie.storage.postgres.sql", "fenced_writes.sql")["verify"]

PATIENT = ConnectionLimits(transaction_s=600)
"""The server ends no idle transaction before a test does."""

SETTINGS = [
    "application_name",
    "search_path",
    "TimeZone",
    "transaction_isolation",
    "statement_timeout",
    "lock_timeout",
    "synchronous_commit",
    "idle_in_transaction_session_timeout",
    "jit",
    "plan_cache_mode",
    "enable_seqscan",
    "enable_bitmapscan",
    "enable_mergejoin",
]
ASKED = "select name, setting from pg_settings where name = any($1) order by name"


@pytest.fixture
def pooler(postgres_url: str) -> Iterator[Pooler]:
    with Pooler(postgres_url, sessions=4) as pooler:
        yield pooler


@asynccontextmanager
async def client(pooler: Pooler) -> AsyncIterator[asyncpg.Connection[Any]]:
    """Another program behind the same pooler, whose sessions it shares."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(pooler.url, statement_cache_size=0, timeout=120)
    try:
        yield connection
    finally:
        connection.terminate()


@pytest.mark.parametrize("sessions", [1, 2, 3, 5])
async def test_gap_07_p28_a_pooler_is_found_at_start_and_it_is_said_once_what_degrades(
    empty_postgres_url: str, sessions: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with Pooler(empty_postgres_url, sessions=sessions) as pooler:
        async with new_storage(pooler.url) as storage:
            for number in range(20):
                await storage.kv.put(KvPut("k", b"%d" % number, number))
            async with runner(storage, A) as a:
                assert (a.leases_only, a.witnessed) == (True, False)
                assert await a.acquire([S1])
            entry = await storage.kv.get("k")
            assert entry is not None
            assert entry.value == b"19"
        assert pooler.moves > 5 or sessions == 1, "no session was swapped: the test shows nothing"
    (said,) = (message for message in caplog.messages if "lends sessions per transaction" in message)
    assert "leases alone decide" in said
    assert "session mode" in said


async def test_processes_that_start_together_do_not_wait_for_each_others_sessions(postgres_url: str) -> None:
    with Pooler(postgres_url, sessions=2) as pooler:
        storages = [new_storage(pooler.url) for _ in range(8)]
        await asyncio.gather(*(storage.start() for storage in storages))
        try:
            assert all(storage._connector.pooled for storage in storages)
        finally:
            await asyncio.gather(*(storage.stop() for storage in storages))


async def test_m4_the_settings_of_a_session_hold_in_each_transaction_whatever_others_left_behind(
    postgres_url: str, pooler: Pooler
) -> None:
    async with new_storage(postgres_url) as direct, new_storage(pooler.url) as pooled, client(pooler) as other:
        assert not direct._connector.pooled
        for _ in range(20):
            await other.execute(
                "set default_transaction_isolation = serializable; set synchronous_commit = off; set lock_timeout = 77;"
                "set search_path = public; set application_name = psql; set statement_timeout = 7777;"
                "set timezone = 'CET'"
            )
        for _ in range(8):
            wanted = [tuple(row) for row in await direct.pool.read(ASKED, SETTINGS)]
            assert [tuple(row) for row in await pooled.pool.read(ASKED, SETTINGS)] == wanted
        assert len(wanted) == len(SETTINGS)
        assert dict(wanted)["synchronous_commit"] == "on"


async def test_nothing_is_left_behind_on_sessions_that_serve_others_next(postgres_url: str, pooler: Pooler) -> None:
    async with client(pooler) as other:
        looked = (
            "select (select string_agg(name, ' ') from pg_settings where source = 'session') as set,"
            " (select string_agg(name, ' ') from pg_prepared_statements where name <> '') as prepared,"
            " (select count(*) from pg_locks where locktype = 'advisory') as locks"
        )
        before = {tuple(row.values()) for row in [await other.fetchrow(looked) for _ in range(20)] if row}
        async with new_storage(pooler.url) as storage, runner(storage, A) as a:
            await a.acquire([S1])
            await a.renew(ttl_s=60)
            await storage.kv.put(KvPut("k", b"", 1))
            after = {tuple(row.values()) for row in [await other.fetchrow(looked) for _ in range(20)] if row}
    assert after == before == {(None, None, 0)}


async def test_lazy_commits_are_refused_behind_a_pooler_too_if_they_are_the_default(
    postgres_url: str, pooler: Pooler
) -> None:
    """Incident 30."""
    async with stranger(postgres_url) as other:
        name = await other.fetchval("select current_database()")
        await other.execute(f'alter database "{name}" set synchronous_commit = off')
    with pytest.raises(ConfigurationError, match="synchronous_commit=off"):
        await new_storage(pooler.url).start()


async def test_a_write_whose_session_is_ended_before_its_commit_has_left_is_made_again(
    postgres_url: str, pooler: Pooler
) -> None:
    async with new_storage(pooler.url) as storage, stranger(postgres_url) as other:
        await storage.kv.put(KvPut("k", b"1", 1))
        await other.execute("begin; select from coterie.kv for update")
        writing = asyncio.create_task(storage.kv.put(KvPut("k", b"2", 2)))
        ended = "select pg_terminate_backend(pid) from pg_stat_activity where wait_event_type = 'Lock'"
        async with asyncio.timeout(120):
            while not await other.fetch(f"{ended} and datname = current_database()"):
                await asyncio.sleep(0.005)
        await other.execute("commit")
        await writing
        entry = await storage.kv.get("k")
        assert entry is not None
        assert entry.value == b"2"


@dataclass
class Purse:
    coins: int = 0


class Saver(Entity[Purse]):
    @rpc(persisted=True)
    async def put(self, coins: int) -> int:
        async with self.transaction() as sql:
            await sql.execute("insert into savings (saver, coins) values ($1, $2)", self.id, coins)
            self.state.coins += coins
            if coins > 1:
                await self.cluster.send(self.cluster.ref(Saver, f"{self.id}'s friend").put(1))
        return self.state.coins


async def test_gap_07_a_runner_behind_a_pooler_works_with_state_messages_and_transactions(
    postgres_url: str, pooler: Pooler
) -> None:
    cluster = Cluster(pooler.url, shards=4)
    cluster.entity(Saver)
    async with stranger(postgres_url) as other, client(pooler) as rude:
        await other.execute("create table savings (saver text, coins int)")
        for _ in range(8):
            await rude.execute("set default_transaction_isolation = serializable; set search_path = pg_catalog")
        async with cluster:
            await cluster.ready(timeout="2m")
            saver = cluster.ref(Saver, "anna")
            found = await asyncio.gather(*(saver.put(2) for _ in range(10)))
            assert sorted(found) == [2 * (number + 1) for number in range(10)]
            async with asyncio.timeout(120):
                while await other.fetchval("select count(*) from savings") < 20:
                    await asyncio.sleep(0.01)
        saved = await other.fetch("select saver, sum(coins) as coins from savings group by saver order by saver")
        assert [tuple(row) for row in saved] == [("anna", 20), ("anna's friend", 10)]


# Who is in the way of an eviction [M12], and who is taken for dead [M2].


@asynccontextmanager
async def frozen(storage: PostgresStorage) -> AsyncIterator[PostgresSession]:
    """A session of runner A inside a transaction that has taken the fence, and will not move again."""
    async with storage.pool.session(over=deadline(60)) as session:
        await session.begin(over=deadline(60))
        assert await session.fetch(FENCE, "default", A, [S1], [1], over=deadline(60))
        yield session
        session.abort()


@pytest.mark.parametrize(("victims", "evictors"), [("pooled", "pooled"), ("pooled", "direct"), ("direct", "pooled")])
async def test_m12_a_victim_frozen_inside_a_transaction_is_evicted_through_a_pooler(
    postgres_url: str, pooler: Pooler, victims: str, evictors: str, caplog: pytest.LogCaptureFixture
) -> None:
    urls = {"pooled": pooler.url, "direct": postgres_url}
    one, two = new_storage(urls[victims], incarnation=A, limits=PATIENT), new_storage(urls[evictors], incarnation=B)
    async with one, two, runner(one, A) as a, runner(two, B) as b, client(pooler) as innocent:
        await a.acquire([S1])
        await innocent.execute("begin; select 1")
        async with frozen(one) as session:
            assert await b.evict(A, counter=1, expired=False)
            await until(lambda: session.closed)
        assert "which holds up an eviction" in caplog.text
        assert [(grant.epoch, grant.clean) for grant in await b.acquire([S1])] == [(2, False)]
        assert await innocent.fetchval("select true")


async def test_m12_a_session_that_the_pooler_has_given_to_somebody_else_is_not_ended(postgres_url: str) -> None:
    async with stranger(postgres_url) as other, stranger(postgres_url) as ending:
        await other.execute("set application_name = psql")
        pid = await other.fetchval("select pg_backend_pid()")
        assert await ending.fetch(OWNERSHIP["end_session"], pid, f"coterie/{A}") == []
        assert await other.fetchval("select true")


async def test_m2_a_runner_behind_a_pooler_is_never_missed_by_one_that_is_not(
    postgres_url: str, pooler: Pooler
) -> None:
    """A mixed cluster: it has no lock, so there is none that was held before and is gone now."""
    storages = new_storage(postgres_url), new_storage(pooler.url)
    async with storages[0] as direct, storages[1] as pooled, runner(direct, A) as a, runner(pooled, B) as b:
        assert (await a.presences([A, B])).held == {A}
        assert (await b.presences([A, B])).held == {A, B}
