"""Queries that check whether promises were kept, and the record of acts, in a SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw

from coterie.kernel.clock import to_datetime
from coterie.storage import statements
from coterie.storage.contracts.activity import ActRow
from coterie.storage.contracts.inspection import AuditRow, EndedMessage, ServerInfo, StateMark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.kernel.clock import Clock
    from coterie.storage.contracts.activity import Act
    from coterie.storage.sqlite.database import SqliteDatabase

_SQL = statements.load("coterie.storage.sqlite.sql", "inspection.sql")
_ACTIVITY = statements.load("coterie.storage.sqlite.sql", "activity.sql")


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


class SqliteActivity:
    """See `storage.contracts.activity.Activity`."""

    def __init__(self, main: SqliteDatabase, *, cluster: str, clock: Clock) -> None:
        self._main = main
        self._cluster = cluster
        self._clock = clock

    async def add(self, act: Act) -> None:
        """Durable when it returns."""
        names = {
            "cluster": self._cluster,
            "now_ns": self._clock.wall_ns(),
            "who": act.who,
            "origin": act.origin,
            "act": act.act,
            "what": act.what,
            "result": act.result,
        }
        await self._main.transact(lambda c: c.execute(_ACTIVITY["add"], names).fetchall(), doing="record an act")

    async def list(self, *, before: int | None = None, most: int = 100) -> Sequence[ActRow]:
        """Return acts, the newest first."""
        names = {"cluster": self._cluster, "before": before, "most": most}
        rows: list[Any] = await self._main.read(
            lambda c: c.execute(_ACTIVITY["list"], names).fetchall(), doing="read the acts"
        )
        return [
            ActRow(id=id_, at=to_datetime(at_ns), who=who, origin=origin, act=act, what=what, result=result)
            for id_, at_ns, who, origin, act, what, result in rows
        ]

    async def purge(self, *, older_s: float, most: int) -> int:
        """Delete some old acts. Returns the number deleted."""
        before_ns = self._clock.wall_ns() - int(older_s * 1e9)
        names = {"cluster": self._cluster, "before_ns": before_ns, "most": most}

        def purge(connection: apsw.Connection) -> int:
            connection.execute(_ACTIVITY["purge"], names)
            return connection.changes()

        return await self._main.transact(purge, doing="delete old acts")
