"""What is stored about durable work: units, their steps and deferreds [M10, M11].

    start ──▶ running ⇄ suspended ──▶ done, failed, interrupted        a workflow; kept for the retention time
    open  ──▶ running ──▶ (gone)                                       a unit of a leader, a tick: over is gone

A unit belongs to a seat, whose holder alone runs it: steps and ends are written under the fence [C1]. Starting,
resolving, interrupting and resuming are for everybody. While a unit is suspended nobody has it in memory; whoever
resolves what it waits for makes it `running` in the same transaction, so no wake-up is lost [M11].

A step is known by its branch and its place in it, so that a rerun which takes another way is noticed. A deferred is
known by its name, since it may be resolved before anybody waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

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
    """Store a step, or the end of one that is being waited for. The result is a `Stepped`."""

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


class Stepped(msgspec.Struct, frozen=True, gc=False):
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
    """End a unit. The result is a `UnitEnded`.

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


class UnitEnded(msgspec.Struct, frozen=True, gc=False):
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


class Started(msgspec.Struct, frozen=True):
    """What became of a `UnitStart`."""

    told: Literal["started", "there", "conflict"]
    row: UnitRow


class DeferredRow(msgspec.Struct, frozen=True, gc=False):
    """A deferred that is resolved or rejected."""

    name: str
    value: bytes | None
    error: str | None


class Loaded(msgspec.Struct, frozen=True):
    """A unit with all that is known of it, for its holder."""

    row: UnitRow
    steps: tuple[StepRow, ...]
    deferreds: tuple[DeferredRow, ...]
    now: datetime


class Taken(msgspec.Struct, frozen=True):
    """What is to be done on a seat."""

    rows: tuple[UnitRow, ...]
    """Workflows to be run, the oldest first."""
    wake_at: datetime | None
    """When the next one that is suspended is due by itself."""
    now: datetime


class Resolved(msgspec.Struct, frozen=True, gc=False):
    """What became of a resolution.

    resolved   it is stored; `wake` is the seat of the unit that may wait for it, if that is known
    already    it was resolved or rejected before
    over       its unit has ended
    """

    told: Literal["resolved", "already", "over"]
    wake: str | None = None


class Units(Protocol):
    """The durable work of one cluster."""

    # For the holder of a seat, under the fence

    async def step(self, write: StepWrite) -> Stepped:
        """Durable when it returns "written". Concurrent ones share transactions."""
        ...

    async def end(self, write: UnitEnd) -> UnitEnded:
        """Durable when it returns "written". Concurrent ones share transactions."""
        ...

    async def open(self, claim: Claim, *, unit: str, kind: UnitKind, name: str, id: str) -> Loaded | None:
        """Begin a unit of a leader or a tick, or go on with it: what is known. None: the seat is not held."""
        ...

    async def take(self, claims: Sequence[Claim], *, most: int) -> Mapping[str, Taken]:
        """The workflows on these seats that are to be run, by seat, so many of each at most.

        Suspended ones that are due are made running. A seat that is missing is not held.
        """
        ...

    async def load(self, claim: Claim, unit: str) -> Loaded | None:
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

    async def start(self, start: UnitStart) -> Started:
        """Store a workflow, to be run by whoever holds its seat."""
        ...

    async def resolve(self, unit: str, name: str, *, value: bytes | None, error: str | None) -> Resolved:
        """Store what a deferred gives, once, whether anybody waits for it yet or not."""
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

    async def purge(self, *, older_s: float, most: int) -> Sequence[str]:
        """Delete what nobody needs any more, each with all its rows: workflows that ended longer ago than that, and
        units of leaders and ticks that have not changed for so long and wait for nothing: abandoned ones (which are
        told), and deferreds of units that never began."""
        ...
