"""Transactions of users on every engine: all or nothing with what a handler leaves behind, and never for long [C3, M3].

D4: effect once inside the database. m18: the limit.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import KeyConflict, PersistenceError, ShuttingDown, TransactionTimeout
from coterie.storage.contracts.messages import Commit
from coterie.storage.contracts.units import UnitStart
from coterie.storage.interface import Claim, KvPut, StateLoaded
from tests.contract.conftest import opened
from tests.contract.messages import S1, A, change, id_of, joined, message, statuses, take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.contracts.messages import Committed, Transaction
    from coterie.storage.interface import Ownership, Storage

LONG_S = 60.0
"""A limit that no test reaches."""


@pytest.fixture
async def a(storage: Storage) -> AsyncIterator[Ownership]:
    async with joined(storage, A) as session:
        yield session


@pytest.fixture
async def claim(a: Ownership) -> Claim:
    return await take(a, A)


@pytest.fixture
async def orders(storage: Storage, claim: Claim) -> None:
    """A table of the user's own."""
    await told(storage, claim, "create table orders (id integer primary key, note text, size double precision)")


async def told(storage: Storage, claim: Claim, *statements: str, **parts: Any) -> Committed:
    """Run statements and commit them, with the rest of a commit."""
    transaction = storage.transaction(limit_s=LONG_S)
    for statement in statements:
        await transaction.execute(statement)
    return await transaction.commit(Commit(claim, **parts))


async def found(storage: Storage, sql: str = "select id, note from orders order by id") -> list[tuple[Any, ...]]:
    """The rows that a transaction of its own sees."""
    async with begun(storage) as transaction:
        return [tuple(row.values()) for row in await transaction.fetch(sql)]


@asynccontextmanager
async def begun(storage: Storage, *, limit_s: float = LONG_S) -> AsyncIterator[Transaction]:
    transaction = storage.transaction(limit_s=limit_s)
    try:
        yield transaction
    finally:
        await transaction.rollback()


async def test_rows_message_state_and_sends_are_committed_together(
    storage: Storage, claim: Claim, orders: None
) -> None:
    """D4, B3."""
    await storage.messages.insert(message(1))
    transaction = storage.transaction(limit_s=LONG_S)
    assert await transaction.execute("insert into orders values ($1, $2, $3)", 7, "seven", 0.5) == 1
    assert await found(storage) == [], "nobody else sees it yet"
    assert await statuses(storage, 1, 2) == ["pending", None]
    write = Commit(claim, message=id_of(1), reply=b"done", state=change("k", b"state"), sends=(message(2),))
    assert await transaction.commit(write) == "written"
    assert await found(storage) == [(7, "seven")]
    assert await statuses(storage, 1, 2) == ["done", "pending"]
    assert await storage.states.load(claim, "k") == StateLoaded(b"state", 1)


@pytest.mark.parametrize("why", ["fenced", "gone", "stale", "taken"])
async def test_anything_but_written_has_rolled_back_everything(
    storage: Storage, claim: Claim, orders: None, why: str
) -> None:
    """D4, C1, M3, M4."""
    await storage.messages.insert(message(1))
    await storage.messages.insert(message(3, key="s:taken", digest=b"d"))
    state = change("k", b"state", 4 if why == "stale" else 0)
    sends = (message(2), message(4, key="s:taken", digest=b"d")) if why == "taken" else (message(2),)
    used = Claim(A, S1, claim.epoch + 1) if why == "fenced" else claim
    ended = id_of(9) if why == "gone" else id_of(1)
    transaction = storage.transaction(limit_s=LONG_S)
    await transaction.execute("insert into orders values (1, 'mine', null)")
    assert await transaction.commit(Commit(used, message=ended, state=state, sends=sends)) == why
    assert await found(storage) == []
    assert await statuses(storage, 1, 2, 4) == ["pending", None, None]
    assert await storage.states.load(claim, "k") == StateLoaded(None, 0)
    with pytest.raises(PersistenceError, match="it has ended"):
        await transaction.execute("insert into orders values (2, 'late', null)")


def run(number: int, digest: bytes = b"d") -> UnitStart:
    return UnitStart(unit=f"workflow:w/{number}", name="w", id=f"{number}", seat=S1, payload=b"", digest=digest)


async def started(storage: Storage, *numbers: int) -> list[bool]:
    return [await storage.units.get(run(number).unit) is not None for number in numbers]


async def test_workflows_are_started_with_the_rows(storage: Storage, claim: Claim, orders: None) -> None:
    """B3: once each, and those are told of it that wait for the commit."""
    await storage.units.start(run(1))
    then: list[int] = []
    transaction = storage.transaction(limit_s=LONG_S)
    await transaction.execute("insert into orders values (1, 'mine', null)")
    for number in (3, 2, 1, 2):
        transaction.start(run(number), then=partial(then.append, number))
    assert (await started(storage, 1, 2, 3), then) == ([True, False, False], [])
    assert await transaction.commit(Commit(claim)) == "written"
    assert (await started(storage, 1, 2, 3), then) == ([True, True, True], [3, 2, 1, 2])
    assert await found(storage) == [(1, "mine")]
    with pytest.raises(PersistenceError, match="it has ended"):
        transaction.start(run(4), then=then.clear)


async def test_a_workflow_that_comes_while_the_transaction_is_committed_is_refused(
    storage: Storage, claim: Claim, orders: None
) -> None:
    """B3: it would never be started. A task that the handler left behind may try."""
    transaction = storage.transaction(limit_s=LONG_S)
    await transaction.execute("insert into orders values (1, 'mine', null)")
    committing = asyncio.create_task(transaction.commit(Commit(claim)))
    await asyncio.sleep(0)
    assert not committing.done()
    with pytest.raises(PersistenceError, match="it has ended"):
        transaction.start(run(1), then=int)
    assert await committing == "written"
    assert await started(storage, 1) == [False]


async def test_a_transaction_that_only_starts_a_workflow_has_a_commit(storage: Storage, claim: Claim) -> None:
    transaction = storage.transaction(limit_s=LONG_S)
    transaction.start(run(1), then=int)
    assert await transaction.commit(Commit(claim, state=change("k", b"state"))) == "written"
    assert await started(storage, 1) == [True]
    assert await storage.states.load(claim, "k") == StateLoaded(b"state", 1)


@pytest.mark.parametrize("sql", [True, False], ids=["with rows", "alone"])
@pytest.mark.parametrize("why", ["fenced", "conflict", "rolled back"])
async def test_a_transaction_that_is_not_committed_starts_no_workflow(
    storage: Storage, claim: Claim, orders: None, why: str, sql: bool
) -> None:
    """C1, B3: what came first with another payload ends it."""
    then: list[int] = []
    await storage.units.start(run(2, b"other"))
    transaction = storage.transaction(limit_s=LONG_S)
    if sql:
        await transaction.execute("insert into orders values (1, 'mine', null)")
    transaction.start(run(1), then=lambda: then.append(1))
    with pytest.raises(KeyConflict, match="workflow 'w'"):
        transaction.start(run(1, b"other"), then=lambda: then.append(1))
    if why == "fenced":
        assert await transaction.commit(Commit(Claim(A, S1, claim.epoch + 1))) == "fenced"
    elif why == "rolled back":
        await transaction.rollback()
    else:
        transaction.start(run(2), then=lambda: then.append(2))
        with pytest.raises(KeyConflict, match="workflow 'w'"):
            await transaction.commit(Commit(claim))
    assert (await started(storage, 1), then) == ([False], [])
    assert await found(storage) == []


async def test_a_commit_that_was_done_before_is_told_by_messages(storage: Storage, claim: Claim, orders: None) -> None:
    """0.6: how the outcome of an unknown commit is found out."""
    await storage.messages.insert(message(1))
    write = Commit(claim, message=id_of(1), reply=b"r", state=change("k", b"v"))
    transaction = storage.transaction(limit_s=LONG_S)
    await transaction.execute("insert into orders values (1, 'once', null)")
    assert await transaction.commit(write) == "written"  # and the answer was lost
    assert await storage.messages.commit(write) == "written"
    assert await found(storage) == [(1, "once")]


async def test_without_statements_only_the_handlers_writes_are_committed(storage: Storage, claim: Claim) -> None:
    await storage.messages.insert(message(1))
    transaction = storage.transaction(limit_s=LONG_S)
    assert await transaction.commit(Commit(claim, message=id_of(1))) == "written"
    assert await statuses(storage, 1) == ["done"]
    with pytest.raises(PersistenceError, match="it has ended"):
        await transaction.fetch("select 1 as one")


async def test_a_transaction_that_only_read_commits_the_handlers_writes(
    storage: Storage, claim: Claim, orders: None
) -> None:
    """Also if others have written meanwhile."""
    await storage.messages.insert(message(1))
    transaction = storage.transaction(limit_s=LONG_S)
    assert await transaction.fetch("select id from orders") == []
    assert await told(storage, claim, "insert into orders values (1, 'other', null)") == "written"
    assert await transaction.commit(Commit(claim, message=id_of(1), state=change("k", b"v"))) == "written"
    assert await statuses(storage, 1) == ["done"]


async def test_rolled_back_it_leaves_nothing(storage: Storage, claim: Claim, orders: None) -> None:
    transaction = storage.transaction(limit_s=LONG_S)
    await transaction.execute("insert into orders values (1, 'one', null)")
    await transaction.rollback()
    await transaction.rollback()
    with pytest.raises(PersistenceError, match="it was rolled back"):
        await transaction.execute("insert into orders values (2, 'two', null)")
    with pytest.raises(PersistenceError, match="it was rolled back"):
        await transaction.commit(Commit(claim))
    unused = storage.transaction(limit_s=LONG_S)
    await unused.rollback()
    with pytest.raises(PersistenceError, match="it was rolled back"):
        await unused.commit(Commit(claim))
    assert await found(storage) == []


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("insert into orders values (1, 'twice', null)", "(?i)unique"),
        ("selct 1", "syntax error"),
        ("select 1 from nowhere", "nowhere"),
    ],
)
async def test_an_error_in_the_users_sql_is_told_and_ends_it(
    storage: Storage, claim: Claim, orders: None, sql: str, said: str
) -> None:
    """Refused with the database's own words; whoever goes on all the same writes nothing."""
    await told(storage, claim, "insert into orders values (1, 'one', null)")
    await storage.messages.insert(message(1))
    transaction = storage.transaction(limit_s=LONG_S)
    await transaction.execute("insert into orders values (2, 'two', null)")
    with pytest.raises(PersistenceError, match=said) as caught:
        await transaction.execute(sql)
    assert caught.value.outcome == "refused"
    assert "rolled back" in caught.value.hint
    for use in (transaction.execute("delete from orders"), transaction.commit(Commit(claim, message=id_of(1)))):
        with pytest.raises(PersistenceError, match="an earlier statement of it failed"):
            await use
    assert await found(storage) == [(1, "one")]
    assert await statuses(storage, 1) == ["pending"]


async def test_execute_tells_how_many_rows_were_changed_and_fetch_gives_them_by_name(
    storage: Storage, orders: None
) -> None:
    async with begun(storage) as transaction:
        assert await transaction.execute("insert into orders (id, note) values (1, 'a'), (2, 'b'), (3, 'c')") == 3
        assert await transaction.execute("update orders set note = 'x' where id > $1", 1) == 2
        assert await transaction.execute("update orders set note = 'x' where id > $1", 9) == 0
        assert await transaction.execute("delete from orders where id = 3") == 1
        assert await transaction.execute("select id from orders") == 0, "reading changes nothing"
        assert await transaction.execute("create table more (id integer)") == 0
        assert await transaction.fetch('select id, note as "Note" from orders order by id') == [
            {"id": 1, "Note": "a"},
            {"id": 2, "Note": "x"},
        ]
        assert await transaction.fetch("insert into orders values (9, 'n', 1.5) returning id, size") == [
            {"id": 9, "size": 1.5}
        ]
        assert await transaction.fetch("select id from orders where id = 77") == []
        assert await transaction.fetch("delete from orders where id = 1") == []
        assert len(await transaction.fetch("select id from orders")) == 2


async def test_parameters_go_by_their_numbers(storage: Storage, orders: None) -> None:
    """`$1` on both engines: twice, out of order, and with two digits."""
    async with begun(storage) as transaction:
        sql = "insert into orders (id, note) values ($2, $1), ($3, $1) returning id, note"
        assert [tuple(row.values()) for row in await transaction.fetch(sql, "n", 1, 2)] == [(1, "n"), (2, "n")]
        names = [f"cast(${number} as integer) as c{number}" for number in (10, 2, 1, 3, 4, 5, 6, 7, 8, 9)]
        (row,) = await transaction.fetch(f"select {', '.join(names)}, cast($1 as integer) as again", *range(1, 11))
        assert [row[name] for name in ("c1", "c2", "c9", "c10", "again")] == [1, 2, 9, 10, 1]
        (row,) = await transaction.fetch("select '$1' as text, cast($1 as integer) as number", 5)
        assert tuple(row.values()) == ("$1", 5)
        assert await transaction.execute("update orders set note = $1, size = $2", None, 0.25) == 2
        assert await transaction.fetch("select distinct note, size from orders") == [{"note": None, "size": 0.25}]


@pytest.mark.parametrize("given", [(), (1,), (1, 2, 3)])
async def test_parameters_that_are_missing_or_left_over_are_refused(
    storage: Storage, orders: None, given: tuple[int, ...]
) -> None:
    async with begun(storage) as transaction:
        with pytest.raises(PersistenceError, match=str(len(given))) as caught:
            await transaction.fetch("select id from orders where id > $1 and id < $2", *given)
        assert caught.value.outcome == "refused"


async def test_a_value_that_the_database_cannot_take_is_refused(storage: Storage, orders: None) -> None:
    for value in (object(), 2**70):
        async with begun(storage) as transaction:
            with pytest.raises(PersistenceError):
                await transaction.execute("insert into orders (id) values ($1)", value)


@pytest.mark.parametrize(
    "sql",
    [
        "begin",
        "commit",
        " -- the end\n COMMIT",
        "/* the end */ end",
        "rollback",
        "savepoint one",
        "release one",
        "select 1; select 2",
        "insert into orders values (5, 'x', null); commit",
    ],
)
async def test_what_would_end_the_transaction_is_refused(
    storage: Storage, claim: Claim, orders: None, sql: str
) -> None:
    transaction = storage.transaction(limit_s=LONG_S)
    await transaction.execute("insert into orders values (1, 'one', null)")
    with pytest.raises(PersistenceError) as caught:
        await transaction.execute(sql)
    assert caught.value.outcome == "refused"
    await transaction.rollback()
    assert await found(storage) == []


@pytest.mark.parametrize("table", ["kv", "messages", "seats", "secrets", "states", "migrations"])
async def test_coteries_own_tables_are_out_of_bounds(storage: Storage, orders: None, url: str, table: str) -> None:
    name = table if url.startswith("sqlite") else f"coterie.{table}"
    statements = [
        f"delete from {name}",
        f"select * from {name}",
        f"insert into orders (id) select count(*) from {name}",
        f"with gone as (select 1) delete from {name.upper()}",
        f"create index mine on {name} (cluster)",
        f"drop table {name}",
        f"alter table {name} add column mine integer",
    ]
    for sql in statements:
        async with begun(storage) as transaction:
            with pytest.raises(PersistenceError, match="coterie") as caught:
                await transaction.execute(sql)
            assert caught.value.outcome == "refused", sql


async def test_a_semicolon_or_a_comment_behind_a_statement_is_fine(storage: Storage, orders: None) -> None:
    async with begun(storage) as transaction:
        assert await transaction.execute("insert into orders (id) values (1);") == 1
        assert await transaction.execute("insert into orders (id) values (2) ; -- that is all") == 1


# The limit


async def begun_in_time(
    storage: Storage, statement: str, *, limit_s: float, later: bool = False
) -> tuple[Transaction, float]:
    """A transaction whose first statement ended within its limit, and the limit: a longer one on a busy machine.

    Args:
        later: Make the statement when the limit has passed since the transaction was made.
    """
    for _ in range(5):
        transaction = storage.transaction(limit_s=limit_s)
        if later:
            await asyncio.sleep(1.1 * limit_s)
        try:
            await transaction.execute(statement)
        except TransactionTimeout:
            limit_s *= 3
        else:
            return transaction, limit_s
    raise AssertionError("no statement ends within its limit")


async def late(transaction: Transaction) -> TransactionTimeout:
    """Wait until its time is over, without touching the database."""
    async with asyncio.timeout(120):
        while True:
            await asyncio.sleep(0.01)
            try:
                await transaction.fetch("select 1 as one")
            except TransactionTimeout as error:
                return error


async def test_past_the_limit_everything_raises_and_nothing_is_written(
    storage: Storage, claim: Claim, orders: None
) -> None:
    """m18."""
    await storage.messages.insert(message(1))
    transaction, limit_s = await begun_in_time(storage, "insert into orders values (1, 'one', null)", limit_s=0.3)
    error = await late(transaction)
    assert error.limit_s == limit_s
    assert error.waited_s >= limit_s
    uses = [
        transaction.execute("insert into orders values (2, 'two', null)"),
        transaction.fetch("select id from orders"),
        transaction.commit(Commit(claim, message=id_of(1))),
    ]
    for use in uses:
        with pytest.raises(TransactionTimeout):
            await use
    await transaction.rollback()
    assert await found(storage) == []
    assert await statuses(storage, 1) == ["pending"]


async def test_the_time_counts_from_the_first_statement(storage: Storage, claim: Claim, orders: None) -> None:
    transaction, _ = await begun_in_time(storage, "insert into orders values (1, 'one', null)", limit_s=0.3, later=True)
    await transaction.rollback()


async def test_what_it_holds_is_free_at_the_limit_while_the_users_code_hangs(
    storage: Storage, claim: Claim, orders: None
) -> None:
    """C3: an await of something else inside of the block does not stop others for longer."""
    await told(storage, claim, "insert into orders values (1, 'old', null)")
    held, forever = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        transaction, _ = await begun_in_time(storage, "update orders set note = 'held'", limit_s=0.5)
        try:
            held.set()
            await forever.wait()
        finally:
            await transaction.rollback()

    hanging = asyncio.create_task(hang())
    await held.wait()
    async with asyncio.timeout(120):
        await storage.kv.put(KvPut("k", b"v", 1))
        assert await told(storage, claim, "update orders set note = 'new' where id = 1") == "written"
    assert not hanging.done()
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)
    assert await found(storage) == [(1, "new")]


async def test_a_statement_that_runs_past_the_limit_is_cut_short(
    storage: Storage, claim: Claim, orders: None, url: str
) -> None:
    """On PostgreSQL the server ends it as well: what it had locked is free."""
    if url == "sqlite://":
        pytest.skip("in memory a statement runs to its end")
    endless = "with recursive n (i) as (select 1 union all select i + 1 from n) select count(*) as n from n"
    await told(storage, claim, "insert into orders values (1, 'old', null)")
    transaction, _ = await begun_in_time(storage, "update orders set note = 'held'", limit_s=0.4)
    with pytest.raises(TransactionTimeout):
        await transaction.fetch(endless if url.startswith("sqlite") else "select pg_sleep(600)")
    async with asyncio.timeout(120):
        assert await told(storage, claim, "update orders set note = 'new'") == "written"


# Others


async def test_more_transactions_than_there_is_room_for_take_turns(
    storage: Storage, claim: Claim, orders: None
) -> None:
    await told(storage, claim, "insert into orders values (1, '', 0)")

    async def add() -> None:
        transaction = storage.transaction(limit_s=LONG_S)
        await transaction.execute("update orders set size = size + 1 where id = 1")
        await transaction.fetch("select size from orders where id = 1")
        assert await transaction.commit(Commit(claim)) == "written"

    async with asyncio.timeout(120):
        results = await asyncio.gather(*(add() for _ in range(20)), return_exceptions=True)
    failed = [error for error in results if error is not None]
    # In memory those that met another one are refused; elsewhere they wait for each other.
    assert all(isinstance(error, PersistenceError) and "somebody wrote" in error.message for error in failed)
    assert await found(storage, "select size from orders") == [(20 - len(failed),)]


async def test_one_that_is_used_by_several_tasks_runs_one_statement_at_a_time(
    storage: Storage, claim: Claim, orders: None
) -> None:
    transaction = storage.transaction(limit_s=LONG_S)
    inserts = (transaction.execute("insert into orders (id) values ($1)", number) for number in range(10))
    assert await asyncio.gather(*inserts) == [1] * 10
    assert await transaction.commit(Commit(claim)) == "written"
    assert len(await found(storage)) == 10


async def test_a_caller_that_is_cancelled_leaves_nothing_behind(storage: Storage, claim: Claim, orders: None) -> None:
    for number in range(20):
        transaction = storage.transaction(limit_s=LONG_S)
        task = asyncio.create_task(transaction.execute("insert into orders (id) values ($1)", number))
        await asyncio.sleep(0.0005 * number)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await transaction.rollback()
    assert await found(storage) == []
    assert await told(storage, claim, "insert into orders (id, note) values (1, 'after')") == "written"


async def test_a_rollback_from_elsewhere_ends_what_runs(storage: Storage, orders: None, url: str) -> None:
    if url == "sqlite://":
        pytest.skip("in memory a statement runs to its end")
    endless = "with recursive n (i) as (select 1 union all select i + 1 from n) select count(*) as n from n"
    transaction = storage.transaction(limit_s=LONG_S)
    await transaction.execute("insert into orders (id) values (1)")
    running = asyncio.create_task(transaction.fetch(endless if url.startswith("sqlite") else "select pg_sleep(600)"))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(120):
        await transaction.rollback()
        with pytest.raises(PersistenceError):
            await running
    assert await found(storage) == []


async def test_a_storage_stops_with_transactions_open(url: str) -> None:
    """What is open is rolled back, and its user is told."""
    async with asyncio.timeout(120):
        async with opened(url) as storage, joined(storage, A) as session:
            claim = await take(session, A)
            await told(storage, claim, "create table orders (id integer primary key)")
            transactions = [storage.transaction(limit_s=LONG_S) for _ in range(3)]
            await transactions[0].execute("insert into orders values (1)")
            await transactions[1].fetch("select id from orders")
        for transaction in transactions:
            with pytest.raises((PersistenceError, ShuttingDown)):
                await transaction.execute("insert into orders values (2)")
            with pytest.raises((PersistenceError, ShuttingDown)):
                await transaction.commit(Commit(claim))
            await transaction.rollback()
        with pytest.raises(ShuttingDown):
            storage.transaction(limit_s=1)
        if url != "sqlite://":
            async with opened(url) as again:
                assert await found(again, "select id from orders") == []
