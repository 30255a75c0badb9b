"""Recognises users' database connections and runs one statement on them, whatever the driver: for `via=`.

| what is given | where the statement runs |
|---|---|
| asyncpg `Connection`, also of a pool | on it |
| psycopg 3 `Connection`, `AsyncConnection` | on a cursor of it |
| SQLAlchemy `Session`, `scoped_session`, `AsyncSession`, `Connection`, `AsyncConnection` | on its connection |
| Django's `connection` | on a cursor of it |

No driver is imported before an object of it is given. What a driver raises reaches the user as it is: programs and
their frameworks know it, and tell by it what to retry. A note says what coterie knows beyond it.

Nothing is set on a connection and nothing of it is committed. A connection that would commit each statement by itself
is refused: the message would not be part of the user's transaction.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from coterie.errors import InvalidArgument
from coterie.interop.loop_thread import in_waiting_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from coterie.storage.contracts.user_writes import Statement, UserWrite

    Rows = Sequence[Sequence[Any]]

T = TypeVar("T")

_PARAMETER = re.compile(r"\$(\d+)")

_NOTES = {
    "42P01": "coterie's tables are not there: is this the database of the cluster, and was `coterie migrate` run?",
    "3F000": "coterie's tables are not there: is this the database of the cluster, and was `coterie migrate` run?",
    "42501": "with via= the role of your connection writes coterie's tables: grant usage on schema coterie, and "
    "select, insert on coterie.messages and coterie.units to it",
    "40001": "at this isolation level a key that was committed since the transaction began cannot be read: try the "
    "transaction again",
}
"""What to do about errors of the server, by SQLSTATE."""


class UserConnection(Protocol):
    """A user's connection, as it is used on the loop of the cluster."""

    async def require_transaction(self) -> None:
        """Refuse a connection that would commit each statement by itself."""
        ...

    async def fetch(self, statement: Statement, /) -> Rows:
        """The rows of a statement."""
        ...


class BlockingConnection(Protocol):
    """A user's connection that blocks, as it is used in its own thread."""

    def require_transaction(self) -> None:
        """Refuse a connection that would commit each statement by itself."""
        ...

    def fetch(self, statement: Statement, /) -> Rows:
        """The rows of a statement."""
        ...


class ThreadConnection:
    """A connection that blocks, for a call of `cluster.sync()`: used in the thread that waits for that call."""

    def __init__(self, connection: BlockingConnection) -> None:
        self._connection = connection

    async def require_transaction(self) -> None:
        """Refuse a connection that would commit each statement by itself."""
        await in_waiting_thread(self._connection.require_transaction)

    async def fetch(self, statement: Statement) -> Rows:
        """The rows of a statement."""
        return await in_waiting_thread(lambda: self._connection.fetch(statement))


async def run_on(connection: UserConnection, write: UserWrite[T]) -> T:
    """Run a write on a user's connection, and return its result."""
    await connection.require_transaction()
    rows: Rows | None = None
    while True:
        try:
            statement = write.send(cast("Rows", rows))
        except StopIteration as end:
            return cast("T", end.value)
        with _noted():
            rows = await connection.fetch(statement)


def awaited(via: object) -> UserConnection:
    """A user's connection for `await cluster.send(…, via=…)`.

    Raises:
        TypeError: It is none that is known, or one that blocks.
    """
    found = via if isinstance(via, ThreadConnection) else _recognised(via)
    if not isinstance(found, _AWAITED):
        raise TypeError(
            f"via is {_named(via)}, which would block the event loop: give an asynchronous one, or use it in a thread "
            f"of its own, with `with cluster.sync() as c: c.send(…, via=…)`"
        )
    return found


def blocking(via: object) -> ThreadConnection:
    """A user's connection for `c.send(…, via=…)` of `cluster.sync()`.

    Raises:
        TypeError: It is none that is known, or one that is awaited.
    """
    found = _recognised(via)
    if isinstance(found, _AWAITED):
        raise TypeError(
            f"via is {_named(via)}, which belongs to an event loop: `await cluster.send(…, via=…)` there, or give one "
            f"that blocks"
        )
    return ThreadConnection(found)


# The drivers


class AsyncpgConnection:
    """asyncpg."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def require_transaction(self) -> None:
        """Outside of `async with connection.transaction()` each statement commits by itself."""
        if not self._connection.is_in_transaction():
            raise _no_transaction("an asyncpg connection", "async with connection.transaction():")

    async def fetch(self, statement: Statement) -> Rows:
        """The rows of a statement."""
        return cast("Rows", await self._connection.fetch(statement.sql, *statement.values))


class PsycopgConnection:
    """psycopg 3, blocking."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def require_transaction(self) -> None:
        """With autocommit there is a transaction in `with connection.transaction()` only."""
        _require_psycopg_transaction(self._connection, "with connection.transaction():")

    def fetch(self, statement: Statement) -> Rows:
        """The rows of a statement."""
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        # Of this class, whatever cursor_factory and row_factory the connection has.
        with Cursor(self._connection, row_factory=tuple_row) as cursor:
            return cursor.execute(*_by_name(statement)).fetchall()


class AsyncPsycopgConnection:
    """psycopg 3, awaited."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def require_transaction(self) -> None:
        """With autocommit there is a transaction in `async with connection.transaction()` only."""
        _require_psycopg_transaction(self._connection, "async with connection.transaction():")

    async def fetch(self, statement: Statement) -> Rows:
        """The rows of a statement."""
        from psycopg import AsyncCursor
        from psycopg.rows import tuple_row

        async with AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            return await (await cursor.execute(*_by_name(statement))).fetchall()


class AlchemyConnection:
    """SQLAlchemy: a session or a connection, which begin a transaction by themselves."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def require_transaction(self) -> None:
        """With the isolation level AUTOCOMMIT there is none."""
        _require_alchemy_transaction(self._connection())

    def fetch(self, statement: Statement) -> Rows:
        """The rows of a statement."""
        connection = self._connection()
        return cast("Rows", connection.exec_driver_sql(*_by_style(connection, statement)).fetchall())

    def _connection(self) -> Any:
        """That of a session, which begins its transaction."""
        from sqlalchemy import Connection

        return self._given if isinstance(self._given, Connection) else self._given.connection()


class AsyncAlchemyConnection:
    """The same, awaited."""

    def __init__(self, given: Any) -> None:
        self._given = given

    async def require_transaction(self) -> None:
        """With the isolation level AUTOCOMMIT there is none."""
        _require_alchemy_transaction((await self._connection()).sync_connection)

    async def fetch(self, statement: Statement) -> Rows:
        """The rows of a statement."""
        connection = await self._connection()
        told = await connection.exec_driver_sql(*_by_style(connection.sync_connection, statement))
        return cast("Rows", told.fetchall())

    async def _connection(self) -> Any:
        from sqlalchemy.ext.asyncio import AsyncConnection

        if not isinstance(self._given, AsyncConnection):
            return await self._given.connection()
        if self._given.sync_connection is None:
            await self._given.start()
        return self._given


class DjangoConnection:
    """Django: the connection of this thread."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def require_transaction(self) -> None:
        """Outside of `transaction.atomic()` Django commits each statement."""
        if self._connection.vendor != "postgresql":
            raise _not_postgres(f"Django's connection to {self._connection.vendor}")
        if not self._connection.in_atomic_block and self._connection.get_autocommit():
            raise _no_transaction("Django's connection", "with transaction.atomic():")

    def fetch(self, statement: Statement) -> Rows:
        """The rows of a statement."""
        with self._connection.cursor() as cursor:
            cursor.execute(*_by_name(statement))
            return cast("Rows", cursor.fetchall())


_AWAITED = (ThreadConnection, AsyncpgConnection, AsyncPsycopgConnection, AsyncAlchemyConnection)


def _recognised(via: object) -> Any:
    packages = {cls.__module__.partition(".")[0] for cls in type(via).__mro__}
    for package, recognise in _BY_PACKAGE.items():
        if package in packages and (found := recognise(via)) is not None:
            return found
    raise TypeError(
        f"via is {_named(via)}: give what the rows of your transaction are written with: an asyncpg or psycopg "
        f"connection, a SQLAlchemy session or connection, Django's connection, or what `cluster.transaction()` gave"
    )


def _asyncpg(via: object) -> AsyncpgConnection | None:
    from asyncpg import Connection  # noqa: TID251 the user's, told by its class
    from asyncpg.pool import PoolConnectionProxy  # noqa: TID251

    return AsyncpgConnection(via) if isinstance(via, Connection | PoolConnectionProxy) else None


def _psycopg(via: object) -> PsycopgConnection | AsyncPsycopgConnection | None:
    from psycopg import AsyncConnection, Connection

    if isinstance(via, AsyncConnection):
        return AsyncPsycopgConnection(via)
    return PsycopgConnection(via) if isinstance(via, Connection) else None


def _sqlalchemy(via: object) -> AlchemyConnection | AsyncAlchemyConnection | None:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    if isinstance(via, AsyncConnection | AsyncSession | async_scoped_session):
        return AsyncAlchemyConnection(via)
    return AlchemyConnection(via) if isinstance(via, Connection | Session | scoped_session) else None


def _django(via: object) -> DjangoConnection | None:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.utils.connection import ConnectionProxy

    return DjangoConnection(via) if isinstance(via, BaseDatabaseWrapper | ConnectionProxy) else None


_BY_PACKAGE = {"asyncpg": _asyncpg, "psycopg": _psycopg, "sqlalchemy": _sqlalchemy, "django": _django}


def _require_psycopg_transaction(connection: Any, begin: str) -> None:
    from psycopg.pq import TransactionStatus

    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise _no_transaction("a psycopg connection with autocommit", begin)


def _require_alchemy_transaction(connection: Any) -> None:
    if connection.dialect.name != "postgresql":
        raise _not_postgres(f"a SQLAlchemy connection to {connection.dialect.name}")
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise _no_transaction("a SQLAlchemy connection with AUTOCOMMIT", "leave that isolation level out")


def _by_style(connection: Any, statement: Statement) -> tuple[str, Any]:
    """A statement in the way that the driver of a SQLAlchemy connection takes it."""
    style = connection.dialect.paramstyle
    if style == "numeric_dollar":
        return statement
    if style == "pyformat":
        return _by_name(statement)
    raise TypeError(
        f"via is a SQLAlchemy connection with the driver {connection.dialect.driver}, which is not known: use asyncpg, "
        f"psycopg or psycopg2"
    )


def _by_name(statement: Statement) -> tuple[Any, dict[str, Any]]:
    return _with_names(statement.sql), {f"p{number}": value for number, value in enumerate(statement.values, 1)}


@cache
def _with_names(sql: str) -> str:
    assert "%" not in sql, "a percent sign is the driver's"
    return _PARAMETER.sub(r"%(p\1)s", sql)


@contextmanager
def _noted() -> Iterator[None]:
    """Add what to do to an error of the server; it stays what it is."""
    try:
        yield
    except Exception as error:
        note = _NOTES.get(_sqlstate(error))
        if note is not None:
            error.add_note(note)
        raise


def _sqlstate(error: BaseException) -> str:
    """That of a driver's error, perhaps inside of one of SQLAlchemy or Django."""
    for each in (error, getattr(error, "orig", None), error.__cause__):
        state = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if state:
            return str(state)
    return ""


def _no_transaction(value: str, begin: str) -> InvalidArgument:
    return InvalidArgument(
        what="via",
        value=value,
        problem="it has no transaction open, so the message would be committed at once, without your rows",
        hint=f"open one: {begin}",
    )


def _not_postgres(value: str) -> InvalidArgument:
    return InvalidArgument(
        what="via",
        value=value,
        problem="the cluster's tables are in PostgreSQL",
        hint="give the connection to that database, or send without via= after your commit",
    )


def _named(via: object) -> str:
    cls = type(via)
    return f"an object of the class {cls.__qualname__} of {cls.__module__.partition('.')[0]}"
