"""The pooler for tests: it keeps nobody's session, so that whatever relies on one breaks."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from tests.support.pooler import Pooler
from tests.unit.postgres.conftest import stranger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.postgres import Server

pytestmark = pytest.mark.postgres

CUT_OFF = asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError
"""What the driver says of a lost connection: the third while it is still reading the server's last words."""

WHO = "select pg_backend_pid()"


@asynccontextmanager
async def client(pooler: Pooler, *, cache: int = 0) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(pooler.url, statement_cache_size=cache, timeout=120)
    try:
        yield connection
    finally:
        connection.terminate()


async def test_a_transaction_has_one_session_and_the_next_another(postgres_url: str) -> None:
    with Pooler(postgres_url, sessions=3) as pooler:
        async with client(pooler) as one, client(pooler), client(pooler):
            async with one.transaction():
                assert len({await one.fetchval(WHO) for _ in range(5)}) == 1
            assert len({await one.fetchval(WHO) for _ in range(9)}) == 3
            assert pooler.moves > 5


async def test_what_is_set_and_prepared_stays_with_the_session_for_whoever_comes_next(postgres_url: str) -> None:
    with Pooler(postgres_url, sessions=2) as pooler:
        async with client(pooler) as one, client(pooler) as two:
            await one.execute("set work_mem = '7MB'")
            found = [await two.fetchval("select current_setting('work_mem')") for _ in range(4)]
            assert set(found) == {"7MB", "4MB"}
        async with client(pooler, cache=9) as three:
            await three.fetchval(WHO)
            with pytest.raises(asyncpg.InvalidSQLStatementNameError):
                await three.fetchval(WHO)


async def test_a_client_that_goes_inside_a_transaction_has_done_nothing(postgres_url: str) -> None:
    with Pooler(postgres_url, sessions=2) as pooler:
        async with client(pooler) as one, client(pooler) as two:
            await one.execute("create table t (id int)")
            await one.execute("begin; insert into t values (1)")
            one.terminate()
            await two.execute("alter table t add column other int")  # waits for its lock
            assert await two.fetchval("select count(*) from t") == 0


async def test_who_finds_all_sessions_lent_waits_for_the_first_that_comes_back(postgres_url: str) -> None:
    with Pooler(postgres_url, sessions=1) as pooler:
        async with client(pooler) as one, client(pooler) as two:
            await one.execute("begin")
            waiting = asyncio.create_task(two.fetchval(WHO))
            mine = await one.fetchval(WHO)
            assert not waiting.done()
            await one.execute("commit")
            async with asyncio.timeout(120):
                assert await waiting == mine


async def test_a_cancellation_reaches_the_session_that_runs_the_statement(postgres_url: str) -> None:
    with Pooler(postgres_url, sessions=2) as pooler:
        async with client(pooler) as one, client(pooler):
            with pytest.raises(TimeoutError):
                await one.execute("select pg_sleep(600)", timeout=0.1)
            async with asyncio.timeout(120):
                assert await one.fetchval("select 1") == 1


async def test_when_the_server_ends_all_sessions_clients_are_cut_off_and_log_in_anew(
    postgres_server: Server, postgres_url: str
) -> None:
    with Pooler(postgres_url, sessions=2) as pooler:
        async with client(pooler) as one, client(pooler) as two, stranger(postgres_url) as other:
            await one.execute("begin")
            await other.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            for each in (one, two):
                with pytest.raises(CUT_OFF):
                    await each.execute("select 1", timeout=120)
            async with client(pooler) as three:
                assert await three.fetchval("select 1") == 1
