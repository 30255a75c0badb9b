"""The storages that the contract runs on, and a way to let the database's time pass."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from coterie.kernel.clock import SystemClock
from coterie.kernel.random import Random
from coterie.settings import Settings
from coterie.storage.engines import open_storage
from tests.support.pooler import Pooler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from coterie.storage.interface import Storage
    from tests.support.postgres import Server

POOLED = ["test_ownership", "test_messages_commits"]
"""What is checked behind a pooler each time, for its transactions of several statements; the rest is every night."""

Passing = Callable[[float], Awaitable[None]]


ENCRYPTED = [
    "test_jobs",
    "test_jobs_ends",
    "test_kv",
    "test_leader_states",
    "test_messages_commits",
    "test_ticks_life",
    "test_transactions",
    "test_units",
]
"""What is checked with encrypted payloads in a file each time; the rest is every night."""
PLAIN = ["test_migrations", "test_payloads", "test_units_groups", "test_unreadable"]
"""What is never: the schema, outcomes without a parent, and what is read or written beside the encryption."""
KEYS: dict[str, object] = {"payload_keys": {"k1": bytes(range(32))}, "payload_current": "k1"}
_encrypted: set[str] = set()  # the URLs of databases whose payloads are encrypted


def new_storage(url: str, *, name: str = "default", check_schema: bool = True) -> Storage:
    settings = Settings.load({"url": url, "name": name, **(KEYS if url in _encrypted else {})}, environ={})
    clock, chance = SystemClock(), Random()
    return open_storage(settings, incarnation="0" * 31 + "1", clock=clock, chance=chance, check_schema=check_schema)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "url" not in metafunc.fixturenames:
        return
    each_time = metafunc.module.__name__.rpartition(".")[2] in POOLED
    pooled = [pytest.mark.postgres, *(() if each_time else (pytest.mark.nightly,))]
    kinds = pytest.param("postgres", marks=pytest.mark.postgres), pytest.param("pooled", marks=pooled)
    if metafunc.module.__name__.rpartition(".")[2] in PLAIN:
        metafunc.parametrize("url", ["memory", "file", *kinds], indirect=True)
        return
    encrypted = () if metafunc.module.__name__.rpartition(".")[2] in ENCRYPTED else (pytest.mark.nightly,)
    coded = [pytest.param("encrypted file", marks=encrypted), pytest.param("encrypted postgres", marks=pooled)]
    metafunc.parametrize("url", ["memory", "file", *kinds, *coded], indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of each kind, without rows; a pooled one is behind a pooler that lends sessions per transaction."""
    if request.param == "memory":
        yield "sqlite://"
    elif request.param == "file":
        yield f"sqlite:///{tmp_path}/contract.db"
    elif request.param.startswith("encrypted"):
        is_file = request.param.endswith("file")
        url = f"sqlite:///{tmp_path}/contract.db" if is_file else request.getfixturevalue("migrated_url")
        _encrypted.add(url)
        yield url
        _encrypted.discard(url)
    else:
        is_empty = request.module.__name__.endswith("test_migrations")
        direct: str = request.getfixturevalue("empty_postgres_url" if is_empty else "migrated_url")
        if request.param == "postgres":
            yield direct
            return
        with Pooler(direct) as pooler:
            yield pooler.url


_SWEEP = """
    do $$
    declare found text;
    begin
        perform pg_terminate_backend(pid, 5000) from pg_stat_activity -- whose client is gone may still be at work
        where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend';
        for found in select tablename from pg_tables where schemaname = 'coterie' and tablename <> 'migrations' loop
            execute format('delete from coterie.%I', found);
        end loop;
        for found in select tablename from pg_tables where schemaname = 'public' loop -- what tests have made
            execute format('drop table public.%I cascade', found);
        end loop;
    end
    $$
"""


@pytest.fixture(scope="session")
def migrated_database(postgres_server: Server, postgres_template: str) -> Iterator[str]:
    name = postgres_server.create_database(template=postgres_template)
    yield name
    postgres_server.drop_database(name)


@pytest.fixture
def migrated_url(postgres_server: Server, migrated_database: str) -> str:
    """A database with all tables and no rows: it is emptied sooner than another one is made."""
    postgres_server.execute(_SWEEP, database=migrated_database)
    return postgres_server.url(migrated_database)


@asynccontextmanager
async def opened(url: str, *, name: str = "default") -> AsyncIterator[Storage]:
    async with new_storage(url, name=name) as storage:
        yield storage


@pytest.fixture
async def storage(url: str) -> AsyncIterator[Storage]:
    async with opened(url) as storage:
        yield storage


@pytest.fixture
async def neighbour(url: str) -> AsyncIterator[Storage]:
    """Another cluster in the same database."""
    if url == "sqlite://":
        pytest.skip("memory is one process's and one cluster's")
    async with opened(url, name="neighbour") as storage:
        yield storage


@pytest.fixture
def passing(storage: Storage) -> Passing:
    """Wait until the database's own clock has moved by so many seconds."""

    async def wait(seconds: float) -> None:
        until = await storage.now() + timedelta(seconds=seconds)
        async with asyncio.timeout(120):
            while await storage.now() < until:
                await asyncio.sleep(0.005)

    return wait
