"""`via=`: what is sent commits with the user's rows, on the user's own connection, or not at all (O1)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from coterie import (
    Cluster,
    Entity,
    InvalidArgument,
    Job,
    KeyConflict,
    MessageExpired,
    NotCommitted,
    Task,
    Workflow,
    rpc,
)
from tests.support.postgres import Server
from tests.unit.interop.user_connections import (
    ASYNCHRONOUS,
    BLOCKING,
    EVERY,
    AlchemyConnection,
    AlchemyScopedSession,
    AlchemySession,
    AsyncAlchemyConnection,
    Asyncpg,
    AsyncPsycopg,
    Django,
    Psycopg,
    UserProgram,
    django_model,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


FAR = "2m"
RARE = (AlchemyConnection, AlchemyScopedSession, AsyncAlchemyConnection)
EACH = [pytest.param(kind, id=kind.__name__, marks=[pytest.mark.nightly] if kind in RARE else []) for kind in EVERY]
"""Every night all of them: by day some that differ in how their connection is found only are left out."""
pytestmark = pytest.mark.postgres


ran: list[str] = []
"""The orders that were confirmed by this process."""


class Orders(Entity[None]):
    """What is sent to."""

    @rpc(persisted=True, key="order")
    async def confirm(self, order: str, cents: int) -> int:
        ran.append(order)
        return cents

    @rpc(persisted=True)
    async def note(self, text: str) -> str:
        return text

    @rpc
    async def volatile(self) -> int:
        return 0


async def ship(workflow: Workflow, order: str) -> str:
    return await workflow.step("pack", lambda: packed(order))


async def packed(order: str) -> str:
    return f"{order} is packed"


def program(url: str, *, migrate: bool = False) -> Cluster:
    cluster = Cluster(url, shards=3, migrate=migrate)
    cluster.entity(Orders)
    cluster.workflow(ship)
    cluster.task(key="order")(invoice)
    return cluster


async def invoice(order: str, cents: int = 0) -> int:
    ran.append(order)
    return cents


def job(cluster: Cluster, order: str, cents: int = 0) -> Job[int]:
    """A job of the task of a cluster."""
    made = Task[[str, int], int, Any](cluster._program.tasks.named("invoice"), cluster._program.job_caller)
    return made.job(order, cents)


@pytest.fixture
async def cluster(postgres_url: str) -> AsyncIterator[Cluster]:
    cluster = program(postgres_url)
    async with cluster:
        await cluster.ready(timeout=FAR)
        yield cluster


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """Somebody who looks at the user's rows."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(postgres_url, timeout=120)
    await connection.execute("create table rows (n integer primary key)")
    yield connection
    await connection.close()


@asynccontextmanager
async def begun(kind: Any, url: str, cluster: Cluster) -> AsyncIterator[UserProgram]:
    user = UserProgram(kind, url, cluster)
    await user.begin()
    try:
        yield user
    finally:
        await user.close()


async def rows_of(database: asyncpg.Connection[Any]) -> list[int]:
    return [row[0] for row in await database.fetch("select n from rows order by n")]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
async def test_rows_messages_and_runs_commit_together(
    kind: Any, postgres_url: str, cluster: Cluster, database: asyncpg.Connection[Any]
) -> None:
    orders = cluster.ref(Orders, "a")
    async with begun(kind, postgres_url, cluster) as user:
        await user.insert(1)
        message = await user.ask("send", orders.confirm("o-1", 500))
        notes = await user.ask("send_many", [orders.note(f"n{number}") for number in range(3)])
        run = await user.ask("start_workflow", ship, "o-1", id="o-1")
        with pytest.raises(NotCommitted, match="commit that transaction first"):
            await cluster.result(message)
        assert await rows_of(database) == []
        assert await cluster.messages.list() == []
        assert await cluster.workflows.list() == []
        await user.commit()
    assert await rows_of(database) == [1]
    assert await cluster.result(message, timeout=FAR) == 500
    assert [await cluster.result(each, timeout=FAR) for each in notes] == ["n0", "n1", "n2"]
    assert await cluster.workflow_handle(ship, run.id).result(timeout=FAR) == "o-1 is packed"


@pytest.mark.parametrize("kind", EACH)
async def test_jobs_commit_with_the_users_rows(
    kind: Any, postgres_url: str, cluster: Cluster, database: asyncpg.Connection[Any]
) -> None:
    """Or never, as those after a savepoint that is rolled back. A key is one job."""
    ran.clear()
    first = await cluster.send(job(cluster, "o-1", 5))
    assert await cluster.result(first, timeout=FAR) == 5
    async with begun(kind, postgres_url, cluster) as user:
        await user.insert(1)
        assert await user.ask("send", job(cluster, "o-1", 5)) == first
        kept = await user.ask("send", job(cluster, "o-2", 7), priority=9, tags={"order": "o-2"})
        with pytest.raises(KeyConflict, match="o-2"):
            await user.ask("send", job(cluster, "o-2", 8))
        with pytest.raises(NotCommitted, match="commit that transaction first"):
            await cluster.result(kept)
        many = await user.ask("send_many", [job(cluster, f"m-{number}") for number in range(3)])
        await user.savepoint()
        undone = await user.ask("send", job(cluster, "o-3"))
        await user.back()
        assert await cluster.jobs.list(state="ready") == []
        await user.commit()
    for each, expected in ((kept, 7), *((each, 0) for each in many)):
        assert await cluster.result(each, timeout=FAR) == expected
    (shown,) = await cluster.jobs.list(tag=("order", "o-2"))
    assert (shown.id, shown.priority) == (kept, 9)
    with pytest.raises(MessageExpired):
        await cluster.result(undone)
    async with begun(kind, postgres_url, cluster) as user:
        gone = await user.ask("send", job(cluster, "o-4"))
        await user.rollback()
    assert {each.id for each in await cluster.jobs.list()} == {first, kept, *many}
    assert gone not in {first, kept}
    assert sorted(ran) == ["m-0", "m-1", "m-2", "o-1", "o-2"]
    assert await rows_of(database) == [1]


@pytest.mark.parametrize("kind", EACH)
async def test_what_is_rolled_back_never_was(
    kind: Any, postgres_url: str, cluster: Cluster, database: asyncpg.Connection[Any]
) -> None:
    """As a whole, and to a savepoint: what was sent after it is gone, though the transaction commits.

    No handler sees it, though the owner is woken by that commit.
    """
    ran.clear()
    orders = cluster.ref(Orders, "a")
    async with begun(kind, postgres_url, cluster) as user:
        await user.insert(1)
        undone = [await user.ask("send", orders.confirm("o-1", 500))]
        await user.ask("start_workflow", ship, "o-1", id="undone")
        await user.rollback()
    async with begun(kind, postgres_url, cluster) as user:
        await user.insert(2)
        kept = await user.ask("send", orders.confirm("o-2", 500))
        await user.savepoint()
        await user.insert(3)
        undone += [await user.ask("send", orders.confirm("o-3", 500))]
        await user.back()
        await user.commit()
    assert await cluster.result(kept, timeout=FAR) == 500
    assert await rows_of(database) == [2]
    assert [each.id for each in await cluster.messages.list()] == [kept]
    assert await cluster.workflows.list() == []
    assert ran == ["o-2"]
    for each in undone:
        with pytest.raises(MessageExpired):
            await cluster.result(each)


@pytest.mark.parametrize("kind", EACH)
async def test_a_key_is_one_message_also_within_the_transaction(
    kind: Any, postgres_url: str, cluster: Cluster, database: asyncpg.Connection[Any]
) -> None:
    """Also of one that was stored before. A conflict ends neither the transaction nor what else is in it."""
    orders = cluster.ref(Orders, "a")
    first = await cluster.send(orders.confirm("o-1", 500))
    async with begun(kind, postgres_url, cluster) as user:
        await user.insert(1)
        assert await user.ask("send", orders.confirm("o-1", 500)) == first
        second = await user.ask("send", orders.confirm("o-2", 7))
        assert await user.ask("send_many", [orders.confirm("o-2", 7), orders.confirm("o-1", 500)]) == [second, first]
        with pytest.raises(KeyConflict, match="o-1"):
            await user.ask("send", orders.confirm("o-1", 501))
        with pytest.raises(KeyConflict, match="o-2"):
            await user.ask("send", orders.confirm("o-2", 501))
        await user.ask("start_workflow", ship, "o-1", id="o-1")
        await user.ask("start_workflow", ship, "o-1", id="o-1")
        with pytest.raises(KeyConflict, match="o-1"):
            await user.ask("start_workflow", ship, "o-2", id="o-1")
        await user.commit()
    assert await rows_of(database) == [1]
    assert await cluster.result(second, timeout=FAR) == 7


async def test_many_are_sent_in_one_transaction_each_key_once(postgres_url: str, cluster: Cluster) -> None:
    orders = cluster.ref(Orders, "a")
    async with begun(AsyncPsycopg, postgres_url, cluster) as user:
        ids = await user.ask("send_many", [orders.confirm(f"o-{number % 600}", number % 600) for number in range(1200)])
        await user.commit()
    assert ids[:600] == ids[600:]
    assert await cluster.result(ids[1199], timeout=FAR) == 599


async def test_a_message_may_be_sent_for_later_and_with_options(postgres_url: str, cluster: Cluster) -> None:
    orders = cluster.ref(Orders, "a")
    async with begun(AsyncPsycopg, postgres_url, cluster) as user:
        late = await user.ask("send", orders.note("late"), delay="1h", key="own")
        await user.commit()
    (found,) = await cluster.messages.list()
    assert found.id == late
    assert found.key is not None
    assert (found.due_at - found.sent_at).total_seconds() == 3600


# What is refused


@pytest.mark.parametrize("kind", [Asyncpg, AsyncPsycopg, Psycopg, AlchemySession, Django])
async def test_a_connection_that_would_commit_by_itself_is_refused(
    kind: Any, postgres_url: str, cluster: Cluster
) -> None:
    user = UserProgram(kind, postgres_url, cluster)
    await user.begin()
    await user.rollback()
    inner = user._program
    if kind is AsyncPsycopg:
        await inner.via.set_autocommit(True)
    elif kind is Psycopg:
        inner.via.autocommit = True
    elif kind is AlchemySession:
        inner.via = inner._engine.execution_options(isolation_level="AUTOCOMMIT").connect()
    with pytest.raises(InvalidArgument, match="no transaction open") as refused:
        await user.ask("send", cluster.ref(Orders, "a").note("x"))
    assert refused.value.hint.startswith("open one: ")
    await user.close()
    assert await cluster.messages.list() == []


async def test_autocommit_with_a_transaction_block_of_psycopg_is_a_transaction(
    postgres_url: str, cluster: Cluster
) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        await connection.execute("select 1")
        async with connection.transaction():
            message = await cluster.send(cluster.ref(Orders, "a").note("x"), via=connection)
            assert await cluster.messages.list() == []
    assert await cluster.result(message, timeout=FAR) == "x"


@pytest.mark.parametrize("has_tables", [True, False])
async def test_another_database_is_refused(
    has_tables: bool, cluster: Cluster, postgres_server: Server, postgres_template: str
) -> None:
    """One with a cluster of its own too, in which the message would run."""
    name = postgres_server.create_database(template=postgres_template if has_tables else "template1")
    other = await asyncpg.connect(postgres_server.url(name), timeout=120)
    error = InvalidArgument if has_tables else asyncpg.UndefinedTableError
    async with other.transaction():
        with pytest.raises(error) as refused:
            await cluster.send(cluster.ref(Orders, "a").note("x"), via=other)
    if has_tables:
        with pytest.raises(InvalidArgument, match="another database"):
            async with other.transaction():
                await cluster.start_workflow(ship, "x", id="x", via=other)
        assert await other.fetchval("select count(*) from coterie.messages") == 0
    else:
        assert "is this the database of the cluster" in refused.value.__notes__[0]
    await other.close()
    postgres_server.drop_database(name)


async def test_a_connection_is_given_where_it_belongs(postgres_url: str, cluster: Cluster) -> None:
    """A connection that blocks would block the loop; one that is awaited belongs to its loop."""
    call = cluster.ref(Orders, "a").note
    for blocking in BLOCKING:
        async with begun(blocking, postgres_url, cluster) as user:
            with pytest.raises(TypeError, match=r"cluster\.sync\(\)"):
                await cluster.send(call("x"), via=user._program.via)
    for kind in ASYNCHRONOUS:
        async with begun(kind, postgres_url, cluster) as user:

            def send(via: Any) -> None:
                with cluster.sync() as c:
                    c.send(call("x"), via=via)

            with pytest.raises(TypeError, match="belongs to an event loop"):
                await asyncio.to_thread(send, user._program.via)
    assert await cluster.messages.list() == []


async def test_what_is_no_connection_is_refused(postgres_url: str, cluster: Cluster) -> None:
    orders = cluster.ref(Orders, "a")
    engine = create_async_engine(postgres_url.replace("postgresql://", "postgresql+asyncpg://"))
    for via in (object(), engine, "default", asyncpg):
        with pytest.raises(TypeError, match="give what the rows of your transaction are written with"):
            await cluster.send(orders.note("x"), via=via)
    with pytest.raises(TypeError, match="via= is for persisted rpcs"):
        await cluster.send(orders.volatile(), via=engine)
    lite = sqlalchemy.create_engine("sqlite://").connect()

    def send() -> None:
        with cluster.sync() as c:
            c.send(orders.note("x"), via=lite)

    with pytest.raises(InvalidArgument, match="to sqlite"):
        await asyncio.to_thread(send)
    lite.close()


async def test_a_cluster_in_a_file_has_no_connections_of_users(postgres_url: str, tmp_path: Path) -> None:
    cluster = Cluster(f"sqlite:///{tmp_path}/alone.db")
    cluster.entity(Orders)
    cluster.workflow(ship)
    connection = await asyncpg.connect(postgres_url, timeout=120)
    async with cluster.connect(), connection.transaction():
        for ask in (
            cluster.send(cluster.ref(Orders, "a").note("x"), via=connection),
            cluster.start_workflow(ship, "x", id="x", via=connection),
        ):
            with pytest.raises(InvalidArgument, match=r"cluster\.transaction\(\)"):
                await ask
    await connection.close()


async def test_rights_that_are_missing_are_named(postgres_url: str, cluster: Cluster) -> None:
    """The driver's error stays what it is; with select and insert on the table it works."""
    connection = await asyncpg.connect(postgres_url, timeout=120)
    await connection.execute("create role shop; grant shop to current_user")
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError) as refused:  # noqa: PT012 it ends its transaction
            async with connection.transaction():
                await connection.execute("set local role shop")
                await cluster.send(cluster.ref(Orders, "a").note("x"), via=connection)
        assert "grant usage on schema coterie" in refused.value.__notes__[0]
        await connection.execute("grant usage on schema coterie to shop")
        await connection.execute("grant select, insert on coterie.messages to shop")
        async with connection.transaction():
            await connection.execute(
                "set local role shop; set local search_path = ''; set local timezone = 'Asia/Tokyo'"
            )
            message = await cluster.send(cluster.ref(Orders, "a").confirm("o-1", 5), via=connection)
            assert await cluster.send(cluster.ref(Orders, "a").confirm("o-1", 5), via=connection) == message
        assert await cluster.result(message, timeout=FAR) == 5
    finally:
        await connection.execute("drop owned by shop; drop role shop")
        await connection.close()


async def test_a_snapshot_cannot_see_a_key_that_was_committed_since(postgres_url: str, cluster: Cluster) -> None:
    """At REPEATABLE READ and above: the user's transaction fails as with rows of its own, and is tried again."""
    orders = cluster.ref(Orders, "a")
    connection = await asyncpg.connect(postgres_url, timeout=120)
    with pytest.raises(asyncpg.SerializationError) as refused:  # noqa: PT012 it ends its transaction
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetchval("select 1")
            message = await cluster.send(orders.confirm("o-1", 5))
            await cluster.send(orders.confirm("o-1", 5), via=connection)
    assert "try the transaction again" in refused.value.__notes__[0]
    async with connection.transaction(isolation="serializable"):
        assert await cluster.send(orders.confirm("o-1", 5), via=connection) == message
    await connection.close()


async def test_a_prepared_transaction_is_waited_for() -> None:
    """Two-phase commit needs nothing more, if the server allows it."""
    with closing(Server(options={"max_prepared_transactions": "2"})) as server:
        server.start()
        url = server.url(server.create_database())
        cluster = program(url, migrate=True)
        async with cluster:
            await cluster.ready(timeout=FAR)
            connection = await asyncpg.connect(url, timeout=120)
            await connection.execute("begin")
            message = await cluster.send(cluster.ref(Orders, "a").confirm("o-1", 5), via=connection)
            await connection.execute("prepare transaction 'p'")
            with pytest.raises(NotCommitted):
                await cluster.result(message)
            await connection.execute("commit prepared 'p'")
            assert await cluster.result(message, timeout=FAR) == 5
            await connection.close()


async def test_a_client_sends_for_runners_elsewhere(postgres_url: str, cluster: Cluster) -> None:
    """Whoever sends is told of the commit, and wakes the owner over the network."""
    other = program(postgres_url)
    connection = await asyncpg.connect(postgres_url, timeout=120)
    async with other.connect():
        for number in range(3):
            async with connection.transaction():
                message = await other.send(other.ref(Orders, f"a{number}").confirm("o-1", number), via=connection)
            assert await cluster.result(message, timeout=FAR) == number
    await connection.close()


@pytest.fixture
def django_table(postgres_url: str) -> Iterator[Any]:
    """In this thread."""
    from django.db import connection

    made = django_model(postgres_url)
    with connection.schema_editor() as editor:
        editor.create_model(made)
    yield made
    connection.close()


def test_an_orm_row_and_a_message_commit_together_in_a_view(postgres_url: str, django_table: Any) -> None:
    """Django: as its documentation writes it, and not a line more."""
    from django.db import connection, transaction

    cluster = program(postgres_url)
    with cluster.sync() as c:
        with transaction.atomic():
            django_table.objects.create(n=1)
            kept = c.send(c.ref(Orders, "a").confirm("o-1", 5), via=connection)
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012 as above
            django_table.objects.create(n=2)
            c.send(c.ref(Orders, "a").confirm("o-2", 1 // django_table.objects.filter(n=3).count()), via=connection)
        assert [row.n for row in django_table.objects.all()] == [1]
        found = c.run(lambda: cluster.messages.list())
        assert [each.id for each in found] == [kept]
        c.disconnect()
