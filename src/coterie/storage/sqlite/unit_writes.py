"""Writes of the holders of units: steps and ends [M10, M11].

Plain functions to be run inside a transaction, each for many units at once, since other processes wait for the write
lock. So one query reads everything that counts, the decisions are made here, and few statements write them. The write
lock is held: nothing changes in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from coterie.kernel.clock import to_datetime, to_ns
from coterie.storage import statements
from coterie.storage.contracts.units import StepRecord, StepResult, StepRow, UnitEndResult
from coterie.storage.sqlite import states
from coterie.storage.sqlite.store import bindings, encoded, later_ns, to_instant, to_struct, write_rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import apsw

    from coterie.storage.contracts.units import StepWrite, UnitEnd
    from coterie.storage.sqlite.store import Scope

    Told = Literal["written", "there", "over", "fenced"]

SQL = {
    name: text
    for file in ("units.sql", "lives.sql", "later.sql")
    for name, text in statements.load(f"{__package__}.sql", file).items()
}


class _StepLook(msgspec.Struct, array_like=True, gc=False):
    """The facts that decide about a step."""

    goes_on: int
    """Whether its unit is running, on the seat that is held."""
    done: int | None
    """What is stored at its position. 0: this step, being waited for; 1: a done or another step; None: nothing."""


class _EndLook(msgspec.Struct, array_like=True, gc=False):
    """The facts that decide about an end."""

    goes_on: int
    is_workflow: int | None
    parent: str | None
    """None: no unit waits for it, or none does any more."""
    waited_as: str | None
    wake: str | None
    life: int | None
    """The life of the parent."""


_STEP_LOOKS = msgspec.json.Decoder(list[_StepLook])
_END_LOOKS = msgspec.json.Decoder(list[_EndLook])


# ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────


def step(connection: apsw.Connection, scope: Scope, writes: Sequence[StepWrite]) -> list[StepResult]:
    """Store steps, with the results that `StepResult` defines. At most one for each position."""
    names = bindings(scope)
    held = _proven(connection, scope, writes)
    asked = encoded(map(_place, held))
    looks = _STEP_LOOKS.decode(connection.execute(SQL["step_looks"], {**names, "rows": asked}).get)
    told: dict[str, Told] = {write.key: _judged(write, look) for write, look in zip(held, looks, strict=True)}
    known = {write.key for write, look in zip(held, looks, strict=True) if look.done is not None}
    _write_steps(connection, scope, [write for write in held if told[write.key] == "written"], known)
    now = to_datetime(names["now_ns"])
    return [
        _stepped(connection, scope, write, told=told.get(write.key, "fenced"), is_new=write.key not in known, now=now)
        for write in writes
    ]


def _judged(write: StepWrite, look: _StepLook) -> Told:
    """The result for a write that has passed the fence."""
    if not look.goes_on:
        return "over"
    is_waited_for = look.done == 0
    return "written" if look.done is None or (is_waited_for and write.done) else "there"


def _write_steps(connection: apsw.Connection, scope: Scope, chosen: Sequence[StepWrite], known: set[str]) -> None:
    if not chosen:
        return
    new = [_row(scope, write) for write in chosen if write.key not in known]
    ends = [
        (write.unit, write.branch, write.position, write.value, write.error, write.runner)
        for write in chosen
        if write.key in known
    ]
    same = scope.cluster, later_ns(scope)
    write_rows(connection, SQL["step_insert"], same, new)
    write_rows(connection, SQL["step_complete"], same, ends)


def _place(write: StepWrite) -> dict[str, Any]:
    return {
        "unit": write.unit,
        "seat": write.claim.seat,
        "branch": write.branch,
        "position": write.position,
        "kind": write.kind,
        "name": write.name,
        "life": write.life,
    }


def _row(scope: Scope, write: StepWrite) -> tuple[Any, ...]:
    return (
        write.unit,
        write.branch,
        write.position,
        write.kind,
        write.name,
        write.digest,
        write.done,
        _due_at_ns(scope, write),
        write.value,
        write.error,
        _began_at_ns(scope, write),
        write.attempts,
        write.runner,
    )


def _due_at_ns(scope: Scope, write: StepWrite) -> int | None:
    return None if write.due_s is None else later_ns(scope, write.due_s)


def _began_at_ns(scope: Scope, write: StepWrite) -> int:
    return later_ns(scope) if write.began_at is None else min(to_ns(write.began_at), later_ns(scope))


def _stepped(
    connection: apsw.Connection, scope: Scope, write: StepWrite, *, told: Told, is_new: bool, now: datetime
) -> StepResult:
    if told in ("over", "fenced"):
        return StepResult(told, None, now)
    if told == "there" or not is_new:
        return StepResult(told, _stored(connection, scope, write), now)
    return StepResult(told, write.row(to_instant(_due_at_ns(scope, write))), now)


def _stored(connection: apsw.Connection, scope: Scope, write: StepWrite) -> StepRow:
    names = bindings(scope, unit=write.unit, branch=write.branch, position=write.position)
    (row,) = connection.execute(SQL["step"], names).fetchall()
    return step_row(row)


def step_row(row: Sequence[Any]) -> StepRow:
    """Convert a row of a step."""
    return to_struct(StepRow, row)


def step_record(row: Sequence[Any]) -> StepRecord:
    """Convert a row of a step for people."""
    return to_struct(StepRecord, row)


# ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────────


def end(connection: apsw.Connection, scope: Scope, writes: Sequence[UnitEnd]) -> list[UnitEndResult]:
    """End units, and resolve the deferreds of their parents. At most one for each unit."""
    held = _proven(connection, scope, writes)
    asked = encoded(
        {"unit": write.unit, "seat": write.claim.seat, "life": write.life, "retries": write.retries} for write in held
    )
    looks = _END_LOOKS.decode(connection.execute(SQL["end_looks"], bindings(scope, rows=asked)).get)
    found = {write.unit: look for write, look in zip(held, looks, strict=True)}
    if any(look.parent in found for look in looks) and len(writes) > 1:
        # Parent and child: their order matters.
        return [end(connection, scope, [write])[0] for write in writes]
    _write_ends(connection, scope, [(write, found[write.unit]) for write in held if found[write.unit].goes_on])
    return [_ended(found.get(write.unit)) for write in writes]


def _write_ends(connection: apsw.Connection, scope: Scope, chosen: Sequence[tuple[UnitEnd, _EndLook]]) -> None:
    if not chosen:
        return
    same = scope.cluster, later_ns(scope)
    kept = [
        (write.unit, write.status, write.value, write.error, write.held, write.failed_steps)
        for write, look in chosen
        if look.is_workflow
    ]
    write_rows(connection, SQL["end"], same, kept)
    gone = [write.unit for write, look in chosen if not look.is_workflow]
    if gone:
        connection.execute(SQL["forget"], bindings(scope, units=encoded(gone)))
        forget_rows(connection, scope, gone)
    waiting = [
        (look.parent, look.waited_as, look.life, write.outcome) for write, look in chosen if look.parent is not None
    ]
    if waiting:
        write_rows(connection, SQL["tell"], same, waiting)
        connection.execute(SQL["wake"], bindings(scope, units=encoded(parent for parent, *_ in waiting)))


def forget_rows(connection: apsw.Connection, scope: Scope, units: Sequence[str]) -> None:
    """Delete all rows of units: a new unit with such a name starts from nothing (W5)."""
    names = bindings(scope, units=encoded(units))
    connection.execute(SQL["forget_steps"], names)
    connection.execute(SQL["forget_deferreds"], names)


def _ended(look: _EndLook | None) -> UnitEndResult:
    if look is None:
        return UnitEndResult("fenced")
    # A unit that was over may have ended by this very write, so the parent's seat is returned as well.
    return UnitEndResult("written" if look.goes_on else "over", look.wake)


def _proven(connection: apsw.Connection, scope: Scope, writes: Sequence[Any]) -> list[Any]:
    """Return the writes whose seats are held; refusals of the others are recorded [C1]."""
    held = states.all_held(connection, scope.cluster, {write.claim for write in writes})
    for write in writes:
        if write.claim not in held:
            states.note_refusal(connection, scope, write.claim, about=write.unit)
    return [write for write in writes if write.claim in held]
