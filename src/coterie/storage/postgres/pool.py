"""The session pool for work: lends a session to one call at a time, opens on demand, drops when in doubt [P7]."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from coterie.errors import PersistenceError, ShuttingDown
from coterie.kernel import metrics
from coterie.storage.postgres.errors import DatabaseRefusal, Lost, judge, loss, refusal
from coterie.storage.postgres.session import deadline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import asyncpg

    from coterie.kernel.random import Random
    from coterie.storage.postgres.connector import ConnectionLimits, Connector
    from coterie.storage.postgres.session import PostgresSession


class Pool:
    """At most `size` sessions. The last used one is lent first, so that idle ones stay idle.

    Used instead of the driver's pool, which waits for cancelled calls to finish, resets each returned session (a round
    trip, and coterie's settings gone) and has no deadline for a call with all its retries.
    """

    def __init__(self, connector: Connector, *, size: int, chance: Random, limits: ConnectionLimits) -> None:
        self.size = size
        self._connector = connector
        self._chance = chance
        self._limits = limits
        self._free = asyncio.Semaphore(size)
        self._idle: list[PostgresSession] = []
        self._lent: dict[PostgresSession, None] = {}
        self._closed = False

    @property
    def open(self) -> int:
        """The number of open sessions, lent or idle."""
        return sum(not session.closed for session in (*self._idle, *self._lent))

    def rename(self) -> None:
        """Close sessions under the connector's old name: idle ones now, lent ones when they come back [M12]."""
        for session in self._idle:
            session.abort()
        self._idle.clear()

    def adopt(self, session: PostgresSession) -> None:
        """Take over a session that was opened elsewhere."""
        self._idle.append(session)

    async def read(self, sql: str, *values: Any) -> Sequence[asyncpg.Record]:
        """Return the rows of a statement that changes nothing; retried on another session while time is left."""
        return await self._call(sql, values, doing=f"read from {self._connector.address}", repeat=True)

    async def write(self, sql: str, *values: Any) -> Sequence[asyncpg.Record]:
        """Run one statement that changes something, in its own transaction.

        For rare writes; all others go through the group writer.
        """
        return await self._call(sql, values, doing=f"write to {self._connector.address}", repeat=False)

    async def _call(self, sql: str, values: Sequence[Any], *, doing: str, repeat: bool) -> Sequence[asyncpg.Record]:
        try:
            return await self._tried(sql, values, doing=doing, repeat=repeat)
        except PersistenceError as error:
            metrics.STORAGE_ERRORS.of("read" if repeat else "write", error.outcome).value += 1
            raise

    async def _tried(self, sql: str, values: Sequence[Any], *, doing: str, repeat: bool) -> Sequence[asyncpg.Record]:
        over = deadline(self._limits.call_s)
        while True:
            try:
                async with self.session(over=over, writes=not repeat) as session:
                    return await session.fetch(sql, *values, over=over)
            except Lost as lost:
                if lost.sent and not repeat:
                    raise loss(lost, doing=doing, outcome="unknown") from lost
                if deadline(0) >= over:
                    raise loss(lost, doing=doing, outcome="unreachable") from lost
            except DatabaseRefusal as error:
                if judge(error) not in ("again", "elsewhere") or deadline(0) >= over:
                    raise refusal(error, doing=doing) from error
            await asyncio.sleep(self._chance.between(0.005, 0.05))

    @asynccontextmanager
    async def session(self, *, over: float, writes: bool = True) -> AsyncIterator[PostgresSession]:
        """Lend a session; for writes only on a server that makes them durable. It returns to the pool if reusable."""
        await self._wait_for_room(over)
        try:
            session = self._take() or await self._connector.connect("work", over=over)
            self._lent[session] = None
            try:
                if writes and deadline(0) >= session.look_at:
                    await self._connector.look_again(session, over=over)
                yield session
            except DatabaseRefusal as error:
                if judge(error) == "elsewhere":
                    session.abort()
                raise
            finally:
                del self._lent[session]
                self._give_back(session)
        finally:
            self._free.release()

    async def close(self) -> None:
        """Close all sessions; calls in progress fail."""
        self._closed = True
        for session in list(self._lent):
            session.abort()
        await asyncio.gather(*(session.close() for session in self._idle))
        self._idle.clear()

    async def _wait_for_room(self, over: float) -> None:
        if self._closed:
            raise ShuttingDown(what=f"the pool of {self._connector.address}")
        within_s = max(over - deadline(0), 0.0)
        try:
            async with asyncio.timeout_at(over):
                await self._free.acquire()
        except TimeoutError as error:
            raise PersistenceError(
                doing=f"use {self._connector.address}",
                problem=f"all {self.size} connections were busy for {within_s:.2g}s",
                outcome="unreachable",
                hint="raise pool_size, or look at what the database is busy with",
            ) from error

    def _take(self) -> PostgresSession | None:
        if self._closed:
            raise ShuttingDown(what=f"the pool of {self._connector.address}")
        while self._idle:
            session = self._idle.pop()
            if not session.closed and not session.standby:
                return session
            session.abort()
        return None

    def _give_back(self, session: PostgresSession) -> None:
        if session.closed:
            return
        if self._closed or session.in_transaction or session.name != self._connector.name:
            session.abort()
        else:
            self._idle.append(session)
