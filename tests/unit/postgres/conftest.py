"""What the tests of the PostgreSQL engine share: storages with short limits, roles, waiting for a condition."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from coterie.kernel.random import Random
from coterie.settings import Settings
from coterie.storage.postgres import ConnectionLimits, PostgresStorage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from tests.support.postgres import Server

SHORT = ConnectionLimits(connect_s=10.0, backoff_s=0.02, call_s=1.0)
LONG = ConnectionLimits(connect_s=60.0, call_s=60.0, dedicated_s=60.0, lock_s=60.0, transaction_s=60.0)
"""For statements that are examined, on however busy a machine."""


def new_storage(
    url: str,
    *,
    incarnation: str = "a" * 32,
    limits: ConnectionLimits | None = None,
    check_schema: bool = True,
    **values: Any,
) -> PostgresStorage:
    settings = Settings.load({"url": url, **values}, environ={})
    return PostgresStorage(
        settings, incarnation=incarnation, chance=Random(1), limits=limits, check_schema=check_schema
    )


async def until(condition: Callable[[], bool], *, within_s: float = 120.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


def database_of(url: str) -> str:
    return url.rpartition("/")[2]


@contextlib.asynccontextmanager
async def stranger(url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """Another program's connection."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url, timeout=120)
    try:
        yield connection
    finally:
        connection.terminate()


@pytest.fixture
def own_server(postgres_server: Server) -> Server:
    """The server, if it is ours: without password, on loopback, with known settings."""
    if not postgres_server.owned:
        pytest.skip("COTERIE_TEST_POSTGRES names somebody else's server")
    return postgres_server


@pytest.fixture
async def storage(postgres_url: str) -> AsyncIterator[PostgresStorage]:
    async with new_storage(postgres_url) as storage:
        yield storage


class Grown:
    """Databases with many rows: they are made once, and copied, which takes a fifth of the time."""

    def __init__(self, server: Server, template: str, first: Sequence[str], grow: Sequence[str]) -> None:
        self._server = server
        self._empty = server.create_database(template=template)
        server.execute(*first, database=self._empty)
        self._grown = server.create_database(template=self._empty)
        server.execute(*grow, database=self._grown)
        self._grow = list(grow)
        self._made = [self._empty, self._grown]

    def copy(self, steps: Sequence[str]) -> str:
        """A database after these statements, which may begin with those that make it grow; its URL."""
        count = len(self._grow)
        is_grown = list(steps[:count]) == self._grow
        name = self._server.create_database(template=self._grown if is_grown else self._empty)
        self._made.append(name)
        self._server.execute(*steps[count if is_grown else 0 :], database=name)
        return self._server.url(name)

    def drop(self, url: str) -> None:
        """Take a copy away."""
        self._made.remove(database_of(url))
        self._server.drop_database(database_of(url))

    def close(self) -> None:
        """Take all of them away."""
        for name in self._made:
            self._server.drop_database(name)


@pytest.fixture
def role(postgres_server: Server, postgres_url: str) -> Iterator[str]:
    """A role without any right of its own."""
    name = f"role_{database_of(postgres_url)}"
    postgres_server.execute(f"create role {name} login")
    yield name
    postgres_server.execute(f"drop owned by {name} cascade", database=database_of(postgres_url))
    postgres_server.execute(f"drop role {name}")
