"""The base of the stores on PostgreSQL: writes that share transactions go to the group writer, the rest to the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.storage.postgres.writer import SQL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import asyncpg

    from coterie.kernel.fork_guard import ProcessOrigin
    from coterie.storage.group_commit import GroupWriter
    from coterie.storage.interface import Write
    from coterie.storage.postgres.pool import Pool


class PostgresStore:
    """The rows of one cluster.

    Args:
        cluster: The cluster's name.
        pool: Runs the statements that do not share transactions.
        writer: Commits the writes that do.
        origin: The process that opened the storage.
    """

    _sql: Mapping[str, str] = SQL
    """The statements, by name."""

    def __init__(self, *, cluster: str, pool: Pool, writer: GroupWriter, origin: ProcessOrigin) -> None:
        self._cluster = cluster
        self._pool = pool
        self._writer = writer
        self._origin = origin

    async def _commit(self, write: Write) -> Any:
        """Return the result of a write once it is durable."""
        self._origin.require_same()
        return await self._writer.submit(write)  # which checks that it is running

    async def _read(self, name: str, *values: object) -> Sequence[asyncpg.Record]:
        """Run a statement that changes nothing, or the same when it is repeated: it is, after a lost answer."""
        self._require_usable()
        return await self._pool.read(self._sql[name], self._cluster, *values)

    async def _write(self, name: str, *values: object) -> Sequence[asyncpg.Record]:
        """Run a statement that changes something, in its own transaction."""
        self._require_usable()
        return await self._pool.write(self._sql[name], self._cluster, *values)

    def _require_usable(self) -> None:
        self._origin.require_same()
        self._writer.require_running()
