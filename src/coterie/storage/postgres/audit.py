"""Queries that check whether promises were kept, on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.storage import statements
from coterie.storage.contracts.inspection import AuditRow, EndedMessage, ServerInfo, StateMark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.kernel.fork_guard import ProcessOrigin
    from coterie.storage.postgres.pool import Pool

_SQL = statements.load("coterie.storage.postgres.sql", "inspection.sql")


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
