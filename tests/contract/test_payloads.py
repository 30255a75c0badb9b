"""The columns that are encrypted, and how they are read in pages and replaced (O6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw
import asyncpg
import pytest

from coterie.storage.contracts.payloads import TABLES, PayloadChange
from coterie.storage.interface import KvPut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.contracts.payloads import PayloadRow
    from coterie.storage.interface import Storage

KV = next(table for table in TABLES if table.name == "kv")

NAMES = {
    "act", "address", "branch", "cluster", "credentials", "definition", "entity", "entity_id", "entity_type",
    "fingerprint", "group", "groups", "holder", "host_id", "id", "job", "key", "kind", "knows", "last_id", "leader",
    "message", "method", "name", "origin", "outcome", "parent", "part", "phase", "process", "ran_by", "runner",
    "same_as", "seat", "status", "target", "task", "trace_id", "type", "unit", "version", "waited_as", "what", "who",
}  # fmt: skip
"""Columns of texts that coterie, a program's text or its operator names something with: they are not encrypted."""
OURS = {
    "agreements.value",
    "audit.note",
    "ticks.reason",
    "migrations.applied_at",
    "schedules.outcomes",
    "secrets.value",
    "units.failed_steps",
    "units.interrupted_for",
    "units.next_version",
}
"""What coterie writes itself."""
OF_SQL = {"incoming.args"}
"""What SQL has written, which has no keys; it is encrypted when it is moved."""
TAGS = {
    *("job_tags.value", "message_tags.value", "messages.tags"),
    *("unit_tags.value", "units.tags", "units.next_tags"),
}
"""Messages, jobs and runs are found by their tags."""
KINDS = {"bytea", "blob", "text", "jsonb", "array"}


async def test_each_column_that_users_code_fills_is_in_the_list(storage: Storage, url: str) -> None:
    """Whoever adds a column says whether users' code fills it: here, or in `TABLES`."""
    if url == "sqlite://":
        pytest.skip("its tables are those of a file")
    del storage
    found = {
        f"{table}.{column}"
        for table, column, kind in await _columns(url)
        if kind.lower() in KINDS and column not in NAMES and not table.startswith("sqlite")
    }
    assert found - OURS - OF_SQL - TAGS == {f"{table.name}.{column}" for table in TABLES for column in table.values}


async def test_rows_come_in_pages_in_the_order_of_their_keys(storage: Storage) -> None:
    for number in range(25):
        await storage.kv.put(KvPut(f"k{number:02}", b"value", number))
    found = [row async for row in _pages(storage, most=10)]
    assert [row.key for row in found] == [(f"k{number:02}",) for number in range(25)]
    assert {row.bound for row in found} == {(number,) for number in range(25)}


async def test_values_that_begin_as_asked_are_left_out_and_others_are_cut(storage: Storage) -> None:
    await storage.kv.put(KvPut("a", b"head and more", 1))
    await storage.kv.put(KvPut("b", b"other", 2))
    rows = await storage.payloads.page(KV, after=None, most=10, head=b"head", text_head="", cut=3)
    assert [row.values for row in rows] == [(None,), (b"oth",)]


async def test_a_value_is_replaced_only_where_it_is_still_the_same(storage: Storage) -> None:
    for key in ("a", "b", "c"):
        await storage.kv.put(KvPut(key, b"old", 1))
    await storage.kv.put(KvPut("b", b"new", 2))
    changes = [PayloadChange((key,), (b"old",), (b"anew",)) for key in ("a", "b", "c", "none")]
    assert await storage.payloads.rewrite(KV, changes) == 2
    assert [(await _value(storage, key)) for key in ("a", "b", "c")] == [b"anew", b"new", b"anew"]


async def test_a_row_that_somebody_has_locked_stays_and_nobody_waits(storage: Storage, url: str) -> None:
    """So a rotation holds up no handler, and takes part in no deadlock."""
    if not url.startswith("postgresql"):
        pytest.skip("a file has one writer at a time")
    for key in ("a", "b"):
        await storage.kv.put(KvPut(key, b"old", 1))
    changes = [PayloadChange((key,), (b"old",), (b"anew",)) for key in ("a", "b")]
    connection = await asyncpg.connect(url, statement_cache_size=0)
    try:
        async with connection.transaction():
            await connection.execute("select from coterie.kv where key = 'a' for share")
            assert await storage.payloads.rewrite(KV, changes) == 1
        assert await storage.payloads.rewrite(KV, changes) == 1
    finally:
        await connection.close()
    assert [(await _value(storage, key)) for key in ("a", "b")] == [b"anew", b"anew"]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
async def test_each_table_can_be_read_and_written(storage: Storage, table: Any) -> None:
    rows = await storage.payloads.page(table, after=None, most=10, head=b"", text_head="", cut=10)
    assert rows == []
    samples = {"slot": 1, "position": 1, "seq": 0, "at": None}
    key = tuple(samples.get(name, "x") if (table.name, name) != ("activity", "id") else 1 for name in table.key)
    nothing = tuple(None for _ in table.values)
    assert await storage.payloads.rewrite(table, [PayloadChange(key, nothing, nothing)]) == 0


async def test_keys_are_kept_as_the_first_process_stored_them(storage: Storage) -> None:
    assert await storage.payloads.keys() == {}
    await storage.payloads.add_key("k1", "one")
    await storage.payloads.add_key("k1", "two")
    await storage.payloads.add_key("k2", "three")
    assert await storage.payloads.keys() == {"k1": "one", "k2": "three"}
    await storage.payloads.remove_key("k1")
    assert await storage.payloads.keys() == {"k2": "three"}


async def _value(storage: Storage, key: str) -> bytes | None:
    found = await storage.kv.get(key)
    return None if found is None else found.value


async def _pages(storage: Storage, *, most: int) -> Any:
    after = None
    rows: Sequence[PayloadRow]
    while rows := await storage.payloads.page(KV, after=after, most=most, head=b"x", text_head="x", cut=100):
        for row in rows:
            yield row
        after = rows[-1].key


async def _columns(url: str) -> list[Any]:
    """Table, column and type of all."""
    if url.startswith("sqlite"):
        file = apsw.Connection(url.removeprefix("sqlite:///"))
        sql = "select m.name, c.name, c.type from sqlite_schema as m, pragma_table_info(m.name) as c"
        rows: list[Any] = file.execute(sql).fetchall()
        file.close()
        return rows
    connection = await asyncpg.connect(url, statement_cache_size=0)
    try:
        sql = "select table_name, column_name, data_type from information_schema.columns where table_schema = 'coterie'"
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()
