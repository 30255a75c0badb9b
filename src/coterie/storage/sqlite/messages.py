"""Messages in a SQLite file: plain functions that read, list, revive and remove them, and the store."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from coterie.kernel.clock import to_datetime
from coterie.storage import statements
from coterie.storage.contracts.messages import Attempt, Insert, MessageRow, Receipt, Status, Suspected
from coterie.storage.sqlite import message_writes, states
from coterie.storage.sqlite.kv import Scope
from coterie.storage.unreadable_rows import readable

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import apsw

    from coterie.kernel.clock import Clock
    from coterie.storage.contracts.messages import (
        Backlog,
        Commit,
        Committed,
        Delivery,
        Due,
        Mark,
        Message,
        MessageFilter,
        Setback,
        Suffered,
        Suspicion,
    )
    from coterie.storage.group_commit import GroupWriter, Waiter
    from coterie.storage.interface import Claim
    from coterie.storage.sqlite.database import SqliteDatabase


SQL = dict(statements.load(f"{__package__}.sql", "messages.sql"))

STATUSES: tuple[Status, ...] = ("pending", "done", "dead")
"""Indexed by the stored number."""

LAST_NS = (2**63 - 1) // 1000 * 1000
"""The latest instant that can be stored."""

_PAST_ALL = "\U0010ffff"
"""Sorts after every id."""


class Error(msgspec.Struct, frozen=True):
    """A failed attempt, as stored."""

    number: int
    at_ns: int
    error: str


_ERRORS = msgspec.json.Decoder(tuple[Error, ...])


def later_ns(scope: Scope, seconds: float = 0.0) -> int:
    """An instant in whole microseconds: a mark made of it as a datetime must compare the same."""
    at_ns = scope.expires_at_ns(seconds) if seconds else scope.now_ns
    assert at_ns is not None
    return at_ns - at_ns % 1000


def bindings(scope: Scope, **more: object) -> dict[str, Any]:
    """Parameters of a statement."""
    return {"cluster": scope.cluster, "now_ns": later_ns(scope), **more}


def receipt(connection: apsw.Connection, scope: Scope, id: str) -> Receipt | None:
    """The receipt of a message that exists already: it is the sender's own."""
    return _receipt(connection.execute(SQL["receipt"], bindings(scope, id=id)), scope, fresh=True)


def find(
    connection: apsw.Connection, scope: Scope, *, entity_type: str, entity_id: str, method: str, key: str
) -> Receipt | None:
    """The receipt of the message that has a key."""
    names = bindings(scope, entity_type=entity_type, entity_id=entity_id, method=method, key=key)
    return _receipt(connection.execute(SQL["find"], names), scope, fresh=False)


def _receipt(rows: Iterable[Sequence[Any]], scope: Scope, *, fresh: bool) -> Receipt | None:
    for message, due_at_ns, status, digest, reply in rows:
        now = to_datetime(scope.now_ns)
        return Receipt(message, fresh, to_datetime(due_at_ns), now, STATUSES[status], digest, reply)
    return None


def look(connection: apsw.Connection, scope: Scope, ids: Sequence[str]) -> list[MessageRow]:
    """Read these messages."""
    rows = connection.execute(SQL["look"], bindings(scope, ids=encoded(ids)))
    return readable(rows, _row, table="messages", key=itemgetter(0))


def listed(
    connection: apsw.Connection, scope: Scope, chosen: MessageFilter, *, after: str | None, most: int
) -> list[MessageRow]:
    """The next messages, in the order of their ids."""
    ids = _chosen(connection, scope, chosen, after=after or "", most=most)
    return sorted(look(connection, scope, ids), key=lambda row: row.id)


def cancel(connection: apsw.Connection, scope: Scope, id: str, reply: bytes, *, fenced: bool) -> bool:
    """End a pending message: the holder's if fenced, else only one whose seat is free. False: there is none."""
    return _changed(connection, "cancel" if fenced else "cancel_free", bindings(scope, id=id, reply=reply)) == 1


def revive(connection: apsw.Connection, scope: Scope, *, id: str | None, entity_type: str, entity_id: str) -> int:
    """Make a dead message, or all dead ones of an entity, pending again. Returns the number revived."""
    if id is not None:
        return _changed(connection, "revive", bindings(scope, id=id))
    names = bindings(scope, entity_type=entity_type, entity_id=entity_id)
    connection.execute(SQL["hasten"], names)
    return _changed(connection, "revive_entity", names)


def remove(connection: apsw.Connection, scope: Scope, chosen: MessageFilter, *, most: int) -> int:
    """Delete some messages that have ended. Returns the number deleted."""
    ids = _chosen(connection, scope, chosen, after="", most=most, ended=True)
    return _changed(connection, "remove", bindings(scope, ids=encoded(ids)))


def count(connection: apsw.Connection, scope: Scope, chosen: MessageFilter, *, most: int) -> int:
    """Count messages, up to a limit."""
    return len(_chosen(connection, scope, chosen, after="", most=most))


def discard(connection: apsw.Connection, scope: Scope, ids: Sequence[str], status: Status) -> int:
    """Delete those of these messages that have this final status. Returns the number deleted."""
    return _changed(connection, "discard", bindings(scope, ids=encoded(ids), status=STATUSES.index(status)))


def purge(
    connection: apsw.Connection, scope: Scope, *, after: str, retention_s: float, key_retention_s: float, most: int
) -> tuple[int, str]:
    """Delete messages done long ago among the next ones. Returns the number and where to continue [m17]."""
    before_ns, keys_before_ns = later_ns(scope, -retention_s), later_ns(scope, -key_retention_s)
    last, sent_at_ns = _last_of(connection, scope, after=after, most=most)
    names = bindings(scope, after=after, last=last or _PAST_ALL, before_ns=before_ns, keys_before_ns=keys_before_ns)
    removed = _changed(connection, "purge", names)
    # Ids begin with the time at which they were drawn: after a recent one all others are recent.
    is_young = sent_at_ns > max(before_ns, keys_before_ns)
    return removed, "" if last is None or is_young else last


def _last_of(connection: apsw.Connection, scope: Scope, *, after: str, most: int) -> tuple[str | None, int]:
    for message, sent_at_ns in connection.execute(SQL["last_of"], bindings(scope, after=after, most=most)):
        return message, sent_at_ns
    return None, 0


def encoded(ids: Sequence[str]) -> str:
    """A list of ids as a parameter."""
    return msgspec.json.encode(ids).decode()


def _chosen(
    connection: apsw.Connection, scope: Scope, chosen: MessageFilter, *, after: str, most: int, ended: bool = False
) -> list[str]:
    before_ns = None if chosen.older_than_s is None else later_ns(scope, -chosen.older_than_s)
    names = bindings(scope, after=after, most=most, ended=ended, before_ns=before_ns, method=chosen.method)
    names |= {"entity_type": chosen.entity_type, "entity_id": chosen.entity_id}
    names["status"] = None if chosen.status is None else STATUSES.index(chosen.status)
    name = "chosen_dead" if chosen.status == "dead" else "chosen"
    if chosen.status == "pending" and not ended:
        name = "chosen_pending"
    return [message for (message,) in connection.execute(SQL[name], names)]


def _changed(connection: apsw.Connection, name: str, names: dict[str, Any]) -> int:
    connection.execute(SQL[name], names)
    return connection.changes()


def _row(row: Sequence[Any]) -> MessageRow:
    message, seat, entity_type, entity_id, method, status, key, *rest = row
    sent_at_ns, due_at_ns, completed_at_ns, attempts, errors, payload, reply, trace_id, losses = rest
    return MessageRow(
        id=message,
        seat=seat,
        entity_type=entity_type,
        entity_id=entity_id,
        method=method,
        status=STATUSES[status],
        key=key,
        sent_at=to_datetime(sent_at_ns),
        due_at=to_datetime(due_at_ns),
        completed_at=None if completed_at_ns is None else to_datetime(completed_at_ns),
        attempts=attempts,
        errors=tuple(Attempt(each.number, to_datetime(each.at_ns), each.error) for each in _ERRORS.decode(errors)),
        payload=payload,
        reply=reply,
        trace_id=trace_id,
        losses=losses,
    )


T = TypeVar("T")


class SqliteMessages:
    """The messages of one cluster. See `storage.contracts.messages.MessageStore`."""

    def __init__(
        self,
        database: SqliteDatabase,
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
        """Durable when it results in "written"."""
        self._origin.require_same()
        return self._writer.submit(write)

    def save(self, write: Insert | Commit, waiter: Waiter) -> None:
        """Insert or commit; `waiter` receives the result."""
        self._origin.require_same()
        self._writer.post(write, waiter)

    def setback(self, write: Setback) -> Future[Suffered]:
        """Count a failed attempt."""
        self._origin.require_same()
        return self._writer.submit(write)

    async def due(self, after: Mapping[str, Mark | None], *, ahead_s: float = 0.0, most: int) -> Due:
        """Of each of these seats the first `most` pending messages after a mark that are due within `ahead_s`."""
        return await self._read(lambda c, s: message_writes.due(c, s, after, ahead_s=ahead_s, most=most))

    async def backlog(self, *, most: int, dead_most: int) -> Backlog:
        """Return the longest due message of each seat, and the number of dead messages."""
        return await self._read(lambda c, s: message_writes.backlog(c, s, most=most, dead_most=dead_most))

    async def fetch(self, ids: Sequence[str]) -> Sequence[Delivery]:
        """Return those of these messages that are pending."""
        return await self._read(lambda c, s: message_writes.fetch(c, s, ids))

    async def suspect(self, claim: Claim, concurrency: Mapping[str, int], *, loss_limit: int) -> Suspected:
        """Examine what may have been running when the previous holder was lost."""

        def judge(connection: apsw.Connection, scope: Scope) -> Suspected:
            return message_writes.suspect(connection, scope, claim, concurrency, loss_limit=loss_limit)

        return await self._fenced(claim, judge, about="suspects", lost=Suspected(0, ()))

    async def mark(self, claim: Claim, id: str, suspicion: Suspicion) -> bool:
        """Record how a suspect will run, before it runs."""
        return await self._fenced(
            claim, lambda c, s: message_writes.mark(c, s, claim, id, int(suspicion)), about=id, lost=False
        )

    async def look(self, ids: Sequence[str]) -> Sequence[MessageRow]:
        """Return these messages."""
        return await self._read(lambda c, s: look(c, s, ids))

    async def find(self, entity_type: str, entity_id: str, method: str, key: str) -> Receipt | None:
        """Return the message that has a key, or None."""
        names = {"entity_type": entity_type, "entity_id": entity_id, "method": method, "key": key}
        return await self._read(lambda c, s: find(c, s, **names))

    async def cancel(self, id: str, claim: Claim | None, *, reply: bytes) -> bool:
        """End a pending message; False: there is none. With a claim under the fence, else only if its seat is free."""
        fenced = claim is not None
        return await self._fenced(claim, lambda c, s: cancel(c, s, id, reply, fenced=fenced), about=id, lost=False)

    async def list(self, chosen: MessageFilter, *, after: str | None = None, most: int = 100) -> Sequence[MessageRow]:
        """Return messages in order of their ids, after the id `after`."""
        return await self._read(lambda c, s: listed(c, s, chosen, after=after, most=most))

    async def revive(self, *, id: str | None = None, entity_type: str = "", entity_id: str = "") -> int:
        """Make a dead message, or all dead ones of an entity, pending again. Returns the number revived."""
        return await self._transact(lambda c, s: revive(c, s, id=id, entity_type=entity_type, entity_id=entity_id))

    async def remove(self, chosen: MessageFilter, *, most: int) -> int:
        """Delete up to `most` messages that are done or dead. Returns the number deleted."""
        return await self._transact(lambda c, s: remove(c, s, chosen, most=most))

    async def count(self, chosen: MessageFilter, *, most: int) -> int:
        """Count the messages, up to `most`."""
        return await self._read(lambda c, s: count(c, s, chosen, most=most))

    async def discard(self, ids: Sequence[str], status: Status) -> int:
        """Delete those of these messages that have this final status. Returns the number deleted."""
        return await self._transact(lambda c, s: discard(c, s, ids, status))

    async def purge(self, *, after: str, retention_s: float, key_retention_s: float, most: int) -> tuple[int, str]:
        """Delete messages done longer ago than that, among the next `most` ids after `after`."""
        kept = {"retention_s": retention_s, "key_retention_s": key_retention_s}
        return await self._transact(lambda c, s: purge(c, s, after=after, **kept, most=most))

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
