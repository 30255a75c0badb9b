"""Runs a group of writes with few statements: similar writes share a statement for many rows.

Most of a busy group are inserts and plain ends of handlers. One by one each costs as much Python as SQL, all of it
under the write lock, for which other processes wait. If one of the ends is refused, the group is rolled back and run
one by one: each has its own result [M3]. A group in which two writes touch the same row runs one by one, too.

A statement repeats the row that is marked `-- each` in the SQL file. With one SQLite step per row another thread may
take the GIL after each of them, and a busy event loop keeps it for a while, under the write lock. The statements have
`or rollback`: otherwise SQLite keeps a copy of each page that they change, to be able to undo a single statement.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from coterie.kernel.clock import to_datetime
from coterie.storage.contracts.messages import Commit, Insert, Receipt, Setback
from coterie.storage.contracts.ticks import TickClaim, TickNote
from coterie.storage.contracts.units import StepWrite, UnitEnd
from coterie.storage.interface import StateSave
from coterie.storage.sqlite import message_writes, states, tick_writes, unit_writes
from coterie.storage.sqlite.messages import SQL

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from coterie.storage.contracts.messages import Message
    from coterie.storage.interface import Write
    from coterie.storage.sqlite.kv import Scope


_EACH = re.compile(r"(\([?\d, ]+\)) -- each")
_MOST = 128
"""Rows of one statement. Powers of two up to it make any number of rows, with few statements to keep prepared; bound
values are copied, so more would cost memory."""


def write(connection: apsw.Connection, statement: str, same: Sequence[Any], rows: Sequence[Sequence[Any]]) -> int:
    """Run a statement for all rows. Returns the number of rows changed.

    Args:
        connection: Inside a transaction. Any error rolls it back.
        statement: With one row in it. `?1`, `?2`, … are the same for all rows and come before it.
        same: The values of these.
        rows: The values of each row.
    """
    before, begin = connection.total_changes(), 0
    while begin < len(rows):
        times = min(_MOST, 1 << (len(rows) - begin).bit_length() - 1)
        some = rows[begin : begin + times]
        connection.execute(repeated(statement, times), (*same, *chain.from_iterable(some)))
        begin += times
    return connection.total_changes() - before


@cache
def repeated(statement: str, times: int) -> str:
    """A statement with its row repeated this many times."""
    (row,) = _EACH.findall(statement)
    return _EACH.sub(",\n".join([row] * times), statement)


def meet(group: Sequence[Write]) -> bool:
    """Whether two writes touch one message, key or state: then their order matters."""
    names: list[object] = []
    for write in group:
        if type(write) is Insert:  # these have no subclasses, and this runs for each write, under the lock
            _name(names, write.message)
        elif type(write) is Commit:
            if write.message is not None:
                names.append(write.message)
            if write.state is not None:
                names.append(write.state.key)
            for message in write.sends:
                _name(names, message)
        elif type(write) is Setback:
            names.append(write.message)
        elif type(write) is StateSave:
            names.append(write.key)
    return len(set(names)) < len(names)


def insert(connection: apsw.Connection, scope: Scope, group: Sequence[Write]) -> dict[int, Receipt]:
    """Store the messages of a group. Returns the results by their places in it."""
    places = [place for place, write in enumerate(group) if type(write) is Insert]
    if not places:
        return {}
    inserts: list[Any] = [group[place] for place in places]
    stored = [message_writes.row(scope, each.message) for each in inserts]
    if write(connection, SQL["insert"], message_writes.same(scope), stored) != len(stored):
        # An id or a key existed. The messages stored now are found by their ids, as if by an earlier try.
        return {
            place: message_writes.insert(connection, scope, each) for place, each in zip(places, inserts, strict=True)
        }
    now = to_datetime(scope.now_ns)
    return {
        place: Receipt(
            each.message.id,
            True,
            now if _is_due(each) else to_datetime(row[message_writes.DUE_AT_NS]),
            now,
            "pending",
            each.message.digest,
        )
        for place, each, row in zip(places, inserts, stored, strict=True)
    }


def commit(connection: apsw.Connection, scope: Scope, group: Sequence[Write]) -> dict[int, str] | None:
    """Write the plain ends of handlers. Returns "written" by place in the group; None: roll back, one is refused."""
    places = [place for place, write in enumerate(group) if type(write) is Commit and _is_plain(write)]
    if not places:
        return {}
    ends: list[Any] = [group[place] for place in places]
    claims = {end.claim for end in ends}
    if states.all_held(connection, scope.cluster, claims) != claims:  # the fence [C1]
        return None
    ended = [(end.message, end.reply, end.claim.epoch) for end in ends]
    if write(connection, SQL["complete_all"], message_writes.same(scope), ended) != len(ended):
        return None
    changes = [_change(end) for end in ends if end.state is not None]
    if write(connection, states.SQL["update_all"], (scope.cluster,), changes) != len(changes):
        return None
    return dict.fromkeys(places, "written")


def ticks(connection: apsw.Connection, scope: Scope, group: Sequence[Write], *, audit: bool) -> dict[int, Any]:
    """Write claims and notes of crons that have only one in the group. Returns the results by place."""
    said = [(place, write) for place, write in enumerate(group) if isinstance(write, (TickClaim, TickNote))]
    times = Counter(write.key for _, write in said)
    alone = [(place, write) for place, write in said if times[write.key] == 1]
    done: dict[int, Any] = {}
    for kind, written in ((TickClaim, tick_writes.claim), (TickNote, tick_writes.note)):
        places = [place for place, write in alone if type(write) is kind]
        writes: list[Any] = [group[place] for place in places]
        if writes:
            done |= zip(places, written(connection, scope, writes, audit=audit), strict=True)
    return done


def units(connection: apsw.Connection, scope: Scope, group: Sequence[Write], *, audit: bool) -> dict[int, Any]:
    """Write steps and ends of units whose order does not matter. Returns the results by place in the group."""
    ends = {place: write for place, write in enumerate(group) if isinstance(write, UnitEnd)}
    steps = {place: write for place, write in enumerate(group) if isinstance(write, StepWrite)}
    times = Counter(write.key for write in steps.values())
    over = {write.unit for write in ends.values()}
    alone = {place: write for place, write in steps.items() if times[write.key] == 1 and write.unit not in over}
    done: dict[int, Any] = {}
    if alone:
        done |= zip(alone, unit_writes.step(connection, scope, [*alone.values()], audit=audit), strict=True)
    # A unit that ends may be the parent of another: all ends together, or one after another in their order.
    if ends and len(over) == len(ends) and not any(write.unit in over for write in steps.values()):
        done |= zip(ends, unit_writes.end(connection, scope, [*ends.values()], audit=audit), strict=True)
    return done


def _name(names: list[object], message: Message) -> None:
    names.append(message.id)
    if message.key is not None:
        names.append((message.entity_type, message.entity_id, message.method, message.key))


def _is_due(write: Insert) -> bool:
    return write.message.due_at is None and not write.message.delay_s


def _is_plain(write: Commit) -> bool:
    """Whether it ends a message, sends nothing, and changes at most an existing state."""
    if write.message is None or write.sends:
        return False
    return write.state is None or bool(write.state.version and write.state.value is not None)


def _change(end: Commit) -> tuple[Any, ...]:
    """The parameters of its state's row in `update_all`."""
    claim, state = end.claim, end.state
    assert state is not None, "asked before"
    return state.key, state.version, claim.epoch, claim.seat, state.value
