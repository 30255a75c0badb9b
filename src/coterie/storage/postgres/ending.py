"""Ending the sessions of runners that are frozen inside a transaction and hold up an eviction [M12]."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg

from coterie.kernel.service import Tasks
from coterie.storage import statements
from coterie.storage.postgres.connections import application_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from coterie.storage.postgres.connections import Connector
    from coterie.storage.postgres.sessions import Session

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


class Ending:
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

    async def _watch(self, session: Session, *, pid: Callable[[], int], victim: str, over: float) -> None:
        ended: set[int] = set()
        while True:
            name = application_name(victim)
            found = await session.fetch(SQL["blocking"], pid(), name, self._transaction_s, over=over)
            for row in found:
                if row["pid"] not in ended and await self._end(session, row["pid"], name=row["name"], over=over):
                    ended.add(row["pid"])
            await asyncio.sleep(LOOK_S)

    async def _end(self, session: Session, pid: int, *, name: str, over: float) -> bool:
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
