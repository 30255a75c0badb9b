"""Machine ids of snowflakes on PostgreSQL: leased, each with a mark that is written ahead [M15]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.storage import statements
from coterie.storage.interface import Machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    from coterie.kernel.fork_guard import ProcessOrigin
    from coterie.storage.group_commit import GroupWriter
    from coterie.storage.postgres.pool import Pool

SQL = statements.load("coterie.storage.postgres.sql", "machines.sql")


class PostgresMachines:
    """The machine ids of one cluster. See `storage.interface.MachineIds`.

    A call of unknown outcome is harmless: an unused lease expires, and a mark raised in vain only skips ids.
    """

    def __init__(self, *, cluster: str, pool: Pool, writer: GroupWriter, origin: ProcessOrigin) -> None:
        self._cluster = cluster
        self._pool = pool
        self._writer = writer
        self._origin = origin

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

    async def _write(self, name: str, *values: object) -> Sequence[asyncpg.Record]:
        self._origin.require_same()
        self._writer.require_running()
        return await self._pool.write(SQL[name], self._cluster, *values)
