"""What the holder of a seat asks about its messages: what is due, what it is, and what may have killed a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.kernel.clock import to_datetime, to_ns
from coterie.storage.messages import Backlog, Delivery, Due, Late, Loss, Suspected, Waiting
from coterie.storage.sqlite.records import SQL, bindings, encoded, later_ns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import apsw

    from coterie.storage.interface import Claim
    from coterie.storage.messages import Mark
    from coterie.storage.sqlite.kv import Scope

_LOST = "its runner was lost when it ran this message alone, or was about to ({count} of {limit})"


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


def suspect(
    connection: apsw.Connection, scope: Scope, claim: Claim, concurrency: Mapping[str, int], *, loss_limit: int
) -> Suspected:
    """Judge what may have been running when the holder before was lost [C5]."""
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
    """Note how a suspect is begun; False: it is not pending."""
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
