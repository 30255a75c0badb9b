"""Counts this process's sessions at the server, including dropped ones that the server has not ended yet.

Closing a connection ends its session only when the server looks at the socket. A backend whose COMMIT waits for a
synchronous standby does not: while the standby is away, each timed-out call would leave one more session behind, until
the server accepts no connections at all.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from coterie.errors import PersistenceError
from coterie.storage import statements

if TYPE_CHECKING:
    from coterie.storage.postgres.session import PostgresSession

SQL = statements.load("coterie.storage.postgres.sql", "server.sql")

_PROBE_S = 1.0
"""At the limit, the interval at which one more session may be opened, to find which dropped ones have ended."""


class SessionRegistry:
    """Counts sessions, terminates dropped ones at the server, and refuses more than `most`. Used on several loops.

    Args:
        most: The maximum number of sessions of this process at the server.

    Promise:
        At the server there are never more than `most` sessions of this process, plus one that terminates dropped ones.
    """

    def __init__(self, *, most: int) -> None:
        self.most = most
        self._opening = 0
        self._open: list[PostgresSession] = []
        self._dropped: dict[int, str] = {}  # server process id to application_name
        self._probed_s = 0.0
        self._changing = threading.Lock()

    @property
    def count(self) -> int:
        """The number of sessions at the server, as far as known."""
        with self._changing:
            self._open = [session for session in self._open if not session.closed]
            return self._opening + len(self._open) + len(self._dropped)

    def begin(self, *, address: str) -> None:
        """Reserve a session that is about to be opened; `end` follows.

        Raises:
            PersistenceError: There are too many.
        """
        now_s = asyncio.get_running_loop().time()
        if self.count >= self.most:
            if now_s - self._probed_s < _PROBE_S:
                raise self._full(address)
            self._probed_s = now_s
        with self._changing:
            self._opening += 1

    def end(self, session: PostgresSession | None) -> None:
        """Record the opened session, or None if opening failed."""
        with self._changing:
            self._opening -= 1
            if session is not None:
                self._open.append(session)

    def dropped(self, session: PostgresSession) -> None:
        """Record that a session's connection was cut here: its statement may continue at the server."""
        with self._changing:
            self._dropped[session.greeted_by] = session.name

    async def end_dropped(self, session: PostgresSession, *, address: str, over: float) -> None:
        """Terminate dropped sessions at the server, on a session that was just opened.

        A COMMIT that waits for a standby has happened on the server; its caller already got the outcome "unknown".

        Raises:
            PersistenceError: There are still too many.
        """
        with self._changing:
            open_pids = {each.greeted_by for each in self._open if not each.closed}
            dropped = {pid: name for pid, name in self._dropped.items() if pid not in open_pids}
        if dropped:
            rows = await session.fetch(SQL["end_dropped"], list(dropped), list(set(dropped.values())), over=over)
            there = {row["pid"] for row in rows}
            with self._changing:
                for pid in dropped.keys() - there:
                    self._dropped.pop(pid, None)
        if self.count > self.most:
            raise self._full(address)

    def _full(self, address: str) -> PersistenceError:
        dropped = len(self._dropped)
        return PersistenceError(
            doing=f"connect to {address}",
            problem=f"this process may have {self.most} sessions there and has {self.count}, {dropped} of them dropped",
            outcome="unreachable",
            hint="statements do not end at the server: is a synchronous standby away? see pg_stat_activity.wait_event",
        )
