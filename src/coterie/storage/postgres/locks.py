"""The connection for ownership alone, and the numbers of advisory locks.

Advisory locks are one of two witnesses that a runner is dead, never the truth about who owns what.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from coterie.storage.postgres.failures import DatabaseRefusal, Lost, loss, refusal
from coterie.storage.postgres.inspection import SQL
from coterie.storage.postgres.sessions import deadline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.postgres.sessions import Session


class Dedicated:
    """One session that nothing else shares. It is not replaced when lost: its locks are gone with it."""

    def __init__(self, session: Session, *, address: str, within_s: float) -> None:
        self._session = session
        self._within_s = within_s
        self._doing = f"use the dedicated connection to {address}"
        self._held: set[int] = set()

    @property
    def lost(self) -> bool:
        """Whether the session, and every lock with it, is gone."""
        return self._session.closed

    async def hold(self, key: int) -> bool:
        """Take an advisory lock for the life of this session; False if another session has it.

        Asking again for one that is held takes it no second time: the server would count them.
        """
        if key in self._held and not self.lost:
            return True
        got = bool((await self.fetch(SQL["hold"], key))[0][0])
        if got:
            self._held.add(key)
        return got

    async def fetch(self, sql: str, *values: Any) -> Sequence[Any]:
        """The rows of one statement."""
        try:
            return await self._session.fetch(sql, *values, over=deadline(self._within_s))
        except Lost as lost:
            raise loss(lost, doing=self._doing, outcome="unknown" if lost.sent else "unreachable") from lost
        except DatabaseRefusal as error:
            raise refusal(error, doing=self._doing) from error

    async def close(self) -> None:
        """Let go of the session and its locks."""
        await self._session.close()


def lock_key(kind: str, *parts: str) -> int:
    """The 64-bit number of an advisory lock [m7, m8].

    The space of numbers is the database's, shared with every other library: ours are hashes under a label of
    our own, over the kind and its parts (a cluster's name, an incarnation).
    """
    text = "\0".join((kind, *parts)).encode()
    digest = hashlib.blake2b(text, digest_size=8, person=b"coterie").digest()
    return int.from_bytes(digest, "big", signed=True)
