"""What a role may that was only let in to send, and what its session can change of the functions: nothing (O2)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from coterie import ConfigurationError
from tests.unit.postgres.conftest import database_of, new_storage, stranger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.postgres import PostgresStorage
    from tests.support.postgres import Server

pytestmark = pytest.mark.postgres

SEND = "select coterie.send('Account', 'alice', 'deposit', '{\"cents\": 5}')"
START = "select coterie.start_workflow('order', '{}', 'o-1')"


@pytest.fixture
async def owner(postgres_url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """Whoever migrated, in a database that a cluster has used."""
    async with stranger(postgres_url) as connection:
        await connection.execute("insert into coterie.agreements values ('default', 'shards', '4')")
        yield connection


@asynccontextmanager
async def session_of(server: Server, role: str, url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    async with stranger(server.url(database_of(url), user=role)) as connection:
        yield connection


async def test_o2_a_role_that_was_let_in_sends_and_does_nothing_else(
    postgres_server: Server, postgres_url: str, role: str, storage: PostgresStorage, owner: asyncpg.Connection[Any]
) -> None:
    async with session_of(postgres_server, role, postgres_url) as theirs:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await theirs.fetchval(SEND)
        await owner.execute(f"grant usage on schema coterie to {role}")
        for call in (SEND, START):  # revoked from public: the schema alone is not enough
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied for function"):
                await theirs.fetchval(call)
        await storage.schema.grant_send(role)
        await storage.schema.grant_send(role)
        sent = await theirs.fetchval(SEND)
        assert await theirs.fetchval(START) == "o-1"
        assert await owner.fetchval("select args from coterie.incoming where id = $1", sent) == '{"cents": 5}'
        tables = await owner.fetch("select tablename from pg_tables where schemaname = 'coterie'")
        assert len(tables) > 15
        for (table,) in tables:
            for sql in ("select * from coterie.{}", "insert into coterie.{} default values", "delete from coterie.{}"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await theirs.execute(sql.format(table))
        for call in (
            "coterie.add_incoming('call', 'E', 'e', 'm', '{}', null, null, 'default')",
            "coterie.forget_units('default', array['u'])",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await theirs.fetchval(f"select {call}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await theirs.execute("create table coterie.mine (id int)")


async def test_o2_nothing_that_its_session_has_under_the_same_name_is_used(
    postgres_server: Server, postgres_url: str, role: str, storage: PostgresStorage, owner: asyncpg.Connection[Any]
) -> None:
    """Functions, operators, types, casts and temporary tables before ours on the search path, and odd settings."""
    await storage.schema.grant_send(role)
    await owner.execute(f"create schema theirs authorization {role}")
    async with session_of(postgres_server, role, postgres_url) as theirs:
        for sql in (
            "create function theirs.odd(text, text) returns text language sql as 'select ''odd''::text'",
            "create operator theirs.|| (leftarg = text, rightarg = text, function = theirs.odd)",
            "create function theirs.lpad(text, int, text) returns text language sql as 'select ''odd''::text'",
            "create function theirs.gen_random_uuid() returns text language sql as 'select ''odd''::text'",
            "create function theirs.clock_timestamp() returns timestamptz language sql as 'select now() + ''1 y'''",
            "create function theirs.octet_length(text) returns int language sql as 'select 0'",
            "create function theirs.isnt(text, text) returns boolean language sql as 'select true'",
            "create operator theirs.= (leftarg = text, rightarg = text, function = theirs.isnt)",
            "create domain theirs.text as varchar(1)",
            "create temp table agreements (cluster text)",
            "create temp table incoming (id text)",
            "create function pg_temp.lpad(text, int, text) returns text language sql as 'select ''odd''::text'",
            "set search_path = theirs, pg_temp, coterie, pg_catalog",
            "set standard_conforming_strings = off",
            "set escape_string_warning = off",
            "set transform_null_equals = on",
            "set timezone = 'Asia/Kathmandu'",
            "set datestyle = 'SQL, DMY'",
        ):
            await theirs.execute(sql)
        sent = await theirs.fetchval(SEND)
        with pytest.raises(asyncpg.ProgramLimitExceededError):
            await theirs.fetchval("select coterie.send('E', 'e', 'm', jsonb_build_object('x', repeat('x', 1048577)))")
        with pytest.raises(asyncpg.UndefinedObjectError):
            await theirs.fetchval("select coterie.send('E', 'e', 'm', cluster => 'other')")
        assert await theirs.fetchval("select count(*) from pg_temp.incoming") == 0
    row = await owner.fetchrow("select * from coterie.incoming")
    assert row is not None
    assert (row["id"], row["cluster"], row["args"], row["key"]) == (sent, "default", '{"cents": 5}', None)
    assert len(sent) == 32
    assert int(sent, 16) > 0
    assert abs((row["sent_at"] - await owner.fetchval("select now()")).total_seconds()) < 120


async def test_ids_of_one_session_sort_as_they_were_drawn_and_among_those_of_python(
    owner: asyncpg.Connection[Any],
) -> None:
    ids = [row[0] for row in await owner.fetch(f"{SEND} from generate_series(1, 2000)")]
    assert ids == sorted(set(ids))
    now_ms = int(await owner.fetchval("select extract(epoch from now()) * 1000"))
    assert 0 <= now_ms - (int(ids[0][:12], 16)) < 120_000


async def test_a_role_that_does_not_exist_or_is_everybody_is_refused(storage: PostgresStorage) -> None:
    for role in ("nobody_of_that_name", "public", "PUBLIC", "x; drop table coterie.kv", '"', ""):
        with pytest.raises(ConfigurationError, match="no such role"):
            await storage.schema.grant_send(role)


async def test_an_odd_name_of_a_role_is_a_name(
    postgres_server: Server, storage: PostgresStorage, owner: asyncpg.Connection[Any]
) -> None:
    odd = 'o"dd; role'
    postgres_server.execute('create role "o""dd; role" login')
    try:
        await storage.schema.grant_send(odd)
        assert await owner.fetchval("select has_schema_privilege($1, 'coterie', 'usage')", odd)
        assert not await owner.fetchval("select has_schema_privilege('public', 'coterie', 'usage')")
    finally:
        await owner.execute('drop owned by "o""dd; role"')
        postgres_server.execute('drop role "o""dd; role"')


async def test_a_schema_without_the_functions_is_told(
    postgres_server: Server, empty_postgres_url: str, role: str
) -> None:
    async with new_storage(empty_postgres_url, check_schema=False) as storage:
        with pytest.raises(ConfigurationError, match="has no functions to send with yet"):
            await storage.schema.grant_send(role)


async def test_o2_its_owner_may_be_a_role_that_can_do_nothing_but_insert(
    postgres_server: Server, postgres_url: str, role: str, owner: asyncpg.Connection[Any]
) -> None:
    """As docs/sql.md has it: then not even a flaw of the functions would give more."""
    signatures = (
        "coterie.add_incoming(text, text, text, text, text, text, timestamptz, text)",
        "coterie.send(text, text, text, jsonb, text, timestamptz, interval, text)",
        "coterie.start_workflow(text, jsonb, text, text)",
    )
    await owner.execute(f"grant usage, create on schema coterie to {role}")
    await owner.execute(f"grant insert on coterie.incoming to {role}; grant select on coterie.agreements to {role}")
    for each in signatures:
        await owner.execute(f"alter function {each} owner to {role}")
    await owner.execute(f"revoke create on schema coterie from {role}")
    assert await owner.fetchval(SEND)
    assert await owner.fetchval("select count(*) from coterie.incoming") == 1
    for each in signatures:
        await owner.execute(f"alter function {each} owner to current_user")
