"""Queries that check whether promises were kept, and the record of acts, in a SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import msgspec

from coterie.storage import statements
from coterie.storage.contracts.activity import ActRow
from coterie.storage.contracts.inspection import AuditRow, EndedMessage, ServerInfo, StateMark
from coterie.storage.sqlite.store import SqliteStore, reads, to_struct, writes

if TYPE_CHECKING:
    from coterie.storage.contracts.activity import Act
    from coterie.storage.sqlite.store import Scope

_SQL = statements.load("coterie.storage.sqlite.sql", "inspection.sql")
_ACTIVITY = statements.load("coterie.storage.sqlite.sql", "activity.sql")


def audit(connection: apsw.Connection, scope: Scope, *, after: int, most: int) -> list[AuditRow]:
    """The audit rows, by number."""
    rows = connection.execute(_SQL["audit"], scope.bindings(after=after, most=most))
    return [to_struct(AuditRow, row) for row in rows]


def states(connection: apsw.Connection, scope: Scope, *, after: str, most: int) -> list[StateMark]:
    """The present state and the kept history of the next keys."""
    rows = connection.execute(_SQL["states"], scope.bindings(after=after, most=most))
    return [to_struct(StateMark, row) for row in rows]


def endings(connection: apsw.Connection, scope: Scope, *, after: str, most: int) -> list[EndedMessage]:
    """The messages that have ended, by id."""
    rows = connection.execute(_SQL["endings"], scope.bindings(after=after, most=most))
    return [to_struct(EndedMessage, row) for row in rows]


class SqliteInspection(SqliteStore):
    """See `storage.contracts.inspection.Inspection`."""

    async def server(self) -> ServerInfo:
        """Describe the SQLite library."""
        return ServerInfo(f"SQLite {apsw.sqlite_lib_version()}")

    audit = reads(audit, "read the audit")
    states = reads(states, "read the states")
    endings = reads(endings, "read the endings")


def add(connection: apsw.Connection, scope: Scope, act: Act) -> None:
    """Record an act."""
    connection.execute(_ACTIVITY["add"], scope.bindings(**msgspec.structs.asdict(act)))


def listed(connection: apsw.Connection, scope: Scope, *, before: int | None = None, most: int = 100) -> list[ActRow]:
    """Acts, the newest first."""
    rows = connection.execute(_ACTIVITY["list"], scope.bindings(before=before, most=most))
    return [to_struct(ActRow, row) for row in rows]


def purge(connection: apsw.Connection, scope: Scope, *, older_s: float, most: int) -> int:
    """Delete some old acts. Returns the number deleted."""
    before_ns = scope.now_ns - int(older_s * 1e9)
    connection.execute(_ACTIVITY["purge"], scope.bindings(before_ns=before_ns, most=most))
    return connection.changes()


class SqliteActivity(SqliteStore):
    """See `storage.contracts.activity.Activity`."""

    add = writes(add, "record an act")
    list = reads(listed, "read the acts")
    purge = writes(purge, "delete old acts")
