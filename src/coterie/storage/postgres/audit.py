"""Queries that check whether promises were kept, and the record of acts, on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from coterie.storage import statements
from coterie.storage.contracts.activity import ActRow
from coterie.storage.contracts.inspection import AuditRow, EndedMessage, ServerInfo, StateMark
from coterie.storage.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.contracts.activity import Act


class PostgresInspection(PostgresStore):
    """See `storage.contracts.inspection.Inspection`."""

    _sql = statements.load("coterie.storage.postgres.sql", "inspection.sql")

    async def server(self) -> ServerInfo:
        """Describe the server."""
        self._require_usable()
        (row,) = await self._pool.read(self._sql["server"])
        return ServerInfo(f"PostgreSQL {row['version']}", ours=row["ours"], taken=row["taken"], most=row["most"])

    async def audit(self, *, after: int, most: int) -> Sequence[AuditRow]:
        """Return the audit rows, by number."""
        return [AuditRow(*row) for row in await self._read("audit", after, most)]

    async def states(self, *, after: str, most: int) -> Sequence[StateMark]:
        """Return the present state and the kept history of the next keys."""
        return [StateMark(*row) for row in await self._read("states", after, most)]

    async def endings(self, *, after: str, most: int) -> Sequence[EndedMessage]:
        """Return the messages that have ended, by id."""
        return [EndedMessage(*row) for row in await self._read("endings", after, most)]


class PostgresActivity(PostgresStore):
    """See `storage.contracts.activity.Activity`."""

    _sql = statements.load("coterie.storage.postgres.sql", "activity.sql")

    async def add(self, act: Act) -> None:
        """Durable when it returns."""
        await self._write("add", act.who, act.origin, act.act, act.what, act.result)

    async def list(self, *, before: int | None = None, most: int = 100) -> Sequence[ActRow]:
        """Return acts, the newest first."""
        return [ActRow(**dict(row)) for row in await self._read("list", before, most)]

    async def purge(self, *, older_s: float, most: int) -> int:
        """Delete some old acts. Returns the number deleted."""
        return cast("int", (await self._write("purge", older_s, most))[0][0])
