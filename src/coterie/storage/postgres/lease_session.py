"""The connection for ownership alone, and the numbers of advisory locks.

Advisory locks are one of two witnesses that a runner is dead, never the truth about who owns what.

Ending the sessions of runners that are frozen inside a transaction and hold up an eviction [M12].
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
"""The rows of one statement with its values, inside a call."""

Beside = Callable[[float], AbstractAsyncContextManager[object]]
"""What is done beside a try that met a lock; it is given the time at which the call is over."""


class LeaseSession:
    """One session that nothing else shares, for one task at a time. It is not replaced when lost.

    Promise:
        A call ends within `ConnectionLimits.dedicated_s`, with all its tries: what met a deadlock or a lock is tried
        again at once [C4]. When the session is lost, its advisory locks are gone with it, and every call says so.
    """

    def __init__(self, session: PostgresSession, *, address: str, chance: Random, limits: ConnectionLimits) -> None:
        self._session = session
        self._chance = chance
        self._within_s = limits.dedicated_s
        self._doing = f"use the dedicated connection to {address}"

    @property
    def lost(self) -> bool:
        """Whether the session, and every lock with it, is gone."""
        return self._session.closed

    async def read(self, sql: str, *values: Any) -> Sequence[Any]:
        """The rows of a statement that changes nothing."""
        return await self._insist(partial(self._session.fetch, sql, *values), sent="unreachable")

    async def write(self, sql: str, *values: Any) -> Sequence[Any]:
        """Run one statement that changes something, in a transaction of its own."""
        return await self._insist(partial(self._session.fetch, sql, *values))

    async def transact(self, work: Callable[[Fetch], Awaitable[T]], *, blocked: Beside | None = None) -> T:
        """Run several statements in one transaction, from the beginning with each try.

        Args:
            work: Is given what to fetch with.
            blocked: What to do beside the tries that follow one that met a lock.
        """
        return await self._insist(partial(self._session.transact, work), blocked=blocked)

    async def close(self) -> None:
        """Let go of the session and its locks."""
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
            self._session.abort()  # whoever answers there is not whom we need: another session will be opened
        in_time = deadline(self._within_s / 4) < over  # else we would be cut off, and know less than now
        return verdict in ("again", "locked") and in_time


def lock_key(kind: str, *parts: str) -> int:
    """The 64-bit number of an advisory lock [m7, m8].

    The space of numbers is the database's, shared with every other library: ours are hashes under a label of
    our own, over the kind and its parts (a cluster's name, an incarnation).
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
"""Between two looks at what the waiting session waits for."""


class SessionTerminator:
    """Ends exactly the sessions that the deleting one waits for, on a second connection.

    These are the victim's, and those of other runners that froze while they evicted the same victim. Where the server
    refuses (another role, without pg_signal_backend), the session's own
    `idle_in_transaction_session_timeout` ends it, which is said once.

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
        """Say once of each role that its sessions could not be ended: better now than at the first freeze."""
        if roles - self._warned:
            log.warning(FOREIGN, ", ".join(sorted(roles)))
        self._warned |= roles

    @asynccontextmanager
    async def beside(self, over: float, *, pid: Callable[[], int], victim: str) -> AsyncIterator[None]:
        """While the body runs statements on the session `pid()`, end what of the victim's is in its way."""
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
        """End one; False: a pooler has given it to another process meanwhile."""
        runner = name.removeprefix("coterie/")
        if not self._refused:  # said before: the eviction may be done, and this cancelled, before an answer comes
            log.warning("ending session %d of runner %s, which holds up an eviction", pid, runner)
        try:
            return bool(await session.fetch(SQL["end_session"], pid, name, over=over))
        except asyncpg.InsufficientPrivilegeError as error:
            if not self._refused:
                log.warning(REFUSED, pid, runner, error)
            self._refused = True
            return True
