"""The dedicated session: its lock, its limits, its loss; generations, the audit, and another name [M2, M13, m4, m8]."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import PersistenceError, ShuttingDown
from coterie.storage.interface import KvPut, Registration, SeatDeclaration
from coterie.storage.postgres import ConnectionLimits
from coterie.storage.postgres.lease_session import lock_key
from coterie.storage.postgres.server.server_check import grants
from tests.unit.postgres.conftest import database_of, new_storage, stranger, until
from tests.unit.postgres.silent_proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    import asyncpg

    from coterie.storage.interface import Ownership
    from coterie.storage.postgres import PostgresStorage
    from tests.support.postgres import Server

pytestmark = pytest.mark.postgres

A, B = "a" * 32, "b" * 32
S1, S2 = "shard:default:1", "shard:default:2"
SEATS = [SeatDeclaration(S1, "default"), SeatDeclaration(S2, "default"), SeatDeclaration("cron:c", "default", "f")]


async def join(session: Ownership, id: str, *, ttl_s: float = 60.0) -> None:
    me = Registration(id=id, name=id, address="", host_id="", groups=("default",), knows={"cron:c": "f"})
    await session.register(me, SEATS, ttl_s=ttl_s)


@asynccontextmanager
async def runner(storage: PostgresStorage, id: str) -> AsyncIterator[Ownership]:
    async with storage.ownership(id) as session:
        await join(session, id)
        yield session


@asynccontextmanager
async def locked(url: str, sql: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """Another session inside a transaction that holds what a statement locks."""
    async with stranger(url) as other, other.transaction():
        await other.execute(sql)
        yield other


async def waiting(other: asyncpg.Connection[Any], *, within_s: float = 120.0) -> None:
    """Until some session waits for this one."""
    sql = "select count(*) from pg_stat_activity where pg_backend_pid() = any(pg_blocking_pids(pid))"
    async with asyncio.timeout(within_s):
        while not await other.fetchval(sql):
            await asyncio.sleep(0.005)


async def end(url: str, name: str) -> None:
    """End all sessions of a name."""
    async with stranger(url) as other:
        await other.fetch(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = $1", name
        )


async def test_a_dedicated_session_of_a_server_that_became_read_only_is_dropped(storage: PostgresStorage) -> None:
    """As after a failover behind one name: the next session may be on the new server."""
    async with storage.ownership(A) as session:
        dedicated = session._dedicated
        with pytest.raises(PersistenceError, match="as asked") as caught:
            await dedicated.write("do $$ begin raise exception 'as asked' using errcode = '25006'; end $$")
        assert caught.value.outcome == "refused"
        with pytest.raises(PersistenceError, match="was closed") as caught:
            await dedicated.read("select 1")
        assert caught.value.outcome == "unreachable"


# The lock and the name.


async def test_the_session_has_its_incarnations_name_and_lock_m8(storage: PostgresStorage, postgres_url: str) -> None:
    async with storage.ownership(B), stranger(postgres_url) as other:
        found = await other.fetch(
            "select application_name, classid::bigint << 32 | objid::bigint as key from pg_locks join pg_stat_activity"
            " using (pid) where locktype = 'advisory' and granted"
        )
        assert [tuple(row) for row in found] == [(f"coterie/{B}", lock_key("runner", "default", B))]


async def test_nothing_is_concluded_across_two_sessions_of_the_observer(storage: PostgresStorage) -> None:
    """M2: a crash of one server process ends everybody's session, under the same start time of the server."""
    async with storage.ownership(A) as first:
        seen = await first.presences([A])
        assert (await first.presences([A])).server == seen.server
    async with storage.ownership(A) as second:
        assert (await second.presences([A])).server != seen.server


async def test_a_stopped_storage_opens_none(storage: PostgresStorage) -> None:
    await storage.stop()
    with pytest.raises(ShuttingDown):
        async with storage.ownership(A):
            pass


# Limits and loss.


@pytest.mark.parametrize(("ttl", "limit_s"), [("6s", 2.0), ("60s", 2.0), ("3s", 1.0), ("600ms", 0.2)])
def test_a_call_ends_well_before_the_lease_does(ttl: str, limit_s: float) -> None:
    storage = new_storage("postgresql://nowhere/x", lease_ttl=ttl, lease_renew="50ms", lease_margin="50ms")
    assert storage._limits.dedicated_s == pytest.approx(limit_s)


async def test_a_lock_that_is_let_go_in_time_is_waited_for(storage: PostgresStorage, postgres_url: str) -> None:
    """C4: longer than one lock timeout, and the same session goes on."""
    async with runner(storage, A) as a:
        await a.acquire([S1])
        calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "leases where true for update": lambda: a.renew(ttl_s=60),
            f"seats where name = '{S2}' for update": lambda: a.acquire([S2]),
            f"seats where name = '{S1}' for share": lambda: a.release(S1, 1),
        }
        for rows, call in calls.items():
            async with locked(postgres_url, f"select from coterie.{rows}") as other:
                trying: asyncio.Task[Any] = asyncio.create_task(call())
                for _ in range(3):  # one timeout is over, the next wait has begun
                    await waiting(other)
                    await asyncio.sleep(0.15)
            assert await trying


async def test_a_lock_that_stays_is_named_and_the_session_goes_on(storage: PostgresStorage, postgres_url: str) -> None:
    async with runner(storage, A) as a:
        await a.acquire([S1])
        began = time.monotonic()
        async with locked(postgres_url, "select from coterie.seats for share"):
            with pytest.raises(PersistenceError, match="lock timeout") as caught:
                await a.release(S1, 1)
        assert caught.value.outcome == "refused"
        assert time.monotonic() - began > 0.5
        assert await a.release(S1, 1)


async def test_a_lost_session_is_said_by_every_call_and_another_one_works(
    storage: PostgresStorage, postgres_url: str
) -> None:
    async with runner(storage, A) as a:
        await end(postgres_url, f"coterie/{A}")
        calls = [
            a.view(),
            a.renew(ttl_s=60),
            a.acquire([S1]),
            a.release(S1, 1),
            a.agree({"x": "y"}),
            a.declare(SEATS),
            a.leaving(A),
            a.presences([A]),
            a.evict(B, counter=1, expired=False),
            a.leave(),
        ]
        for call in calls:
            with pytest.raises(PersistenceError):
                await call
    async with storage.ownership(A) as again:
        renewal = await again.renew(ttl_s=60)
        assert renewal is not None
        assert renewal.counter == 2, "nothing of the lost session was done"


async def test_a_silent_network_costs_a_call_its_limit_and_says_what_is_known_lock_10(
    own_server: Server, postgres_url: str
) -> None:
    """LOCK-10, 11, 12: each fails in time, each opening does too, and work goes on when the network is back."""
    limits = ConnectionLimits(connect_s=10.0, backoff_s=0.02, dedicated_s=1.0)
    calls: list[tuple[Callable[[Ownership], Awaitable[object]], str]] = [
        (lambda a: a.renew(ttl_s=60), "unknown"),
        (lambda a: a.acquire([S1]), "unknown"),
        (lambda a: a.leaving(B), "unknown"),
        (lambda a: a.view(), "unreachable"),
        (lambda a: a.presences([A]), "unreachable"),
        (lambda a: a.declare(SEATS), "unreachable"),  # lost before its commit
        (lambda a: a.evict(B, counter=1, expired=False), "unreachable"),
    ]

    async def befalls(me: str, call: Callable[[Ownership], Awaitable[object]], outcome: str) -> None:
        async with Proxy(own_server.port) as proxy:
            url = f"postgresql://postgres@127.0.0.1:{proxy.port}/{database_of(postgres_url)}"
            async with new_storage(url, limits=limits) as storage:
                async with runner(storage, me):
                    pass
                async with storage.ownership(me) as a:
                    await call(a)  # what is prepared already is sent at once
                    proxy.silent = True
                    with pytest.raises(PersistenceError, match=r"no answer within (0\.[89]|1s)") as caught:
                        await call(a)
                    assert caught.value.outcome == outcome
                    with pytest.raises(PersistenceError) as caught:
                        await a.renew(ttl_s=60)
                    assert caught.value.outcome == "unreachable"
                    with pytest.raises(PersistenceError, match="no answer within"):
                        async with storage.ownership(me):
                            pass
                    proxy.silent = False
                async with storage.ownership(me) as a:
                    assert await a.renew(ttl_s=60) is not None

    async with asyncio.TaskGroup() as together:
        for number, (call, outcome) in enumerate(calls):
            together.create_task(befalls(f"{number:032x}", call, outcome))


async def test_a_server_that_is_down_refuses_the_opening_in_time(own_server: Server, postgres_url: str) -> None:
    limits = ConnectionLimits(connect_s=0.5, backoff_s=0.05, dedicated_s=0.5)
    async with Proxy(own_server.port) as proxy:
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/{database_of(postgres_url)}"
        async with new_storage(url, limits=limits) as storage:
            proxy._listener.close()
            with pytest.raises(PersistenceError, match="connection refused") as caught:
                async with storage.ownership(A):
                    pass
            assert caught.value.outcome == "unreachable"


async def test_a_restart_of_the_server_ends_the_session_and_keeps_the_rows(
    own_server: Server, postgres_url: str
) -> None:
    """Incident 30: and the generation stays, since it is the same server on the same timeline."""
    async with new_storage(postgres_url) as storage, runner(storage, A) as a:
        await a.acquire([S1])
        before = await a.presences([A])
        own_server.restart("immediate")
        with pytest.raises(PersistenceError):
            await a.renew(ttl_s=60)
        async with storage.ownership(A) as again:
            assert await again.renew(ttl_s=60) is not None
            assert await again.release(S1, 1)
            assert [grant.epoch for grant in await again.acquire([S1])] == [2]
            assert (await again.presences([A])).server != before.server


# The database's own ways.


async def test_a_database_with_another_level_and_time_zone_changes_nothing_m4_gap_05(
    postgres_server: Server, postgres_url: str
) -> None:
    """m4: at repeatable read a wait would end in 40001. GAP-05: one view, whatever a session's zone."""
    async with new_storage(postgres_url) as storage, runner(storage, A) as a:
        database = database_of(postgres_url)
        for setting in ("default_transaction_isolation = 'repeatable read'", "timezone = 'Asia/Kolkata'"):
            postgres_server.execute(f"alter database {database} set {setting}")
        async with new_storage(postgres_url) as other, runner(other, B) as b:
            assert await a.view() == await b.view() == await storage.view() == await other.view()
            assert await b.renew(ttl_s=-1)
            (sighting,) = (await _renewed(a)).others
            assert sighting.expired
            assert not (await _renewed(b)).others[0].expired
            async with locked(postgres_url, "update coterie.leases set leaving = true") as held:
                renewing = asyncio.create_task(b.renew(ttl_s=60))
                await waiting(held)
            renewal = await renewing
            assert renewal is not None
            assert renewal.leaving


async def _renewed(session: Ownership) -> Any:
    return await session.renew(ttl_s=60)


async def test_a_role_with_the_listed_grants_does_it_all(postgres_server: Server, postgres_url: str, role: str) -> None:
    """M12: no superuser, no right to create anything."""
    async with new_storage(postgres_url):
        pass
    postgres_server.execute(*grants(role).split("; "), database=database_of(postgres_url))
    async with new_storage(postgres_server.url(database_of(postgres_url), user=role), audit=True) as storage:
        async with runner(storage, A) as a, runner(storage, B) as b:
            assert [grant.epoch for grant in await a.acquire([S1])] == [1]
            assert await a.release(S1, 1)
            await a.agree({"shards": "100"})
            assert (await a.presences([B])).held == {B}
            assert await a.evict(B, counter=1, expired=False)
            assert await b.renew(ttl_s=60) is None
            await a.leave()
        assert (await storage.view()).runners == ()


async def test_a_new_timeline_raises_the_generation_once_m13(storage: PostgresStorage, postgres_url: str) -> None:
    async with runner(storage, A) as a, stranger(postgres_url) as other:
        assert [grant.epoch for grant in await a.acquire([S1])] == [1]
        await a.release(S1, 1)
        await other.execute("update coterie.generations set timeline = timeline - 1")
        (grant,) = await a.acquire([S1])
        assert (grant.epoch, grant.clean) == ((1 << 40) + 1, True)
        await other.execute("update coterie.generations set timeline = timeline - 1")
        async with storage.ownership(B), storage.ownership(B):
            assert await other.fetchval("select generation from coterie.generations") == 2


# The audit.


@pytest.mark.parametrize("audit", [True, False])
async def test_what_happens_to_seats_is_written_down_if_asked(postgres_url: str, audit: bool) -> None:
    async with new_storage(postgres_url, audit=audit) as storage:
        async with runner(storage, A) as a, runner(storage, B) as b:
            await a.acquire([S1, S2])
            await a.acquire([S1])
            await a.release(S1, 1)
            await a.release(S1, 1)
            await b.evict(A, counter=9, expired=False)
            await b.evict(A, counter=1, expired=False)
            await b.leave()
        async with stranger(postgres_url) as other:
            rows = await other.fetch("select kind, runner, seat, epoch, note from coterie.audit order by id")
    told = [
        ("granted", A, S1, 1, ""),
        ("granted", A, S2, 1, ""),
        ("released", A, S1, 1, ""),
        ("evicted", A, None, None, f"by {B}"),
        ("left", B, None, None, ""),
    ]
    assert [tuple(row) for row in rows] == (told if audit else [])


async def test_what_cannot_be_written_down_does_not_happen(postgres_url: str) -> None:
    """Audit rows are in the same transaction."""
    async with new_storage(postgres_url, audit=True) as storage, runner(storage, A) as a:
        async with stranger(postgres_url) as other:
            await other.execute("alter table coterie.audit add constraint full_up check (id < 0) not valid")
        for call in (a.acquire([S1]), a.leave()):
            with pytest.raises(PersistenceError, match="full_up"):
                await call
        assert {seat.holder for seat in (await a.view()).seats} == {None}
        assert await a.renew(ttl_s=60) is not None


# Another name [M12].


async def test_work_under_another_name_leaves_no_session_of_the_old_one(
    postgres_server: Server, postgres_url: str
) -> None:
    def names() -> set[str]:
        sql = f"select application_name from pg_stat_activity where datname = '{database_of(postgres_url)}'"
        return {row[0] for row in postgres_server.execute(sql)} & {f"coterie/{A}", f"coterie/{B}"}

    async with new_storage(postgres_url, incarnation=A, pool_size=3) as storage:
        await asyncio.gather(*(storage.kv.get(str(number)) for number in range(9)))
        await storage.kv.put(KvPut("k", b"", 1))
        over = asyncio.get_running_loop().time() + 30
        async with storage.pool.session(over=over) as lent:
            storage.rename(B)
            assert (await lent.fetch("select 1", over=over))[0][0] == 1, "what is under way goes on"
        assert lent.closed
        await storage.kv.get("k")
        await storage.kv.put(KvPut("k", b"", 2))
        await until(lambda: names() == {f"coterie/{B}"})


async def test_a_session_that_was_being_opened_meanwhile_is_dropped_when_it_comes_back(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with new_storage(postgres_url, incarnation=A) as storage:
        storage.rename(B)
        connect, opened = storage._connector.connect, []

        async def connect_slowly(*args: Any, **options: Any) -> Any:
            opened.append(await connect(*args, **options))
            storage.rename(A)
            return opened[-1]

        monkeypatch.setattr(storage._connector, "connect", connect_slowly)
        await storage.kv.get("k")
        assert [session.closed for session in opened] == [True]
        await storage.kv.get("k")
        assert [session.name for session in storage.pool._idle] == [f"coterie/{A}"]
