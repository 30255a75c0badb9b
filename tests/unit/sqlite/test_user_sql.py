"""Transactions of users on a SQLite file: when the write lock is held, and that it is not held for long [C3]."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from coterie.errors import PersistenceError, TransactionTimeout
from coterie.storage.contracts.messages import Commit
from coterie.storage.interface import KvPut, StateLoaded
from coterie.storage.sqlite import user_sql, user_sql_draft
from tests.contract.messages import A, change, joined, take
from tests.unit.sqlite.conftest import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from coterie.storage.interface import Claim, Ownership
    from coterie.storage.sqlite import SqliteStorage
    from tests.unit.sqlite.conftest import Child, Opener

LONG_S = 60.0


@pytest.fixture
async def storage(new: Opener) -> AsyncIterator[SqliteStorage]:
    async with new() as storage:
        yield storage


@pytest.fixture
async def a(storage: SqliteStorage) -> AsyncIterator[Ownership]:
    async with joined(storage, A) as session:
        yield session


@pytest.fixture
async def claim(storage: SqliteStorage, a: Ownership) -> Claim:
    claim = await take(a, A)
    transaction = storage.transaction(limit_s=LONG_S)
    await transaction.execute("create table orders (id integer primary key, note text)")
    assert await transaction.commit(Commit(claim)) == "written"
    return claim


@contextmanager
def stranger(path: Path) -> Iterator[apsw.Connection]:
    """Another process's connection, as far as locks inside of SQLite go."""
    connection = apsw.Connection(str(path))
    try:
        yield connection
    finally:
        connection.close()


def is_locked(path: Path) -> bool:
    with stranger(path) as other:
        try:
            other.execute("begin immediate")
        except apsw.BusyError:
            return True
        other.execute("rollback")
        return False


async def test_the_write_lock_is_held_from_the_first_write_on(storage: SqliteStorage, claim: Claim, path: Path) -> None:
    """C3."""
    transaction = storage.transaction(limit_s=LONG_S)
    assert not is_locked(path)
    await transaction.fetch("select id from orders")
    await transaction.fetch("select count(*) as n from orders")
    assert not is_locked(path)
    await storage.kv.put(KvPut("k", b"v", 1))
    await transaction.execute("insert into orders values (1, 'one')")
    assert is_locked(path)
    await transaction.fetch("select id from orders")
    assert is_locked(path)
    assert await transaction.commit(Commit(claim)) == "written"
    assert not is_locked(path)


async def test_what_it_reads_is_of_one_moment(storage: SqliteStorage, claim: Claim, path: Path) -> None:
    transaction = storage.transaction(limit_s=LONG_S)
    assert await transaction.fetch("select id from orders") == []
    with stranger(path) as other:
        other.execute("insert into orders values (1, 'theirs')")
    assert await transaction.fetch("select id from orders") == []
    await transaction.rollback()


async def test_what_others_wrote_to_other_rows_since_its_first_read_does_not_disturb(
    storage: SqliteStorage, claim: Claim, path: Path
) -> None:
    """A group of this or another runner commits all the time: what was read is looked at again, and is the same."""
    transaction = storage.transaction(limit_s=LONG_S)
    assert await transaction.fetch("select note from orders where id = $1", 1) == []
    await storage.kv.put(KvPut("k", b"v", 1))
    with stranger(path) as other:
        other.execute("insert into orders values (2, 'theirs')")
    await transaction.execute("insert into orders values (1, 'mine')")
    assert [row["id"] for row in await transaction.fetch("select id from orders order by id")] == [1, 2]
    assert await transaction.commit(Commit(claim)) == "written"


async def test_a_write_upon_what_has_changed_since_it_was_read_is_refused(
    storage: SqliteStorage, claim: Claim, path: Path
) -> None:
    with stranger(path) as other:
        other.execute("insert into orders values (1, 'old')")
        transaction = storage.transaction(limit_s=LONG_S)
        assert await transaction.fetch("select note from orders where id = 1") == [{"note": "old"}]
        other.execute("update orders set note = 'theirs'")
        with pytest.raises(PersistenceError, match="somebody wrote since") as caught:
            await transaction.execute("update orders set note = 'mine'")
        assert caught.value.outcome == "refused"
        assert "write first" in caught.value.hint
        assert not is_locked(path)
        assert other.execute("select note from orders").get == "theirs"


@pytest.mark.parametrize("writer", ["a transaction", "a group"])
async def test_who_meets_the_lock_waits_for_it(storage: SqliteStorage, claim: Claim, writer: str) -> None:
    one = storage.transaction(limit_s=LONG_S)
    await one.execute("insert into orders values (1, 'one')")
    two = storage.transaction(limit_s=LONG_S)
    if writer == "a group":
        waiting: asyncio.Task[Any] = asyncio.ensure_future(storage.kv.put(KvPut("k", b"v", 1)))
    else:
        waiting = asyncio.ensure_future(two.execute("insert into orders values (2, 'two')"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert await one.commit(Commit(claim)) == "written"
    async with asyncio.timeout(120):
        await waiting
    await two.rollback()


async def test_who_waits_for_a_frozen_process_learns_which_it_is(
    storage: SqliteStorage, claim: Claim, path: Path, child: Callable[..., Child]
) -> None:
    """C3."""
    frozen = child("hold", str(path))
    assert frozen.line() == "holding"
    frozen.freeze()
    transaction = storage.transaction(limit_s=0.5)
    with pytest.raises(PersistenceError, match=f"process {frozen.pid}"):
        await transaction.execute("insert into orders values (1, 'one')")


async def test_at_the_limit_the_lock_is_free_even_if_the_loop_is_blocked(
    storage: SqliteStorage, claim: Claim, path: Path
) -> None:
    """C3: the thread that owns the connection looks at the clock itself."""
    transaction = storage.transaction(limit_s=1.0)
    await transaction.execute("insert into orders values (1, 'one')")
    assert is_locked(path)
    until(lambda: not is_locked(path))  # blocks the loop, as the user's code may
    with pytest.raises(TransactionTimeout):
        await transaction.commit(Commit(claim, state=change("k", b"v")))
    assert await storage.states.load(claim, "k") == StateLoaded(None, 0)
    with stranger(path) as other:
        assert other.execute("select count(*) from orders").get == 0


async def test_a_statement_is_cut_short_at_the_limit_even_if_the_loop_is_blocked(
    storage: SqliteStorage, claim: Claim, path: Path
) -> None:
    """C3."""
    transaction = storage.transaction(limit_s=1.0)
    await transaction.execute("insert into orders values (1, 'one')")
    endless = "with recursive n (i) as (select 1 union all select i + 1 from n) select count(*) as n from n"
    running = asyncio.ensure_future(transaction.fetch(endless))
    await asyncio.sleep(0.01)
    assert is_locked(path)
    until(lambda: not is_locked(path))
    with pytest.raises(TransactionTimeout):
        await running


async def insist(session: Ownership, claim: Claim) -> bool:
    """Give a seat back, as often as the lock is refused."""
    while True:
        with suppress(PersistenceError):
            return await session.release(claim.seat, claim.epoch)


async def test_renewals_go_on_while_a_transaction_writes(storage: SqliteStorage, a: Ownership, claim: Claim) -> None:
    """C3: leases are in a file of their own. What moves a seat waits, for the limit at most."""
    transaction = storage.transaction(limit_s=1.0)
    await transaction.execute("insert into orders values (1, 'one')")
    assert await a.renew(ttl_s=60) is not None
    releasing = asyncio.ensure_future(insist(a, claim))
    await asyncio.sleep(0.05)
    assert not releasing.done()
    async with asyncio.timeout(120):
        assert await releasing
    with pytest.raises(TransactionTimeout):
        await transaction.commit(Commit(claim))


async def test_a_process_that_is_killed_inside_leaves_nothing(
    storage: SqliteStorage, claim: Claim, path: Path, child: Callable[..., Child]
) -> None:
    doomed = child("draft", f"sqlite:///{path}")
    assert doomed.line() == "writing"
    assert storage._main.write_lock_holder() == doomed.pid
    doomed.kill()
    doomed.wait()
    transaction = storage.transaction(limit_s=LONG_S)
    assert await transaction.fetch("select id from orders") == []
    await transaction.execute("insert into orders values (2, 'after')")
    assert await transaction.commit(Commit(claim)) == "written"


async def test_threads_are_kept_and_bounded(storage: SqliteStorage, claim: Claim) -> None:
    """Reads need no lock, so as many as there is room for go on at once; one more waits for its turn."""
    room = [storage.transaction(limit_s=LONG_S) for _ in range(user_sql.AT_ONCE)]
    for transaction in room:
        await transaction.fetch("select id from orders")
    one_more = storage.transaction(limit_s=0.2)
    with pytest.raises(PersistenceError, match=r"no connection for it was free within 0\.2s"):
        await one_more.fetch("select id from orders")
    waiting = asyncio.ensure_future(storage.transaction(limit_s=LONG_S).fetch("select id from orders"))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    for transaction in room:
        await transaction.rollback()
    assert await waiting == []
    assert len(storage._undertakings._started) == user_sql.AT_ONCE


async def test_one_that_was_closed_while_it_was_opened_runs_nothing(storage: SqliteStorage) -> None:
    """A storage that stops does not wait for the statement that opens a transaction."""
    ground = storage._undertakings._ground()
    await ground.begin(over=asyncio.get_running_loop().time() + LONG_S)
    await ground.close()
    with pytest.raises(PersistenceError, match="it was rolled back meanwhile"):
        await ground.run("select 1", [])
    await ground.close()
    assert len(storage._undertakings._idle) == 1, "its thread was given back, once"


@pytest.mark.parametrize(
    "sql",
    [
        "attach ':memory:' as other",
        "detach main",
        "pragma synchronous = off",
        "select * from pragma_table_info('orders')",
        "vacuum",
        "analyze",
        "create temp table scratch (id)",
        "create temp trigger t after insert on messages begin delete from orders; end",
        "create trigger t after insert on messages begin delete from orders; end",
        "update sqlite_schema set sql = ''",
        "insert into noted values (1)",
        "insert into linked values ('c', 's')",
        "select load_extension('x')",
        "replace into kv values (1, 2, 3, 4, 5)",
        "select ?",
        "select :name",
    ],
)
async def test_what_reaches_beyond_the_users_own_tables_is_refused(
    storage: SqliteStorage, claim: Claim, sql: str
) -> None:
    """C2: also by ways that only show when they are used: triggers and references of the user's own tables."""
    transaction = storage.transaction(limit_s=LONG_S)
    await transaction.execute("create table noted (id integer)")
    await transaction.execute("create trigger t after insert on noted begin delete from kv; end")
    await transaction.execute(
        "create table linked (c text, s text, foreign key (c, s) references seats (cluster, name))"
    )
    assert await transaction.commit(Commit(claim)) == "written"
    transaction = storage.transaction(limit_s=LONG_S)
    with pytest.raises(PersistenceError) as caught:
        await transaction.execute(sql)
    assert caught.value.outcome == "refused"
    await storage.kv.put(KvPut("k", b"v", 1))


async def test_columns_and_derived_tables_may_have_any_name(storage: SqliteStorage, claim: Claim) -> None:
    transaction = storage.transaction(limit_s=LONG_S)
    await transaction.execute("create table mine (kv text, seats integer)")
    await transaction.execute("insert into mine values ('a', 1)")
    await transaction.execute("update mine set kv = 'b', seats = 2")
    assert await transaction.fetch("with messages as (select kv from mine) select kv from messages") == [{"kv": "b"}]
    await transaction.rollback()


async def test_all_of_coteries_tables_are_known(storage: SqliteStorage, path: Path) -> None:
    with stranger(path) as other:
        there = other.execute("select lower(name) from sqlite_schema where type = 'table' and name not like 'sqlite_%'")
        assert {name for (name,) in there} == set(user_sql_draft.tables())
