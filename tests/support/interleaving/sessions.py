"""The database's side: two sessions, one that watches them, and a gate at which a COMMIT can be held."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import asyncpg

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.support.interleaving.scripts import Rows

    Connect = Callable[[], Awaitable[asyncpg.Connection[Any]]]

POLL_S = 0.001
STUCK_S = 120.0
"""Nothing takes this long: locks and statements have limits of their own."""

_GATE_KEY = 0x636F7465726965

# A deferred trigger runs inside COMMIT, while the transaction still holds its locks and nobody sees its rows. The
# gate has no lock timeout of its own: the watcher decides when it opens.
_GATE = f"""
create schema if not exists interleaving;
create table if not exists interleaving.gate (at bigint);
create or replace function interleaving.wait() returns trigger language plpgsql
    set lock_timeout = 0 set statement_timeout = 0
    as 'begin perform pg_catalog.pg_advisory_xact_lock_shared({_GATE_KEY}); return null; end';
drop trigger if exists gate on interleaving.gate;
create constraint trigger gate after insert on interleaving.gate
    deferrable initially deferred for each row execute function interleaving.wait();
"""
HELD_COMMIT = "insert into interleaving.gate values (1); commit"

Gone = (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionError, asyncpg.AdminShutdownError)


class Session:
    """One of the two sessions. Lost, it is replaced before the next run."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: asyncpg.Connection[Any] | None = None
        self.pid = 0

    async def ready(self) -> None:
        """Connected, outside of any transaction."""
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._connect()
            self.pid = self._connection.get_server_pid()
        elif self._connection.is_in_transaction():
            await self._connection.execute("rollback")

    async def run(self, sql: str, values: Sequence[Any], *, opens: bool = False) -> Rows:
        """The rows of one statement, at the beginning of a transaction or wherever we are."""
        assert self._connection is not None
        if opens:
            await self._connection.execute("begin")
        if sql in ("commit", "rollback", HELD_COMMIT):
            await self._connection.execute(sql)
            return []
        rows: Rows = await self._connection.fetch(sql, *values)
        return rows

    def cut(self) -> None:
        """The client is gone, without a word."""
        assert self._connection is not None
        self._connection.terminate()

    async def close(self) -> None:
        """Let go."""
        if self._connection is not None:
            self._connection.terminate()


class Watcher:
    """A third session: resets and reads the tables, sees who waits for whom, holds and opens the gate."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection
        self._pid = connection.get_server_pid()
        self._holds_gate = False

    async def prepare(self) -> None:
        """Make the gate."""
        await self._connection.execute(_GATE)

    async def script(self, sql: str) -> None:
        """Run a script."""
        await self._connection.execute(sql)

    async def read(self, sql: str) -> Rows:
        """The rows of a query."""
        rows: Rows = await self._connection.fetch(sql)
        return rows

    async def waiting_for(self, pids: Sequence[int], *, among: Sequence[int]) -> dict[int, list[int]]:
        """Which of these wait for a lock, and for whom; only waits for us or those `among`, others pass by."""
        rows = await self._connection.fetch(
            "select pid, pg_blocking_pids(pid) as blockers from unnest($1::int[]) as u (pid)", pids
        )
        ours = {self._pid, *among}
        found = {row["pid"]: list(dict.fromkeys(row["blockers"])) for row in rows}
        return {pid: blockers for pid, blockers in found.items() if blockers and ours.issuperset(blockers)}

    def is_gate(self, pid: int) -> bool:
        """Whether this is the session that holds the gate."""
        return pid == self._pid

    async def alive(self, pids: Sequence[int]) -> set[int]:
        """Which of these sessions the server still has."""
        rows = await self._connection.fetch("select pid from pg_stat_activity where pid = any($1::int[])", pids)
        return {row["pid"] for row in rows}

    async def end(self, pid: int) -> None:
        """End a session and wait until it has ended."""
        await self._connection.execute(f"select pg_terminate_backend({pid:d})")
        async with asyncio.timeout(STUCK_S):
            while await self.alive([pid]):
                await asyncio.sleep(POLL_S)

    async def hold_gate(self) -> None:
        """From now on a held commit waits."""
        if not self._holds_gate:
            await self._connection.execute(f"select pg_advisory_lock({_GATE_KEY})")
            self._holds_gate = True

    async def open_gate(self) -> None:
        """Let held commits go on."""
        if self._holds_gate:
            self._holds_gate = False
            await self._connection.execute(f"select pg_advisory_unlock({_GATE_KEY})")

    async def close(self) -> None:
        """Let go."""
        with suppress(*Gone):
            await self._connection.close(timeout=5)
