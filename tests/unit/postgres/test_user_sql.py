"""Transactions of users on PostgreSQL: sessions that forget, a server that ends what this process cannot [M3, M12]."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import PersistenceError
from coterie.storage.contracts.messages import Commit
from coterie.storage.interface import KvPut, StateLoaded
from coterie.storage.postgres import user_sql
from coterie.storage.postgres.session import PostgresSession, deadline
from coterie.storage.postgres.user_sql import PostgresUserSql
from tests.contract.messages import S1, A, change, id_of, joined, message, statuses, take
from tests.unit.postgres.conftest import LONG, database_of, new_storage, stranger, until
from tests.unit.postgres.silent_proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.interface import Claim, Ownership
    from coterie.storage.postgres import PostgresStorage
    from tests.support.postgres import Server

pytestmark = pytest.mark.postgres

LONG_S = 60.0

# A commit waits until whoever holds this lock lets go.
SLOW_COMMIT = [
    "create table orders (id integer primary key, note text)",
    """create function wait() returns trigger language plpgsql as $$
        begin perform pg_advisory_xact_lock_shared(77); return null; end $$""",
    """create constraint trigger slow after insert on orders deferrable initially deferred
        for each row execute function wait()""",
]


@pytest.fixture
async def a(storage: PostgresStorage) -> AsyncIterator[Ownership]:
    async with joined(storage, A) as session:
        yield session


@pytest.fixture
async def claim(a: Ownership) -> Claim:
    return await take(a, A)


def ground_of(storage: PostgresStorage) -> PostgresUserSql:
    """A transaction as the engine sees it: without a clock here, and without a commit."""

    async def nothing(*_: Any) -> Any:
        raise AssertionError("not used")

    pool, connector = storage.undertakings.pool, storage._connector
    parts: Any = dict.fromkeys(("started", "sent", "stored", "written"), nothing)
    return PostgresUserSql(pool, connector, limits=storage._limits, **parts)


def waits_in_commit(server: Server, url: str) -> bool:
    sql = f"select count(*) from pg_stat_activity where datname = '{database_of(url)}' and query = 'commit'"
    return bool(server.execute(f"{sql} and state = 'active' and wait_event_type = 'Lock'")[0][0])


async def test_a_connection_lost_in_the_commit_leaves_the_outcome_unknown_and_it_can_be_asked_for(
    own_server: Server, postgres_url: str, storage: PostgresStorage, claim: Claim
) -> None:
    """GAP-16, 0.6: the server commits, and the answer never comes."""
    write = Commit(claim, message=id_of(1), reply=b"r", state=change("k", b"v"))
    await storage.messages.insert(message(1))
    async with stranger(postgres_url) as other, Proxy(own_server.port) as proxy:
        for statement in SLOW_COMMIT:
            await other.execute(statement)
        url = postgres_url.replace(f":{own_server.port}", f":{proxy.port}")
        async with new_storage(url) as far:
            await other.execute("select pg_advisory_lock(77)")
            transaction = far.transaction(limit_s=LONG_S)
            await transaction.execute("insert into orders values (1, 'one')")
            committing = asyncio.create_task(transaction.commit(write))
            await until(lambda: waits_in_commit(own_server, postgres_url))
            proxy.cut()
            with pytest.raises(PersistenceError) as caught:
                await committing
            assert caught.value.outcome == "unknown"
            await transaction.rollback()
            assert await statuses(storage, 1) == ["pending"]
            await other.execute("select pg_advisory_unlock(77)")
            async with asyncio.timeout(120):
                while await statuses(storage, 1) != ["done"]:
                    await asyncio.sleep(0.01)
            assert await far.messages.commit(write) == "written"
            assert await storage.states.load(claim, "k") == StateLoaded(b"v", 1)
        assert await other.fetchval("select count(*) from orders") == 1


async def test_a_connection_lost_before_the_commit_has_written_nothing(
    postgres_server: Server, postgres_url: str, storage: PostgresStorage, claim: Claim
) -> None:
    async with stranger(postgres_url) as other:
        await other.execute("create table orders (id integer)")
        transaction = storage.transaction(limit_s=LONG_S)
        await transaction.execute("insert into orders values (1)")
        (row,) = await transaction.fetch("select pg_backend_pid() as pid")
        await other.execute(f"select pg_terminate_backend({row['pid']}, 5000)")
        with pytest.raises(PersistenceError) as caught:
            await transaction.commit(Commit(claim, state=change("k", b"v")))
        assert caught.value.outcome == "unreachable"
        assert await other.fetchval("select count(*) from orders") == 0
    assert await storage.states.load(claim, "k") == StateLoaded(None, 0)


async def test_a_session_that_went_while_it_was_idle_is_replaced_unseen(
    postgres_url: str, storage: PostgresStorage
) -> None:
    async with stranger(postgres_url) as other:
        for _ in range(3):
            transaction = storage.transaction(limit_s=LONG_S)
            (row,) = await transaction.fetch("select pg_backend_pid() as pid")
            await transaction.rollback()
            await other.execute(f"select pg_terminate_backend({row['pid']}, 5000)")


async def test_a_session_whose_loss_shows_only_when_it_is_used_is_replaced_too(
    postgres_server: Server, storage: PostgresStorage
) -> None:
    transaction = storage.transaction(limit_s=LONG_S)
    (before,) = await transaction.fetch("select pg_backend_pid() as pid")
    await transaction.rollback()
    assert storage.undertakings.pool.open == 1
    postgres_server.execute(f"select pg_terminate_backend({before['pid']}, 5000)")  # the loop does not turn here
    transaction = storage.transaction(limit_s=LONG_S)
    (after,) = await transaction.fetch("select pg_backend_pid() as pid")
    await transaction.rollback()
    assert after["pid"] != before["pid"]


async def test_a_server_that_refuses_the_opening_is_asked_once(
    storage: PostgresStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_sql, "_THEIRS", ("a_setting_of_another_version",))
    transaction = storage.transaction(limit_s=5.0)
    with pytest.raises(PersistenceError, match="a_setting_of_another_version") as caught:
        await transaction.fetch("select 1 as one")
    assert caught.value.outcome == "refused"


async def test_a_server_that_does_not_answer_the_opening_is_told_at_the_limit(
    own_server: Server, postgres_url: str
) -> None:
    """No other session is tried then, although there is an idle one."""
    async with Proxy(own_server.port) as proxy:
        url = postgres_url.replace(f":{own_server.port}", f":{proxy.port}")
        async with new_storage(url, limits=LONG) as storage:
            grounds = [ground_of(storage) for _ in range(2)]
            for ground in grounds:
                await ground.begin(over=deadline(LONG_S))
            for ground in grounds:
                await ground.close()
            proxy.silent = True
            with pytest.raises(PersistenceError, match="no answer within") as caught:
                await grounds[0].begin(over=deadline(0.2))
            assert caught.value.outcome == "unreachable"
            assert storage.undertakings.pool.open == 1
            proxy.cut()


async def test_a_refused_commit_is_refused_and_not_unknown(
    postgres_url: str, storage: PostgresStorage, claim: Claim
) -> None:
    """GAP-16: a constraint that is checked at the end."""
    async with stranger(postgres_url) as other:
        await other.execute("create table orders (id integer unique deferrable initially deferred)")
    transaction = storage.transaction(limit_s=LONG_S)
    assert await transaction.execute("insert into orders values (1), (1)") == 2
    with pytest.raises(PersistenceError, match="duplicate key") as caught:
        await transaction.commit(Commit(claim, state=change("k", b"v")))
    assert caught.value.outcome == "refused"
    assert await storage.states.load(claim, "k") == StateLoaded(None, 0)


async def test_a_session_forgets_what_its_user_left_on_it(postgres_url: str) -> None:
    left = [
        "select set_config('application_name', 'theirs', false)",
        "select set_config('search_path', 'nowhere', false)",
        "select set_config('synchronous_commit', 'off', false)",
        "select set_config('statement_timeout', '0', false)",
        "select pg_advisory_lock(5)",
        "create temporary table scratch (id integer)",
    ]
    async with new_storage(postgres_url, pool_size=1) as storage, joined(storage, A) as session:
        claim = await take(session, A)
        transaction = storage.transaction(limit_s=LONG_S)
        (one,) = await transaction.fetch("select pg_backend_pid() as pid")
        for sql in left:
            await transaction.fetch(sql)
        assert await transaction.commit(Commit(claim)) == "written"
        transaction = storage.transaction(limit_s=LONG_S)
        (two,) = await transaction.fetch(
            """select pg_backend_pid() as pid, current_setting('application_name') as name,
                current_setting('search_path') as path, current_setting('synchronous_commit') as commit,
                current_setting('statement_timeout') <> '0' as limited, to_regclass('scratch') is null as clean,
                (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()) as locks"""
        )
        await transaction.rollback()
    assert two["pid"] == one["pid"], "it is kept"
    assert two["name"] == "coterie/" + "a" * 32
    assert "public" in two["path"]
    assert (two["commit"], two["limited"], two["clean"], two["locks"]) == ("on", True, True, 0)


async def test_users_have_the_databases_settings_and_our_statements_have_ours(
    postgres_url: str, storage: PostgresStorage, claim: Claim
) -> None:
    """M3: what the user has set for the transaction does not reach the last statements, and the commit is not lazy."""
    names = ["search_path", "enable_seqscan", "enable_mergejoin", "plan_cache_mode", "synchronous_commit"]
    async with stranger(postgres_url) as other:
        theirs = [await other.fetchval("select current_setting($1)", name) for name in names]
        await other.execute(
            """create table seen (at text, name text, value text);
            create function note() returns trigger language plpgsql as $$ begin
                insert into public.seen select 'end', n, current_setting(n) from unnest(tg_argv) as n; return null;
            end $$;
            create table orders (id integer);
            create constraint trigger n after insert on orders deferrable initially deferred
                for each row execute function note('search_path', 'enable_seqscan', 'synchronous_commit', 'role');"""
        )
        transaction = storage.transaction(limit_s=LONG_S)
        ours = [(await transaction.fetch("select current_setting($1) as s", name))[0]["s"] for name in names]
        assert ours == theirs
        await transaction.execute("set local synchronous_commit = off")
        await transaction.execute("set local search_path = public")
        await transaction.execute("insert into orders values (1)")
        assert await transaction.commit(Commit(claim)) == "written"
        seen = {row["name"]: row["value"] for row in await other.fetch("select name, value from seen")}
    assert seen == {"search_path": "pg_catalog", "enable_seqscan": "off", "synchronous_commit": "on", "role": "none"}


async def test_it_runs_under_our_name_and_isolation_level(postgres_url: str, storage: PostgresStorage) -> None:
    """M12, m4: whoever evicts this runner can end the session; whatever the database's default is."""
    async with stranger(postgres_url) as other:
        await other.execute(
            f"alter database {database_of(postgres_url)} set default_transaction_isolation to serializable"
        )
        transaction = storage.transaction(limit_s=LONG_S)
        (row,) = await transaction.fetch(
            "select pg_backend_pid() as pid, current_setting('transaction_isolation') as i"
        )
        sql = "select application_name from pg_stat_activity where pid = $1 and state = 'idle in transaction'"
        assert await other.fetchval(sql, row["pid"]) == "coterie/" + "a" * 32
        assert row["i"] == "read committed"
        await transaction.rollback()


async def test_an_open_transaction_does_not_hold_up_a_hand_over(
    storage: PostgresStorage, a: Ownership, claim: Claim
) -> None:
    """M3: the fence is the last statement, so nothing of it is locked while the user's code runs."""
    transaction = storage.transaction(limit_s=LONG_S)
    await transaction.execute("create table orders (id integer)")
    async with asyncio.timeout(120):
        assert await a.release(S1, claim.epoch)
    assert await transaction.commit(Commit(claim)) == "fenced"


async def test_reads_of_the_same_handler_do_not_wait_for_its_transaction(postgres_url: str) -> None:
    """Handlers inside of their transactions wait for reads: with one pool for both they would all hold it."""
    async with new_storage(postgres_url, pool_size=2) as storage:
        await storage.kv.put(KvPut("k", b"v", 1))
        transactions = [storage.transaction(limit_s=LONG_S) for _ in range(2)]
        async with asyncio.timeout(120):
            for transaction in transactions:
                await transaction.fetch("select 1 as one")
            assert await storage.kv.get("k") is not None
            for transaction in transactions:
                await transaction.rollback()


async def test_waiting_for_a_session_ends_with_the_time(postgres_url: str) -> None:
    async with new_storage(postgres_url, pool_size=1) as storage:
        one, two = storage.transaction(limit_s=LONG_S), storage.transaction(limit_s=0.2)
        await one.fetch("select 1 as one")
        with pytest.raises(PersistenceError, match=r"busy for 0\.2s|free within 0\.2s") as caught:
            await two.fetch("select 1 as one")
        assert caught.value.outcome == "unreachable"
        await one.rollback()
        three = storage.transaction(limit_s=LONG_S)
        await three.fetch("select 1 as one")
        await three.rollback()


@pytest.mark.parametrize("timed", [17, 99], ids=["limits transactions", "limits statements"])
@pytest.mark.parametrize("what", ["idle", "running"])
async def test_the_server_ends_what_a_frozen_process_cannot(
    postgres_url: str, storage: PostgresStorage, monkeypatch: pytest.MonkeyPatch, timed: int, what: str
) -> None:
    """M12: nobody here looks at a clock; also as an older server does it."""
    monkeypatch.setattr(user_sql, "_TIMED", timed)
    monkeypatch.setattr(PostgresSession, "_ring", lambda *_: None)
    ground = ground_of(storage)
    async with stranger(postgres_url) as other:
        await other.execute("create table orders (id integer); insert into orders values (1)")
        await ground.begin(over=deadline(3.0))
        await ground.run("update orders set id = 2", [])
        async with asyncio.timeout(120):
            if what == "running":
                with pytest.raises(PersistenceError):
                    await ground.run("select pg_sleep(600)", [])
            await other.execute("update orders set id = 3")
    await ground.close()


async def test_a_statement_that_ends_the_transaction_in_spite_of_its_words_is_noticed(
    postgres_url: str, storage: PostgresStorage, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's status decides: the session is dropped, and nobody takes the transaction for whole."""
    monkeypatch.setattr(user_sql, "refused", lambda _: ("", ""))
    for sql in ("commit", "rollback"):
        transaction = storage.transaction(limit_s=LONG_S)
        await transaction.execute("create table if not exists orders (id integer)")
        with pytest.raises(PersistenceError, match="ended the transaction") as caught:
            await transaction.execute(sql)
        assert caught.value.outcome == "unknown"
        with pytest.raises(PersistenceError):
            await transaction.commit(Commit(claim))
        await transaction.rollback()
        await until(lambda: storage.undertakings.pool.open == 0)


async def test_a_renamed_process_gives_its_sessions_the_new_name(storage: PostgresStorage) -> None:
    """M12: also those that were lent when it was renamed."""
    transaction = storage.transaction(limit_s=LONG_S)
    await transaction.fetch("select 1 as one")
    storage.rename("b" * 32)
    await transaction.rollback()
    transaction = storage.transaction(limit_s=LONG_S)
    (row,) = await transaction.fetch("select current_setting('application_name') as name")
    await transaction.rollback()
    assert row["name"] == "coterie/" + "b" * 32


@pytest.mark.parametrize(
    "sql",
    [
        "start transaction",
        "COMMIT AND CHAIN",
        "(((commit",
        "abort",
        "prepare transaction 'x'",
        "prepare x as select 1",
        "set session characteristics as transaction read only",
        "set search_path = x",
        "set transaction isolation level serializable",
        "reset all",
        "discard all",
        "listen x",
        "copy orders to stdout",
        "/* a /* b */ c */ commit",
        "select * from coterie.kv",
        'delete from "coterie"."kv"',
        "delete from coterie\n . kv",
        "select 'it''s' from COTERIE.kv",
        "select e'it\\'s' from coterie.kv",
        "select 'a\\' from coterie.kv where x = ' '",
        "set local search_path = coterie",
    ],
)
def test_words_that_are_refused(sql: str) -> None:
    problem, hint = user_sql.refused(sql)
    assert problem
    assert hint


@pytest.mark.parametrize(
    "sql",
    [
        "select 1",
        "",
        "-- commit\nselect 1",
        "select 'coterie.kv'",
        "select $$ commit; coterie.kv $$",
        "select $a$ coterie.kv $$ $a$",
        "select coterie from coteries",
        "set local lock_timeout = '1s'",
        "set constraints all deferred",
        "update begin_dates set commit = 1",
        "with x as (select 1) select * from x",
    ],
)
def test_words_that_are_not(sql: str) -> None:
    assert user_sql.refused(sql) == ("", "")


def test_the_servers_word_tells_how_many_rows_were_changed() -> None:
    tags = {"INSERT 0 3": 3, "UPDATE 2": 2, "DELETE 0": 0, "MERGE 7": 7, "SELECT 5": 0, "CREATE TABLE": 0, "": 0}
    assert {tag: user_sql.changed(tag) for tag in tags} == tags
