"""Messages in a SQLite file: plain functions that read, list, revive and remove them, and the store."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.kernel.clock import to_datetime, to_ns
from coterie.storage import statements
from coterie.storage.contracts.messages import (
    STATUSES,
    Attempt,
    Backlog,
    Delivery,
    Due,
    LateReply,
    Loss,
    MessageRow,
    PendingMessages,
    Receipt,
    Suspected,
)
from coterie.storage.group_commit import MessageWriter
from coterie.storage.sqlite import states
from coterie.storage.sqlite.store import (
    PAST_ALL,
    SqliteStore,
    bindings,
    encoded,
    later_ns,
    purged,
    reads,
    to_fields,
    writes,
)
from coterie.storage.unreadable_rows import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import apsw

    from coterie.storage.contracts.messages import (
        Mark,
        MessageFilter,
        Status,
        Suspicion,
    )
    from coterie.storage.interface import Claim
    from coterie.storage.sqlite.store import Scope


SQL = dict(statements.load(f"{__package__}.sql", "messages.sql"))

_LOST = "its runner was lost when it ran this message alone, or was about to ({count} of {limit})"


class Error(msgspec.Struct, frozen=True):
    """A failed attempt, as stored."""

    number: int
    at_ns: int
    error: str


_ERRORS = msgspec.json.Decoder(tuple[Error, ...])
_TAGS = msgspec.json.Decoder(dict[str, str])


def receipt(connection: apsw.Connection, scope: Scope, id: str) -> Receipt | None:
    """The receipt of a message that exists already: it is the sender's own."""
    return _receipt(connection.execute(SQL["receipt"], bindings(scope, id=id)), scope, fresh=True)


def find(
    connection: apsw.Connection, scope: Scope, entity_type: str, entity_id: str, method: str, key: str
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


def due(
    connection: apsw.Connection, scope: Scope, after: Mapping[str, Mark | None], *, ahead_s: float = 0.0, most: int
) -> Due:
    """Of each seat the first messages after a mark that are due, or will be soon."""
    rows: list[PendingMessages] = []
    for seat in sorted(after):
        names = bindings(scope, seat=seat, until_ns=later_ns(scope, ahead_s), most=most, **_past(after[seat]))
        rows += [
            PendingMessages(seat, message, to_datetime(at_ns), *entity)
            for message, at_ns, *entity in connection.execute(SQL["due"], names)
        ]
    paused: dict[str, list[str]] = {"entity": [], "group": []}
    for kind, name in connection.execute(SQL["paused"], bindings(scope)):
        paused[kind].append(name)
    return Due(to_datetime(scope.now_ns), tuple(rows), tuple(paused["entity"]), tuple(paused["group"]))


def backlog(connection: apsw.Connection, scope: Scope, *, most: int, dead_most: int) -> Backlog:
    """The longest due message of each seat, and the number of dead messages."""
    late = [
        LateReply(seat, message, to_datetime(at_ns), *call)
        for seat, message, at_ns, *call in connection.execute(SQL["backlog"], bindings(scope, most=most))
    ]
    ((dead,),) = connection.execute(SQL["count_dead"], bindings(scope, most=dead_most))
    return Backlog(to_datetime(scope.now_ns), tuple(late), dead)


def fetch(connection: apsw.Connection, scope: Scope, ids: Sequence[str]) -> list[Delivery]:
    """The pending ones of these messages."""
    rows = connection.execute(SQL["fetch"], bindings(scope, ids=encoded(ids)))
    return [_delivery(*row) for row in rows]


def suspect(
    connection: apsw.Connection,
    scope: Scope,
    claim: Claim,
    concurrency: Mapping[str, int],
    *,
    loss_limit: int,
) -> Suspected:
    """Examine what may have been running when the previous holder was lost [C5]."""
    if not states.proven(connection, scope, claim, about="suspects"):
        return Suspected(0, ())
    names = bindings(scope, seat=claim.seat, epoch=claim.epoch, before=claim.epoch - 1)
    ((lost_at_ns,),) = connection.execute(SQL["lost_at"], names)
    names["lost_at_ns"] = names["now_ns"] if lost_at_ns is None else lost_at_ns
    begun: list[Any] = connection.execute(SQL["begun_alone"], names).fetchall()
    lost = [_loss(*row, loss_limit=loss_limit) for row in begun]
    for loss in lost:
        error = _LOST.format(count=loss.losses, limit=loss_limit)
        connection.execute(SQL["lose"], names | {"id": loss.id, "is_dead": loss.is_dead, "error": error})
    suspects = 0
    for entity_type, many in concurrency.items():
        connection.execute(SQL["suspect"], names | {"entity_type": entity_type, "concurrency": many})
        suspects += connection.changes()
    return Suspected(suspects, tuple(lost))


def mark(connection: apsw.Connection, scope: Scope, claim: Claim, id: str, suspicion: Suspicion) -> bool:
    """Record how a suspect will run, before it runs. Returns False if it is not pending."""
    if not states.proven(connection, scope, claim, about=id):
        return False
    return _changed(connection, "mark", bindings(scope, id=id, suspicion=int(suspicion), epoch=claim.epoch)) == 1


def _loss(*target: Any, loss_limit: int) -> Loss:
    message, entity_type, entity_id, method, losses = target
    return Loss(message, entity_type, entity_id, method, losses + 1, losses + 1 >= loss_limit)


def _delivery(message: Any, *row: Any) -> Delivery:
    seat, entity_type, entity_id, method, payload, key, due_at_ns, *rest = row
    due_s = to_datetime(due_at_ns).timestamp()
    return Delivery(message, seat, entity_type, entity_id, method, payload, key, due_s, *rest)


def _past(mark: Mark | None) -> dict[str, object]:
    due_at, message = (None, "") if mark is None else mark
    return {"after_ns": -1 if due_at is None else to_ns(due_at), "after_id": message}


def listed(
    connection: apsw.Connection,
    scope: Scope,
    chosen: MessageFilter,
    *,
    after: str | None = None,
    most: int = 100,
    newest: bool = False,
) -> list[MessageRow]:
    """The next messages, in the order of their ids, or in the reverse order."""
    ids = _chosen(connection, scope, chosen, after=after or (PAST_ALL if newest else ""), most=most, newest=newest)
    return sorted(look(connection, scope, ids), key=lambda row: row.id, reverse=newest)


def cancel(connection: apsw.Connection, scope: Scope, id: str, claim: Claim | None, *, reply: bytes) -> bool:
    """End a pending message: the holder's with its claim, else only one whose seat is free. False: there is none."""
    if claim is not None and not states.proven(connection, scope, claim, about=id):
        return False
    return _changed(connection, "cancel_free" if claim is None else "cancel", bindings(scope, id=id, reply=reply)) == 1


def revive(
    connection: apsw.Connection, scope: Scope, *, id: str | None = None, entity_type: str = "", entity_id: str = ""
) -> int:
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
    """Delete messages that were done long ago among the next ones. Returns the number and where to continue."""
    kept = {"retention_s": retention_s, "key_retention_s": key_retention_s}
    return purged(connection, scope, SQL, after=after, **kept, most=most)


def _chosen(
    connection: apsw.Connection,
    scope: Scope,
    chosen: MessageFilter,
    *,
    after: str,
    most: int,
    ended: bool = False,
    newest: bool = False,
) -> list[str]:
    before_ns = None if chosen.older_than_s is None else later_ns(scope, -chosen.older_than_s)
    names = bindings(scope, after=after, most=most, ended=ended, before_ns=before_ns, method=chosen.method)
    names |= {"entity_type": chosen.entity_type, "entity_id": chosen.entity_id}
    names["status"] = None if chosen.status is None else STATUSES.index(chosen.status)
    names["newest"] = newest
    name = "chosen_dead" if chosen.status == "dead" else "chosen_newest" if newest else "chosen"
    if chosen.status == "pending" and not ended:
        name = "chosen_pending"
    if chosen.tag is not None:
        name, names = "chosen_tagged", names | {"tag_name": chosen.tag[0], "tag_value": chosen.tag[1]}
    return [message for (message,) in connection.execute(SQL[name], names)]


def _changed(connection: apsw.Connection, name: str, names: dict[str, Any]) -> int:
    connection.execute(SQL[name], names)
    return connection.changes()


def _row(row: Sequence[Any]) -> MessageRow:
    fields = to_fields(MessageRow, row)
    fields["status"] = STATUSES[fields["status"]]
    errors = _ERRORS.decode(fields["errors"])
    fields["errors"] = tuple(Attempt(each.number, to_datetime(each.at_ns), each.error) for each in errors)
    fields["tags"] = _TAGS.decode(fields["tags"] or "{}")
    return MessageRow(**fields)


class SqliteMessages(SqliteStore, MessageWriter):
    """The messages of one cluster. See `storage.contracts.messages.MessageStore`."""

    suspect = writes(suspect, "write messages")
    mark = writes(mark, "write messages")
    cancel = writes(cancel, "write messages")
    due = reads(due, "read messages")
    backlog = reads(backlog, "read messages")
    fetch = reads(fetch, "read messages")
    look = reads(look, "read messages")
    find = reads(find, "read messages")
    count = reads(count, "read messages")
    revive = writes(revive, "write messages")
    remove = writes(remove, "write messages")
    discard = writes(discard, "write messages")
    purge = writes(purge, "write messages")
    list = reads(listed, "read messages")
