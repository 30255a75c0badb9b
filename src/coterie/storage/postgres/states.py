"""Entity state and execution records on PostgreSQL: saves and stamps go to the group writer, reads to the pool [C1]."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from coterie.storage.contracts.executions import ExecutionRecord
from coterie.storage.interface import ASIDE_MOST, StateLoaded, StateRow
from coterie.storage.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    from coterie.storage.contracts.executions import Stamp, Stamped
    from coterie.storage.interface import Claim, StateSave, Written


class PostgresStates(PostgresStore):
    """State written under the fence. See `storage.interface.StateStore`."""

    async def save(self, write: StateSave) -> Written:
        """Durable when it returns "written"."""
        return cast("Written", await self._commit(write))

    async def load(self, claim: Claim, key: str) -> StateLoaded | None:
        """Load the state for a new holder and mark the row with its epoch. Returns None if the seat is not held."""
        # It marks the row, yet may be repeated after a lost answer like any read: the same mark, under the same fence.
        (row,) = await self._read("claim_states", *_fence(claim), [key])
        return StateLoaded(row["value"], row["version"], row["expired"]) if row["held"] else None

    async def verify(self, claim: Claim) -> bool:
        """Whether the seat is currently held at this epoch. Waits for a handover in progress."""
        return bool(await self._read("verify", *_fence(claim)))

    async def set_aside(self, claim: Claim, key: str, reason: str) -> bool:
        """Keep a copy of the stored state before it is overwritten. Returns False if the seat is not held."""
        (row,) = await self._read("set_aside", *_fence(claim), [key], [reason], ASIDE_MOST)
        return bool(row["held"])

    async def peek(self, key: str) -> StateRow | None:
        """Read the state without holding its seat."""
        rows = await self._read("peek_state", key)
        return StateRow(*rows[0]) if rows else None

    async def history(self, key: str) -> Sequence[StateRow]:
        """Return the past states and those set aside, the newest first."""
        return [StateRow(*row) for row in await self._read("history_of_state", key)]

    async def purge(self, *, most: int) -> int:
        """Delete up to `most` expired states with their histories. Returns the number of states deleted."""
        return cast("int", (await self._read("purge_states", most))[0][0])


class PostgresExecutions(PostgresStore):
    """One row per seat. See `storage.contracts.executions.Executions`."""

    async def begin(self, claim: Claim, *, leader: str, expected_s: float | None) -> ExecutionRecord | None:
        """Record a new holder. Returns the row, or None if the seat is not held."""
        # Idempotent under the same fence, so it is repeated after a lost answer.
        (row,) = await self._read("begin_execution", *_fence(claim), [leader], [expected_s])
        return _execution(row) if row["held"] else None

    async def stamp(self, write: Stamp) -> Stamped:
        """Durable when it returns "written"."""
        return cast("Stamped", await self._commit(write))

    async def list(self, prefix: str) -> Sequence[ExecutionRecord]:
        """The records of all seats whose names begin with `prefix`, in the order of the names."""
        return [_execution(row) for row in await self._read("list_executions", prefix)]


def _execution(row: asyncpg.Record) -> ExecutionRecord:
    return ExecutionRecord(**{name: row[name] for name in ExecutionRecord.__struct_fields__})


def _fence(claim: Claim) -> tuple[object, ...]:
    return claim.runner, [claim.seat], [claim.epoch]
