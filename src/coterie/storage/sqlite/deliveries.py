"""What the holder of a seat asks about its messages: what is due, what it is, and what may have killed a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.kernel.clock import to_datetime, to_ns
from coterie.storage.messages import Backlog, Delivery, Due, Late, Waiting
from coterie.storage.sqlite.records import SQL, bindings, encoded, later_ns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import apsw

    from coterie.storage.interface import Claim
    from coterie.storage.messages import Mark, Policy
    from coterie.storage.sqlite.kv import Scope

_DIED = "the process died while handling it"


def due(
    connection: apsw.Connection, scope: Scope, after: Mapping[str, Mark | None], *, ahead_s: float, most: int
) -> Due:
    """Of each seat the first messages past a mark that are due, or will be soon."""
    rows: list[Waiting] = []
    for seat in sorted(after):
        names = bindings(scope, seat=seat, until_ns=later_ns(scope, ahead_s), most=most, **_past(after[seat]))
        rows += [
            Waiting(seat, message, to_datetime(at_ns), *entity)
            for message, at_ns, *entity in connection.execute(SQL["due"], names)
        ]
    return Due(to_datetime(scope.now_ns), tuple(rows))


def backlog(connection: apsw.Connection, scope: Scope, *, most: int, dead_most: int) -> Backlog:
    """Of each seat the message that has been due longest, and how many are dead."""
    late = [
        Late(seat, message, to_datetime(at_ns), *call)
        for seat, message, at_ns, *call in connection.execute(SQL["backlog"], bindings(scope, most=most))
    ]
    ((dead,),) = connection.execute(SQL["count_dead"], bindings(scope, most=dead_most))
    return Backlog(to_datetime(scope.now_ns), tuple(late), dead)


def fetch(connection: apsw.Connection, scope: Scope, ids: Sequence[str]) -> list[Delivery]:
    """The pending ones of these messages."""
    rows = connection.execute(SQL["fetch"], bindings(scope, ids=encoded(ids)))
    return [_delivery(*row) for row in rows]


def suspect(connection: apsw.Connection, scope: Scope, claim: Claim, policies: Sequence[Policy]) -> int:
    """Count an attempt for what may have been running when the holder before died [C5]; how many it were."""
    names = bindings(scope, seat=claim.seat, epoch=claim.epoch, error=_DIED)
    found: list[tuple[int, int, str, int, int]] = []
    for policy in policies:
        wanted = names | {"entity_type": policy.entity_type, "concurrency": policy.concurrency}
        rows = connection.execute(SQL["suspects"], wanted)
        found += [(due_at_ns, epoch, message, tried, policy.attempts) for message, epoch, tried, due_at_ns in rows]
    # Those counted before were run one at a time, in order: only the first of them can have been running.
    first = min(((due_at_ns, message) for due_at_ns, _, message, tried, _ in found if tried), default=None)
    counted = [
        names | {"id": message, "attempts": attempts}
        for due_at_ns, epoch, message, tried, attempts in found
        if epoch != claim.epoch and (not tried or (due_at_ns, message) == first)
    ]
    connection.executemany(SQL["suspect"], counted)
    return len(counted)


def _delivery(message: Any, *row: Any) -> Delivery:
    seat, entity_type, entity_id, method, payload, key, due_at_ns, attempts, trace_id = row
    due_s = to_datetime(due_at_ns).timestamp()
    return Delivery(message, seat, entity_type, entity_id, method, payload, key, due_s, attempts, trace_id)


def _past(mark: Mark | None) -> dict[str, object]:
    due_at, message = (None, "") if mark is None else mark
    return {"after_ns": -1 if due_at is None else to_ns(due_at), "after_id": message}
