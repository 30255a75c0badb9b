"""Durable work on PostgreSQL: steps and ends go to the group writer, the rest to the pool."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from coterie.storage.contracts.units import (
    DeferredRow,
    ParentEnded,
    ResolveResult,
    StepRecord,
    StepRow,
    TakenUnits,
    UnitRow,
    UnitSnapshot,
    UnitsPurged,
    UnitStartResult,
    claimed_at_of,
    require_same,
    tick_of_unit,
)
from coterie.storage.postgres.batch.single import LONGEST_S
from coterie.storage.postgres.store import PostgresStore
from coterie.storage.postgres.writer import SQL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
    from typing import Literal

    import asyncpg

    from coterie.storage.contracts.units import (
        NextLife,
        StepResult,
        StepWrite,
        Stuck,
        UnitEnd,
        UnitEndResult,
        UnitFork,
        UnitKind,
        UnitRetry,
        UnitStart,
        UnitStatus,
    )
    from coterie.storage.interface import Claim

    Fetch = Callable[..., Awaitable[Sequence[asyncpg.Record]]]

_COPIED = (
    *("branch", "position", "kind", "name", "digest", "ended_at", "value", "error"),
    *("began_at", "attempts", "runner"),
)
"""What a fork copies of each step."""
_KEPT = 500
"""How many next lives of one seat begin in one statement."""
_CHILDREN = 500
"""How many children are asked to end by one statement, before their parent begins anew."""


class PostgresUnits(PostgresStore):
    """The durable work of one cluster. See `storage.contracts.units.UnitStore`."""

    def step(self, write: StepWrite) -> Coroutine[Any, Any, StepResult]:
        """Durable when it returns "written"."""
        self._require_usable()
        return self._writer.write_here(write)

    async def end(self, write: UnitEnd) -> UnitEndResult:
        """Durable when it returns "written"."""
        return cast("UnitEndResult", await self._commit(write))

    async def open(
        self, claim: Claim, *, unit: str, kind: UnitKind, name: str, id: str, life: int = 0
    ) -> UnitSnapshot | None:
        """Begin or continue a unit of a leader or a tick. Returns None if the seat is not held."""
        # Idempotent, so it is repeated like a read after a lost answer.
        (told,) = await self._read("open_unit", claim.runner, claim.seat, claim.epoch, unit, kind, name, id, life)
        return await self.load(claim, unit) if told["held"] else None

    async def take(self, claims: Sequence[Claim], *, most: int, fresh: bool = False) -> Mapping[str, TakenUnits]:
        """Return the workflows to run on these seats, by seat."""
        taken: dict[str, TakenUnits] = {}
        for runner in dict.fromkeys(claim.runner for claim in claims):
            mine = [claim for claim in claims if claim.runner == runner]
            columns = [claim.seat for claim in mine], [claim.epoch for claim in mine]
            if fresh:
                await self._read("retry_stuck_units", runner, *columns)  # idempotent: repeated after a lost answer
            found = await self._look(runner, *columns, most=most)
            if any(each.wake_at is not None and each.wake_at <= each.now for each in found.values()):
                await self._do_what_is_due(runner, *columns)
                found = await self._look(runner, *columns, most=most)
            taken |= found
        return taken

    async def _do_what_is_due(self, runner: str, seats: list[str], epochs: list[int]) -> None:
        """Begin kept lives, wake units that are due, ask those to end whose time is over. All of it may be repeated."""
        await _interrupt_children(self._pool.read, self._cluster, seats)  # else their parents' next lives wait
        await self._read("begin_kept", runner, seats, epochs, _KEPT)
        await self._read("wake_due_units", runner, seats, epochs)
        await self._read("time_out_units", runner, seats, epochs)

    async def _look(self, runner: str, seats: list[str], epochs: list[int], *, most: int) -> dict[str, TakenUnits]:
        rows = await self._read("look_for_units", runner, seats, epochs, most)
        found: dict[str, TakenUnits] = {}
        for seat, group in groupby(rows, key=lambda row: row["held_seat"]):
            ours = list(group)
            units = tuple(_unit(row) for row in ours if row["unit"] is not None)
            found[seat] = TakenUnits(units, ours[0]["due_at"], ours[0]["now"])
        return found

    async def after_jobs(self, seats: Sequence[str]) -> Sequence[tuple[str, str]]:
        """Return the suspended workflows of these seats whose jobs are over."""
        return [(row["unit"], row["seat"]) for row in await self._read("units_after_jobs", list(seats))]

    async def load(self, claim: Claim, unit: str) -> UnitSnapshot | None:
        """Load a unit with its steps and deferreds. None: the seat is not held, or has no such unit."""
        rows = await self._read("look_at_unit", claim.runner, claim.seat, claim.epoch, unit)
        if not rows:
            return None
        steps = await self._read("steps_of_unit", unit)
        deferreds = await self._read("deferreds_of_unit", unit, rows[0]["life"])
        return UnitSnapshot(
            row=_unit(rows[0]),
            steps=tuple(StepRow(**dict(row.items())) for row in steps),
            deferreds=tuple(DeferredRow(*row) for row in deferreds),
            now=rows[0]["now"],
        )

    async def suspend(
        self,
        claim: Claim,
        unit: str,
        *,
        waits: Sequence[str],
        inboxes: Sequence[str] = (),
        wake_s: float | None,
        stuck: Stuck | None = None,
    ) -> Literal["suspended", "ready", "over", "fenced"]:
        """Unload the unit until something it waits for is resolved, or `wake_s` have passed."""
        due_s = None if wake_s is None else min(wake_s, LONGEST_S)
        why = (None, 0) if stuck is None else (stuck.reason, stuck.times)
        names = sorted(set(waits)), due_s, sorted(set(inboxes)), *why
        rows = await self._read(
            "suspend_unit", claim.runner, claim.seat, claim.epoch, unit, *names
        )  # idempotent: repeated after a lost answer
        return cast("Literal['suspended', 'ready', 'over', 'fenced']", rows[0]["told"])

    async def renew(self, next: NextLife) -> Literal["renewed", "over", "fenced"]:
        """Begin the next life of a running workflow."""
        claim, given = next.claim, (next.life, next.next, next.payload, next.version)
        rows = await self._read("renew_unit", claim.runner, claim.seat, claim.epoch, next.unit, *given)
        return cast("Literal['renewed', 'over', 'fenced']", rows[0]["told"])

    async def start(self, start: UnitStart) -> UnitStartResult:
        """Store a workflow, to be run by the holder of its seat."""
        self._require_usable()
        return await _started(self._pool.read, self._cluster, start)

    async def fork(self, fork: UnitFork) -> Literal["started", "there", "undone", "gone"]:
        """Store a workflow that begins with steps of another run."""
        new = fork.start
        given = new.unit, new.name, new.id, new.seat, new.payload, new.digest, new.version, new.life
        steps = [[getattr(each, name) for each in fork.steps] for name in _COPIED]
        rows = await self._write("fork_unit", fork.source, fork.life, *given, *steps)
        return cast("Literal['started', 'there', 'undone', 'gone']", rows[0]["told"])

    async def require_started(self, fetch: Fetch, starts: Sequence[UnitStart]) -> None:
        """Store the workflows that do not exist yet inside a user's transaction, which `fetch` uses.

        Raises:
            KeyConflict: There is a run of one of the ids with another payload.
        """
        for start in starts:
            require_same(start, (await _started(fetch, self._cluster, start)).row.digest)

    async def resolve(
        self, unit: str, name: str, *, life: int = 0, value: bytes | None, error: str | None
    ) -> ResolveResult:
        """Store the result of a deferred of one life of a unit, once."""
        tick = tick_of_unit(unit)
        of_tick = (None,) * 5 if tick is None else (*tick, claimed_at_of(life))
        rows = await self._write("resolve_deferred", unit, name, value, error, life, *of_tick)
        return ResolveResult(rows[0]["told"], rows[0]["wake"] if rows[0]["told"] == "resolved" else None)

    async def interrupt_children(self, seats: Sequence[str], *, most: int) -> Sequence[tuple[str, str]]:
        """Request the interruption of some children of workflows that failed or were interrupted."""
        # Idempotent after a lost answer; the holders' polls find which children to interrupt.
        rows = await self._read("interrupt_children", list(seats), most)
        if len(rows) < most:
            await self._read("forget_children", list(seats), most)
        return [(row["unit"], row["seat"]) for row in rows]

    async def interrupt(self, unit: str) -> UnitRow | None:
        """Request the interruption of a workflow; a suspended one is made running."""
        await self._read("interrupt_unit", unit)
        return await self._workflow(unit)

    async def retry(self, retries: Sequence[UnitRetry]) -> Literal["retried", "undone", "changed"]:
        """Have runs go on that have failed or were interrupted, all of them or none."""
        runs = [[getattr(each, name) for each in retries] for name in ("unit", "life", "retries")]
        steps = [(each.unit, branch, position) for each in retries for branch, position in each.steps]
        values = [(each.unit, name) for each in retries for name in each.values]
        columns = [[row[n] for row in steps] for n in range(3)] + [[row[n] for row in values] for n in range(2)]
        rows = await self._write("retry_units", *runs, *columns)
        return cast("Literal['retried', 'undone', 'changed']", rows[0]["told"])

    async def resume(self, unit: str) -> UnitRow | None:
        """Make a suspended workflow running."""
        await self._read("resume_unit", unit)
        return await self._workflow(unit)

    async def _workflow(self, unit: str) -> UnitRow | None:
        row = await self.get(unit)
        return row if row is not None and row.kind == "workflow" else None

    async def get(self, unit: str) -> UnitRow | None:
        """Return a unit."""
        rows = await self._read("get_unit", unit)
        return _unit(rows[0]) if rows else None

    async def steps(self, unit: str) -> Sequence[StepRow]:
        """Return its steps, by branch and position."""
        return [StepRow(**dict(row.items())) for row in await self._read("steps_of_unit", unit)]

    async def records(self, unit: str) -> Sequence[StepRecord]:
        """Return its steps for people to see, by branch and position."""
        return [StepRecord(**dict(row.items())) for row in await self._read("records_of_unit", unit)]

    async def list(
        self,
        *,
        status: UnitStatus | None,
        name: str | None,
        older_s: float | None,
        most: int,
        tag: tuple[str, str] | None = None,
    ) -> Sequence[UnitRow]:
        """Return units, the last changed first."""
        given = status, name, None if older_s is None else min(older_s, LONGEST_S), most
        if tag is None:
            return [_unit(row) for row in await self._read("list_units", *given)]
        return [_unit(row) for row in await self._read("list_tagged_units", *given, *tag)]

    async def purge(self, *, older_s: float, most: int) -> UnitsPurged:
        """Delete ended, abandoned and never begun work."""
        rows = await self._write("purge_units", min(older_s, LONGEST_S), most)
        return UnitsPurged(tuple(rows[0]["abandoned"]), rows[0]["most"])


async def _started(fetch: Fetch, cluster: str, start: UnitStart) -> UnitStartResult:
    while True:
        given = (start.unit, start.name, start.id, start.seat, start.payload, start.digest, start.version)
        of_parent = start.parent, start.waited_as
        begun = await fetch(SQL["start_unit"], cluster, *begins(start), *given, *of_parent, start.life)
        if begun:
            return UnitStartResult("started", _unit(begun[0]))
        if start.debounced and (replaced := await _replaced(fetch, cluster, start)) is not None:
            return replaced
        there = await fetch(SQL["get_unit"], cluster, start.unit)
        if there:  # else it was purged meanwhile
            row = _unit(there[0])
            if start.begins_anew(row):
                if (anew := await _started_again(fetch, cluster, start, row.seat)) is not None:
                    return UnitStartResult("started", anew)
                continue
            if start.debounced and row.life != start.life:
                continue  # it has ended, or begun, meanwhile
            return UnitStartResult("there" if start.is_same(row.digest) else "conflict", row)
        parent = [] if start.parent is None else await fetch(SQL["get_unit"], cluster, start.parent)
        if start.parent is not None and (not parent or parent[0]["ended_at"] is not None):
            raise ParentEnded(start.parent)


async def _replaced(fetch: Fetch, cluster: str, start: UnitStart) -> UnitStartResult | None:
    """What a debounced start has changed of a run that is there. None: nothing, the run is over or gone."""
    given = *begins(start), start.unit, start.life, start.payload, start.digest, start.version
    pushed = await fetch(SQL["push_start"], cluster, *given)
    if pushed:
        return UnitStartResult("pushed", _unit(pushed[0]))
    kept = await fetch(SQL["keep_start"], cluster, *given)
    return UnitStartResult("kept", _unit(kept[0])) if kept else None


def begins(start: UnitStart) -> tuple[Any, ...]:
    """What the fragment `begins` needs."""
    return start.starts_at, start.delay_s, start.latest_at, start.latest_s, start.timeout_s, start.tags


async def _interrupt_children(fetch: Fetch, cluster: str, seats: list[str]) -> None:
    """Ask the children of lives that have failed to end: they are not those of the next lives."""
    found: Sequence[object] = [None]
    while found:
        found = await fetch(SQL["interrupt_children"], cluster, seats, _CHILDREN)
    await fetch(SQL["forget_children"], cluster, seats, _CHILDREN)


async def _started_again(fetch: Fetch, cluster: str, start: UnitStart, seat: str) -> UnitRow | None:
    """The next life of a run that is over. None: it is not over any more, or gone."""
    await _interrupt_children(fetch, cluster, [seat])
    given = start.unit, start.life, start.payload, start.digest, start.version
    begun = await fetch(SQL["start_again"], cluster, *begins(start), *given)
    return _unit(begun[0]) if begun else None


def _unit(row: asyncpg.Record) -> UnitRow:
    fields: Any = {name: row[name] for name in UnitRow.__struct_fields__}
    return UnitRow(**fields)
