"""Schedules and timers in a SQLite file: plain functions to be run inside a transaction, and the store."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.kernel.clock import to_datetime, to_ns
from coterie.storage import statements
from coterie.storage.contracts.schedules import DueSchedules, NewSchedule, ScheduleRow, end_of
from coterie.storage.sqlite import message_writes, states
from coterie.storage.sqlite.database import snapshot
from coterie.storage.sqlite.jobs import inserts
from coterie.storage.sqlite.store import LAST_NS, SqliteStore, ago_ns, bindings, encoded, reads, to_struct, writes
from coterie.storage.unreadable_rows import readable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

    import apsw

    from coterie.storage.contracts.schedules import Fire, Fired, ScheduleMark
    from coterie.storage.sqlite.store import Scope

SQL = statements.load(f"{__package__}.sql", "schedules.sql")

_NEXT_AT_NS = 10
"""The index of `next_at_ns` in a row."""


def due(
    connection: apsw.Connection, scope: Scope, seats: Sequence[str], *, without: Collection[str] = (), most: int
) -> DueSchedules:
    """The rows of seats that are due."""
    rows: list[Sequence[Any]] = []
    later: dict[str, datetime] = {}
    with snapshot(connection):
        for seat in seats:
            names = bindings(scope, seat=seat, without=encoded(without), most=most)
            rows += connection.execute(SQL["due"], names)
            for (at_ns,) in connection.execute(SQL["later"], bindings(scope, seat=seat)):
                later[seat] = to_datetime(at_ns)
    rows.sort(key=itemgetter(_NEXT_AT_NS))
    read = _readable(rows)
    known = {row.key for row in read}
    unreadable = tuple(row[0] for row in rows if row[0] not in known)
    return DueSchedules(to_datetime(bindings(scope)["now_ns"]), tuple(read), later, unreadable)


def fire(connection: apsw.Connection, scope: Scope, fires: Sequence[Fire]) -> list[Fired]:
    """Fire rows under the fence: the write lock is held, so what is read stays."""
    held = states.all_held(connection, scope.cluster, {each.claim for each in fires})
    return [_fire(connection, scope, each, is_held=each.claim in held) for each in fires]


def get(connection: apsw.Connection, scope: Scope, key: str) -> ScheduleRow | None:
    """One row, or None."""
    for row in connection.execute(SQL["get"], bindings(scope, key=key)):
        return to_struct(ScheduleRow, row)
    return None


def listed(connection: apsw.Connection, scope: Scope, prefix: str, *, after: str = "", most: int) -> list[ScheduleRow]:
    """The rows whose keys begin so."""
    names = bindings(scope, prefix=prefix, until=end_of(prefix), after=after, most=most)
    return _readable(connection.execute(SQL["list"], names))


def swap(connection: apsw.Connection, scope: Scope, row: ScheduleRow, was: ScheduleMark | None) -> bool:
    """Write a row in place of the one that was read; None: there was none."""
    names = bindings(scope, **_fields(row))
    if was is not None:
        names |= {"was_life": was[0], "was_stamp": was[1]}
    connection.execute(SQL["add" if was is None else "swap"], names)
    return connection.changes() == 1


def pause(connection: apsw.Connection, scope: Scope, key: str) -> bool | None:
    """Pause a row. Returns False if it is paused already, None if there is none."""
    if not connection.execute(SQL["state"], bindings(scope, key=key)).fetchall():
        return None
    connection.execute(SQL["pause"], bindings(scope, key=key))
    return connection.changes() == 1


def remove(connection: apsw.Connection, scope: Scope, key: str) -> ScheduleRow | None:
    """Delete a row. Returns it, or None."""
    found = get(connection, scope, key)
    if found is not None:
        connection.execute(SQL["remove"], bindings(scope, key=key))
    return found


def purge(connection: apsw.Connection, scope: Scope, *, older_s: float, most: int) -> int:
    """Delete rows that have been over for so long. Returns the number."""
    connection.execute(SQL["purge"], bindings(scope, before_ns=ago_ns(scope, older_s), most=most))
    return connection.changes()


def _fire(connection: apsw.Connection, scope: Scope, fire: Fire, *, is_held: bool) -> Fired:
    if not is_held:
        states.note_refusal(connection, scope, fire.claim, about=fire.key)
        return "fenced"
    names = bindings(scope, key=fire.key)
    state: Any = connection.execute(SQL["state"], names).get
    if state != (*fire.mark, fire.claim.seat, 0):
        return "changed"
    if fire.due_at is not None and to_ns(fire.due_at) > names["now_ns"]:
        return "early"
    if fire.asks is not None and connection.execute(SQL["busy"], bindings(scope, id=fire.asks)).get:
        return "busy"
    message_writes.require_sent(connection, scope, fire.sends)
    inserts.store(connection, scope, fire.jobs)
    if fire.is_over:
        connection.execute(SQL["remove"], names)
    else:
        named = {
            "next_at_ns": _ns(fire.next_at),
            "last_at_ns": _ns(fire.last_at),
            "last_id": fire.last_id,
            "outcomes": fire.outcomes,
        }
        connection.execute(SQL["fire"], names | named)
    return "written"


def _readable(rows: Iterable[Sequence[Any]]) -> list[ScheduleRow]:
    return readable(rows, lambda row: to_struct(ScheduleRow, row), table="schedules", key=itemgetter(0))


def _fields(row: NewSchedule) -> dict[str, Any]:
    return {
        (f"{name}_ns" if name.endswith("_at") else name): (_ns(value) if name.endswith("_at") else value)
        for name, value in msgspec.structs.asdict(row).items()
    }


def _ns(at: datetime | None) -> int | None:
    return None if at is None else max(-LAST_NS, min(to_ns(at), LAST_NS))


class SqliteSchedules(SqliteStore):
    """See `storage.contracts.schedules.ScheduleStore`."""

    due = reads(due, "look for schedules that are due")
    fire = writes(fire, "fire schedules")
    get = reads(get, "look at {key!r}")
    list = reads(listed, "list schedules")
    swap = writes(swap, "write a schedule")
    pause = writes(pause, "pause {key!r}")
    remove = writes(remove, "remove {key!r}")
    purge = writes(purge, "purge schedules that are over")
