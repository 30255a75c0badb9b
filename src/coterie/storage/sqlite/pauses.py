"""Pauses of tasks, entity types and groups, in a SQLite file: plain functions, and the store."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from coterie.kernel.clock import to_datetime
from coterie.storage import statements
from coterie.storage.contracts.pauses import Pause
from coterie.storage.sqlite.store import SqliteStore, bindings, reads, writes
from coterie.storage.unreadable_rows import readable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from coterie.storage.contracts.pauses import PauseKind
    from coterie.storage.sqlite.store import Scope

SQL = statements.load(f"{__package__}.sql", "pauses.sql")


def listed(connection: apsw.Connection, scope: Scope) -> list[Pause]:
    """All pauses."""
    rows = connection.execute(SQL["pauses"], bindings(scope))
    return readable(rows, _pause, table="pauses", key=itemgetter(0, 1))


def _pause(row: Sequence[Any]) -> Pause:
    kind, name, at_ns = row
    return Pause(kind, name, to_datetime(at_ns))


def pause(connection: apsw.Connection, scope: Scope, kind: PauseKind, name: str) -> bool:
    """Store a pause, unless it is stored."""
    return _change(connection, scope, "store", kind, name)


def resume(connection: apsw.Connection, scope: Scope, kind: PauseKind, name: str) -> bool:
    """Remove a pause."""
    return _change(connection, scope, "remove", kind, name)


def _change(connection: apsw.Connection, scope: Scope, statement: str, kind: PauseKind, name: str) -> bool:
    connection.execute(SQL[statement], bindings(scope, kind=kind, name=name))
    changed = connection.changes() > 0
    if changed and kind != "entity":
        connection.execute(SQL["renew_stamps"], bindings(scope))
    return changed


class SqlitePauses(SqliteStore):
    """What is paused in one cluster. See `storage.contracts.pauses.PauseStore`."""

    pause = writes(pause, "pause {kind} {name!r}")
    resume = writes(resume, "resume {kind} {name!r}")
    list = reads(listed, "read pauses")
