"""Entity state and execution records on PostgreSQL: saves and stamps go to the group writer, reads to the pool [C1]."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from coterie.storage.contracts.executions import ExecutionRecord
from coterie.storage.interface import ASIDE_MOST, StateLoaded, StateRow
from coterie.storage.postgres.writer import SQL

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    from coterie.kernel.fork_guard import ProcessOrigin
    from coterie.storage.contracts.executions import Stamp, Stamped
    from coterie.storage.group_commit import GroupWriter
    from coterie.storage.interface import Claim, StateSave, Written
    from coterie.storage.postgres.pool import Pool


class PostgresStates:
    """State written under the fence. See `storage.interface.StateStore`."""

    def __init__(self, *, cluster: str, pool: Pool, writer: GroupWriter, origin: ProcessOrigin) -> None:
        self._cluster = cluster
        self._pool = pool
        self._writer = writer
        self._origin = origin

    async def save(self, write: StateSave) -> Written:
        """Durable when it returns "written"."""
        self._check()
        return cast("Written", await self._writer.write(write))

    async def load(self, claim: Claim, key: str) -> StateLoaded | None:
        """Load the state for a new holder and mark the row with its epoch. Returns None if the seat is not held."""
        rows = await self._read("claim_states", claim, [key])
        row = rows[0]
        return StateLoaded(row["value"], row["version"], row["expired"]) if row["held"] else None

    async def verify(self, claim: Claim) -> bool:
        """Whether the seat is currently held at this epoch. Waits for a handover in progress."""
        return bool(await self._read("verify", claim))

    async def set_aside(self, claim: Claim, key: str, reason: str) -> bool:
        """Keep a copy of the stored state before it is overwritten. Returns False if the seat is not held."""
        (row,) = await self._read("set_aside", claim, [key], [reason], ASIDE_MOST)
        return bool(row["held"])

    async def peek(self, key: str) -> StateRow | None:
        """Read the state without holding its seat."""
        self._check()
        rows = await self._pool.read(SQL["peek_state"], self._cluster, key)
        return StateRow(*rows[0]) if rows else None

    async def history(self, key: str) -> Sequence[StateRow]:
        """Return the past states and those set aside, the newest first."""
        self._check()
        return [StateRow(*row) for row in await self._pool.read(SQL["history_of_state"], self._cluster, key)]

    async def purge(self, *, most: int) -> int:
        """Delete up to `most` expired states with their histories. Returns the number of states deleted."""
        self._check()
        (row,) = await self._pool.read(SQL["purge_states"], self._cluster, most)
        return int(row[0])

    async def _read(self, name: str, claim: Claim, *values: object) -> Sequence[asyncpg.Record]:
        self._check()
        # Loading marks the row, yet may be repeated after a lost answer like any read: the same mark, under the same
        # fence.
        return await self._pool.read(SQL[name], self._cluster, claim.runner, [claim.seat], [claim.epoch], *values)

    def _check(self) -> None:
        self._origin.require_same()
        self._writer.require_running()


class PostgresExecutions:
    """One row per seat. See `storage.contracts.executions.Executions`."""

    def __init__(self, *, cluster: str, pool: Pool, writer: GroupWriter, origin: ProcessOrigin) -> None:
        self._cluster = cluster
        self._pool = pool
        self._writer = writer
        self._origin = origin

    async def begin(self, claim: Claim, *, leader: str, expected_s: float | None) -> ExecutionRecord | None:
        """Record a new holder. Returns the row, or None if the seat is not held."""
        self._check()
        # Idempotent under the same fence, so it is repeated after a lost answer.
        named = (claim.runner, [claim.seat], [claim.epoch], [leader], [expected_s])
        (row,) = await self._pool.read(SQL["begin_execution"], self._cluster, *named)
        return _execution(row) if row["held"] else None

    async def stamp(self, write: Stamp) -> Stamped:
        """Durable when it returns "written"."""
        self._check()
        return cast("Stamped", await self._writer.write(write))

    async def list(self, prefix: str) -> Sequence[ExecutionRecord]:
        """The records of all seats whose names begin with `prefix`, in the order of the names."""
        self._check()
        return [_execution(row) for row in await self._pool.read(SQL["list_executions"], self._cluster, prefix)]

    def _check(self) -> None:
        self._origin.require_same()
        self._writer.require_running()


def _execution(row: asyncpg.Record) -> ExecutionRecord:
    return ExecutionRecord(**{name: row[name] for name in ExecutionRecord.__struct_fields__})
