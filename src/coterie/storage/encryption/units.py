"""Durable work whose payloads, results and errors are encrypted."""

from __future__ import annotations

import contextlib
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from coterie.errors import UnreadablePayload
from coterie.storage.contracts.units import UnitStart, UnitStore
from coterie.storage.encryption import places
from coterie.storage.encryption.values import EncryptedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coterie.storage.contracts.units import (
        DeferredRow,
        NextLife,
        ResolveResult,
        StepRecord,
        StepResult,
        StepRow,
        StepWrite,
        Stuck,
        TakenUnits,
        UnitEnd,
        UnitEndResult,
        UnitFork,
        UnitKind,
        UnitRow,
        UnitSnapshot,
        UnitStartResult,
        UnitStatus,
    )
    from coterie.storage.encryption.cipher import Keyring, Place
    from coterie.storage.interface import Claim

    PlaceOf = Callable[[str], Place]
    """The place of a field."""

W = TypeVar("W", bound=msgspec.Struct)


class EncryptedStart(UnitStart, frozen=True, kw_only=True):
    """A workflow to start, as it is stored."""

    plain_digest: bytes
    keyring: Any
    """A `Keyring`: the stored digest may be of another key, so it is compared when it is decrypted."""

    def is_same(self, digest: bytes) -> bool:
        """Whether a stored digest is that of this payload."""
        is_same: bool = self.keyring.open(digest, places.unit(self.unit, "digest")) == self.plain_digest
        return is_same


def encrypted_start(start: UnitStart, keyring: Keyring) -> EncryptedStart:
    """A workflow to start, as it is stored."""
    payload = keyring.seal(start.payload, places.unit(start.unit, "payload"))
    digest = keyring.seal(start.digest, places.unit(start.unit, "digest"))
    fields = msgspec.structs.asdict(start) | {"payload": payload, "digest": digest}
    return EncryptedStart(**fields, plain_digest=start.digest, keyring=keyring)


def opened_step(keyring: Keyring, unit: str, row: StepRow) -> StepRow:
    """A step as it was given. What it has received was encrypted where it was sent."""
    places_of = partial(places.step, unit, row.branch, row.position)
    came = (places.run_message(unit, row.name),) if row.kind == "receive" else ()
    return replace(
        row,
        digest=keyring.open(row.digest, places_of("digest")),
        value=open_first(keyring, row.value, *came, places_of("value")),
        error=open_first(keyring, row.error, places_of("error")),
    )


def open_first(keyring: Keyring, data: bytes | None, *places: Place) -> bytes | None:
    """Decrypt what was encrypted for one of these places."""
    for place in places[:-1]:
        with contextlib.suppress(UnreadablePayload):
            return None if data is None else keyring.open(data, place)
    return None if data is None else keyring.open(data, places[-1])


class EncryptedUnits(EncryptedStore[UnitStore]):
    """See `storage.contracts.units.UnitStore`."""

    passes = frozenset({"after_jobs", "interrupt_children", "purge", "retry"})
    table = "units"

    # For the holder of a seat

    async def step(self, write: StepWrite) -> StepResult:
        """Durable when it returns "written"."""
        told = await self._inner.step(self._sealed(write, ("digest", "value", "error"), self._step_place(write)))
        return told if told.row is None else replace(told, row=self._step(write.unit, told.row))

    async def end(self, write: UnitEnd) -> UnitEndResult:
        """Durable when it returns "written"."""
        stored = self._sealed(write, ("value", "error"), lambda field: places.unit(write.unit, field))
        outcome = b""  # without a parent nobody gets it
        if write.parent is not None:
            outcome = self._keyring.seal(write.outcome, places.outcome(write.parent, write.waited_as))
        return await self._inner.end(replace(stored, outcome=outcome))

    async def open(
        self, claim: Claim, *, unit: str, kind: UnitKind, name: str, id: str, life: int = 0
    ) -> UnitSnapshot | None:
        """Begin or continue a unit of a leader or a tick. Returns None if the seat is not held."""
        found = await self._inner.open(claim, unit=unit, kind=kind, name=name, id=id, life=life)
        return found and self._snapshot(found)

    async def take(self, claims: Sequence[Claim], *, most: int, fresh: bool = False) -> Mapping[str, TakenUnits]:
        """Return the workflows to run on these seats, by seat. One that cannot be read is left out."""
        found = await self._inner.take(claims, most=most, fresh=fresh)
        return {seat: replace(each, rows=tuple(self._units(each.rows))) for seat, each in found.items()}

    async def load(self, claim: Claim, unit: str) -> UnitSnapshot | None:
        """Load a unit with its steps and deferreds. None: the seat is not held, or has no such unit."""
        found = await self._inner.load(claim, unit)
        return found and self._snapshot(found)

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
        """Unload the unit until it may go on."""
        why = stuck and replace(stuck, reason=self._keyring.seal(stuck.reason, places.unit(unit, "stuck")))
        return await self._inner.suspend(claim, unit, waits=waits, inboxes=inboxes, wake_s=wake_s, stuck=why)

    async def renew(self, next: NextLife) -> Literal["renewed", "over", "fenced"]:
        """Begin the next life of a running workflow."""
        return await self._inner.renew(self._sealed(next, ("payload",), lambda field: places.unit(next.unit, field)))

    # For all processes

    async def start(self, start: UnitStart) -> UnitStartResult:
        """Store a workflow, to be run by the holder of its seat."""
        told = await self._inner.start(encrypted_start(start, self._keyring))
        return replace(told, row=self._unit(told.row))

    async def fork(self, fork: UnitFork) -> Literal["started", "there", "undone", "gone"]:
        """Store a workflow that begins with steps of another run."""
        unit, fields = fork.start.unit, ("digest", "value", "error")
        steps = tuple(self._sealed(each, fields, self._step_place(each, unit)) for each in fork.steps)
        return await self._inner.fork(replace(fork, start=encrypted_start(fork.start, self._keyring), steps=steps))

    async def resolve(
        self, unit: str, name: str, *, life: int = 0, value: bytes | None, error: str | None
    ) -> ResolveResult:
        """Store the result of a deferred of one life of a unit, once."""
        sealed = self._seal(value, places.deferred(unit, name, life, "value"))
        why = error and self._keyring.seal_text(error, places.deferred(unit, name, life, "error"))
        return await self._inner.resolve(unit, name, life=life, value=sealed, error=why)

    async def interrupt(self, unit: str) -> UnitRow | None:
        """Request the interruption of a workflow."""
        found = await self._inner.interrupt(unit)
        return found and self._unit(found)

    async def resume(self, unit: str) -> UnitRow | None:
        """Make a suspended workflow running."""
        found = await self._inner.resume(unit)
        return found and self._unit(found)

    async def get(self, unit: str) -> UnitRow | None:
        """Return a unit."""
        found = await self._inner.get(unit)
        return found and self._unit(found)

    async def steps(self, unit: str) -> Sequence[StepRow]:
        """Return the steps of a unit."""
        return [self._step(unit, row) for row in await self._inner.steps(unit)]

    async def records(self, unit: str) -> Sequence[StepRecord]:
        """Return the steps of a unit for people to see."""
        rows = await self._inner.records(unit)
        there = await self._inner.get(unit) if rows else None
        return [self._record(there, row) for row in rows if there is not None]

    async def list(
        self,
        *,
        status: UnitStatus | None,
        name: str | None,
        older_s: float | None,
        most: int,
        tag: tuple[str, str] | None = None,
    ) -> Sequence[UnitRow]:
        """Return units, the last changed first. One that cannot be read is left out."""
        return self._units(await self._inner.list(status=status, name=name, older_s=older_s, most=most, tag=tag))

    # Rows

    def _units(self, rows: Sequence[UnitRow]) -> Sequence[UnitRow]:
        return self._readable(rows, self._unit, key=attrgetter("unit"))

    def _unit(self, row: UnitRow) -> UnitRow:
        fields = ("payload", "digest", "value", "error", "stuck")
        return self._opened(row, fields, lambda field: places.unit(row.unit, field))

    def _snapshot(self, found: UnitSnapshot) -> UnitSnapshot:
        row = self._unit(found.row)
        steps = tuple(self._step(row.unit, each) for each in found.steps)
        deferreds = tuple(self._deferred(row, each) for each in found.deferreds)
        return replace(found, row=row, steps=steps, deferreds=deferreds)

    def _step(self, unit: str, row: StepRow) -> StepRow:
        return opened_step(self._keyring, unit, row)

    def _deferred(self, unit: UnitRow, row: DeferredRow) -> DeferredRow:
        own = partial(places.deferred, unit.unit, row.name, unit.life)
        error = row.error and self._keyring.open_text(row.error, own("error"))
        value = self._open_first(row.value, own("value"), places.outcome(unit.unit, row.name))
        return replace(row, value=value, error=error)

    def _record(self, unit: UnitRow, row: StepRecord) -> StepRecord:
        """What was waited for may still stand where it has come, which the row does not tell."""
        step = self._step_place(row, unit.unit)
        came: dict[str, Any] = {
            "deferred": lambda _: places.deferred(unit.unit, row.name, unit.life, "value"),
            "receive": lambda _: places.run_message(unit.unit, row.name),
            "child": lambda field: places.unit(f"workflow:{row.name}", field),
        }
        elsewhere = came.get(row.kind, step)
        rejected = places.deferred(unit.unit, row.name, unit.life, "error")
        return replace(
            row,
            digest=self._keyring.open(row.digest, step("digest")),
            value=self._open_first(row.value, step("value"), elsewhere("value")),
            error=self._open_first(row.error, step("error"), elsewhere("error")),
            rejection=row.rejection and self._keyring.shown_text(row.rejection, rejected),
        )

    def _open_first(self, data: bytes | None, *places: Place) -> bytes | None:
        return open_first(self._keyring, data, *places)

    def _step_place(self, at: StepRow | StepWrite, unit: str = "") -> PlaceOf:
        key = getattr(at, "unit", unit)
        return lambda field: places.step(key, at.branch, at.position, field)

    def _sealed(self, write: W, fields: Sequence[str], place: PlaceOf) -> W:
        return replace(write, **{field: self._seal(getattr(write, field), place(field)) for field in fields})

    def _opened(self, row: W, fields: Sequence[str], place: PlaceOf) -> W:
        return replace(row, **{field: self._open(getattr(row, field), place(field)) for field in fields})
