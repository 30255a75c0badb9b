"""Queues in a SQLite file: plain functions to be run inside a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from coterie.kernel.clock import to_datetime, to_ns
from coterie.storage import statements
from coterie.storage.contracts.jobs import QueueDefinition, QueueLimits, QueueRow
from coterie.storage.sqlite import states
from coterie.storage.sqlite.store import bindings, later_ns, to_instant

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from coterie.storage.interface import Claim
    from coterie.storage.sqlite.store import Scope

SQL = dict(statements.load("coterie.storage.sqlite.sql", "queues.sql"))

_LIMITS = tuple(field.name for field in msgspec.structs.fields(QueueLimits))
_DEFINED = tuple(field.name for field in msgspec.structs.fields(QueueDefinition))


def queue(connection: apsw.Connection, scope: Scope, seat: str) -> QueueRow | None:
    """A queue."""
    for row in connection.execute(SQL["queue"], bindings(scope, seat=seat)):
        return _row(connection, scope, row)
    return None


def queues(connection: apsw.Connection, scope: Scope) -> list[QueueRow]:
    """All queues."""
    return [_row(connection, scope, row) for row in connection.execute(SQL["queues"], bindings(scope))]


def _row(connection: apsw.Connection, scope: Scope, row: Sequence[Any]) -> QueueRow:
    seat, group, fingerprint, age_s, takeover_delay_s, expected_wait_s, *limits = row
    *limits, paused_at_ns, stamp, tokens, refilled_at_ns = limits
    names = bindings(scope, group=group)
    defined, is_set, chosen = QueueLimits(**_named(limits[:4])), bool(limits[4]), limits[5:]
    return QueueRow(
        seat=seat,
        group=group,
        fingerprint=fingerprint,
        age_s=age_s,
        takeover_delay_s=takeover_delay_s,
        expected_wait_s=expected_wait_s,
        **_named(chosen if is_set else limits[:4]),
        stamp=stamp,
        defined=defined,
        is_set=is_set,
        paused_at=to_instant(paused_at_ns),
        tokens=tokens,
        refilled_at=to_datetime(refilled_at_ns),
        now=to_datetime(scope.now_ns),
        paused_tasks=tuple(task for (task,) in connection.execute(SQL["paused_tasks"], names)),
        is_group_paused=bool(connection.execute(SQL["paused_group"], names).fetchall()),
    )


def _named(limits: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(_LIMITS, limits, strict=True))


def refilled(scope: Scope, row: QueueRow) -> float | None:
    """The tokens in a queue's bucket now; None: it has no rate. A clock that was set back adds none."""
    if row.rate is None or row.burst is None:
        return None
    if row.tokens is None:
        return row.burst
    passed_s = max(0, later_ns(scope) - to_ns(row.refilled_at)) / 1e9
    return min(row.burst, row.tokens + row.rate * passed_s)


def spend(connection: apsw.Connection, scope: Scope, seat: str, *, tokens: float) -> None:
    """Store what is left in a bucket now."""
    connection.execute(SQL["spend"], bindings(scope, seat=seat, tokens=tokens))


def define(
    connection: apsw.Connection, scope: Scope, claim: Claim, definition: QueueDefinition | None
) -> QueueRow | None:
    """Store what the program defines, unless it is stored already. None: the seat is not held."""
    if not states.proven(connection, scope, claim, about=claim.seat):
        return None
    stored = queue(connection, scope, claim.seat)
    if stored is not None and (definition is None or definition == _definition(stored)):
        return stored
    if definition is None:
        ((group,),) = connection.execute(SQL["group"], bindings(scope, seat=claim.seat))
        definition = QueueDefinition(seat=claim.seat, group=group, fingerprint="")
    limits = _limits(definition)
    row = QueueRow(
        **{name: getattr(definition, name) for name in _DEFINED},
        stamp=0,
        defined=limits,
        is_set=False,
        paused_at=None,
        tokens=None,
        refilled_at=to_datetime(later_ns(scope)),
        now=to_datetime(scope.now_ns),
    )
    return _store(connection, scope, row if stored is None else _kept(scope, row, stored))


def _kept(scope: Scope, row: QueueRow, stored: QueueRow) -> QueueRow:
    """A queue with another definition: what was set at run time stays, and what is left in the bucket."""
    limits = msgspec.structs.asdict(_limits(stored)) if stored.is_set else {}
    tokens = refilled(scope, stored)
    return msgspec.structs.replace(row, **limits, is_set=stored.is_set, paused_at=stored.paused_at, tokens=tokens)


def _definition(row: QueueRow) -> QueueDefinition:
    values = {name: getattr(row, name) for name in _DEFINED} | msgspec.structs.asdict(row.defined)
    return QueueDefinition(**values)


def _limits(row: QueueLimits) -> QueueLimits:
    return QueueLimits(**{name: getattr(row, name) for name in _LIMITS})


def set_limits(connection: apsw.Connection, scope: Scope, seat: str, limits: QueueLimits | None) -> QueueRow | None:
    """Set limits that beat the definition; None: the definition's again."""
    stored = queue(connection, scope, seat)
    if stored is None:
        return None
    in_force = msgspec.structs.asdict(_limits(stored.defined if limits is None else limits))
    changed = msgspec.structs.replace(stored, **in_force, is_set=limits is not None, tokens=refilled(scope, stored))
    return _store(connection, scope, changed)


def pause(connection: apsw.Connection, scope: Scope, seat: str, *, paused: bool) -> QueueRow | None:
    """Pause a queue, or let it go on."""
    stored = queue(connection, scope, seat)
    if stored is None or (stored.paused_at is not None) == paused:
        return stored
    paused_at = to_datetime(later_ns(scope)) if paused else None
    return _store(
        connection, scope, msgspec.structs.replace(stored, paused_at=paused_at, tokens=refilled(scope, stored))
    )


def _store(connection: apsw.Connection, scope: Scope, row: QueueRow) -> QueueRow:
    """Store a queue as it is from now on. A bucket that there was not yet is full."""
    tokens = None if row.rate is None else row.burst if row.tokens is None else min(row.tokens, row.burst or 0.0)
    names = {name: getattr(row, name) for name in _DEFINED} | msgspec.structs.asdict(row.defined)
    for name in _LIMITS:
        names[f"set_{name}"] = getattr(row, name) if row.is_set else None
    names |= {"is_set": row.is_set, "tokens": tokens, "refilled_at_ns": later_ns(scope)}
    names["paused_at_ns"] = None if row.paused_at is None else to_ns(row.paused_at)
    connection.execute(SQL["store"], bindings(scope, **names))
    stored = queue(connection, scope, row.seat)
    assert stored is not None, "it was stored just now"
    return stored
