"""What users' code gave, on PostgreSQL: read in pages, and replaced in batches that wait for no lock."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from coterie.storage import statements
from coterie.storage.contracts.payloads import PayloadRow
from coterie.storage.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coterie.storage.contracts.payloads import PayloadChange, PayloadTable

_NAME = "payload key "
_TYPES = {
    ("state_history", "slot"): "integer",
    ("ticks", "at"): "timestamptz",
    ("ticks", "seq"): "integer",
    ("steps", "position"): "bigint",
    ("published", "seq"): "bigint",
    ("activity", "id"): "bigint",
}
"""The columns of keys that are no texts."""


class PostgresPayloads(PostgresStore):
    """See `storage.contracts.payloads.PayloadStore`."""

    _sql = statements.load("coterie.storage.postgres.sql", "payloads.sql")

    async def keys(self) -> Mapping[str, str]:
        """Return the fingerprints of the keys that values may be encrypted with, by id."""
        return {row["name"].removeprefix(_NAME): row["value"] for row in await self._read("keys")}

    async def add_key(self, id: str, fingerprint: str) -> None:
        """Store the fingerprint of a key, unless there is one of this id."""
        await self._read("add_key", id, fingerprint)  # the same when it is repeated

    async def remove_key(self, id: str) -> None:
        """No value is encrypted with this key any more."""
        await self._read("remove_key", id)

    async def page(
        self, table: PayloadTable, *, after: tuple[Any, ...] | None, most: int, head: bytes, text_head: str, cut: int
    ) -> Sequence[PayloadRow]:
        """Return the next rows of a table, in the order of their keys."""
        self._require_usable()
        sql = _page(self._sql["page"], table, is_first=after is None)
        rows = await self._pool.read(sql, self._cluster, most, head, text_head, cut, *(after or ()))
        key, bound = len(table.key), len(table.key) + len(table.bound)
        return [PayloadRow(tuple(row[:key]), tuple(row[key:bound]), tuple(row[bound:])) for row in rows]

    async def rewrite(self, table: PayloadTable, changes: Sequence[PayloadChange]) -> int:
        """Replace values. Returns the number of rows changed."""
        self._require_usable()
        columns = zip(*((*each.key, *each.was, *each.values) for each in changes), strict=True)
        sql = _rewrite(self._sql["rewrite"], table)
        return len(await self._pool.write(sql, self._cluster, *map(list, columns)))


@cache
def _page(sql: str, table: PayloadTable, *, is_first: bool) -> str:
    key = [(name, f"${number}::{_type(table, name)}") for number, name in enumerate(table.key, 6)]
    after = f"and ({', '.join(table.key)}) > ({', '.join(given for _, given in key)})"
    return _filled(
        sql,
        table=table.name,
        key=", ".join((*table.key, *table.bound)),
        values=", ".join(
            [
                *(
                    f"case when {_binary_is_other(name)} then substring({name} from 1 for $5::integer) end"
                    for name in table.binary
                ),
                *(
                    f"case when {name} <> '' and not starts_with({name}, $4::text) then left({name}, $5::integer) end"
                    for name in table.texts
                ),
                *(f"nullif({name}::text, '[]')" for name in table.lists),
            ]
        ),
        after="" if is_first else after,
        key_order=", ".join(("cluster", *table.key)),
    )


@cache
def _rewrite(sql: str, table: PayloadTable) -> str:
    types = [
        *(_type(table, name) for name in table.key),
        *2 * [*("bytea" for _ in table.binary), *("text" for _ in (*table.texts, *table.lists))],
    ]
    return _filled(
        sql,
        table=table.name,
        arrays=", ".join(f"${number}::{kind}[]" for number, kind in enumerate(types, 2)),
        item=", ".join((*table.key, *(f"was_{name}" for name in table.values), *table.values)),
        same=" and ".join(
            [
                *(f"t.{name} = i.{name}" for name in table.key),
                *(f"(i.was_{name} is null or t.{name} = i.was_{name})" for name in (*table.binary, *table.texts)),
                *(f"(i.was_{name} is null or t.{name}::text = i.was_{name})" for name in table.lists),
            ]
        ),
        set=", ".join(
            [
                *(f"{name} = coalesce(i.{name}, t.{name})" for name in (*table.binary, *table.texts)),
                *(f"{name} = coalesce(i.{name}::{_list_type(table)}, t.{name})" for name in table.lists),
            ]
        ),
    )


def _filled(sql: str, *, table: str, **parts: str) -> str:
    sql = sql.replace("payload_table", table)
    for name, part in parts.items():
        sql = sql.replace(f"/* {name} */", part)
    return sql


def _binary_is_other(name: str) -> str:
    return f"octet_length({name}) > 0 and substring({name} from 1 for octet_length($3::bytea)) <> $3::bytea"


def _type(table: PayloadTable, column: str) -> str:
    return _TYPES.get((table.name, column), "text")


def _list_type(table: PayloadTable) -> str:
    return "jsonb" if table.name in ("messages", "jobs") else "text"
