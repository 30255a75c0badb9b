"""The messages of a cluster in a SQLite file: the face for the rest of coterie."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from coterie.storage.messages import Insert, Suspected
from coterie.storage.sqlite import deliveries, records, states
from coterie.storage.sqlite.kv import Scope

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Mapping, Sequence

    import apsw

    from coterie.kernel.clock import Clock
    from coterie.storage.groups import GroupWriter, Waiter
    from coterie.storage.interface import Claim
    from coterie.storage.messages import (
        Backlog,
        Commit,
        Committed,
        Delivery,
        Due,
        Filter,
        Mark,
        Message,
        MessageRow,
        Receipt,
        Setback,
        Status,
        Suffered,
        Suspicion,
    )
    from coterie.storage.sqlite.database import Database

T = TypeVar("T")


class SqliteMessages:
    """The messages of one cluster. See `storage.messages.Messages`."""

    def __init__(
        self,
        database: Database,
        *,
        writer: GroupWriter,
        cluster: str,
        clock: Clock,
        audit: bool = False,
    ) -> None:
        self._database = database
        self._writer = writer
        self._origin = database.origin
        self._cluster = cluster
        self._clock = clock
        self._audit = audit

    def insert(self, message: Message) -> Future[Receipt]:
        """Store a message."""
        self._origin.require_same()
        return self._writer.submit(Insert(message))

    def commit(self, write: Commit) -> Future[Committed]:
        """Durable when it says "written"."""
        self._origin.require_same()
        return self._writer.submit(write)

    def save(self, write: Insert | Commit, waiter: Waiter) -> None:
        """Either; `waiter` is told."""
        self._origin.require_same()
        self._writer.post(write, waiter)

    def setback(self, write: Setback) -> Future[Suffered]:
        """Count a failed attempt."""
        self._origin.require_same()
        return self._writer.submit(write)

    async def due(self, after: Mapping[str, Mark | None], *, ahead_s: float = 0.0, most: int) -> Due:
        """Of each of these seats the first `most` pending messages past a mark that are due within `ahead_s`."""
        return await self._read(lambda c, s: deliveries.due(c, s, after, ahead_s=ahead_s, most=most))

    async def backlog(self, *, most: int, dead_most: int) -> Backlog:
        """The longest due message of each seat, and how many are dead."""
        return await self._read(lambda c, s: deliveries.backlog(c, s, most=most, dead_most=dead_most))

    async def fetch(self, ids: Sequence[str]) -> Sequence[Delivery]:
        """Those of these messages that are pending."""
        return await self._read(lambda c, s: deliveries.fetch(c, s, ids))

    async def suspect(self, claim: Claim, concurrency: Mapping[str, int], *, loss_limit: int) -> Suspected:
        """Judge what may have been running when the holder before was lost."""

        def judge(connection: apsw.Connection, scope: Scope) -> Suspected:
            return deliveries.suspect(connection, scope, claim, concurrency, loss_limit=loss_limit)

        return await self._fenced(claim, judge, about="suspects", lost=Suspected(0, ()))

    async def mark(self, claim: Claim, id: str, suspicion: Suspicion) -> bool:
        """Note how a suspect is begun, before it is."""
        return await self._fenced(
            claim, lambda c, s: deliveries.mark(c, s, claim, id, int(suspicion)), about=id, lost=False
        )

    async def look(self, ids: Sequence[str]) -> Sequence[MessageRow]:
        """What is known about these messages."""
        return await self._read(lambda c, s: records.look(c, s, ids))

    async def find(self, entity_type: str, entity_id: str, method: str, key: str) -> Receipt | None:
        """The message that has a key."""
        names = {"entity_type": entity_type, "entity_id": entity_id, "method": method, "key": key}
        return await self._read(lambda c, s: records.find(c, s, **names))

    async def cancel(self, id: str, claim: Claim | None, *, reply: bytes) -> bool:
        """End a pending message; False: there is none. With a claim under the fence, else if nobody holds it."""
        fenced = claim is not None
        return await self._fenced(
            claim, lambda c, s: records.cancel(c, s, id, reply, fenced=fenced), about=id, lost=False
        )

    async def list(self, chosen: Filter, *, after: str | None = None, most: int = 100) -> Sequence[MessageRow]:
        """Messages in order of their ids, past the id `after`."""
        return await self._read(lambda c, s: records.listed(c, s, chosen, after=after, most=most))

    async def revive(self, *, id: str | None = None, entity_type: str = "", entity_id: str = "") -> int:
        """Make a dead message, or all dead ones of an entity, pending again; how many."""
        return await self._transact(
            lambda c, s: records.revive(c, s, id=id, entity_type=entity_type, entity_id=entity_id)
        )

    async def remove(self, chosen: Filter, *, most: int) -> int:
        """Delete up to `most` messages that are done or dead; how many it were."""
        return await self._transact(lambda c, s: records.remove(c, s, chosen, most=most))

    async def count(self, chosen: Filter, *, most: int) -> int:
        """How many messages there are, counted up to `most`."""
        return await self._read(lambda c, s: records.count(c, s, chosen, most=most))

    async def discard(self, ids: Sequence[str], status: Status) -> int:
        """Delete those of these messages that have ended so; how many it were."""
        return await self._transact(lambda c, s: records.discard(c, s, ids, status))

    async def purge(self, *, after: str, retention_s: float, key_retention_s: float, most: int) -> tuple[int, str]:
        """Delete what was done longer ago than that, among the next `most` ids past `after`."""
        kept = {"retention_s": retention_s, "key_retention_s": key_retention_s}
        return await self._transact(lambda c, s: records.purge(c, s, after=after, **kept, most=most))

    async def _read(self, work: Callable[[apsw.Connection, Scope], T]) -> T:
        return await self._database.read(lambda c: work(c, self._scope()), doing="read messages")

    async def _transact(self, work: Callable[[apsw.Connection, Scope], T]) -> T:
        return await self._database.transact(lambda c: work(c, self._scope()), doing="write messages")

    async def _fenced(
        self, claim: Claim | None, work: Callable[[apsw.Connection, Scope], T], *, about: str, lost: T
    ) -> T:
        def run(connection: apsw.Connection, scope: Scope) -> T:
            audit = self._audit
            if claim is not None and not states.proven(connection, scope, claim, about=about, audit=audit):
                return lost
            return work(connection, scope)

        return await self._transact(run)

    def _scope(self) -> Scope:
        return Scope(self._cluster, self._clock.wall_ns())
