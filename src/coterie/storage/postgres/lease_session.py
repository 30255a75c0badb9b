"""The dedicated session for ownership, its advisory locks, and the termination of sessions that block an eviction.

Advisory locks are one of two witnesses that a runner is dead, never the record of who owns what. A runner frozen inside
a transaction would hold up its own eviction: `SessionTerminator` ends its sessions [M12].
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import asyncpg

from coterie.kernel.service import Tasks
from coterie.storage import statements
from coterie.storage.postgres.connector import application_name
from coterie.storage.postgres.errors import DatabaseRefusal, Lost, judge, loss, refusal
from coterie.storage.postgres.session import deadline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.kernel.random import Random
    from coterie.storage.postgres.connector import ConnectionLimits, Connector
    from coterie.storage.postgres.session import PostgresSession


T = TypeVar("T")

Fetch = Callable[..., Awaitable[Sequence[Any]]]
"""Runs one statement with its values inside a call, and returns its rows."""

Beside = Callable[[float], AbstractAsyncContextManager[object]]
"""Runs beside a try after one that met a lock; it is given the call's deadline."""


class LeaseSession:
    """One unshared session, for one task at a time. It is not replaced when lost.

    Promise:
        A call ends within `ConnectionLimits.dedicated_s`, with all its tries: a deadlock or a lock is retried at once
        [C4]. When the session is lost, its advisory locks are gone with it, and every call raises.
    """

    def __init__(self, session: PostgresSession, *, address: str, chance: Random, limits: ConnectionLimits) -> None:
        self._session = session
        self._chance = chance
        self._within_s = limits.dedicated_s
        self._doing = f"use the dedicated connection to {address}"

    async def read(self, sql: str, *values: Any) -> Sequence[Any]:
        """Return the rows of a statement that changes nothing."""
        return await self._insist(partial(self._session.fetch, sql, *values), sent="unreachable")

    async def write(self, sql: str, *values: Any) -> Sequence[Any]:
        """Run one statement that changes something, in its own transaction."""
        return await self._insist(partial(self._session.fetch, sql, *values))

    async def transact(self, work: Callable[[Fetch], Awaitable[T]], *, blocked: Beside | None = None) -> T:
        """Run several statements in one transaction, from the beginning with each try.

        Args:
            work: Receives the function to fetch with.
            blocked: Runs beside the tries that follow one that met a lock.
        """
        return await self._insist(partial(self._session.transact, work), blocked=blocked)

    async def close(self) -> None:
        """Close the session, which releases its locks."""
        await self._session.close()

    async def _insist(
        self,
        once: Callable[..., Awaitable[T]],
        *,
        sent: Literal["unknown", "unreachable"] = "unknown",
        blocked: Beside | None = None,
    ) -> T:
        over = deadline(self._within_s)
        beside: Beside = nullcontext
        while True:
            try:
                async with beside(over):
                    return await once(over=over)
            except Lost as lost:
                raise loss(lost, doing=self._doing, outcome=sent if lost.sent else "unreachable") from lost
            except DatabaseRefusal as error:
                if not self._worth_another_try(error, over=over):
                    raise refusal(error, doing=self._doing) from error
                if judge(error) == "locked" and blocked is not None:
                    beside = blocked
            await asyncio.sleep(self._chance.between(0.001, 0.02))

    def _worth_another_try(self, error: Exception, *, over: float) -> bool:
        verdict = judge(error)
        if verdict == "elsewhere":
            self._session.abort()  # another server or session answers there: a new session will be opened
        in_time = deadline(self._within_s / 4) < over  # else the try would be cut off, with an unknown outcome
        return verdict in ("again", "locked") and in_time


def lock_key(kind: str, *parts: str) -> int:
    """The 64-bit number of an advisory lock [m7, m8].

    The numbers are shared with all other programs on the database: these are hashes under a label of coterie's own,
    over the kind and its parts (a cluster's name, an incarnation).
    """
    text = "\0".join((kind, *parts)).encode()
    digest = hashlib.blake2b(text, digest_size=8, person=b"coterie").digest()
    return int.from_bytes(digest, "big", signed=True)


log = logging.getLogger("coterie")

SQL = statements.load("coterie.storage.postgres.sql", "ownership.sql")

REFUSED = (
    "may not end session %d of runner %s, which holds up an eviction (%s): runners that freeze inside a transaction "
    "are replaced only when the server ends it; let all runners use one role, or grant them pg_signal_backend"
)

FOREIGN = (
    "other runners use the database roles %s, whose sessions this one may not end: a runner that freezes inside a "
    "transaction is replaced only when the server ends it; let all use one role, or grant them pg_signal_backend"
)

LOOK_S = 0.01
"""The interval between two checks of what the waiting session waits for."""


class SessionTerminator:
    """Terminates exactly the sessions that the evicting one waits for, on a second connection.

    These are the victim's, and those of other runners that froze while they evicted the same victim. Where the server
    refuses (another role, without pg_signal_backend), the session's own `idle_in_transaction_session_timeout` ends
    it, which is logged once.

    Args:
        connector: Opens the second connection.
        transaction_s: How long a transaction may wait for its client.
    """

    def __init__(self, connector: Connector, *, transaction_s: float) -> None:
        self._connector = connector
        self._transaction_s = transaction_s
        self._refused = False
        self._warned: set[str] = set()

    def warn(self, roles: set[str]) -> None:
        """Warn once per role that its sessions cannot be terminated: better now than at the first freeze."""
        if roles - self._warned:
            log.warning(FOREIGN, ", ".join(sorted(roles)))
        self._warned |= roles

    @asynccontextmanager
    async def beside(self, over: float, *, pid: Callable[[], int], victim: str) -> AsyncIterator[None]:
        """While the body runs statements on the session `pid()`, terminate the victim's sessions that block it."""
        session = await self._connector.connect("dedicated", over=over)
        tasks = Tasks("eviction")
        try:
            tasks.spawn(self._watch(session, pid=pid, victim=victim, over=over), name="end what blocks it")
            yield
        finally:
            await tasks.stop()
            session.abort()

    async def _watch(self, session: PostgresSession, *, pid: Callable[[], int], victim: str, over: float) -> None:
        ended: set[int] = set()
        while True:
            name = application_name(victim)
            found = await session.fetch(SQL["blocking"], pid(), name, self._transaction_s, over=over)
            for row in found:
                if row["pid"] not in ended and await self._end(session, row["pid"], name=row["name"], over=over):
                    ended.add(row["pid"])
            await asyncio.sleep(LOOK_S)

    async def _end(self, session: PostgresSession, pid: int, *, name: str, over: float) -> bool:
        """Terminate one session. Returns False if a pooler has lent it to another process meanwhile."""
        runner = name.removeprefix("coterie/")
        if not self._refused:  # logged first: the eviction may succeed, and cancel this, before the server answers
            log.warning("ending session %d of runner %s, which holds up an eviction", pid, runner)
        try:
            return bool(await session.fetch(SQL["end_session"], pid, name, over=over))
        except asyncpg.InsufficientPrivilegeError as error:
            if not self._refused:
                log.warning(REFUSED, pid, runner, error)
            self._refused = True
            return True
