"""Queries that check whether promises were kept, in a SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw

from coterie.kernel.clock import to_datetime
from coterie.storage import statements
from coterie.storage.contracts.inspection import AuditRow, EndedMessage, ServerInfo, StateMark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.sqlite.database import SqliteDatabase

_SQL = statements.load("coterie.storage.sqlite.sql", "inspection.sql")


class SqliteInspection:
    """See `storage.contracts.inspection.Inspection`."""

    def __init__(self, main: SqliteDatabase, *, cluster: str) -> None:
        self._main = main
        self._cluster = cluster

    async def server(self) -> ServerInfo:
        """Describe the SQLite library."""
        return ServerInfo(f"SQLite {apsw.sqlite_lib_version()}")

    async def audit(self, *, after: int, most: int) -> Sequence[AuditRow]:
        """Return the audit rows, by number."""
        rows = await self._page("audit", after, most)
        return [AuditRow(number, to_datetime(at_ns), *rest) for number, at_ns, *rest in rows]

    async def states(self, *, after: str, most: int) -> Sequence[StateMark]:
        """Return the present state and the kept history of the next keys."""
        rows = await self._page("states", after, most)
        return [
            StateMark(key, seat, version, epoch, None if at_ns is None else to_datetime(at_ns))
            for key, seat, version, epoch, at_ns in rows
        ]

    async def endings(self, *, after: str, most: int) -> Sequence[EndedMessage]:
        """Return the messages that have ended, by id."""
        rows = await self._page("endings", after, most)
        return [
            EndedMessage(
                message,
                entity_type,
                entity_id,
                method,
                seat,
                epoch,
                to_datetime(at_ns),
                bool(is_dead),
                bool(has_reply),
                attempts,
            )
            for message, entity_type, entity_id, method, seat, epoch, at_ns, is_dead, has_reply, attempts in rows
        ]

    async def _page(self, name: str, after: object, most: int) -> list[Any]:
        names = {"cluster": self._cluster, "after": after, "most": most}
        return await self._main.read(lambda c: c.execute(_SQL[name], names).fetchall(), doing=f"read the {name}")
