"""Durable work in a SQLite file: plain functions for holders and readers of units, and the store.

Writes that go through the group writer are in `unit_writes.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from coterie.kernel.clock import to_datetime, to_ns
from coterie.storage.contracts.units import (
    DeferredRow,
    ParentEnded,
    ResolveResult,
    TakenUnits,
    UnitRow,
    UnitSnapshot,
    UnitsPurged,
    UnitStartResult,
    life_of_tick,
    require_same,
    tick_of_unit,
)
from coterie.storage.sqlite import states
from coterie.storage.sqlite.kv import Scope
from coterie.storage.sqlite.messages import bindings, later_ns
from coterie.storage.sqlite.tick_writes import encoded
from coterie.storage.sqlite.unit_writes import SQL, forget_rows, step_row
from coterie.storage.sqlite.write_lock import snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime

    import apsw

    from coterie.kernel.clock import Clock
    from coterie.storage.contracts.units import (
        StepResult,
        StepRow,
        StepWrite,
        UnitEnd,
        UnitEndResult,
        UnitKind,
        UnitStart,
        UnitStatus,
    )
    from coterie.storage.interface import Claim, Write
    from coterie.storage.sqlite.database import SqliteDatabase

    Suspended = Literal["suspended", "ready", "over", "fenced"]

_LONGEST_S = 9e9

_WAKES = msgspec.json.Decoder(dict[str, int | None])
_UNITS = msgspec.json.Decoder(list[str])
_CHILDREN = msgspec.json.Decoder(list[tuple[str, str]])


# ── for holders of units ────────────────────────────────────────────────────────────────────────────────────────


def load(connection: apsw.Connection, scope: Scope, claim: Claim, unit: str) -> UnitSnapshot | Literal["fenced"] | None:
    """Load a unit of a seat; None: there is none. Within a transaction, or a snapshot."""
    if not states.held(connection, scope.cluster, claim):
        return "fenced"
    row = get(connection, scope, unit)
    if row is None or row.seat != claim.seat:
        return None
    names = bindings(scope, unit=unit, life=row.life)
    deferreds: list[Any] = connection.execute(SQL["deferreds"], names).fetchall()
    return UnitSnapshot(
        row=row,
        steps=steps(connection, scope, unit),
        deferreds=tuple(DeferredRow(*each) for each in deferreds),
        now=to_datetime(names["now_ns"]),
    )


def steps(connection: apsw.Connection, scope: Scope, unit: str) -> tuple[StepRow, ...]:
    """The steps of a unit, by branch and position."""
    return tuple(map(step_row, connection.execute(SQL["steps"], bindings(scope, unit=unit)).fetchall()))


def opened(
    connection: apsw.Connection, scope: Scope, claim: Claim, *, unit: str, kind: UnitKind, name: str, id: str, life: int
) -> UnitSnapshot | Literal["fenced"] | None:
    """Begin or continue a unit of a leader or a tick."""
    if states.held(connection, scope.cluster, claim):
        is_new = _begin(connection, scope, unit=unit, kind=kind, name=name, id=id, life=life, seat=claim.seat)
        if not is_new:
            connection.execute(SQL["reopen"], bindings(scope, unit=unit, seat=claim.seat))
    return load(connection, scope, claim, unit)


def taken(
    connection: apsw.Connection, scope: Scope, claims: Sequence[Claim], *, most: int, is_written: bool
) -> dict[str, TakenUnits] | None:
    """The workflows to run on the seats that are held; None: something must be written first."""
    with snapshot(connection):
        held = _held(connection, scope, claims)
        names = bindings(scope, seats=encoded(held), most=most)
        wakes = _WAKES.decode(connection.execute(SQL["wakes"], names).get)
        if not is_written and any(at_ns is not None and at_ns <= names["now_ns"] for at_ns in wakes.values()):
            return None
        rows: dict[str, list[UnitRow]] = {seat: [] for seat in held}
        for row in map(_unit, connection.execute(SQL["taken"], names)):
            rows[row.seat].append(row)
    now = to_datetime(names["now_ns"])
    return {seat: TakenUnits(tuple(rows[seat]), _instant(wakes[seat]), now) for seat in held}


def wake_due(connection: apsw.Connection, scope: Scope, claims: Sequence[Claim]) -> None:
    """Make suspended units running that are due by themselves, on seats that are held."""
    connection.execute(SQL["wake_due"], bindings(scope, seats=encoded(_held(connection, scope, claims))))


def suspend(
    connection: apsw.Connection,
    scope: Scope,
    claim: Claim,
    unit: str,
    *,
    waits: Sequence[str],
    wake_s: float | None,
    audit: bool,
) -> Suspended:
    """Unload a unit, unless it can continue. The write lock is held, so that does not change meanwhile [M11]."""
    if not states.proven(connection, scope, claim, about=unit, audit=audit):
        return "fenced"
    row = get(connection, scope, unit)
    if row is None or row.seat != claim.seat or row.ended_at is not None:
        return "over"
    names = bindings(scope, unit=unit, life=row.life, names=encoded(waits))
    if row.interrupting or connection.execute(SQL["ready"], names).get:
        return "ready"
    wake_at_ns = None if wake_s is None else later_ns(scope, wake_s)
    connection.execute(SQL["suspend"], bindings(scope, unit=unit, wake_at_ns=wake_at_ns))
    return "suspended"


def _held(connection: apsw.Connection, scope: Scope, claims: Sequence[Claim]) -> list[str]:
    held = states.all_held(connection, scope.cluster, set(claims))  # the fence [C1]
    return [claim.seat for claim in claims if claim in held]


# ── for all processes ───────────────────────────────────────────────────────────────────────────────────────────


def started(connection: apsw.Connection, scope: Scope, start: UnitStart) -> UnitStartResult | None:
    """Store a workflow if there is none of this name; None: it is new, and its parent has ended."""
    parent = None if start.parent is None else get(connection, scope, start.parent)
    is_orphan = start.parent is not None and (parent is None or parent.ended_at is not None)
    is_new = not is_orphan and _begin(connection, scope, kind="workflow", **msgspec.structs.asdict(start))
    rows: list[Any] = connection.execute(SQL["row"], bindings(scope, unit=start.unit)).fetchall()
    if not rows:
        return None
    (row,) = rows
    told: Any = "started" if is_new else "there" if row[-1] == start.digest else "conflict"
    return UnitStartResult(told, _unit(row))


def require_started(connection: apsw.Connection, scope: Scope, starts: Sequence[UnitStart]) -> None:
    """Store the workflows that do not exist yet.

    Raises:
        KeyConflict: There is a run of one of the ids with another payload.
    """
    for start in starts:
        told = started(connection, scope, start)
        assert told is not None, "it has no parent"
        require_same(start, told.row.digest)


def resolve(
    connection: apsw.Connection,
    scope: Scope,
    unit: str,
    name: str,
    *,
    life: int,
    value: bytes | None,
    error: str | None,
) -> ResolveResult:
    """Store the result of a deferred of one life of a unit, and make the unit running."""
    row = get(connection, scope, unit)
    if row is None and not _is_open_tick(connection, scope, unit, life):
        return ResolveResult("over")
    if row is not None and (row.ended_at is not None or row.life != life):
        return ResolveResult("over")
    wake = None if row is None else row.seat
    names = bindings(scope, unit=unit, name=name, life=life, early=row is None, error=error, value=value)
    connection.execute(SQL["resolve"], names)
    if connection.changes() == 0:
        return ResolveResult("already", wake)
    connection.execute(SQL["wake"], bindings(scope, units=encoded([unit])))
    return ResolveResult("resolved", wake)


def _is_open_tick(connection: apsw.Connection, scope: Scope, unit: str, life: int) -> bool:
    """Whether a unit that has not begun belongs to a tick which has not ended, and was claimed at that time."""
    tick = tick_of_unit(unit)
    if tick is None:
        return False
    names = bindings(scope, cron=tick.cron, kind=tick.kind, at_ns=to_ns(tick.at), seq=tick.seq)
    found = connection.execute(SQL["tick"], names).fetchall()
    return any(life_of_tick(to_datetime(cast("int", claimed_at_ns))) == life for (claimed_at_ns,) in found)


def interrupt_children(
    connection: apsw.Connection, scope: Scope, seats: Sequence[str], *, most: int
) -> list[tuple[str, str]]:
    """Request the interruption of some children of workflows that failed or were interrupted."""
    names = bindings(scope, seats=encoded(seats), most=most)
    found = _CHILDREN.decode(connection.execute(SQL["children"], names).get)
    connection.execute(SQL["interrupt_children"], bindings(scope, units=encoded(unit for unit, _ in found)))
    connection.execute(SQL["forget_children"], names)
    return found


def change(
    connection: apsw.Connection, scope: Scope, unit: str, name: Literal["interrupt", "resume"]
) -> UnitRow | None:
    """Interrupt or resume a workflow. Returns the new row."""
    connection.execute(SQL[name], bindings(scope, unit=unit))
    row = get(connection, scope, unit)
    return row if row is not None and row.kind == "workflow" else None


def get(connection: apsw.Connection, scope: Scope, unit: str) -> UnitRow | None:
    """Return a unit."""
    for row in connection.execute(SQL["row"], bindings(scope, unit=unit)):
        return _unit(row)
    return None


def listed(
    connection: apsw.Connection,
    scope: Scope,
    *,
    status: UnitStatus | None,
    name: str | None,
    older_s: float | None,
    most: int,
) -> list[UnitRow]:
    """Units, the last changed first."""
    before_ns = None if older_s is None else _ago_ns(scope, older_s)
    names = bindings(scope, status=status, name=name, before_ns=before_ns, most=most)
    return [_unit(row) for row in connection.execute(SQL["list"], names)]


def purge(connection: apsw.Connection, scope: Scope, *, older_s: float, most: int) -> UnitsPurged:
    """Delete some ended, abandoned and never begun units, each with all its rows (W5)."""
    names = bindings(scope, before_ns=_ago_ns(scope, older_s), most=most)
    ended = _UNITS.decode(connection.execute(SQL["ended"], names).get)
    abandoned = _UNITS.decode(connection.execute(SQL["abandoned"], names).get)
    if ended or abandoned:
        connection.execute(SQL["forget"], bindings(scope, units=encoded(ended + abandoned)))
        forget_rows(connection, scope, ended + abandoned)
    connection.execute(SQL["purge_early"], names)
    return UnitsPurged(tuple(abandoned), max(len(ended), len(abandoned), connection.changes()))


def _begin(connection: apsw.Connection, scope: Scope, **named: Any) -> bool:
    """Begin a unit unless it exists. Returns whether it is new."""
    plain = {"parent": None, "waited_as": "", "version": "", "digest": b"", "payload": b"", "life": 0}
    connection.execute(SQL["begin"], bindings(scope, **(plain | named)))
    if connection.changes() == 0:
        return False
    connection.execute(SQL["expect"], bindings(scope, unit=named["unit"], life=named.get("life", 0)))
    return True


def _ago_ns(scope: Scope, seconds: float) -> int:
    return later_ns(scope, -min(seconds, _LONGEST_S))


def _unit(row: Sequence[Any]) -> UnitRow:
    unit, kind, name, own_id, seat, status, payload, version, interrupting, parent, value, error, *rest = row
    started_at_ns, changed_at_ns, ended_at_ns, wake_at_ns, steps, life, digest = rest
    return UnitRow(
        unit=unit,
        kind=kind,
        name=name,
        id=own_id,
        seat=seat,
        status=status,
        payload=payload,
        version=version,
        interrupting=bool(interrupting),
        parent=parent,
        value=value,
        error=error,
        started_at=to_datetime(started_at_ns),
        changed_at=to_datetime(changed_at_ns),
        ended_at=_instant(ended_at_ns),
        wake_at=_instant(wake_at_ns),
        steps=steps,
        life=life,
        digest=digest,
    )


def _instant(at_ns: int | None) -> datetime | None:
    return None if at_ns is None else to_datetime(at_ns)


class SqliteUnits:
    """The durable work of one cluster. See `storage.contracts.units.UnitStore`."""

    def __init__(
        self,
        database: SqliteDatabase,
        *,
        write: Callable[[Write], Awaitable[Any]],
        cluster: str,
        clock: Clock,
        audit: bool,
    ) -> None:
        self._database = database
        self._write = write
        self._cluster = cluster
        self._clock = clock
        self._audit = audit

    # For the holder of a seat

    async def step(self, write: StepWrite) -> StepResult:
        """Durable when it returns "written"."""
        return cast("StepResult", await self._write(write))

    async def end(self, write: UnitEnd) -> UnitEndResult:
        """Durable when it returns "written"."""
        return cast("UnitEndResult", await self._write(write))

    async def open(
        self, claim: Claim, *, unit: str, kind: UnitKind, name: str, id: str, life: int = 0
    ) -> UnitSnapshot | None:
        """Begin or continue a unit of a leader or a tick. Returns None if the seat is not held."""
        found = await self._database.transact(
            lambda c: opened(c, self._scope(), claim, unit=unit, kind=kind, name=name, id=id, life=life),
            doing=f"open {unit!r}",
        )
        return found if isinstance(found, UnitSnapshot) else None

    async def take(self, claims: Sequence[Claim], *, most: int) -> Mapping[str, TakenUnits]:
        """Return the workflows to run. Takes the contended write lock only if something is due by itself."""
        doing = "look after workflows"
        found = await self._database.read(
            lambda c: taken(c, self._scope(), claims, most=most, is_written=False), doing=doing
        )
        if found is None:
            await self._database.transact(lambda c: wake_due(c, self._scope(), claims), doing=doing)
            found = await self._database.read(
                lambda c: taken(c, self._scope(), claims, most=most, is_written=True), doing=doing
            )
        assert found is not None
        return found

    async def load(self, claim: Claim, unit: str) -> UnitSnapshot | None:
        """Load a unit with its steps and deferreds. None: the seat is not held, or has no such unit."""
        found = await self._load(claim, unit)
        return found if isinstance(found, UnitSnapshot) else None

    async def suspend(self, claim: Claim, unit: str, *, waits: Sequence[str], wake_s: float | None) -> Suspended:
        """Unload the unit until one of `waits` is resolved, or `wake_s` have passed."""
        audit = self._audit
        return await self._database.transact(
            lambda c: suspend(c, self._scope(), claim, unit, waits=waits, wake_s=wake_s, audit=audit),
            doing=f"suspend {unit!r}",
        )

    # For all processes

    async def start(self, start: UnitStart) -> UnitStartResult:
        """Store a workflow, to be run by the holder of its seat."""
        told = await self._database.transact(lambda c: started(c, self._scope(), start), doing=f"start {start.unit!r}")
        if told is None:
            raise ParentEnded(start.parent)
        return told

    async def resolve(
        self, unit: str, name: str, *, life: int = 0, value: bytes | None, error: str | None
    ) -> ResolveResult:
        """Store the result of a deferred of one life of a unit, once."""
        return await self._database.transact(
            lambda c: resolve(c, self._scope(), unit, name, life=life, value=value, error=error),
            doing=f"resolve {name!r} of {unit!r}",
        )

    async def interrupt_children(self, seats: Sequence[str], *, most: int) -> Sequence[tuple[str, str]]:
        """Request the interruption of some children. Takes the contended write lock only if there are some."""
        doing = "look after children"
        names = {"seats": encoded(seats)}
        is_needed = await self._database.read(
            lambda c: c.execute(SQL["interrupts_children"], bindings(self._scope(), **names)).get, doing=doing
        )
        if not is_needed:
            return []
        return await self._database.transact(
            lambda c: interrupt_children(c, self._scope(), seats, most=most), doing=doing
        )

    async def interrupt(self, unit: str) -> UnitRow | None:
        """Request the interruption of a workflow. Returns None if there is none."""
        return await self._database.transact(
            lambda c: change(c, self._scope(), unit, "interrupt"), doing=f"interrupt {unit!r}"
        )

    async def resume(self, unit: str) -> UnitRow | None:
        """Make a suspended workflow running. Returns None if there is none."""
        return await self._database.transact(
            lambda c: change(c, self._scope(), unit, "resume"), doing=f"resume {unit!r}"
        )

    async def get(self, unit: str) -> UnitRow | None:
        """Return a unit."""
        return await self._database.read(lambda c: get(c, self._scope(), unit), doing=f"look at {unit!r}")

    async def steps(self, unit: str) -> Sequence[StepRow]:
        """Return its steps, by branch and position."""
        return await self._database.read(lambda c: steps(c, self._scope(), unit), doing=f"look at {unit!r}")

    async def list(
        self, *, status: UnitStatus | None, name: str | None, older_s: float | None, most: int
    ) -> Sequence[UnitRow]:
        """Return units, the last changed first."""
        return await self._database.read(
            lambda c: listed(c, self._scope(), status=status, name=name, older_s=older_s, most=most), doing="list units"
        )

    async def purge(self, *, older_s: float, most: int) -> UnitsPurged:
        """Delete some ended, abandoned and never begun units."""
        return await self._database.transact(
            lambda c: purge(c, self._scope(), older_s=older_s, most=most), doing="purge old units"
        )

    async def _load(self, claim: Claim, unit: str) -> UnitSnapshot | Literal["fenced"] | None:
        def look(connection: apsw.Connection) -> UnitSnapshot | Literal["fenced"] | None:
            with snapshot(connection):
                return load(connection, self._scope(), claim, unit)

        return await self._database.read(look, doing=f"load {unit!r}")

    def _scope(self) -> Scope:
        return Scope(self._cluster, self._clock.wall_ns())
