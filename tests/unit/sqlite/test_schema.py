"""Migrations of a SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import pytest

from coterie.errors import ConfigurationError, PersistenceError
from coterie.storage import migrations
from coterie.storage.interface import KvPut
from coterie.storage.migrations import Migration

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from coterie.storage.sqlite import SqliteStorage
    from tests.unit.sqlite.conftest import Child, Opener


def knowing(storage: SqliteStorage, *more: Migration) -> SqliteStorage:
    """The same program, some versions later."""
    storage._schema.known = (*storage._schema.known, *more)
    return storage


KNOWN = migrations.load("coterie.storage.sqlite.migrations")
LAST = len(KNOWN)
NUMBERS = list(range(1, LAST + 1))

PRE = Migration(LAST + 1, "pre", "more", "create table more (x integer) strict;")
POST = Migration(LAST + 2, "post", "less", "drop table more;")
WRONG = Migration(LAST + 3, "pre", "wrong", "create table halfway (x integer) strict; select nonsense;")


async def test_an_empty_file_is_set_up_at_the_first_start(new: Opener) -> None:
    async with new() as storage:
        assert [str(migration) for migration in await storage.schema.applied()] == [str(known) for known in KNOWN]
        assert await storage.schema.pending() == []


async def test_without_migrate_an_empty_file_is_refused_and_the_command_named(new: Opener) -> None:
    with pytest.raises(ConfigurationError, match=f"lacks {LAST} migrations, first 0001_pre_ground") as caught:
        await new(migrate=False).start()
    assert "coterie migrate" in caught.value.hint


async def test_the_migrate_command_looks_at_and_sets_up_a_file_that_a_start_refuses(new: Opener) -> None:
    async with new(migrate=True, check_schema=False) as storage:
        assert await storage.schema.applied() == []
        assert await storage.schema.pending() == list(KNOWN)
        assert await storage.schema.pending("post") == [known for known in KNOWN if known.phase == "post"]
        assert await storage.schema.apply() == list(KNOWN)
        assert await storage.schema.apply() == []
    async with new(migrate=False) as storage:
        await storage.kv.put(KvPut("k", b"v", 1))


async def test_phases_are_applied_one_by_one_and_remembered(new: Opener) -> None:
    async with new():
        pass
    async with knowing(new(check_schema=False), PRE, POST) as storage:
        assert await storage.schema.apply("pre") == [PRE]
        assert [m.number for m in await storage.schema.applied()] == [*NUMBERS, PRE.number]
        assert await storage.schema.pending() == [POST]
        assert await storage.schema.apply() == [POST]
        assert [(m.number, m.phase, m.name, m.sql) for m in await storage.schema.applied()][-2:] == [
            (PRE.number, "pre", "more", ""),
            (POST.number, "post", "less", ""),
        ]


async def test_a_file_that_lacks_a_pre_migration_is_refused(new: Opener) -> None:
    async with new():
        pass
    with pytest.raises(ConfigurationError, match=str(PRE)):
        await knowing(new(), PRE).start()


async def test_a_newer_pre_phase_is_fine_and_a_newer_post_phase_is_refused(new: Opener) -> None:
    async with knowing(new(), PRE):
        pass
    async with new() as older:
        await older.kv.put(KvPut("k", b"v", 1))
    async with knowing(new(check_schema=False), PRE, POST) as storage:
        await storage.schema.apply()
    with pytest.raises(ConfigurationError, match=str(POST)):
        await new().start()


async def test_a_migration_that_fails_leaves_nothing_behind(new: Opener, path: Path) -> None:
    async with new():
        pass
    async with knowing(new(check_schema=False), PRE, POST, WRONG) as storage:
        with pytest.raises(PersistenceError, match="apply migrations") as caught:
            await storage.schema.apply()
        assert caught.value.outcome == "refused"
        assert [m.number for m in await storage.schema.applied()] == NUMBERS
    connection = apsw.Connection(str(path))
    assert not connection.execute("select count(*) from sqlite_schema where name in ('more', 'halfway')").get
    connection.close()


async def test_applying_nothing_needs_no_write_lock(new: Opener, path: Path) -> None:
    """C3: a start is possible while somebody is stuck inside a write."""
    async with new():
        pass
    other = apsw.Connection(str(path))
    other.execute("begin immediate")
    async with new(lock_limit_s=0.05) as storage:
        assert await storage.schema.apply() == []
    other.execute("rollback")
    other.close()


def test_the_leases_file_has_pre_migrations_only_since_every_opener_applies_them() -> None:
    known = migrations.load("coterie.storage.sqlite.migrations.leases")
    assert known
    assert {migration.phase for migration in known} == {"pre"}


def test_eight_processes_may_start_on_an_empty_file_at_once(path: Path, child: Callable[..., Child]) -> None:
    children = [child("start", f"sqlite:///{path}") for _ in range(8)]
    assert [each.line() for each in children] == ["ready"] * 8
    for each in children:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    assert [each.line() for each in children] == [str(LAST)] * 8
    assert [each.wait() for each in children] == [0] * 8
    connection = apsw.Connection(str(path))
    assert connection.execute("select count(*) from migrations").get == LAST
    assert connection.execute("select count(*) from kv").get == 8
    assert connection.pragma("integrity_check") == "ok"
    connection.close()
