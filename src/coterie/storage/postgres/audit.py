"""Queries that check whether promises were kept, and the record of acts, on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from coterie.storage import statements
from coterie.storage.contracts.activity import ActRow
from coterie.storage.contracts.inspection import AuditRow, EndedMessage, ServerInfo, StateMark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.kernel.fork_guard import ProcessOrigin
    from coterie.storage.contracts.activity import Act
    from coterie.storage.postgres.pool import Pool

_SQL = statements.load("coterie.storage.postgres.sql", "inspection.sql")
_ACTIVITY = statements.load("coterie.storage.postgres.sql", "activity.sql")


class PostgresInspection:
    """See `storage.contracts.inspection.Inspection`."""

    def __init__(self, *, cluster: str, pool: Pool, origin: ProcessOrigin) -> None:
        self._cluster = cluster
        self._pool = pool
        self._origin = origin

    async def server(self) -> ServerInfo:
        """Describe the server."""
        self._origin.require_same()
        (row,) = await self._pool.read(_SQL["server"])
        return ServerInfo(f"PostgreSQL {row['version']}", ours=row["ours"], taken=row["taken"], most=row["most"])

    async def audit(self, *, after: int, most: int) -> Sequence[AuditRow]:
        """Return the audit rows, by number."""
        return [AuditRow(*row) for row in await self._page("audit", after, most)]

    async def states(self, *, after: str, most: int) -> Sequence[StateMark]:
        """Return the present state and the kept history of the next keys."""
        return [StateMark(*row) for row in await self._page("states", after, most)]

    async def endings(self, *, after: str, most: int) -> Sequence[EndedMessage]:
        """Return the messages that have ended, by id."""
        return [EndedMessage(*row) for row in await self._page("endings", after, most)]

    async def _page(self, name: str, after: object, most: int) -> Sequence[Any]:
        self._origin.require_same()
        return await self._pool.read(_SQL[name], self._cluster, after, most)


class PostgresActivity:
    """See `storage.contracts.activity.Activity`."""

    def __init__(self, *, cluster: str, pool: Pool, origin: ProcessOrigin) -> None:
        self._cluster = cluster
        self._pool = pool
        self._origin = origin

    async def add(self, act: Act) -> None:
        """Durable when it returns."""
        self._origin.require_same()
        told = (act.who, act.origin, act.act, act.what, act.result)
        await self._pool.write(_ACTIVITY["add"], self._cluster, *told)

    async def list(self, *, before: int | None = None, most: int = 100) -> Sequence[ActRow]:
        """Return acts, the newest first."""
        self._origin.require_same()
        rows = await self._pool.read(_ACTIVITY["list"], self._cluster, before, most)
        return [ActRow(**dict(row)) for row in rows]

    async def purge(self, *, older_s: float, most: int) -> int:
        """Delete some old acts. Returns the number deleted."""
        self._origin.require_same()
        return cast("int", (await self._pool.write(_ACTIVITY["purge"], self._cluster, older_s, most))[0][0])
