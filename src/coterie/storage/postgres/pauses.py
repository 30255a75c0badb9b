"""Pauses of tasks, entity types and groups, on PostgreSQL: single statements, which go to the pool."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from coterie.storage import statements
from coterie.storage.contracts.pauses import Pause
from coterie.storage.postgres.store import PostgresStore
from coterie.storage.unreadable_rows import readable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.contracts.pauses import PauseKind


class PostgresPauses(PostgresStore):
    """See `storage.contracts.pauses.PauseStore`."""

    _sql = statements.load("coterie.storage.postgres.sql", "pauses.sql")

    async def list(self) -> Sequence[Pause]:
        """Return all pauses, in order of kind and name."""
        rows = await self._read("pauses")
        return readable(rows, lambda row: Pause(*row), table="pauses", key=itemgetter("kind", "name"))

    async def pause(self, kind: PauseKind, name: str) -> bool:
        """Store a pause. Once it has returned no job of a paused task or group is claimed."""
        return await self._change("store_pause", kind, name)

    async def resume(self, kind: PauseKind, name: str) -> bool:
        """Remove a pause. Returns False if there was none."""
        return await self._change("remove_pause", kind, name)

    async def _change(self, statement: str, kind: PauseKind, name: str) -> bool:
        changed = bool(await self._write(statement, kind, name))
        if kind != "entity":  # also if nothing has changed: an earlier try may have got no further than this
            await self._read("renew_stamps")  # a stamp may as well change twice, so it is repeated like a read
        return changed
