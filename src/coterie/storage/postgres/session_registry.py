"""The sessions of this process at the server, those included that were dropped here and that the server has not ended.

A connection that is closed on our side ends a session only when the server looks at its socket. A backend whose COMMIT
waits for a synchronous standby does not: while the standby is away, each call that runs out of time would leave one
more session behind, until the server takes no connection of anybody.
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
"""At the bound one more session may be opened so often, to find out which of the dropped ones the server has ended."""


class SessionRegistry:
    """Counts sessions, ends dropped ones at the server, and refuses more than `most`. Used on several loops.

    Args:
        most: How many sessions this process may have at the server.

    Promise:
        At the server there are never more than `most` sessions of this process, and one that looks after them.
    """

    def __init__(self, *, most: int) -> None:
        self.most = most
        self._opening = 0
        self._open: list[PostgresSession] = []
        self._dropped: dict[int, str] = {}  # the server process of each, and its application_name
        self._probed_s = 0.0
        self._changing = threading.Lock()

    @property
    def count(self) -> int:
        """Sessions at the server, as far as known here."""
        with self._changing:
            self._open = [session for session in self._open if not session.closed]
            return self._opening + len(self._open) + len(self._dropped)

    def begin(self, *, address: str) -> None:
        """A session is about to be opened; `end` follows.

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
        """It was opened, or not."""
        with self._changing:
            self._opening -= 1
            if session is not None:
                self._open.append(session)

    def dropped(self, session: PostgresSession) -> None:
        """The connection of a session was cut here: what runs on it may go on at the server."""
        with self._changing:
            self._dropped[session.greeted_by] = session.name

    async def end_dropped(self, session: PostgresSession, *, address: str, over: float) -> None:
        """End at the server what was dropped here, on a session that was just opened.

        A COMMIT that waits for a standby has happened on the server: what became of it is unknown to its caller, who
        was told so.

        Raises:
            PersistenceError: There are too many all the same.
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
