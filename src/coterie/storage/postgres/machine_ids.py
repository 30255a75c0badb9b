"""Machine ids of snowflakes on PostgreSQL: leased, each with a mark that is written ahead [M15]."""

from __future__ import annotations

from coterie.storage import statements
from coterie.storage.interface import Machine
from coterie.storage.postgres.store import PostgresStore

SQL = statements.load("coterie.storage.postgres.sql", "machines.sql")


class PostgresMachines(PostgresStore):
    """The machine ids of one cluster. See `storage.interface.MachineIds`.

    A call of unknown outcome is harmless: an unused lease expires, and a mark raised in vain only skips ids.
    """

    _sql = SQL

    async def lease(self, holder: str, *, ttl_s: float, until_ms: int) -> Machine | None:
        """Lease a free id. Returns None if all are taken."""
        rows = await self._write("lease", holder, ttl_s, until_ms)
        if not rows:
            await self._write("stock")
            rows = await self._write("lease", holder, ttl_s, until_ms)
        return Machine(*rows[0]) if rows else None

    async def extend(self, id: int, holder: str, *, ttl_s: float, until_ms: int) -> bool:
        """Renew the lease and raise the mark. Returns False if the lease was lost."""
        return bool(await self._write("extend", id, holder, ttl_s, until_ms))

    async def give_back(self, id: int, holder: str) -> None:
        """Free the id at once; its mark stays."""
        await self._write("give_back", id, holder)
