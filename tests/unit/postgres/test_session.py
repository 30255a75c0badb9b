"""Sessions and the pool: every call ends, and a session in doubt is never used again [P7, P8, P13]."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import Forked, PersistenceError, ShuttingDown
from coterie.storage.interface import KvPut
from coterie.storage.postgres import ConnectionLimits, PostgresStorage
from coterie.storage.postgres.errors import Lost
from coterie.storage.postgres.session import deadline
from tests.support.loop_time import LoopTime
from tests.unit.postgres.conftest import LONG, SHORT, database_of, new_storage, until
from tests.unit.postgres.silent_proxy import Proxy

if TYPE_CHECKING:
    from tests.support.postgres import Server

pytestmark = pytest.mark.postgres


def through(proxy: Proxy, url: str) -> str:
    return f"postgresql://postgres@127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}"


async def test_the_pool_grows_when_needed_and_no_further_than_allowed(postgres_url: str) -> None:
    async with new_storage(postgres_url, pool_size=3) as storage:
        assert storage.pool.open == 1
        await asyncio.gather(*(storage.kv.get(str(number)) for number in range(50)))
        assert storage.pool.open == 3


async def test_a_pool_that_stays_busy_says_so(postgres_url: str) -> None:
    async with new_storage(postgres_url, pool_size=1, limits=SHORT) as storage:
        over = asyncio.get_running_loop().time() + 5
        async with storage.pool.session(over=over):
            with pytest.raises(PersistenceError, match="all 1 connections were busy for 1s") as caught:
                await storage.kv.get("a")
            assert caught.value.outcome == "unreachable"
        assert await storage.kv.get("a") is None


async def test_a_session_on_which_a_call_was_cancelled_is_dropped(postgres_url: str) -> None:
    """P7: the late answer must not meet the next caller."""
    async with new_storage(postgres_url, pool_size=1) as storage:
        slow = asyncio.create_task(storage.pool.read("select pg_sleep(2), 'late'"))
        await until(lambda: len(storage.pool._lent) == 1)
        (session,) = storage.pool._lent
        await asyncio.sleep(0.05)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert session.closed
        assert storage.pool.open == 0
        assert (await storage.pool.read("select 'fresh'"))[0][0] == "fresh"


@pytest.mark.parametrize("before_s", [60.0, 0.5], ids=["after one with more time", "after one with less"])
async def test_each_call_ends_in_its_own_time_though_one_timer_serves_them_all(
    postgres_url: str, before_s: float
) -> None:
    async with new_storage(postgres_url, pool_size=1) as storage:
        over = asyncio.get_running_loop().time() + 60
        async with storage.pool.session(over=over) as session:
            await session.fetch("select pg_sleep(0)", over=over)
            session._silence()  # as if it were new
            await session.fetch("select pg_sleep(0)", over=deadline(before_s))
            assert session._alarm is not None
            with pytest.raises(Lost, match="no answer within"):
                await session.fetch("select pg_sleep(20)", over=deadline(1.0))
            assert session.closed


async def test_a_session_that_was_closed_leaves_no_timer(postgres_url: str) -> None:
    async with new_storage(postgres_url, pool_size=1) as storage:
        over = asyncio.get_running_loop().time() + 60
        async with storage.pool.session(over=over) as session:
            await session.fetch("select 1", over=over)
            session.abort()
            assert session._alarm is None
            with pytest.raises(Lost, match="closed"):
                await session.fetch("select 1", over=over)
            assert session._alarm is None


async def test_a_refused_statement_leaves_the_session_in_the_pool(postgres_url: str) -> None:
    async with new_storage(postgres_url, pool_size=1) as storage:
        before = (await storage.pool.read("select pg_backend_pid()"))[0][0]
        with pytest.raises(PersistenceError) as caught:
            await storage.pool.read("select 1 / 0")
        assert caught.value.outcome == "refused"
        assert (await storage.pool.read("select pg_backend_pid()"))[0][0] == before


async def test_an_open_transaction_does_not_come_back_to_the_pool(postgres_url: str) -> None:
    async with new_storage(postgres_url, pool_size=1) as storage:
        over = asyncio.get_running_loop().time() + 5
        async with storage.pool.session(over=over) as session:
            await session.execute("begin", over=over)
        assert storage.pool.open == 0


async def test_a_write_whose_connection_is_lost_under_it_has_an_unknown_outcome(
    postgres_server: Server, postgres_url: str
) -> None:
    """It is not repeated: it may have happened."""
    async with new_storage(postgres_url, pool_size=1, limits=LONG) as storage:
        writing = asyncio.create_task(storage.pool.write("select pg_sleep(600)"))
        name = database_of(postgres_url)
        sleeping = f"select pid from pg_stat_activity where datname = '{name}' and wait_event = 'PgSleep'"
        await until(lambda: bool(postgres_server.execute(sleeping)))
        postgres_server.execute(f"select pg_terminate_backend(pid, 5000) from ({sleeping}) as s")
        with pytest.raises(PersistenceError, match="terminating connection") as caught:
            await writing
        assert caught.value.outcome == "unknown"


async def test_a_session_of_a_server_that_became_read_only_is_dropped_and_a_read_repeated_on_another(
    postgres_server: Server, postgres_url: str
) -> None:
    """As after a failover behind one name."""
    postgres_server.execute(
        "create sequence tries",
        """create function once() returns integer language plpgsql as $$ begin
            if nextval('public.tries') = 1 then raise exception 'as asked' using errcode = '25006'; end if;
            return pg_backend_pid(); end $$""",
        database=database_of(postgres_url),
    )
    async with new_storage(postgres_url, pool_size=1) as storage:
        before = (await storage.pool.read("select pg_backend_pid()"))[0][0]
        assert (await storage.pool.read("select public.once()"))[0][0] != before


async def test_who_waits_for_a_session_while_the_pool_is_closed_is_told_so(postgres_url: str) -> None:
    async with new_storage(postgres_url, pool_size=1) as storage:
        async with storage.pool.session(over=deadline(60)):
            waiting = asyncio.create_task(storage.pool.read("select 1"))
            await asyncio.sleep(0)
            await storage.pool.close()
            assert not waiting.done()
        with pytest.raises(ShuttingDown):
            await waiting
        assert storage.pool.open == 0


async def test_incident_38_a_silent_server_costs_a_call_its_deadline_and_no_more(
    own_server: Server, postgres_url: str
) -> None:
    """P8, R3: silent on data, on cancel and on close; then the pool recovers."""
    async with AsyncExitStack() as stack, Proxy(own_server.port) as proxy:
        storage = new_storage(through(proxy, postgres_url), limits=SHORT, pool_size=2)
        async with storage:
            await asyncio.gather(*(storage.kv.get(str(number)) for number in range(9)))
            await storage.kv.put(KvPut("c", b"", 0))
            proxy.silent = True
            began = time.monotonic()
            calls: list[Any] = [storage.kv.get("a"), storage.kv.get("b"), storage.kv.put(KvPut("c", b"", 1))]
            async with LoopTime() as taken:
                errors = await asyncio.gather(*calls, return_exceptions=True)
            assert time.monotonic() - began > 0.9
            assert taken.seconds < 2.5
            assert [getattr(error, "outcome", error) for error in errors] == ["unreachable"] * 2 + ["unknown"]
            assert "no answer within" in str(errors[0])
            proxy.silent = False
            await until_stored(storage)
            assert storage.pool.open <= 2
            proxy.silent = True
            taken = await stack.enter_async_context(LoopTime())
        assert taken.seconds < 3  # stopping did not wait for goodbyes


async def until_stored(storage: PostgresStorage) -> None:
    """Writing and reading succeed again: on a busy machine not always within the short limits of these tests."""
    async with asyncio.timeout(120):
        while True:
            with suppress(PersistenceError):
                await storage.kv.put(KvPut("a", b"x", 2))
                assert await storage.kv.get("a") is not None
                return


async def test_a_cancelled_call_on_a_silent_network_returns_at_once(own_server: Server, postgres_url: str) -> None:
    """P8: no polite cancel is waited for."""
    async with Proxy(own_server.port) as proxy:
        storage = new_storage(through(proxy, postgres_url), limits=ConnectionLimits(call_s=30))
        await storage.start()
        proxy.silent = True
        waiting = asyncio.create_task(storage.kv.get("a"))
        await until(lambda: len(storage.pool._lent) == 1)
        await asyncio.sleep(0.05)
        waiting.cancel()
        async with LoopTime() as taken:
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert taken.seconds < 0.5
        proxy.cut()
        await storage.stop()


async def test_a_stopped_storage_refuses_and_leaves_no_connection(postgres_server: Server, postgres_url: str) -> None:
    storage = new_storage(postgres_url, incarnation="gone", limits=SHORT)
    async with storage:
        slow = asyncio.create_task(storage.pool.read("select pg_sleep(30)"))
        await until(lambda: len(storage.pool._lent) == 1)
    with pytest.raises((PersistenceError, ShuttingDown)):
        await slow
    with pytest.raises(ShuttingDown):
        await storage.kv.get("a")
    ours = "select 1 from pg_stat_activity where application_name = 'coterie/gone'"
    await until(lambda: not postgres_server.execute(ours))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_forked_child_is_refused_and_cannot_hurt_the_parents_sessions(postgres_url: str, loop: str) -> None:
    """P13: the child drops everything it inherited; the parent's sessions live on."""
    if loop == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        uvloop.run(_fork(postgres_url))
    else:
        asyncio.run(_fork(postgres_url))


async def _fork(url: str) -> None:
    async with new_storage(url, pool_size=1) as storage, storage.ownership("a" * 32) as owning:
        dedicated = owning._dedicated
        pid = "select pg_backend_pid()"
        before = (await storage.pool.read(pid))[0][0], (await dedicated.read(pid))[0][0]
        await storage.kv.put(KvPut("a", b"", 1))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, _in_child(storage, dedicated).encode())
            os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        assert os.read(reading, 10_000).decode() == "Forked " * 7
        os.close(reading)
        await asyncio.sleep(0.05)
        assert ((await storage.pool.read(pid))[0][0], (await dedicated.read(pid))[0][0]) == before
        await storage.kv.put(KvPut("b", b"", 2))


def _in_child(storage: PostgresStorage, dedicated: Any) -> str:
    calls: list[Any] = [
        lambda: storage.kv.get("a"),
        lambda: storage.kv.put(KvPut("a", b"", 3)),
        lambda: storage.kv.clear(""),
        lambda: storage.now(),
        lambda: storage.pool.read("select 1"),
        lambda: dedicated.read("select 1"),
        lambda: storage.stop(),
    ]
    found = ""
    for call in calls:
        try:
            asyncio.new_event_loop().run_until_complete(asyncio.wait_for(call(), 5))
        except Forked:
            found += "Forked "
        except BaseException as error:
            found += f"{error!r} "
    for session in (*storage.pool._idle, dedicated._session, storage._committer._session):
        session.abort()  # says goodbye to the server, on whatever the descriptor is now
    gc.collect()
    return found
