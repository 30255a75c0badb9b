"""The connection for ownership alone, and the numbers of advisory locks.

Advisory locks are one of two witnesses that a runner is dead, never the truth about who owns what.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from coterie.storage.postgres.failures import DatabaseRefusal, Lost, judge, loss, refusal
from coterie.storage.postgres.sessions import deadline

if TYPE_CHECKING:
    from coterie.kernel.random import Chance
    from coterie.storage.postgres.connections import Limits
    from coterie.storage.postgres.sessions import Session

T = TypeVar("T")

Fetch = Callable[..., Awaitable[Sequence[Any]]]
"""The rows of one statement with its values, inside a call."""

Beside = Callable[[float], AbstractAsyncContextManager[object]]
"""What is done beside a try that met a lock; it is given the time at which the call is over."""


class Dedicated:
    """One session that nothing else shares, for one task at a time. It is not replaced when lost.

    Promise:
        A call ends within `Limits.dedicated_s`, with all its tries: what met a deadlock or a lock is tried again at
        once [C4]. When the session is lost, its advisory locks are gone with it, and every call says so.
    """

    def __init__(self, session: Session, *, address: str, chance: Chance, limits: Limits) -> None:
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
