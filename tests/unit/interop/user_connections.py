"""Programs with a database connection of their own, one for each driver, all with the same verbs.

Those that block are used in one thread of their own, as Django's connections demand.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

import asyncpg
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

if TYPE_CHECKING:
    from coterie import Cluster

T = TypeVar("T")
Send = Callable[..., Any]

INSERT = "insert into rows (n) values ({n})"


class Program(Protocol):
    """A program with a connection, in a transaction from `begin` on."""

    def begin(self) -> Any: ...
    def insert(self, n: int) -> Any: ...
    def savepoint(self) -> Any: ...
    def back(self) -> Any: ...
    def commit(self) -> Any: ...
    def rollback(self) -> Any: ...
    def close(self) -> Any: ...

    @property
    def via(self) -> object: ...


class Asyncpg:
    """asyncpg, on a connection that a pool has lent."""

    blocks = False

    def __init__(self, url: str) -> None:
        self._url = url
        self.via: Any = None

    async def begin(self) -> None:
        self._pool = await asyncpg.create_pool(self._url, min_size=1, max_size=1)
        self.via = await self._pool.acquire()
        self._transaction = self.via.transaction()
        await self._transaction.start()

    async def insert(self, n: int) -> None:
        await self.via.execute(INSERT.format(n=n))

    async def savepoint(self) -> None:
        self._nested = self.via.transaction()
        await self._nested.start()

    async def back(self) -> None:
        await self._nested.rollback()

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()

    async def close(self) -> None:
        await self._pool.release(self.via)
        await self._pool.close()


class AsyncPsycopg:
    """psycopg 3, awaited."""

    blocks = False

    def __init__(self, url: str) -> None:
        self._url = url
        self.via: Any = None

    async def begin(self) -> None:
        self.via = await psycopg.AsyncConnection.connect(self._url, row_factory=psycopg.rows.dict_row)

    async def insert(self, n: int) -> None:
        await self.via.execute(INSERT.format(n=n))

    async def savepoint(self) -> None:
        await self.via.execute("savepoint s")

    async def back(self) -> None:
        await self.via.execute("rollback to savepoint s")

    async def commit(self) -> None:
        await self.via.commit()

    async def rollback(self) -> None:
        await self.via.rollback()

    async def close(self) -> None:
        await self.via.close()


class Psycopg:
    """psycopg 3, blocking."""

    blocks = True

    def __init__(self, url: str) -> None:
        self._url = url
        self.via: Any = None

    def begin(self) -> None:
        self.via = psycopg.connect(self._url, cursor_factory=psycopg.ClientCursor)

    def insert(self, n: int) -> None:
        self.via.execute(INSERT.format(n=n))

    def savepoint(self) -> None:
        self.via.execute("savepoint s")

    def back(self) -> None:
        self.via.execute("rollback to savepoint s")

    def commit(self) -> None:
        self.via.commit()

    def rollback(self) -> None:
        self.via.rollback()

    def close(self) -> None:
        self.via.close()


class AlchemySession:
    """A session of SQLAlchemy."""

    blocks = True

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        self.via: Any = None

    def begin(self) -> None:
        self.via = Session(self._engine)

    def insert(self, n: int) -> None:
        self.via.execute(text(INSERT.format(n=n)))

    def savepoint(self) -> None:
        self._nested = self.via.begin_nested()

    def back(self) -> None:
        self._nested.rollback()

    def commit(self) -> None:
        self.via.commit()

    def rollback(self) -> None:
        self.via.rollback()

    def close(self) -> None:
        self.via.close()
        self._engine.dispose()


class AlchemyScopedSession(AlchemySession):
    """The session of a thread, as Flask-SQLAlchemy has it."""

    def begin(self) -> None:
        self.via = scoped_session(sessionmaker(self._engine))


class AlchemyConnection(AlchemySession):
    """A connection of SQLAlchemy."""

    def begin(self) -> None:
        self.via = self._engine.connect()


class AsyncAlchemySession:
    """A session of SQLAlchemy, awaited, over asyncpg."""

    blocks = False

    def __init__(self, url: str) -> None:
        self._engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
        self.via: Any = None

    async def begin(self) -> None:
        self.via = AsyncSession(self._engine)

    async def insert(self, n: int) -> None:
        await self.via.execute(text(INSERT.format(n=n)))

    async def savepoint(self) -> None:
        self._nested = await self.via.begin_nested()

    async def back(self) -> None:
        await self._nested.rollback()

    async def commit(self) -> None:
        await self.via.commit()

    async def rollback(self) -> None:
        await self.via.rollback()

    async def close(self) -> None:
        await self.via.close()
        await self._engine.dispose()


class AsyncAlchemyConnection(AsyncAlchemySession):
    """A connection of SQLAlchemy, awaited, over psycopg."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._engine = create_async_engine(url.replace("postgresql://", "postgresql+psycopg://"))

    async def begin(self) -> None:
        self.via = await self._engine.connect()


class Django:
    """Django: a model, `atomic`, and its connection."""

    blocks = True

    def __init__(self, url: str) -> None:
        self._url = url
        self.via: Any = None

    def begin(self) -> None:
        self._row = django_model(self._url)
        from django.db import connection, transaction

        self.via = connection
        self._atomic = transaction.atomic()
        self._atomic.__enter__()

    def insert(self, n: int) -> None:
        self._row.objects.create(n=n)

    def savepoint(self) -> None:
        from django.db import transaction

        self._nested = transaction.atomic()
        self._nested.__enter__()

    def back(self) -> None:
        self._nested.__exit__(ValueError, ValueError(), None)

    def commit(self) -> None:
        self._atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        self._atomic.__exit__(ValueError, ValueError(), None)

    def close(self) -> None:
        self.via.close()


_models: list[Any] = []


def django_model(url: str) -> Any:
    """The model of the table `rows`, in this thread on this database."""
    import django
    from django.conf import settings
    from django.db import connections, models

    to = urlsplit(url)
    place: dict[str, Any] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": to.path[1:],
        "USER": to.username,
        "HOST": to.hostname,
    }
    place |= {"PORT": to.port, "PASSWORD": to.password or ""}
    if not settings.configured:  # else other tests of Django in this process have done it
        settings.configure(DATABASES={"default": place}, USE_TZ=False, DEFAULT_AUTO_FIELD="django.db.models.AutoField")
        django.setup()
    if not _models:

        class Row(models.Model):  # type: ignore[misc] # Django has no types
            n = models.IntegerField(primary_key=True)

            class Meta:
                app_label = "rows"
                db_table = "rows"

        _models.append(Row)
    with contextlib.suppress(AttributeError):  # a connection of this thread, to the database of another test
        connections["default"].close()
        del connections["default"]
    connections.settings["default"].update(place)
    return _models[0]


ASYNCHRONOUS = (Asyncpg, AsyncPsycopg, AsyncAlchemySession, AsyncAlchemyConnection)
BLOCKING = (Psycopg, AlchemySession, AlchemyScopedSession, AlchemyConnection, Django)
EVERY: tuple[Any, ...] = (*ASYNCHRONOUS, *BLOCKING)


class UserProgram:
    """A program whose verbs are awaited, whether or not its driver blocks.

    Args:
        kind: One of `EVERY`.
        url: Its database.
        cluster: What it sends with.
    """

    def __init__(self, kind: Any, url: str, cluster: Cluster) -> None:
        self._kind = kind
        self._program = kind(url)
        self._cluster = cluster
        self._thread = ThreadPoolExecutor(1)

    async def begin(self) -> None:
        await self._do("begin")

    async def insert(self, n: int) -> None:
        await self._do("insert", n)

    async def savepoint(self) -> None:
        await self._do("savepoint")

    async def back(self) -> None:
        await self._do("back")

    async def commit(self) -> None:
        await self._do("commit")

    async def rollback(self) -> None:
        await self._do("rollback")

    async def close(self) -> None:
        await self._do("close")
        self._thread.shutdown()

    async def ask(self, method: str, *args: Any, **options: Any) -> Any:
        """A method of the cluster, with `via=`."""
        if not self._kind.blocks:
            return await getattr(self._cluster, method)(*args, **options, via=self._program.via)

        def ask() -> Any:
            with self._cluster.sync() as c:
                return getattr(c, method)(*args, **options, via=self._program.via)

        return await self._in_thread(ask)

    async def _do(self, verb: str, *args: Any) -> None:
        work = getattr(self._program, verb)
        if self._kind.blocks:
            await self._in_thread(lambda: work(*args))
        else:
            await work(*args)

    def _in_thread(self, work: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, work)
