"""A group of writes inside its transaction: those that are alike share their statements.

Most of a busy group are inserts and plain ends of handlers. One by one each of them costs as much Python as SQL, all
of it under the write lock, for which other processes wait. If one of the ends is refused, the group is undone and done
one by one after all: each has its own result [M3]. So is a group in which two meet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from coterie.kernel.clock import to_datetime
from coterie.storage.interface import StateSave
from coterie.storage.messages import Commit, Insert, Receipt, Setback
from coterie.storage.sqlite import completions, states
from coterie.storage.sqlite.records import SQL, bindings, encoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import apsw

    from coterie.storage.interface import Claim, Write
    from coterie.storage.messages import Message
    from coterie.storage.sqlite.kv import Scope

_HELD = msgspec.json.Decoder(dict[str, tuple[str, int]])


def meet(group: Sequence[Write]) -> bool:
    """Whether two of them are about one message, key or state: then their order counts."""
    names: list[object] = []
    for write in group:
        if isinstance(write, Insert):
            names += _names(write.message)
        elif isinstance(write, Commit):
            names += [] if write.message is None else [write.message]
            names += [] if write.state is None else [write.state.key]
            names += [name for message in write.sends for name in _names(message)]
        elif isinstance(write, Setback):
            names.append(write.message)
        elif isinstance(write, StateSave):
            names.append(write.key)
    return len(set(names)) < len(names)


def insert(connection: apsw.Connection, scope: Scope, group: Sequence[Write]) -> dict[int, Receipt]:
    """Store the messages of a group; the results by their places in it."""
    places = [place for place, write in enumerate(group) if type(write) is Insert]
    if not places:
        return {}
    inserts: list[Any] = [group[place] for place in places]
    rows = [completions.row(scope, each.message) for each in inserts]
    if _changed(connection, SQL["insert"], rows) != len(rows):
        # An id or a key was there. Those that are stored now are found by their ids, as if by an earlier try.
        return {place: completions.insert(connection, scope, each) for place, each in zip(places, inserts, strict=True)}
    now = to_datetime(scope.now_ns)
    return {
        place: Receipt(
            each.message.id,
            fresh=True,
            due_at=now if _is_due(each) else to_datetime(row[completions.DUE_AT_NS]),
            now=now,
            digest=each.message.digest,
        )
        for place, each, row in zip(places, inserts, rows, strict=True)
    }


def commit(connection: apsw.Connection, scope: Scope, group: Sequence[Write]) -> dict[int, str] | None:
    """Write the plain ends of handlers; "written" by their places in the group. None: undo it, one is refused."""
    places = [place for place, write in enumerate(group) if type(write) is Commit and _is_plain(write)]
    if not places:
        return {}
    ends: list[Any] = [group[place] for place in places]
    if not _are_held(connection, scope, {end.claim for end in ends}):
        return None
    same = bindings(scope)
    rows = [{**same, "id": end.message, "reply": end.reply, "epoch": end.claim.epoch} for end in ends]
    if _changed(connection, SQL["complete"], rows) != len(rows):
        return None
    changes = [states.row(scope.cluster, end.claim, end.state) for end in ends if end.state is not None]
    if _changed(connection, states.SQL["update"], changes) != len(changes):
        return None
    return dict.fromkeys(places, "written")


def _names(message: Message) -> list[object]:
    if message.key is None:
        return [message.id]
    return [message.id, (message.entity_type, message.entity_id, message.method, message.key)]


def _is_due(write: Insert) -> bool:
    return write.message.due_at is None and not write.message.delay_s


def _is_plain(write: Commit) -> bool:
    """Whether it ends a message, sends nothing, and changes at most a state that is there."""
    if write.message is None or write.sends:
        return False
    return write.state is None or bool(write.state.version and write.state.value is not None)


def _are_held(connection: apsw.Connection, scope: Scope, claims: Iterable[Claim]) -> bool:
    """The fence for all of them: writers take turns, so one look does for the whole transaction [C1]."""
    names = {"cluster": scope.cluster, "seats": encoded([claim.seat for claim in claims])}
    held = _HELD.decode(connection.execute(states.SQL["all_held"], names).get)
    return all(held.get(claim.seat) == (claim.runner, claim.epoch) for claim in claims)


def _changed(connection: apsw.Connection, statement: str, rows: Sequence[Any]) -> int:
    before = connection.total_changes()
    connection.executemany(statement, rows)
    return connection.total_changes() - before
