"""The writer: few commits for many writes, members that stay strangers, and outcomes that tell the truth [M3]."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import PersistenceError
from coterie.storage.contracts.messages import Insert
from coterie.storage.interface import KvPut, KvRemove, KvSwap
from coterie.storage.postgres import ConnectionLimits, PostgresStorage
from coterie.storage.postgres.writer import SQL
from tests.contract.messages import id_of, message, statuses
from tests.unit.postgres.conftest import SHORT, database_of, new_storage, stranger, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.postgres import Server

pytestmark = pytest.mark.postgres

PATIENT = ConnectionLimits(lock_s=20.0, call_s=20.0, transaction_s=20.0)


def put(key: str, stamp: int = 1) -> KvPut:
    return KvPut(key, b"value", stamp)


def outcomes(results: list[Any]) -> list[Any]:
    return [getattr(result, "outcome", result) for result in results]


async def test_a_hundred_concurrent_writes_share_few_commits(storage: PostgresStorage) -> None:
    """M3."""
    await asyncio.gather(*(storage.kv.put(put(f"k{number}", number)) for number in range(100)))
    assert await storage.kv.count("k") == 100
    assert storage.writer.members == 100
    assert storage.writer.groups <= 3


async def test_one_bad_member_does_not_hurt_its_neighbours(storage: PostgresStorage) -> None:
    """M3: a text that the server refuses."""
    keys = [f"k{number}" for number in range(20)]
    keys[7] = "bad\0key"
    results = await asyncio.gather(*(storage.kv.put(put(key)) for key in keys), return_exceptions=True)
    assert outcomes(list(results)) == [None] * 7 + ["refused"] + [None] * 12
    assert "invalid byte sequence" in str(results[7])
    assert storage.writer.reruns == 1
    assert await storage.kv.count("k") == 19


async def test_a_strangers_lock_on_one_key_holds_up_nobody_else(storage: PostgresStorage, postgres_url: str) -> None:
    """M3: the locked member fails by itself and says why; its neighbours commit."""
    await storage.kv.put(put("k5"))
    async with stranger(postgres_url) as other:
        await other.execute("begin; select * from coterie.kv where key = 'k5' for update")
        calls = (storage.kv.put(put(f"k{number}", 10 + number)) for number in range(20))
        results = list(await asyncio.gather(*calls, return_exceptions=True))
        assert outcomes(results) == [None] * 5 + ["refused"] + [None] * 14
        assert "another session holds a lock" in str(results[5])
        assert storage.writer.reruns == 1
        await other.execute("rollback")
    await storage.kv.put(put("k5", 99))
    entry = await storage.kv.get("k5")
    assert entry is not None
    assert entry.stamp == 99


SLOW = [
    """create function public.slow() returns trigger language plpgsql as $$
        begin perform pg_sleep(0.002); return new; end $$""",
    "create trigger slow before insert or update on coterie.kv for each row execute function public.slow()",
]


async def test_groups_with_the_same_keys_in_opposite_order_do_not_deadlock(
    postgres_server: Server, postgres_url: str
) -> None:
    """M3: rows take their time, so that the two groups overlap for sure."""
    async with new_storage(postgres_url) as one, new_storage(postgres_url) as two:
        postgres_server.execute(*SLOW, database=database_of(postgres_url))
        for turn in range(10):
            there = [one.kv.put(put(f"k{number}", turn)) for number in range(10)]
            back = [two.kv.put(put(f"k{number}", turn)) for number in reversed(range(10))]
            await asyncio.gather(*there, *back)
        assert (one.writer.reruns, two.writer.reruns) == (0, 0)
        assert (one.writer.groups, two.writer.groups) == (10, 10)
    sql = f"select deadlocks from pg_stat_database where datname = '{database_of(postgres_url)}'"
    assert postgres_server.execute(sql)[0][0] == 0


async def test_a_serializable_database_does_not_change_what_writes_mean(
    postgres_server: Server, postgres_url: str
) -> None:
    """m4: no 40001 reaches a caller, one of each pair of swaps wins."""
    for level in ("serializable", "repeatable read"):
        postgres_server.execute(
            f"alter database {database_of(postgres_url)} set default_transaction_isolation = '{level}'"
        )
        async with new_storage(postgres_url) as one, new_storage(postgres_url) as two:
            await one.kv.put(put("a", 0))
            stamp = 0
            for turn in range(1, 30):
                first, second = (KvSwap("a", stamp, b"", turn * 10 + who) for who in (1, 2))
                results = await asyncio.gather(one.kv.swap(first), two.kv.swap(second))
                assert sorted(results) == [False, True]
                stamp = first.stamp if results[0] else second.stamp
            assert (one.writer.reruns, two.writer.reruns) == (0, 0)


def failing(state: str, *, times: int) -> list[str]:
    """A trigger that refuses the first writes with an SQLSTATE; the counter survives the rollback."""
    return [
        "create sequence public.tries",
        f"""create function public.fail() returns trigger language plpgsql as $$
            begin
                if nextval('public.tries') <= {times} then raise exception 'as asked' using errcode = '{state}'; end if;
                return new;
            end $$""",
        "create trigger fail before insert on coterie.kv for each row execute function public.fail()",
    ]


@pytest.mark.parametrize("state", ["40P01", "40001", "25006", "57P01", "57P03"])
async def test_what_passes_by_itself_is_tried_again_unseen(
    postgres_server: Server, postgres_url: str, state: str
) -> None:
    """m4, M3, and a server that is read-only or shutting down for a moment."""
    async with new_storage(postgres_url) as storage:
        before = storage._committer._session
        postgres_server.execute(*failing(state, times=2), database=database_of(postgres_url))
        await storage.kv.put(put("a"))
        assert await storage.kv.get("a") is not None
        assert (storage._committer._session is before) == state.startswith("40")  # elsewhere means a new session


@pytest.mark.parametrize(("state", "tries"), [("40P01", 4), ("55P03", 4), ("23514", 1), ("53100", 1)])
async def test_what_does_not_pass_is_refused_in_the_end(
    postgres_server: Server, postgres_url: str, state: str, tries: int
) -> None:
    async with new_storage(postgres_url) as storage:
        postgres_server.execute(*failing(state, times=10**6), database=database_of(postgres_url))
        with pytest.raises(PersistenceError, match=f"as asked .SQLSTATE {state}.") as caught:
            await storage.kv.put(put("a"))
        assert caught.value.outcome == "refused"
        found = postgres_server.execute("select last_value from public.tries", database=database_of(postgres_url))
        assert found[0][0] == tries


async def test_a_message_that_hurts_a_constraint_of_others_is_refused(
    postgres_server: Server, postgres_url: str
) -> None:
    """It is not one that is stored already, although the server says the same of both."""
    async with new_storage(postgres_url) as storage:
        script = [each.replace("coterie.kv", "coterie.messages") for each in failing("23505", times=10**6)]
        postgres_server.execute(*script, database=database_of(postgres_url))
        with pytest.raises(PersistenceError, match="as asked") as caught:
            await storage.messages.insert(message(1, key="s:k"))
        assert caught.value.outcome == "refused"


async def test_a_message_whose_rival_is_purged_before_it_was_read_is_stored(storage: PostgresStorage) -> None:
    """M4: otherwise its sender would be told of a message that is not there."""
    await storage.messages.insert(message(1, key="s:k"))
    asked: list[str] = []

    async def fetch(sql: str, *values: Any) -> Any:
        asked.append(sql)
        if len(asked) == 2:
            await storage.pool.write("delete from coterie.messages")
        return await storage.pool.write(sql, *values)

    receipt = await storage._committer.write(fetch, Insert(message(2, key="s:k")))
    assert asked == [SQL["insert_message"], SQL["read_back"], SQL["insert_messages"]]
    assert (receipt.id, receipt.fresh) == (id_of(2), True)
    assert await statuses(storage, 1, 2) == [None, "pending"]


async def test_a_server_that_stays_read_only_is_refused_at_the_deadline(
    postgres_server: Server, postgres_url: str
) -> None:
    async with new_storage(postgres_url, limits=SHORT) as storage:
        postgres_server.execute(*failing("25006", times=10**6), database=database_of(postgres_url))
        with pytest.raises(PersistenceError, match="point the url to the primary") as caught:
            await storage.kv.put(put("a"))
        assert caught.value.outcome == "refused"


async def end_writer(server: Server, storage: PostgresStorage, *, when: Callable[[], bool]) -> None:
    await until(when)
    session = storage._committer._session
    assert session is not None
    server.execute(f"select pg_terminate_backend({session._raw.get_server_pid()}, 5000)")
    await until(lambda: session.closed)


def waits_for_lock(server: Server, count: int = 1) -> Callable[[], bool]:
    sql = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and application_name like 'coterie%'"
    return lambda: server.execute(sql)[0][0] == count


async def test_a_connection_lost_while_idle_is_replaced_unseen(
    postgres_server: Server, storage: PostgresStorage
) -> None:
    """R3: nothing was sent, so nothing is unknown."""
    await end_writer(postgres_server, storage, when=lambda: True)
    await storage.kv.put(put("a"))
    assert await storage.kv.get("a") is not None


async def test_a_connection_lost_under_a_statement_leaves_the_outcome_unknown(
    postgres_server: Server, postgres_url: str
) -> None:
    async with new_storage(postgres_url, limits=PATIENT) as storage, stranger(postgres_url) as other:
        await storage.kv.put(put("a"))
        await other.execute("begin; select * from coterie.kv for update")
        writing = asyncio.create_task(storage.kv.put(put("a", 2)))
        await end_writer(postgres_server, storage, when=waits_for_lock(postgres_server))
        with pytest.raises(PersistenceError, match="terminating connection") as caught:
            await writing
        assert caught.value.outcome == "unknown"


async def test_a_connection_lost_before_the_commit_left_is_tried_again_unseen(
    postgres_server: Server, postgres_url: str
) -> None:
    """Two statements in one transaction: without COMMIT nothing can have happened."""
    async with new_storage(postgres_url, limits=PATIENT) as storage, stranger(postgres_url) as other:
        await storage.kv.put(put("b"))
        await other.execute("begin; select * from coterie.kv for update")
        writing = asyncio.gather(storage.kv.put(put("a")), storage.kv.remove(KvRemove("b")))
        await end_writer(postgres_server, storage, when=waits_for_lock(postgres_server))
        await until(waits_for_lock(postgres_server))
        await other.execute("rollback")
        assert list(await writing) == [None, True]


async def test_a_group_of_several_kinds_is_one_transaction(storage: PostgresStorage, postgres_url: str) -> None:
    await storage.kv.put(put("old", 1))
    writes = [
        storage.kv.put(put("a", 2)),
        storage.kv.swap(KvSwap("old", 1, b"new", 3)),
        storage.kv.swap(KvSwap("b", None, b"", 4)),
        storage.kv.remove(KvRemove("absent")),
    ]
    assert await asyncio.gather(*writes) == [None, True, True, False]
    async with stranger(postgres_url) as other:
        rows = await other.fetch("select distinct xmin::text from coterie.kv")
    assert len(rows) == 1
    assert storage.writer.groups == 2
