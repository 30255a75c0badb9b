"""Migrations on PostgreSQL: applied once, by whoever comes first, and refused when they do not fit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from coterie.errors import ConfigurationError, PersistenceError
from coterie.kernel.random import Random
from coterie.storage.interface import KvPut
from coterie.storage.migrations import Migration
from coterie.storage.postgres.connector import Connector
from coterie.storage.postgres.server.schema import KNOWN, PostgresSchema
from tests.unit.postgres.conftest import SHORT, database_of, new_storage, stranger

if TYPE_CHECKING:
    from tests.support.postgres import Server

pytestmark = pytest.mark.postgres

NEXT = Migration(len(KNOWN) + 1, "pre", "next", "create table coterie.next (number int)")
LATE = Migration(len(KNOWN) + 2, "post", "late", "drop table coterie.next")


@pytest.fixture
def postgres_url(empty_postgres_url: str) -> str:
    """Nothing has been set up."""
    return empty_postgres_url


def schema(url: str, *, known: tuple[Migration, ...] = KNOWN) -> PostgresSchema:
    connector = Connector(url, incarnation="c" * 32, chance=Random(1), limits=SHORT)
    return PostgresSchema(connector, limits=SHORT, known=known)


async def test_an_empty_database_is_set_up_at_the_first_start(postgres_url: str) -> None:
    found = schema(postgres_url)
    assert await found.applied() == []
    assert await found.pending() == list(KNOWN)
    async with new_storage(postgres_url) as storage:
        assert [str(migration) for migration in await storage.schema.applied()] == [str(m) for m in KNOWN]
        assert await storage.schema.pending() == []


async def test_eight_concurrent_first_starts_set_it_up_once(postgres_url: str) -> None:
    storages = [new_storage(postgres_url) for _ in range(8)]
    for storage in storages:
        storage.schema.known = (*KNOWN, NEXT)  # also a late starter must not meet half of it
    try:
        await asyncio.gather(*(storage.start() for storage in storages))
        for number, storage in enumerate(storages):
            await storage.kv.put(KvPut(f"k{number}", b"", number))
        assert len(await storages[0].schema.applied()) == len(KNOWN) + 1
        assert await storages[0].kv.count("") == 8
    finally:
        await asyncio.gather(*(storage.stop() for storage in storages))


async def test_of_eight_who_apply_at_once_one_does_it(postgres_url: str) -> None:
    done = await asyncio.gather(*(schema(postgres_url, known=(*KNOWN, NEXT)).apply() for _ in range(8)))
    assert sorted(str(migration) for one in done for migration in one) == [str(m) for m in (*KNOWN, NEXT)]
    assert await schema(postgres_url).apply() == []


async def test_phases_are_applied_apart(postgres_url: str) -> None:
    found = schema(postgres_url, known=(*KNOWN, NEXT, LATE))
    assert list(await found.apply("pre")) == [*KNOWN, NEXT]
    assert await found.pending() == [LATE]
    assert await found.apply("pre") == []
    assert await found.apply("post") == [LATE]


async def test_a_migration_that_fails_leaves_nothing_behind(postgres_url: str) -> None:
    bad = Migration(NEXT.number, "pre", "bad", "create table coterie.half (number int); select 1 / 0")
    with pytest.raises(PersistenceError, match="division by zero") as caught:
        await schema(postgres_url, known=(*KNOWN, bad)).apply()
    assert caught.value.outcome == "refused"
    assert await schema(postgres_url).applied() == []  # an empty database stays empty or becomes complete
    async with stranger(postgres_url) as other:
        assert await other.fetchval("select count(*) from pg_class where relname = 'half'") == 0
    await schema(postgres_url).apply()
    with pytest.raises(PersistenceError, match="division by zero"):
        await schema(postgres_url, known=(*KNOWN, bad)).apply()
    assert len(await schema(postgres_url).applied()) == len(KNOWN)


async def test_a_schema_past_an_unknown_post_phase_is_refused_and_a_newer_pre_is_not(postgres_url: str) -> None:
    await schema(postgres_url, known=(*KNOWN, NEXT)).apply()
    async with new_storage(postgres_url) as storage:  # a newer version's addition does not matter to us
        await storage.kv.put(KvPut("a", b"", 1))
    await schema(postgres_url, known=(*KNOWN, NEXT, LATE)).apply()
    with pytest.raises(ConfigurationError, match=f"is past this program: {LATE}") as caught:
        await new_storage(postgres_url).start()
    assert caught.value.hint == "run a newer version of coterie here"
    async with new_storage(postgres_url, check_schema=False) as storage:  # the command that migrates starts anyway
        assert len(await storage.schema.applied()) == len(KNOWN) + 2


async def test_an_empty_database_and_migrate_off_names_the_command(postgres_url: str) -> None:
    with pytest.raises(ConfigurationError, match="no schema of coterie yet, and migrate is off") as caught:
        await new_storage(postgres_url, migrate=False).start()
    assert "coterie migrate --apply" in caught.value.hint
    assert await schema(postgres_url).applied() == []


async def test_an_empty_database_and_a_role_that_may_not_create_names_the_command(
    postgres_server: Server, postgres_url: str, role: str
) -> None:
    with pytest.raises(ConfigurationError, match="and this role may not create it") as caught:
        await new_storage(postgres_server.url(database_of(postgres_url), user=role)).start()
    assert "coterie migrate --apply" in caught.value.hint


async def test_a_schema_made_by_an_administrator_is_filled_without_the_right_to_create_schemas(
    postgres_server: Server, postgres_url: str, role: str
) -> None:
    database = database_of(postgres_url)
    postgres_server.execute(f"create schema coterie authorization {role}", database=database)
    async with new_storage(postgres_server.url(database, user=role)) as storage:
        await storage.kv.put(KvPut("a", b"", 1))


async def test_clusters_of_one_database_share_the_tables_and_nothing_else(postgres_url: str) -> None:
    """m7."""
    async with new_storage(postgres_url) as one, new_storage(postgres_url, name="other") as two:
        await one.kv.put(KvPut("a", b"one", 1))
        await two.kv.put(KvPut("a", b"two", 2, ttl_s=-1))
        assert await one.kv.purge(most=9) == 0
        assert await two.kv.clear("") == 0
        entry = await one.kv.get("a")
        assert entry is not None
        assert entry.value == b"one"
