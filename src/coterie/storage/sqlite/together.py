"""A group of writes inside its transaction: those that are alike share their statements.

Most of a busy group are inserts and plain ends of handlers. One by one each of them costs as much Python as SQL, all
of it under the write lock, for which other processes wait. If one of the ends is refused, the group is undone and done
one by one after all: each has its own result [M3]. So is a group in which two meet.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from coterie.kernel.clock import to_datetime
from coterie.storage.interface import StateSave
from coterie.storage.messages import Commit, Insert, Receipt, Setback
from coterie.storage.sqlite import claiming, completions, rows, states, stepping
from coterie.storage.sqlite.records import SQL
from coterie.storage.ticks import TickClaim, TickNote
from coterie.storage.units import StepWrite, UnitEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from coterie.storage.interface import Write
    from coterie.storage.messages import Message
    from coterie.storage.sqlite.kv import Scope


def meet(group: Sequence[Write]) -> bool:
    """Whether two of them are about one message, key or state: then their order counts."""
    names: list[object] = []
    for write in group:
        if type(write) is Insert:  # nobody derives from these, and it is done for each write, under the lock
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
    """Store the messages of a group; the results by their places in it."""
    places = [place for place, write in enumerate(group) if type(write) is Insert]
    if not places:
        return {}
    inserts: list[Any] = [group[place] for place in places]
    stored = [completions.row(scope, each.message) for each in inserts]
    if rows.write(connection, SQL["insert"], completions.same(scope), stored) != len(stored):
        # An id or a key was there. Those that are stored now are found by their ids, as if by an earlier try.
        return {place: completions.insert(connection, scope, each) for place, each in zip(places, inserts, strict=True)}
    now = to_datetime(scope.now_ns)
    return {
        place: Receipt(
            each.message.id,
            True,
            now if _is_due(each) else to_datetime(row[completions.DUE_AT_NS]),
            now,
            "pending",
            each.message.digest,
        )
        for place, each, row in zip(places, inserts, stored, strict=True)
    }


def commit(connection: apsw.Connection, scope: Scope, group: Sequence[Write]) -> dict[int, str] | None:
    """Write the plain ends of handlers; "written" by their places in the group. None: undo it, one is refused."""
    places = [place for place, write in enumerate(group) if type(write) is Commit and _is_plain(write)]
    if not places:
        return {}
    ends: list[Any] = [group[place] for place in places]
    claims = {end.claim for end in ends}
    if states.all_held(connection, scope.cluster, claims) != claims:  # the fence [C1]
        return None
    ended = [(end.message, end.reply, end.claim.epoch) for end in ends]
    if rows.write(connection, SQL["complete_all"], completions.same(scope), ended) != len(ended):
        return None
    changes = [_change(end) for end in ends if end.state is not None]
    if rows.write(connection, states.SQL["update_all"], (scope.cluster,), changes) != len(changes):
        return None
    return dict.fromkeys(places, "written")


def ticks(connection: apsw.Connection, scope: Scope, group: Sequence[Write], *, audit: bool) -> dict[int, Any]:
    """Write what is said of crons, of which there is one thing to say; the results by their places in the group."""
    said = [(place, write) for place, write in enumerate(group) if isinstance(write, (TickClaim, TickNote))]
    times = Counter(write.key for _, write in said)
    alone = [(place, write) for place, write in said if times[write.key] == 1]
    done: dict[int, Any] = {}
    for kind, written in ((TickClaim, claiming.claim), (TickNote, claiming.note)):
        places = [place for place, write in alone if type(write) is kind]
        writes: list[Any] = [group[place] for place in places]
        if writes:
            done |= zip(places, written(connection, scope, writes, audit=audit), strict=True)
    return done


def units(connection: apsw.Connection, scope: Scope, group: Sequence[Write], *, audit: bool) -> dict[int, Any]:
    """Write steps of units, and ends, whose order does not count; the results by their places in the group."""
    ends = {place: write for place, write in enumerate(group) if isinstance(write, UnitEnd)}
    steps = {place: write for place, write in enumerate(group) if isinstance(write, StepWrite)}
    times = Counter(write.key for write in steps.values())
    over = {write.unit for write in ends.values()}
    alone = {place: write for place, write in steps.items() if times[write.key] == 1 and write.unit not in over}
    done: dict[int, Any] = {}
    if alone:
        done |= zip(alone, stepping.step(connection, scope, [*alone.values()], audit=audit), strict=True)
    # One that ends may be the parent of another: all of them together, or one after another in their order.
    if ends and len(over) == len(ends) and not any(write.unit in over for write in steps.values()):
        done |= zip(ends, stepping.end(connection, scope, [*ends.values()], audit=audit), strict=True)
    return done


def _name(names: list[object], message: Message) -> None:
    names.append(message.id)
    if message.key is not None:
        names.append((message.entity_type, message.entity_id, message.method, message.key))


def _is_due(write: Insert) -> bool:
    return write.message.due_at is None and not write.message.delay_s


def _is_plain(write: Commit) -> bool:
    """Whether it ends a message, sends nothing, and changes at most a state that is there."""
    if write.message is None or write.sends:
        return False
    return write.state is None or bool(write.state.version and write.state.value is not None)


def _change(end: Commit) -> tuple[Any, ...]:
    """The parameters of its state's row in `update_all`."""
    claim, state = end.claim, end.state
    assert state is not None, "asked before"
    return state.key, state.version, claim.epoch, claim.seat, state.value
