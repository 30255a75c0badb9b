"""Writes of messages in a SQLite file, and the queries of a seat's holder: plain functions to run in a transaction.

The write lock is held: nothing changes between the read of what a member needs and its writes. So all is read first,
and a refused member has written nothing, while its neighbours commit [M3].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from coterie.kernel.clock import to_datetime, to_ns
from coterie.storage.contracts.messages import (
    Backlog,
    Delivery,
    Due,
    LateReply,
    Loss,
    PendingMessages,
    Receipt,
    Suspected,
)
from coterie.storage.sqlite import messages, states
from coterie.storage.sqlite.messages import SQL, Error, bindings, encoded, later_ns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import apsw

    from coterie.storage.contracts.messages import Commit, Committed, Insert, Mark, Message, Setback, Suffered
    from coterie.storage.interface import Claim
    from coterie.storage.sqlite.kv import Scope


_LOST = "its runner was lost when it ran this message alone, or was about to ({count} of {limit})"


def due(
    connection: apsw.Connection, scope: Scope, after: Mapping[str, Mark | None], *, ahead_s: float, most: int
) -> Due:
    """Of each seat the first messages after a mark that are due, or will be soon."""
    rows: list[PendingMessages] = []
    for seat in sorted(after):
        names = bindings(scope, seat=seat, until_ns=later_ns(scope, ahead_s), most=most, **_past(after[seat]))
        rows += [
            PendingMessages(seat, message, to_datetime(at_ns), *entity)
            for message, at_ns, *entity in connection.execute(SQL["due"], names)
        ]
    return Due(to_datetime(scope.now_ns), tuple(rows))


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
    connection: apsw.Connection, scope: Scope, claim: Claim, concurrency: Mapping[str, int], *, loss_limit: int
) -> Suspected:
    """Examine what may have been running when the previous holder was lost [C5]."""
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


def mark(connection: apsw.Connection, scope: Scope, claim: Claim, id: str, suspicion: int) -> bool:
    """Record how a suspect will run. Returns False if it is not pending."""
    connection.execute(SQL["mark"], bindings(scope, id=id, suspicion=suspicion, epoch=claim.epoch))
    return connection.changes() == 1


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


DUE_AT_NS = 8
"""The index of the due time in a `row`."""


def insert(connection: apsw.Connection, scope: Scope, write: Insert) -> Receipt:
    """Store a message, unless it, or another one with its key, exists already [M4]."""
    message = write.message
    due_at_ns = _store(connection, scope, message)
    if due_at_ns is not None:
        due_at, now = to_datetime(due_at_ns), to_datetime(scope.now_ns)
        return Receipt(message.id, fresh=True, due_at=due_at, now=now, digest=message.digest)
    found = messages.receipt(connection, scope, message.id) or _of_key(connection, scope, message)
    assert found is not None, f"{message.id} is neither stored nor there"
    return found


def commit(connection: apsw.Connection, scope: Scope, write: Commit, *, audit: bool = False) -> Committed:
    """Write all of a handler's commit, or nothing."""
    if not states.held(connection, scope.cluster, write.claim):
        return _fenced(connection, scope, write, audit=audit)
    refusal = _refusal(connection, scope, write) or _write(connection, scope, write)
    return "written" if refusal is None or _happened(connection, scope, write) else refusal


def setback(connection: apsw.Connection, scope: Scope, write: Setback, *, audit: bool = False) -> Suffered:
    """Count a failed attempt, once."""
    if not states.proven(connection, scope, write.claim, about=write.message, audit=audit):
        return "fenced"
    names = bindings(scope, id=write.message, attempt=write.attempt, epoch=write.claim.epoch)
    names["again_at_ns"] = None if write.again_s is None else later_ns(scope, write.again_s)
    said = write.error.encode(errors="backslashreplace").decode()  # an error may contain any characters
    names["error"] = msgspec.json.encode(Error(write.attempt, scope.now_ns, said)).decode()
    connection.execute(SQL["fail"], names)
    counted = connection.changes() == 1 or connection.execute(SQL["failed"], names).get
    return "written" if counted else "gone"


def _store(connection: apsw.Connection, scope: Scope, message: Message) -> int | None:
    """Store a message and return its due time; None: it, or its key, exists already."""
    values = row(scope, message)
    connection.execute(SQL["insert"], (*same(scope), *values))
    return values[DUE_AT_NS] if connection.changes() == 1 else None


def same(scope: Scope) -> tuple[Any, ...]:
    """The parameters that all messages of a transaction share."""
    return scope.cluster, later_ns(scope)


def row(scope: Scope, message: Message) -> tuple[Any, ...]:
    """The parameters of a message's insert."""
    return (
        message.id,
        message.seat,
        message.entity_type,
        message.entity_id,
        message.method,
        message.key,
        message.digest,
        message.trace_id,
        _due_at_ns(scope, message),
        message.payload,
    )


def _due_at_ns(scope: Scope, message: Message) -> int:
    if message.due_at is None:
        return later_ns(scope, message.delay_s)
    return min(max(to_ns(message.due_at), 0), messages.LAST_NS)


def _of_key(connection: apsw.Connection, scope: Scope, message: Message) -> Receipt | None:
    if message.key is None:
        return None
    return messages.find(
        connection,
        scope,
        entity_type=message.entity_type,
        entity_id=message.entity_id,
        method=message.method,
        key=message.key,
    )


def _fenced(connection: apsw.Connection, scope: Scope, write: Commit, *, audit: bool) -> Committed:
    # The end of a message records its writer; without a message only the fence can tell.
    if write.message is not None and _happened(connection, scope, write):
        return "written"
    about = write.message or ("" if write.state is None else write.state.key)
    states.note_refusal(connection, scope, write.claim, about=about, audit=audit)
    return "fenced"


def _refusal(connection: apsw.Connection, scope: Scope, write: Commit) -> Committed | None:
    """Why it must not be written, unless its first write detects that by itself."""
    state, keyed = write.state, [message for message in write.sends if message.key is not None]
    if state is None and not keyed:
        return None
    if write.message is not None and not connection.execute(SQL["pending"], bindings(scope, id=write.message)).get:
        return "gone"
    if keyed and state is not None and not states.fits(connection, scope.cluster, write.claim, state):
        return "stale"
    return "taken" if _is_taken(connection, scope, keyed) else None


def _write(connection: apsw.Connection, scope: Scope, write: Commit) -> Committed | None:
    """Write all of it, unless its first write finds a reason not to."""
    if write.state is not None and not states.change(connection, scope.cluster, write.claim, write.state):
        return "stale"
    if write.message is not None and not _complete(connection, scope, write):
        assert write.state is None, f"{write.message} ended inside a transaction"
        return "gone"
    for message in write.sends:
        _store(connection, scope, message)
    return None


def _complete(connection: apsw.Connection, scope: Scope, write: Commit) -> bool:
    names = bindings(scope, id=write.message, reply=write.reply, epoch=write.claim.epoch)
    connection.execute(SQL["complete"], names)
    return connection.changes() == 1


def _is_taken(connection: apsw.Connection, scope: Scope, keyed: Sequence[Message]) -> bool:
    """Whether a key is in use by another message, including one of these."""
    ids: dict[tuple[str, str, str, str | None], str] = {}
    for message in keyed:
        found = _of_key(connection, scope, message)
        key = (message.entity_type, message.entity_id, message.method, message.key)
        if ids.setdefault(key, message.id if found is None else found.id) != message.id:
            return True
    return False


def _happened(connection: apsw.Connection, scope: Scope, write: Commit) -> bool:
    """Whether an earlier try of this very commit, whose outcome was unknown, did all of it [0.6].

    Another run of the same handler under the same epoch is another commit: its writes may differ.
    """
    if not all(messages.receipt(connection, scope, message.id) for message in write.sends):
        return False
    cluster, claim, state = scope.cluster, write.claim, write.state
    if write.message is None:
        return state is None or states.is_there(connection, cluster, claim, state)
    names = bindings(scope, id=write.message, reply=write.reply, epoch=claim.epoch)
    if not connection.execute(SQL["completed"], names).get:
        return False
    return state is None or not states.differs(connection, cluster, state)
