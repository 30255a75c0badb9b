"""What is stored about durable work: units, their steps and deferreds [M10, M11].

    start ──▶ running ⇄ suspended ──▶ done, failed, interrupted        a workflow; kept for the retention time
    open  ──▶ running ──▶ (gone)                                       a unit of a leader, a tick: over is gone

A unit belongs to a seat, whose holder alone runs it: steps and ends are written under the fence [C1]. Starting,
resolving, interrupting and resuming are for everybody. While a unit is suspended nobody has it in memory; whoever
resolves what it waits for makes it `running` in the same transaction, so no wake-up is lost [M11].

A step is known by its branch and its place in it, so that a rerun which takes another way is noticed. A deferred is
known by its name, since it may be resolved before anybody waits for it.

A unit has a life: a number that is drawn where it begins. When the unit is over and its key is used again, that is
another life, and what was meant for the former one does not count.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

from coterie.errors import KeyConflict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coterie.storage.contracts.ticks import Kind
    from coterie.storage.interface import Claim

UnitKind = Literal["workflow", "tick", "leader"]
UnitStatus = Literal["running", "suspended", "done", "failed", "interrupted"]
UnitEnding = Literal["done", "failed", "interrupted"]
StepKind = Literal["step", "sleep", "deferred", "child", "patch", "compensation"]


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a unit."""

    branch: str
    position: int
    """In its branch, from 0."""
    kind: StepKind
    name: str
    digest: bytes = b""
    """Of what it was given; empty: it is not known."""
    done: bool
    """False: it is being waited for (a sleep, a deferred, a child)."""
    value: bytes | None = None
    error: bytes | None = None
    """What it ended with instead of a value."""
    due_at: datetime | None = None
    """When a sleep is over, or nobody waits for a deferred any more."""


class StepWrite(msgspec.Struct, frozen=True):
    """Store a step, or the end of one that is being waited for. The result is a `StepResult`."""

    claim: Claim
    unit: str
    branch: str
    position: int
    kind: StepKind
    name: str
    digest: bytes = b""
    done: bool = True
    value: bytes | None = None
    error: bytes | None = None
    due_s: float | None = None
    """It is due so long after now, by the database's clock."""

    @property
    def key(self) -> str:
        """Which row it writes."""
        return f"{self.unit}\n{self.branch}\n{self.position}"


class StepResult(msgspec.Struct, frozen=True, gc=False):
    """What became of a `StepWrite`.

    written   it is there
    there     it was there before, done, or waited for as now: as `row` says; perhaps by this very write, asked before
    over      the unit has ended, or is not there
    fenced    the seat is not held any more
    """

    told: Literal["written", "there", "over", "fenced"]
    row: StepRow | None
    """As it is stored now, if it is."""
    now: datetime


class UnitEnd(msgspec.Struct, frozen=True):
    """End a unit. The result is a `UnitEndResult`.

    Its steps and deferreds go in the same commit; a workflow's row stays for the retention time, others' go, too. If
    another unit waits for it (`parent`), that one's deferred of the name `waited_as` is resolved with `outcome` in the
    same commit, and it is made running if it was suspended.
    """

    claim: Claim
    unit: str
    status: UnitEnding
    value: bytes | None = None
    error: bytes | None = None
    outcome: bytes = b""
    """What its parent is told."""

    @property
    def key(self) -> str:
        """Which unit it ends."""
        return self.unit


class UnitEndResult(msgspec.Struct, frozen=True, gc=False):
    """What became of a `UnitEnd`; over: it had ended before, perhaps by this very write."""

    told: Literal["written", "over", "fenced"]
    wake: str | None = None
    """The seat on which there is something new to do: that of the parent."""


class UnitRow(msgspec.Struct, frozen=True, kw_only=True):
    """A unit as it is stored."""

    unit: str
    """Its key: `workflow:Name/id`, or what its kind gives."""
    kind: UnitKind
    name: str
    id: str
    seat: str
    status: UnitStatus
    payload: bytes
    version: str
    """Of the code that began it."""
    interrupting: bool
    """Whether somebody has asked for its interruption."""
    parent: str | None
    """The unit that waits for it."""
    value: bytes | None
    error: bytes | None
    started_at: datetime
    changed_at: datetime
    """When its status, or what has come for it, last changed."""
    ended_at: datetime | None
    wake_at: datetime | None
    """When a suspended one is due by itself."""
    steps: int
    """How many are done."""
    life: int = 0
    """Drawn where it began; 0: by a program that drew none."""
    digest: bytes = b""
    """Of the payload, for a workflow."""


class UnitStart(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow to be started."""

    unit: str
    name: str
    id: str
    seat: str
    payload: bytes
    digest: bytes
    """Of the payload: the same id with another one is a conflict."""
    version: str = ""
    parent: str | None = None
    waited_as: str = ""
    life: int = 0
    """Of the run, if it is new."""


class UnitStartResult(msgspec.Struct, frozen=True):
    """What became of a `UnitStart`."""

    told: Literal["started", "there", "conflict"]
    row: UnitRow


def require_same(start: UnitStart, digest: bytes) -> None:
    """Refuse a start where there is a run of its id with another payload.

    Raises:
        KeyConflict: There is.
    """
    if start.digest != digest:
        raise KeyConflict(target=f"workflow {start.name!r}", key=start.id, message_id=start.unit)


class ParentEnded(Exception):
    """A child was not started: the workflow that was to wait for it is over."""


class DeferredRow(msgspec.Struct, frozen=True, gc=False):
    """A deferred that is resolved or rejected."""

    name: str
    value: bytes | None
    error: str | None


class UnitSnapshot(msgspec.Struct, frozen=True):
    """A unit with all that is known of it, for its holder."""

    row: UnitRow
    steps: tuple[StepRow, ...]
    deferreds: tuple[DeferredRow, ...]
    now: datetime


class TakenUnits(msgspec.Struct, frozen=True):
    """What is to be done on a seat."""

    rows: tuple[UnitRow, ...]
    """Workflows to be run, the oldest first."""
    wake_at: datetime | None
    """When the next one that is suspended is due by itself."""
    now: datetime


class ResolveResult(msgspec.Struct, frozen=True, gc=False):
    """What became of a resolution.

    resolved   it is stored; `wake` is the seat of the unit that may wait for it, if that is known
    already    it was resolved or rejected before
    over       that life of its unit has ended
    """

    told: Literal["resolved", "already", "over"]
    wake: str | None = None


class UnitsPurged(msgspec.Struct, frozen=True):
    """What one purge has deleted."""

    abandoned: tuple[str, ...]
    """The units that nobody had gone on with."""
    most: int
    """How many it were of the kind of which it were most; as many as were asked for: there may be more."""


class TickKey(NamedTuple):
    """Which tick a unit belongs to."""

    cron: str
    kind: Kind
    at: datetime
    seq: int


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def unit_of_tick(seat: str, kind: Kind, at: datetime, seq: int) -> str:
    """The key of a tick's unit."""
    return f"{seat}/{kind}/{at.isoformat()}/{seq}"


def tick_of_unit(unit: str) -> TickKey | None:
    """The tick that a unit belongs to; None: it is a unit of something else."""
    seat, _, rest = unit.partition(":")
    if seat != "cron":
        return None
    try:
        cron, kind, at, seq = rest.rsplit("/", 3)
        if kind in ("scheduled", "manual"):
            return TickKey(cron, "manual" if kind == "manual" else "scheduled", datetime.fromisoformat(at), int(seq))
    except ValueError:
        pass
    return None


def life_of_tick(claimed_at: datetime) -> int:
    """The life of a tick's unit: known to all who run the tick, before the unit begins."""
    return (claimed_at - _EPOCH) // timedelta(microseconds=1)


def claimed_at_of(life: int) -> datetime:
    """When a tick was claimed whose unit has this life."""
    return _EPOCH + timedelta(microseconds=life)


class UnitStore(Protocol):
    """The durable work of one cluster."""

    # For the holder of a seat, under the fence

    async def step(self, write: StepWrite) -> StepResult:
        """Durable when it returns "written". Concurrent ones share transactions."""
        ...

    async def end(self, write: UnitEnd) -> UnitEndResult:
        """Durable when it returns "written". Concurrent ones share transactions."""
        ...

    async def open(
        self, claim: Claim, *, unit: str, kind: UnitKind, name: str, id: str, life: int = 0
    ) -> UnitSnapshot | None:
        """Begin a unit of a leader or a tick, or go on with it: what is known. None: the seat is not held.

        `life` is for one that begins; one that is there keeps its own.
        """
        ...

    async def take(self, claims: Sequence[Claim], *, most: int) -> Mapping[str, TakenUnits]:
        """The workflows on these seats that are to be run, by seat, so many of each at most.

        Suspended ones that are due are made running. A seat that is missing is not held.
        """
        ...

    async def load(self, claim: Claim, unit: str) -> UnitSnapshot | None:
        """A unit with its steps and deferreds. None: the seat is not held, or there is no such unit on it."""
        ...

    async def suspend(
        self, claim: Claim, unit: str, *, waits: Sequence[str], wake_s: float | None
    ) -> Literal["suspended", "ready", "over", "fenced"]:
        """Have nobody keep it in memory until one of the deferreds named `waits` is resolved, or `wake_s` have passed.

        "ready": one of them is resolved already, or it shall be interrupted: go on [M11]. What it waits for is locked
        while this is decided.
        """
        ...

    # For everybody

    async def start(self, start: UnitStart) -> UnitStartResult:
        """Store a workflow, to be run by whoever holds its seat.

        Raises:
            ParentEnded: It has a parent, which is over, and is not there yet.
        """
        ...

    async def resolve(
        self, unit: str, name: str, *, life: int = 0, value: bytes | None, error: str | None
    ) -> ResolveResult:
        """Store what a deferred of one life of a unit gives, once, whether anybody waits for it yet or not.

        A unit that is not there is over, except for one of a tick that is not: that begins with its first step.
        """
        ...

    async def interrupt_children(self, seats: Sequence[str], *, most: int) -> Sequence[tuple[str, str]]:
        """Ask for the end of children, so many at most, of workflows on these seats that have failed or were
        interrupted. Each with its seat. Fewer than `most`: there are no others."""
        ...

    async def interrupt(self, unit: str) -> UnitRow | None:
        """Ask for the end of a workflow; one that is suspended is made running. None: there is none."""
        ...

    async def resume(self, unit: str) -> UnitRow | None:
        """Make a suspended workflow running. None: there is none."""
        ...

    async def get(self, unit: str) -> UnitRow | None:
        """A unit as it is."""
        ...

    async def steps(self, unit: str) -> Sequence[StepRow]:
        """The steps of a unit that has not ended, by branch and place; none, if there is none."""
        ...

    async def list(
        self, *, status: UnitStatus | None, name: str | None, older_s: float | None, most: int
    ) -> Sequence[UnitRow]:
        """Units, those that changed last first; only those that began longer ago than `older_s`, if it is given."""
        ...

    async def purge(self, *, older_s: float, most: int) -> UnitsPurged:
        """Delete some of what nobody needs any more, up to `most` of each kind, each with all its rows: workflows that
        ended longer ago than that; units of leaders and ticks that have not changed for so long and wait for nothing:
        abandoned ones (which are told); and deferreds of units that never began."""
        ...
