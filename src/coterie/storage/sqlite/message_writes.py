"""Writes of messages in a SQLite file: plain functions to be run inside a transaction, each for many messages at once.

The write lock is held: nothing changes between the read of what a member needs and its writes. So all is read first,
and a refused member has written nothing, while its neighbours commit [M3].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from coterie.kernel.clock import to_datetime, to_ns
from coterie.storage import statements
from coterie.storage.contracts.messages import Receipt
from coterie.storage.sqlite import messages, states
from coterie.storage.sqlite.jobs import inserts
from coterie.storage.sqlite.messages import SQL, Error
from coterie.storage.sqlite.store import LAST_NS, bindings, later_ns, write_rows
from coterie.storage.user_transaction import overtaken

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from coterie.storage.contracts.messages import Commit, Committed, Insert, Message, Setback, Suffered
    from coterie.storage.contracts.schedules import TimerChange
    from coterie.storage.interface import Claim
    from coterie.storage.sqlite.store import Scope

_TIMER_SQL = statements.load(f"{__package__}.sql", "schedules.sql")

_DUE_AT_NS = 8
"""The index of the due time in a `_row`."""


def insert(connection: apsw.Connection, scope: Scope, writes: Sequence[Insert]) -> list[Receipt]:
    """Store messages, except those whose id or key exists already [M4]."""
    rows = [_row(scope, write.message) for write in writes]
    if write_rows(connection, SQL["insert"], _same(scope), rows) != len(rows):
        # An id or a key existed. The messages stored now are found by their ids, as if by an earlier try.
        return [_found(connection, scope, write.message) for write in writes]
    now = to_datetime(scope.now_ns)
    return [
        Receipt(
            write.message.id,
            True,
            now if _is_due(write.message) else to_datetime(row[_DUE_AT_NS]),
            now,
            "pending",
            write.message.digest,
        )
        for write, row in zip(writes, rows, strict=True)
    ]


def require_sent(connection: apsw.Connection, scope: Scope, messages: Sequence[Message]) -> None:
    """Store the messages that a user's transaction sends.

    Raises:
        PersistenceError: One of them has a key that is taken.
    """
    if is_taken(connection, scope, messages):
        raise overtaken()
    store(connection, scope, messages)


def store(connection: apsw.Connection, scope: Scope, messages: Sequence[Message]) -> None:
    """Store messages whose keys are free."""
    write_rows(connection, SQL["insert"], _same(scope), [_row(scope, message) for message in messages])


def is_taken(connection: apsw.Connection, scope: Scope, messages: Sequence[Message]) -> bool:
    """Whether a key is in use by another message, including one of these."""
    ids: dict[tuple[str, str, str, str], str] = {}
    for message in messages:
        if message.key is None:
            continue
        found = _of_key(connection, scope, message)
        key = (message.entity_type, message.entity_id, message.method, message.key)
        if ids.setdefault(key, message.id if found is None else found.id) != message.id:
            return True
    return False


def commit(connection: apsw.Connection, scope: Scope, writes: Sequence[Commit]) -> list[Committed] | None:
    """Write all of each handler's commit, or nothing of it.

    Most of a busy group are plain ends. One by one each costs as much Python as SQL, all of it under the write lock, so
    they share statements.

    Returns:
        The results; None: one of the plain ends is refused. The transaction must be rolled back, and run one by one.
    """
    if len(writes) == 1:
        return [_commit(connection, scope, writes[0])]
    plain = [write for write in writes if _is_plain(write)]
    if not _end_all(connection, scope, plain):
        return None
    if len(plain) == len(writes):
        return ["written"] * len(writes)
    return ["written" if _is_plain(write) else _commit(connection, scope, write) for write in writes]


def _end_all(connection: apsw.Connection, scope: Scope, ends: Sequence[Commit]) -> bool:
    """Write plain ends. Returns False if one of them is refused."""
    claims = {end.claim for end in ends}
    if states.all_held(connection, scope.cluster, claims) != claims:  # the fence [C1]
        return False
    ended = [(end.message, end.reply, end.claim.epoch) for end in ends]
    if write_rows(connection, SQL["complete_all"], _same(scope), ended) != len(ended):
        return False
    changes = [
        (end.state.key, end.state.version, end.claim.epoch, end.claim.seat, end.state.value)
        for end in ends
        if end.state is not None
    ]
    return write_rows(connection, states.SQL["update_all"], (scope.cluster,), changes) == len(changes)


def _is_plain(write: Commit) -> bool:
    """Whether it ends a message, sends nothing, sets no timer, and changes at most an existing state."""
    if write.message is None or write.sends or write.jobs or write.timers:
        return False
    return write.state is None or bool(write.state.version and write.state.value is not None)


def _commit(connection: apsw.Connection, scope: Scope, write: Commit) -> Committed:
    if not states.held(connection, scope.cluster, write.claim):
        return _fenced(connection, scope, write)
    refusal = _refusal(connection, scope, write) or _write(connection, scope, write)
    return "written" if refusal is None or _happened(connection, scope, write) else refusal


def setback(connection: apsw.Connection, scope: Scope, write: Setback) -> Suffered:
    """Count a failed attempt, once; or put it off."""
    if not states.proven(connection, scope, write.claim, about=write.message):
        return "fenced"
    names = bindings(scope, id=write.message, attempt=write.attempt, epoch=write.claim.epoch)
    names["again_at_ns"] = None if write.again_s is None else later_ns(scope, write.again_s)
    if write.error is None:
        connection.execute(SQL["put_off"], names)
        return "written" if connection.changes() == 1 else "gone"
    said = write.error.encode(errors="backslashreplace").decode()  # an error may contain any characters
    names["error"] = msgspec.json.encode(Error(write.attempt, scope.now_ns, said)).decode()
    connection.execute(SQL["fail"], names)
    counted = connection.changes() == 1 or connection.execute(SQL["failed"], names).get
    return "written" if counted else "gone"


def _same(scope: Scope) -> tuple[Any, ...]:
    """The parameters that all messages of a transaction share."""
    return scope.cluster, later_ns(scope)


def _row(scope: Scope, message: Message) -> tuple[Any, ...]:
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
        message.tags_text,
    )


def _is_due(message: Message) -> bool:
    return message.due_at is None and not message.delay_s


def _due_at_ns(scope: Scope, message: Message) -> int:
    if message.due_at is None:
        return later_ns(scope, message.delay_s)
    return min(max(to_ns(message.due_at), 0), LAST_NS)


def _found(connection: apsw.Connection, scope: Scope, message: Message) -> Receipt:
    found = messages.receipt(connection, scope, message.id) or _of_key(connection, scope, message)
    assert found is not None, f"{message.id} is neither stored nor there"
    return found


def _of_key(connection: apsw.Connection, scope: Scope, message: Message) -> Receipt | None:
    assert message.key is not None, f"{message.id} is neither stored nor there"
    return messages.find(connection, scope, message.entity_type, message.entity_id, message.method, message.key)


def _fenced(connection: apsw.Connection, scope: Scope, write: Commit) -> Committed:
    # The end of a message records its writer; without a message only the fence can tell.
    if write.message is not None and _happened(connection, scope, write):
        return "written"
    about = write.message or ("" if write.state is None else write.state.key)
    states.note_refusal(connection, scope, write.claim, about=about)
    return "fenced"


def _refusal(connection: apsw.Connection, scope: Scope, write: Commit) -> Committed | None:
    """Why it must not be written, unless its first write detects that by itself."""
    state, keys = write.state, [each.key for each in write.sends] + [each.key for each in write.jobs]
    is_keyed = any(key is not None for key in keys)
    if state is None and not is_keyed:
        return None
    if write.message is not None and not connection.execute(SQL["pending"], bindings(scope, id=write.message)).get:
        return "gone"
    if is_keyed and state is not None and not states.fits(connection, scope.cluster, write.claim, state):
        return "stale"
    is_overtaken = is_taken(connection, scope, write.sends) or inserts.is_taken(connection, scope, write.jobs)
    return "taken" if is_overtaken else None


def _write(connection: apsw.Connection, scope: Scope, write: Commit) -> Committed | None:
    """Write all of it, unless its first write finds a reason not to."""
    if write.state is not None and not states.change(connection, scope.cluster, write.claim, write.state):
        return "stale"
    if write.message is not None and not _complete(connection, scope, write):
        assert write.state is None, f"{write.message} ended inside a transaction"
        return "gone"
    store(connection, scope, write.sends)
    inserts.store(connection, scope, write.jobs)
    for change in write.timers:
        _change_timer(connection, scope, write.claim, change)
    return None


def _change_timer(connection: apsw.Connection, scope: Scope, claim: Claim, change: TimerChange) -> None:
    """Set or cancel a timer of an entity on the seat of a claim."""
    timer = change.timer
    if timer is None:
        connection.execute(_TIMER_SQL["remove"], bindings(scope, key=change.key))
        return
    names = bindings(
        scope,
        key=change.key,
        seat=claim.seat,
        life=timer.life,
        definition=timer.definition,
        target=timer.target,
        entity_type=timer.entity_type,
        entity_id=timer.entity_id,
        method=timer.method,
        payload=timer.payload,
        since_at_ns=to_ns(timer.since_at),
        next_at_ns=None if timer.next_at is None else to_ns(timer.next_at),
    )
    connection.execute(_TIMER_SQL["set"], names)


def _complete(connection: apsw.Connection, scope: Scope, write: Commit) -> bool:
    names = bindings(scope, id=write.message, reply=write.reply, epoch=write.claim.epoch)
    connection.execute(SQL["complete"], names)
    return connection.changes() == 1


def _happened(connection: apsw.Connection, scope: Scope, write: Commit) -> bool:
    """Whether an earlier try of this very commit, whose outcome was unknown, did all of it [0.6].

    Another run of the same handler under the same epoch is another commit: its writes may differ.
    """
    if not all(messages.receipt(connection, scope, message.id) for message in write.sends):
        return False
    if not inserts.are_there(connection, scope, write.jobs):
        return False
    cluster, claim, state = scope.cluster, write.claim, write.state
    if write.message is None:
        return state is None or states.is_there(connection, cluster, claim, state)
    names = bindings(scope, id=write.message, reply=write.reply, epoch=claim.epoch)
    if not connection.execute(SQL["completed"], names).get:
        return False
    return state is None or not states.differs(connection, cluster, state)
