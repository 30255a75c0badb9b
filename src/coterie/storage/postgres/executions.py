"""What leaders say of their work, on PostgreSQL: stamps go to the group writer, the rest to the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from coterie.storage.executions import Execution
from coterie.storage.postgres.commits import SQL

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    from coterie.kernel.fork_guard import Origin
    from coterie.storage.executions import Stamp, Stamped
    from coterie.storage.groups import GroupWriter
    from coterie.storage.interface import Claim
    from coterie.storage.postgres.pool import Pool


class PostgresExecutions:
    """One row a seat. See `storage.executions.Executions`."""

    def __init__(self, *, cluster: str, pool: Pool, writer: GroupWriter, origin: Origin) -> None:
        self._cluster = cluster
        self._pool = pool
        self._writer = writer
        self._origin = origin

    async def begin(self, claim: Claim, *, leader: str, expected_s: float | None) -> Execution | None:
        """A new holder introduces itself; what was known. None: the seat is not held."""
        self._check()
        # Repeated after a lost answer it does the same, under the same fence.
        named = (claim.runner, [claim.seat], [claim.epoch], [leader], [expected_s])
        (row,) = await self._pool.read(SQL["begin_execution"], self._cluster, *named)
        return _execution(row) if row["held"] else None

    async def stamp(self, write: Stamp) -> Stamped:
        """Durable when it returns "written"."""
        self._check()
        return cast("Stamped", await self._writer.write(write))

    async def list(self, prefix: str) -> Sequence[Execution]:
        """Those of all seats whose names begin so, in the order of the names."""
        self._check()
        return [_execution(row) for row in await self._pool.read(SQL["list_executions"], self._cluster, prefix)]

    def _check(self) -> None:
        self._origin.require_same()
        self._writer.require_running()


def _execution(row: asyncpg.Record) -> Execution:
    return Execution(**{name: row[name] for name in Execution.__struct_fields__})
