"""What users' code gave, in a SQLite file: read in pages, and replaced in short transactions."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from coterie.storage import statements
from coterie.storage.contracts.payloads import PayloadRow
from coterie.storage.sqlite.store import SqliteStore, reads, writes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from coterie.storage.contracts.payloads import PayloadChange, PayloadTable
    from coterie.storage.sqlite.store import Scope

_SQL = statements.load(f"{__package__}.sql", "payloads.sql")
_NAME = "payload key "
_COLUMNS = {("ticks", "at"): "at_ns"}
"""Columns with other names than those of the contract."""


def keys(connection: apsw.Connection, scope: Scope) -> dict[str, str]:
    """The fingerprints of the keys, by id."""
    rows: list[Any] = connection.execute(_SQL["keys"], scope.bindings()).fetchall()
    return {name.removeprefix(_NAME): value for name, value in rows}


def add_key(connection: apsw.Connection, scope: Scope, id: str, fingerprint: str) -> None:
    """Store the fingerprint of a key, unless there is one."""
    connection.execute(_SQL["add_key"], scope.bindings(id=id, fingerprint=fingerprint))


def remove_key(connection: apsw.Connection, scope: Scope, id: str) -> None:
    """Forget a key."""
    connection.execute(_SQL["remove_key"], scope.bindings(id=id))


def page(
    connection: apsw.Connection,
    scope: Scope,
    table: PayloadTable,
    *,
    after: tuple[Any, ...] | None,
    most: int,
    head: bytes,
    text_head: str,
    cut: int,
) -> list[PayloadRow]:
    """The next rows of a table."""
    given = (scope.cluster, most, head, text_head, cut, *(after or ()))
    rows: list[Any] = connection.execute(_page(table, is_first=after is None), given).fetchall()
    key, bound = len(table.key), len(table.key) + len(table.bound)
    return [PayloadRow(row[:key], row[key:bound], row[bound:]) for row in rows]


def rewrite(connection: apsw.Connection, scope: Scope, table: PayloadTable, changes: Sequence[PayloadChange]) -> int:
    """Replace values. Returns the number of rows changed."""
    changed = 0
    for each in changes:
        connection.execute(_rewrite(table), (scope.cluster, *each.key, *each.was, *each.values))
        changed += connection.changes()
    return changed


@cache
def _page(table: PayloadTable, *, is_first: bool) -> str:
    key = _key(table)
    after = f"and ({', '.join(key)}) > ({', '.join(f'?{number}' for number in range(6, 6 + len(key)))})"
    return _filled(
        "page",
        table=table.name,
        key=", ".join((*key, *table.bound)),
        values=", ".join(
            [
                *(_other(name, head="?3") for name in table.binary),
                *(_other(name, head="?4") for name in table.texts),
                *(f"nullif({name}, '[]')" for name in table.lists),
            ]
        ),
        after="" if is_first else after,
        key_order=", ".join(key),
    )


@cache
def _rewrite(table: PayloadTable) -> str:
    first = 2 + len(table.key)
    number = {name: first + place for place, name in enumerate(table.values)}
    more = len(table.values)
    return _filled(
        "rewrite",
        table=table.name,
        set=", ".join(f"{name} = coalesce(?{number[name] + more}, {name})" for name in table.values),
        same=" and ".join(
            [
                *(f"{name} = ?{place}" for place, name in enumerate(_key(table), 2)),
                *(f"(?{number[name]} is null or {name} = ?{number[name]})" for name in table.values),
            ]
        ),
    )


def _other(name: str, *, head: str) -> str:
    is_other = f"length({name}) > 0 and substr({name}, 1, length({head})) <> {head}"
    return f"iif({is_other}, substr({name}, 1, ?5), null)"


def _key(table: PayloadTable) -> tuple[str, ...]:
    return tuple(_COLUMNS.get((table.name, name), name) for name in table.key)


def _filled(name: str, *, table: str, **parts: str) -> str:
    sql = _SQL[name].replace("payload_table", table)
    for place, part in parts.items():
        sql = sql.replace(f"/* {place} */", part)
    return sql


class SqlitePayloads(SqliteStore):
    """See `storage.contracts.payloads.PayloadStore`."""

    keys = reads(keys, "read the keys of payloads")
    add_key = writes(add_key, "store the key {id!r} of payloads")
    remove_key = writes(remove_key, "forget the key {id!r} of payloads")
    page = reads(page, "read payloads")
    rewrite = writes(rewrite, "write payloads anew")
