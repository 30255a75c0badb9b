"""A database with the whole schema, for all pairs; and fresh ones for plants that change the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from tests.interleavings.database import schema
from tests.support.postgres import run_aside

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.postgres import Server

NewDatabase = Callable[..., str]


@pytest.fixture(scope="session")
def prepared(postgres_server: Server) -> Iterator[str]:
    """The name of a database with the schema, which nobody connects to: a template."""
    name = postgres_server.create_database()
    run_aside(_execute(postgres_server.url(name), schema()))
    yield name
    postgres_server.drop_database(name)


@pytest.fixture
def new_database(postgres_server: Server, prepared: str) -> Iterator[NewDatabase]:
    """Makes a database with the schema, changed by a script, and with a default isolation level; its URL."""
    made: list[str] = []

    def make(change: str = "", *, level: str = "") -> str:
        name = postgres_server.create_database(template=prepared)
        made.append(name)
        if change:
            run_aside(_execute(postgres_server.url(name), change))
        if level:
            postgres_server.execute(f"alter database \"{name}\" set default_transaction_isolation = '{level}'")
        return postgres_server.url(name)

    yield make
    for name in made:
        postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def url(postgres_server: Server, prepared: str) -> Iterator[str]:
    """A database with the schema, shared: every run begins by emptying the tables."""
    name = postgres_server.create_database(template=prepared)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


async def _execute(url: str, script: str) -> Any:
    connection = await asyncpg.connect(url, ssl=False)
    try:
        return await connection.execute(script)
    finally:
        await connection.close()
