"""Commits that the server makes durable late or not at all: a synchronous standby that is away, lazy commits."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import PersistenceError
from coterie.storage.interface import KvPut, Registration, SeatDeclaration
from coterie.storage.postgres import ConnectionLimits
from coterie.storage.postgres.session_registry import SessionRegistry
from tests.unit.postgres.conftest import SHORT, database_of, new_storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.postgres import Server

pytestmark = pytest.mark.postgres

A = "a" * 32
HASTY = ConnectionLimits(connect_s=10.0, backoff_s=0.02, call_s=1.0, dedicated_s=1.0)


@contextmanager
def standby_away(server: Server) -> Iterator[None]:
    """Commits wait for a standby that does not come, until the block ends."""
    server.execute("alter system set synchronous_standby_names = 'nobody'", "select pg_reload_conf()")
    try:
        yield
    finally:
        server.execute("alter system reset synchronous_standby_names", "select pg_reload_conf()")


def sessions(server: Server, incarnation: str = A) -> int:
    name = f"coterie/{incarnation}"
    return int(server.execute(f"select count(*) from pg_stat_activity where application_name = '{name}'")[0][0])


async def until_commits_hang(url: str) -> None:
    async with new_storage(url, incarnation="b" * 32, limits=HASTY) as storage:
        async with asyncio.timeout(120):
            with pytest.raises(PersistenceError):
                await again_and_again(storage)


async def again_and_again(storage: Any) -> None:
    for number in range(10_000):
        await storage.kv.put(KvPut("probe", b"x", number))


async def until_refused(storage: Any, why: str) -> None:
    async with asyncio.timeout(120):
        while True:
            try:
                await storage.kv.put(KvPut("k", b"1", 2))
            except PersistenceError as error:
                if why in str(error):
                    return
            await asyncio.sleep(0.01)


async def until_stored(storage: Any, value: bytes) -> None:
    async with asyncio.timeout(120):
        while True:
            with suppress(PersistenceError):
                await storage.kv.put(KvPut("k", value, 10_001))
                return
            await asyncio.sleep(0.01)


async def renew_again_and_again(session: Any) -> None:
    while True:
        await session.renew(ttl_s=60)


async def test_sessions_at_the_server_stay_bounded_while_a_synchronous_standby_is_away(
    own_server: Server, postgres_url: str
) -> None:
    """Each call that ran out of time left a session behind that waited for the standby: 1.1 a second."""
    async with new_storage(postgres_url, limits=HASTY) as storage:
        await storage.kv.put(KvPut("k", b"0", 1))
        with standby_away(own_server):
            await until_commits_hang(postgres_url)
            outcomes, most = [], 0
            for number in range(5):
                with pytest.raises(PersistenceError) as caught:
                    await storage.kv.put(KvPut("k", b"1", 2 + number))
                outcomes.append(caught.value.outcome)
                most = max(most, sessions(own_server))
            assert set(outcomes) == {"unknown"}
            assert most <= 4, "the reader, the writer, the one it replaces, and one that is being ended"
        await until_stored(storage, b"2")
        entry = await storage.kv.get("k")
        assert entry is not None
        assert entry.value == b"2"


async def test_a_lease_is_kept_while_a_synchronous_standby_is_away(own_server: Server, postgres_url: str) -> None:
    """Also on a session that is opened then. Grants wait as the server says."""
    async with new_storage(postgres_url, limits=HASTY) as storage:
        me = Registration(id=A, name="a", address="", host_id="", groups=())
        async with storage.ownership(A) as session:
            await session.register(me, [SeatDeclaration("seat", "default")], ttl_s=60)
            with standby_away(own_server):
                await until_commits_hang(postgres_url)
                for _ in range(2):
                    assert await session.renew(ttl_s=60) is not None
                async with storage.ownership(A) as another:
                    assert await another.renew(ttl_s=60) is not None
                    with pytest.raises(PersistenceError) as caught:
                        await another.acquire(["seat"])
                    assert caught.value.outcome == "unknown"
            (seat,) = (await storage.view()).seats
            assert (seat.holder, seat.epoch) == (A, 1), "it waited for the standby, and was ended there as committed"


async def test_at_the_bound_no_session_is_opened_before_one_has_ended() -> None:
    registry = SessionRegistry(most=2)

    class Fake:
        name = "coterie/a"
        closed = False

        def __init__(self, pid: int, there: set[int]) -> None:
            self.greeted_by = pid
            self.there = there

        async def fetch(self, sql: str, pids: list[int], names: list[str], *, over: float) -> list[dict[str, int]]:
            assert names == ["coterie/a"]
            return [{"pid": pid} for pid in pids if pid in self.there]

    def opened(pid: int, there: set[int]) -> Any:
        registry.begin(address="db")
        session: Any = Fake(pid, there)
        registry.end(session)
        return session

    for pid in (1, 2):
        session = opened(pid, set())
        session.closed = True
        registry.dropped(session)
    probe = opened(3, {1, 2})  # one may look
    with pytest.raises(PersistenceError, match=r"may have 2 sessions there and has 3, 2 of them dropped"):
        await registry.end_dropped(probe, address="db", over=0)
    probe.closed = True
    with pytest.raises(PersistenceError, match="synchronous standby"):
        registry.begin(address="db")  # but not each time
    registry._probed_s = -10.0
    probe = opened(4, {1})
    await registry.end_dropped(probe, address="db", over=0)
    assert registry.count == 2


@pytest.mark.parametrize("who", ["database", "server"])
async def test_lazy_commits_that_are_switched_on_later_are_noticed_and_refused(
    own_server: Server, postgres_url: str, who: str
) -> None:
    """200 of 200 writes were acknowledged and lost in a crash after a reconnect, or, by a reload, at once."""
    name = database_of(postgres_url)
    target = f'database "{name}"' if who == "database" else "system"
    async with new_storage(postgres_url, limits=SHORT) as storage:
        await storage.kv.put(KvPut("k", b"0", 1))
        own_server.execute(f"alter {target} set synchronous_commit = off", "select pg_reload_conf()")
        try:
            if who == "database":  # takes effect with the next connection
                own_server.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'")
            await until_refused(storage, "synchronous_commit=off: it acknowledges writes that a crash loses")
            with pytest.raises(PersistenceError, match="synchronous_commit=off"):
                await storage.kv.put(KvPut("k", b"1", 2))
            with pytest.raises(PersistenceError, match="synchronous_commit=off"):
                await storage.ownership(A).__aenter__()
        finally:
            own_server.execute(f"alter {target} reset synchronous_commit", "select pg_reload_conf()")
        await until_stored(storage, b"2")


async def test_a_renewal_notices_lazy_commits(own_server: Server, postgres_url: str) -> None:
    async with new_storage(postgres_url, limits=SHORT) as storage, storage.ownership(A) as session:
        me = Registration(id=A, name="a", address="", host_id="", groups=())
        await session.register(me, [], ttl_s=60)
        own_server.execute("alter system set synchronous_commit = off", "select pg_reload_conf()")
        try:
            async with asyncio.timeout(120):
                with pytest.raises(PersistenceError, match="synchronous_commit was set to off") as caught:
                    await renew_again_and_again(session)
            assert caught.value.outcome == "unreachable", "the session is given up, and the next one refused"
        finally:
            own_server.execute("alter system reset synchronous_commit", "select pg_reload_conf()")
