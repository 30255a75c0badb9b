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
    UnitStart,
    UnitStartResult,
    life_of_tick,
    require_same,
    tick_of_unit,
)
from coterie.storage.sqlite import states
from coterie.storage.sqlite.database import snapshot
from coterie.storage.sqlite.store import (
    SqliteStore,
    ago_ns,
    bindings,
    encoded,
    later_ns,
    reads,
    to_instant,
    to_struct,
    write_rows,
    writes,
)
from coterie.storage.sqlite.unit_writes import SQL, forget_rows, step_record, step_row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    import apsw

    from coterie.storage.contracts.units import (
        NextLife,
        StepRecord,
        StepResult,
        StepRow,
        StepWrite,
        Stuck,
        UnitEnd,
        UnitEndResult,
        UnitFork,
        UnitKind,
        UnitRetry,
        UnitStatus,
    )
    from coterie.storage.interface import Claim
    from coterie.storage.sqlite.store import Scope

    Suspended = Literal["suspended", "ready", "over", "fenced"]

_WAKES = msgspec.json.Decoder(dict[str, int | None])
_UNITS = msgspec.json.Decoder(list[str])
_CHILDREN = msgspec.json.Decoder(list[tuple[str, str]])
_MOST_CHILDREN = 500
_RETRIED = ("failed", "interrupted")
_MOST_KEPT = 500
"""How many next lives begin in one transaction."""
_OF_BEGIN = frozenset({"again", "debounced", "starts_at", "delay_s", "latest_at", "latest_s"})


# ── for holders of units ────────────────────────────────────────────────────────────────────────────────────────


def loaded(connection: apsw.Connection, scope: Scope, claim: Claim, unit: str) -> UnitSnapshot | None:
    """Load a unit with its steps and deferreds. None: the seat is not held, or has no such unit."""
    with snapshot(connection):
        return _load(connection, scope, claim, unit)


def _load(connection: apsw.Connection, scope: Scope, claim: Claim, unit: str) -> UnitSnapshot | None:
    """Load a unit. Within a transaction, or a snapshot."""
    if not states.held(connection, scope.cluster, claim):
        return None
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


def records(connection: apsw.Connection, scope: Scope, unit: str) -> tuple[StepRecord, ...]:
    """The steps of a unit for people to see, by branch and position."""
    return tuple(map(step_record, connection.execute(SQL["records"], bindings(scope, unit=unit)).fetchall()))


def opened(
    connection: apsw.Connection,
    scope: Scope,
    claim: Claim,
    *,
    unit: str,
    kind: UnitKind,
    name: str,
    id: str,
    life: int = 0,
) -> UnitSnapshot | None:
    """Begin or continue a unit of a leader or a tick. Returns None if the seat is not held."""
    if states.held(connection, scope.cluster, claim):
        is_new = _begin(connection, scope, unit=unit, kind=kind, name=name, id=id, life=life, seat=claim.seat)
        if not is_new:
            connection.execute(SQL["reopen"], bindings(scope, unit=unit, seat=claim.seat))
    return _load(connection, scope, claim, unit)


def taken(
    connection: apsw.Connection, scope: Scope, claims: Sequence[Claim], *, most: int, fresh: bool, is_written: bool
) -> dict[str, TakenUnits] | None:
    """The workflows to run on the seats that are held; None: something must be written first."""
    with snapshot(connection):
        held = _held(connection, scope, claims)
        names = bindings(scope, seats=encoded(held), most=most)
        wakes = _WAKES.decode(connection.execute(SQL["wakes"], names).get)
        if not is_written and any(at_ns is not None and at_ns <= names["now_ns"] for at_ns in wakes.values()):
            return None
        if fresh and not is_written and connection.execute(SQL["stuck"], names).get:
            return None
        rows: dict[str, list[UnitRow]] = {seat: [] for seat in held}
        for row in map(_unit, connection.execute(SQL["taken"], names)):
            rows[row.seat].append(row)
    now = to_datetime(names["now_ns"])
    return {seat: TakenUnits(tuple(rows[seat]), to_instant(wakes[seat]), now) for seat in held}


def wake_due(connection: apsw.Connection, scope: Scope, claims: Sequence[Claim], *, fresh: bool) -> None:
    """Begin kept lives, wake units that are due, ask those to end whose time is over: on seats that are held.

    With a new holder also those that are stuck go on.
    """
    seats = _held(connection, scope, claims)
    names = bindings(scope, seats=encoded(seats), most=_MOST_KEPT)
    kept = _UNITS.decode(connection.execute(SQL["kept"], names).get)
    if kept:
        while interrupt_children(connection, scope, seats, most=_MOST_CHILDREN):
            pass
        forget_rows(connection, scope, kept)
        connection.execute(SQL["begin_kept"], bindings(scope, units=encoded(kept)))
    connection.execute(SQL["wake_due"], names)
    if fresh:
        connection.execute(SQL["retry_stuck"], names)
    connection.execute(SQL["time_out"], names)


def after_jobs(connection: apsw.Connection, scope: Scope, seats: Sequence[str]) -> list[tuple[str, str]]:
    """The suspended workflows of these seats whose jobs are over."""
    found: list[Any] = connection.execute(SQL["after_jobs"], bindings(scope, seats=encoded(seats))).fetchall()
    return found


def suspend(
    connection: apsw.Connection,
    scope: Scope,
    claim: Claim,
    unit: str,
    *,
    waits: Sequence[str],
    inboxes: Sequence[str] = (),
    wake_s: float | None,
    stuck: Stuck | None = None,
) -> Suspended:
    """Unload a unit, unless it can continue. The write lock is held, so that does not change meanwhile [M11]."""
    if not states.proven(connection, scope, claim, about=unit):
        return "fenced"
    row = get(connection, scope, unit)
    if row is None or row.seat != claim.seat or row.ended_at is not None:
        return "over"
    names = bindings(scope, unit=unit, life=row.life, names=encoded(waits), inboxes=encoded(inboxes))
    if row.interrupting or connection.execute(SQL["ready"], names).get:
        return "ready"
    wake_at_ns = None if wake_s is None else later_ns(scope, wake_s)
    reason, times = (None, 0) if stuck is None else (stuck.reason, stuck.times)
    why = bindings(scope, unit=unit, wake_at_ns=wake_at_ns, stuck=reason, stuck_times=times)
    connection.execute(SQL["suspend"], why)
    return "suspended"


def renew(connection: apsw.Connection, scope: Scope, next: NextLife) -> Literal["renewed", "over", "fenced"]:
    """Begin the next life of a running workflow."""
    if not states.proven(connection, scope, next.claim, about=next.unit):
        return "fenced"
    row = _workflow(connection, scope, next.unit)
    if row is None or row.seat != next.claim.seat or row.ended_at is not None or row.life not in (next.life, next.next):
        return "over"
    if row.life == next.life:  # else it was this very write, tried before
        forget_rows(connection, scope, [next.unit])
        names = bindings(scope, unit=next.unit, next=next.next, payload=next.payload, version=next.version)
        connection.execute(SQL["renew"], names)
    return "renewed"


def _held(connection: apsw.Connection, scope: Scope, claims: Sequence[Claim]) -> list[str]:
    held = states.all_held(connection, scope.cluster, set(claims))  # the fence [C1]
    return [claim.seat for claim in claims if claim in held]


# ── for all processes ───────────────────────────────────────────────────────────────────────────────────────────


def started(connection: apsw.Connection, scope: Scope, start: UnitStart) -> UnitStartResult | None:
    """Store a workflow if there is none of this name; None: it is new, and its parent has ended."""
    parent = None if start.parent is None else get(connection, scope, start.parent)
    is_orphan = start.parent is not None and (parent is None or parent.ended_at is not None)
    stored = start if start.waited_as else msgspec.structs.replace(start, parent=None)
    named = {name: getattr(stored, name) for name in UnitStart.__struct_fields__ if name not in _OF_BEGIN}
    is_new = not is_orphan and _begin(connection, scope, kind="workflow", **named, **_begins(scope, start))
    replaced = None if is_new or not start.debounced else _replaced(connection, scope, start)
    rows: list[Any] = connection.execute(SQL["row"], bindings(scope, unit=start.unit)).fetchall()
    if not rows:
        return None
    there = _unit(rows[0])
    if replaced is not None:
        return UnitStartResult(replaced, there)
    if start.begins_anew(there):
        return UnitStartResult("started", _started_again(connection, scope, start, there.seat))
    told: Any = "started" if is_new else "there" if start.is_same(there.digest) else "conflict"
    return UnitStartResult(told, there)


def fork(connection: apsw.Connection, scope: Scope, fork: UnitFork) -> Literal["started", "there", "undone", "gone"]:
    """Store a workflow that begins with steps of another run."""
    source = _workflow(connection, scope, fork.source)
    if source is None or source.life != fork.life:
        return "gone"
    if connection.execute(SQL["undone"], bindings(scope, unit=fork.source)).get:
        return "undone"
    told = started(connection, scope, fork.start)
    if told is None or told.told != "started":
        return "there"
    steps = [
        (
            *(each.branch, each.position, each.kind, each.name, each.digest, _ns(each.ended_at, scope)),
            *(each.value, each.error, _ns(each.began_at, scope), each.attempts, each.runner),
        )
        for each in fork.steps
    ]
    write_rows(connection, SQL["copy"], (scope.cluster, fork.start.unit), steps)
    return "started"


def _ns(at: datetime | None, scope: Scope) -> int:
    return later_ns(scope) if at is None else to_ns(at)


def _replaced(connection: apsw.Connection, scope: Scope, start: UnitStart) -> Literal["pushed", "kept"] | None:
    """What a debounced start has changed of a run that is there. None: nothing, the run is over."""
    given = {
        name: getattr(start, name) for name in ("unit", "life", "payload", "digest", "version", "timeout_s", "tags")
    }
    names = bindings(scope, **given, **_begins(scope, start))
    connection.execute(SQL["push_start"], names)
    if connection.changes():
        return "pushed"
    connection.execute(SQL["keep_start"], names)
    return "kept" if connection.changes() else None


def _begins(scope: Scope, start: UnitStart) -> dict[str, Any]:
    """When a run begins that is started now, and when its time is over if it begins at once."""
    now_ns = later_ns(scope)
    latest_ns = _instant_ns(scope, start.latest_at, start.latest_s)
    ats = [at for at in (_instant_ns(scope, start.starts_at, start.delay_s), latest_ns) if at is not None]
    at_ns = min(ats, default=now_ns)
    times_out_ns = None if start.timeout_s is None or at_ns > now_ns else later_ns(scope, start.timeout_s)
    later = at_ns if at_ns > now_ns else None
    return {"at_ns": at_ns, "later_ns": later, "latest_ns": latest_ns, "times_out_ns": times_out_ns}


def _instant_ns(scope: Scope, at: datetime | None, after_s: float | None) -> int | None:
    if at is not None:
        return to_ns(at)
    return None if after_s is None else later_ns(scope, after_s)


def _started_again(connection: apsw.Connection, scope: Scope, start: UnitStart, seat: str) -> UnitRow:
    """The next life of a run that is over. Children of the life that has failed are not those of the next."""
    while interrupt_children(connection, scope, [seat], most=_MOST_CHILDREN):
        pass
    forget_rows(connection, scope, [start.unit])
    given = {
        name: getattr(start, name) for name in ("unit", "life", "payload", "digest", "version", "timeout_s", "tags")
    }
    connection.execute(SQL["start_again"], bindings(scope, **given, **_begins(scope, start)))
    row = get(connection, scope, start.unit)
    assert row is not None, "it was there, under the write lock"
    return row


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
    life: int = 0,
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


def interrupts_children(connection: apsw.Connection, scope: Scope, seats: Sequence[str]) -> bool:
    """Whether there are children whose interruption has not been requested yet."""
    return bool(connection.execute(SQL["interrupts_children"], bindings(scope, seats=encoded(seats))).get)


def interrupt(connection: apsw.Connection, scope: Scope, unit: str) -> UnitRow | None:
    """Request the interruption of a workflow. Returns its new row, or None if there is none."""
    connection.execute(SQL["interrupt"], bindings(scope, unit=unit))
    return _workflow(connection, scope, unit)


def retry(
    connection: apsw.Connection, scope: Scope, retries: Sequence[UnitRetry]
) -> Literal["retried", "undone", "changed"]:
    """Have runs go on that have failed or were interrupted, all of them or none."""
    rows = [_workflow(connection, scope, each.unit) for each in retries]
    same = [
        row is not None and (row.life, row.retries) == (each.life, each.retries) and row.status in _RETRIED
        for each, row in zip(retries, rows, strict=True)
    ]
    if not all(same):
        return "changed"
    if any(connection.execute(SQL["undone"], bindings(scope, unit=each.unit)).get for each in retries):
        return "undone"
    for each in retries:
        for branch, position in each.steps:
            connection.execute(SQL["forget_step"], bindings(scope, unit=each.unit, branch=branch, position=position))
        for name in each.values:
            connection.execute(SQL["forget_value"], bindings(scope, unit=each.unit, name=name))
        connection.execute(SQL["retry"], bindings(scope, unit=each.unit))
    return "retried"


def resume(connection: apsw.Connection, scope: Scope, unit: str) -> UnitRow | None:
    """Make a suspended workflow running. Returns its new row, or None if there is none."""
    connection.execute(SQL["resume"], bindings(scope, unit=unit))
    return _workflow(connection, scope, unit)


def _workflow(connection: apsw.Connection, scope: Scope, unit: str) -> UnitRow | None:
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
    tag: tuple[str, str] | None = None,
) -> list[UnitRow]:
    """Units, the last changed first."""
    before_ns = None if older_s is None else ago_ns(scope, older_s)
    key, value = tag or (None, None)
    names = bindings(scope, status=status, name=name, before_ns=before_ns, most=most, tag=key, tag_value=value)
    statement = SQL["list" if tag is None else "list_tagged"]
    return [_unit(row) for row in connection.execute(statement, names)]


def purge(connection: apsw.Connection, scope: Scope, *, older_s: float, most: int) -> UnitsPurged:
    """Delete some ended, abandoned and never begun units, each with all its rows (W5)."""
    names = bindings(scope, before_ns=ago_ns(scope, older_s), most=most)
    ended = _UNITS.decode(connection.execute(SQL["ended"], names).get)
    abandoned = _UNITS.decode(connection.execute(SQL["abandoned"], names).get)
    if ended or abandoned:
        connection.execute(SQL["forget"], bindings(scope, units=encoded(ended + abandoned)))
        forget_rows(connection, scope, ended + abandoned)
        connection.execute(SQL["forget_run_messages"], bindings(scope, units=encoded(ended)))
        connection.execute(SQL["forget_published"], bindings(scope, units=encoded(ended)))
    connection.execute(SQL["purge_early"], names)
    return UnitsPurged(tuple(abandoned), max(len(ended), len(abandoned), connection.changes()))


def _begin(connection: apsw.Connection, scope: Scope, **named: Any) -> bool:
    """Begin a unit unless it exists. Returns whether it is new."""
    plain = {"parent": None, "waited_as": "", "version": "", "digest": b"", "payload": b"", "life": 0}
    plain |= dict.fromkeys(("later_ns", "latest_ns", "timeout_s", "times_out_ns", "tags"))
    connection.execute(SQL["begin"], bindings(scope, **(plain | named)))
    if connection.changes() == 0:
        return False
    connection.execute(SQL["expect"], bindings(scope, unit=named["unit"], life=named.get("life", 0)))
    return True


def _unit(row: Sequence[Any]) -> UnitRow:
    return to_struct(UnitRow, row)


class SqliteUnits(SqliteStore):
    """The durable work of one cluster. See `storage.contracts.units.UnitStore`."""

    _taken = reads(taken, "look after workflows")
    _wake_due = writes(wake_due, "look after workflows")
    _start = writes(started, "start {start.unit!r}")
    _interrupts_children = reads(interrupts_children, "look after children")
    _interrupt_children = writes(interrupt_children, "look after children")

    # For the holder of a seat

    async def step(self, write: StepWrite) -> StepResult:
        """Durable when it returns "written"."""
        return cast("StepResult", await self._write(write))

    async def end(self, write: UnitEnd) -> UnitEndResult:
        """Durable when it returns "written"."""
        return cast("UnitEndResult", await self._write(write))

    async def take(self, claims: Sequence[Claim], *, most: int, fresh: bool = False) -> Mapping[str, TakenUnits]:
        """Return the workflows to run. Takes the contended write lock only if something is due by itself."""
        found = await self._taken(claims, most=most, fresh=fresh, is_written=False)
        if found is None:
            await self._wake_due(claims, fresh=fresh)
            found = await self._taken(claims, most=most, fresh=fresh, is_written=True)
        assert found is not None
        return found

    open = writes(opened, "open {unit!r}")
    load = reads(loaded, "load {unit!r}")
    after_jobs = reads(after_jobs, "look after jobs of workflows")
    suspend = writes(suspend, "suspend {unit!r}")
    renew = writes(renew, "begin {next.unit!r} again")

    # For all processes

    async def start(self, start: UnitStart) -> UnitStartResult:
        """Store a workflow, to be run by the holder of its seat."""
        result = await self._start(start)
        if result is None:
            raise ParentEnded(start.parent)
        return result

    async def interrupt_children(self, seats: Sequence[str], *, most: int) -> Sequence[tuple[str, str]]:
        """Request the interruption of some children. Takes the contended write lock only if there are some."""
        return await self._interrupt_children(seats, most=most) if await self._interrupts_children(seats) else []

    resolve = writes(resolve, "resolve {name!r} of {unit!r}")
    interrupt = writes(interrupt, "interrupt {unit!r}")
    fork = writes(fork, "fork {fork.source!r}")
    retry = writes(retry, "retry runs that have failed")
    resume = writes(resume, "resume {unit!r}")
    get = reads(get, "look at {unit!r}")
    steps = reads(steps, "look at {unit!r}")
    records = reads(records, "look at {unit!r}")
    list = reads(listed, "list units")
    purge = writes(purge, "purge old units")
