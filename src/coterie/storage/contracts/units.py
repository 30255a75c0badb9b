"""The storage contract of durable work: units, their steps and deferreds [M10, M11].

    start ──▶ running ⇄ suspended ──▶ done, failed, interrupted        a workflow; kept with its steps: retention
    open  ──▶ running ──▶ (gone)                                       a unit of a leader, a tick: deleted at its end

A unit belongs to a seat, and only the seat's holder runs it: steps and ends are written under the fence [C1]. Any
process may start, resolve, interrupt and resume. A suspended unit is in no process's memory; the transaction that
resolves what it waits for makes it `running`, so no wake-up is lost [M11].

A step is identified by its branch and its position there, so that a replay which takes another path is detected. A
deferred is identified by its name, since it may be resolved before the unit waits for it.

A unit has a life: a number drawn when it begins. When the unit has ended and its key is used again, or a workflow ends
its life and begins the next, that is another one, and resolutions and steps meant for the former one do not count.
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
StepKind = Literal[
    "step", "sleep", "deferred", "child", "patch", "compensation", "receive", "publish", "start", "map", "first"
]


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a unit."""

    branch: str
    position: int
    """The position in its branch, from 0."""
    kind: StepKind
    name: str
    digest: bytes = b""
    """A digest of its arguments; empty: unknown."""
    done: bool
    """False: the unit still waits for it (a sleep, a deferred, a child)."""
    value: bytes | None = None
    error: bytes | None = None
    """The error it ended with instead of a value."""
    due_at: datetime | None = None
    """When a sleep ends, or the wait for a deferred times out."""


class StepRecord(StepRow, frozen=True, kw_only=True):
    """A step as people see it. A wait whose value has come is done, even if its unit has not stored that yet."""

    began_at: datetime | None
    """When its last run, or the wait, began; None: stored by an older version."""
    ended_at: datetime | None
    """When its result was stored, or its value came; None: it is waited for."""
    attempts: int | None
    """The attempts of its last run; None: unknown, or a wait."""
    runner: str | None
    """The name of the runner that stored it; None: stored by an older version."""
    rejection: str | None
    """Why a deferred was rejected, until its unit has stored that as its error."""


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
    """It is due this long after now, by the database's clock."""
    began_at: datetime | None = None
    """When it began, by the database's clock as it is known here; None: now. Ignored for the end of a wait."""
    attempts: int | None = None
    runner: str | None = None
    """The name of the runner."""
    life: int | None = None
    """The life it belongs to: it is not stored in another one. None: whichever there is."""

    @property
    def key(self) -> str:
        """The row it writes."""
        return f"{self.unit}\n{self.branch}\n{self.position}"

    def row(self, due_at: datetime | None) -> StepRow:
        """The row as it stands once this is written to a new place."""
        return StepRow(
            branch=self.branch,
            position=self.position,
            kind=self.kind,
            name=self.name,
            digest=self.digest,
            done=self.done,
            value=self.value,
            error=self.error,
            due_at=due_at,
        )


class StepResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a `StepWrite`.

    written   it is stored
    there     it was stored before, done or waited for as now, as in `row`; perhaps by this very write, tried before
    over      the unit, or this life of it, has ended, or does not exist
    fenced    the seat is no longer held
    """

    told: Literal["written", "there", "over", "fenced"]
    row: StepRow | None
    """The row as stored now, if there is one."""
    now: datetime


class UnitEnd(msgspec.Struct, frozen=True):
    """End a unit. The result is a `UnitEndResult`.

    A workflow stays with its steps and deferreds for the retention time; other units are deleted with theirs, in the
    same commit. If another unit waits for it (`parent`), the same commit resolves that unit's deferred named
    `waited_as` with `outcome`, and makes it running if it was suspended.
    """

    claim: Claim
    unit: str
    status: UnitEnding
    value: bytes | None = None
    error: bytes | None = None
    outcome: bytes = b""
    """The outcome passed to its parent."""
    parent: str | None = None
    waited_as: str = ""
    """As in its row, from where the statement takes them: what encrypts the outcome needs them, too."""
    life: int | None = None
    """The life that ends; None: whichever there is."""
    retries: int | None = None
    """How often it had been retried when it was loaded: a late end does not end it after another retry."""
    held: bool = False
    """It has failed, and undoes nothing until it is retried or interrupted; it is not purged."""
    failed_steps: str = ""
    """As of `UnitRow`."""

    @property
    def key(self) -> str:
        """The unit it ends."""
        return self.unit


class UnitEndResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a `UnitEnd`; over: it had ended before, perhaps by this very write."""

    told: Literal["written", "over", "fenced"]
    wake: str | None = None
    """The parent's seat, on which there is new work."""


class NextLife(msgspec.Struct, frozen=True, kw_only=True):
    """End one life of a running workflow, and begin the next under the same key, in one commit.

    Its steps and deferreds go. What belongs to the run stays: its id, who waits for it, the request to interrupt it.
    """

    claim: Claim
    unit: str
    life: int
    """The life that ends."""
    next: int
    """The life that begins."""
    payload: bytes
    version: str
    """The version of the code that ends the one and begins the other."""


class UnitRetry(msgspec.Struct, frozen=True, kw_only=True):
    """Have a run go on that has failed, in the same life."""

    unit: str
    life: int
    retries: int
    """How often it had been retried when it was read."""
    steps: tuple[tuple[str, int], ...]
    """The places whose steps go: those whose errors have ended it."""
    values: tuple[str, ...]
    """The deferreds whose values go."""


class UnitRow(msgspec.Struct, frozen=True, kw_only=True):
    """A unit as stored."""

    unit: str
    """Its key: `workflow:Name/id`, or as its kind defines."""
    kind: UnitKind
    name: str
    id: str
    seat: str
    status: UnitStatus
    payload: bytes
    version: str
    """The version of the code that began it."""
    interrupting: bool
    """Whether its interruption was requested."""
    parent: str | None
    """The unit that waits for it."""
    value: bytes | None
    error: bytes | None
    started_at: datetime
    changed_at: datetime
    """When its status, or something addressed to it, last changed."""
    ended_at: datetime | None
    wake_at: datetime | None
    """When a suspended unit is due by itself."""
    steps: int
    """The number of steps done."""
    life: int = 0
    """Drawn when it began; 0: begun by a program that drew none."""
    digest: bytes = b""
    """A digest of the payload, for a workflow."""
    waited_as: str = ""
    """The name of its parent's deferred that its end resolves."""
    retries: int = 0
    """How often it was retried after it had failed."""
    held: bool = False
    """It has failed, and undoes nothing until it is retried or interrupted."""
    failed_steps: str = ""
    """The places of the steps whose errors have ended it, as JSON."""
    starts_at: datetime | None = None
    """When it is to begin; None: it has begun."""
    times_out_at: datetime | None = None
    """When its time is over and it is asked to end."""
    interrupted_for: str = ""
    """Why it was asked to end: `timeout`; empty: somebody has asked."""
    next_life: int | None = None
    """The life that is kept to begin after its end."""
    next_at: datetime | None = None
    """When that is to begin."""
    tags: str | None = None
    """By which it is found, as JSON."""
    stuck: bytes | None = None
    """Why it cannot go on, if it is suspended for that; None: it waits for something durable."""
    stuck_times: int = 0
    """How often in a row it could not."""


class Stuck(msgspec.Struct, frozen=True):
    """Why a run cannot go on, and is tried again later."""

    reason: bytes
    times: int
    """How often in a row, with this time."""


class UnitStart(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow to start."""

    unit: str
    name: str
    id: str
    seat: str
    payload: bytes
    digest: bytes
    """A digest of the payload: the same id with another digest is a conflict."""
    version: str = ""
    parent: str | None = None
    """The unit that starts it, which must not have ended."""
    waited_as: str = ""
    """The name of its parent's deferred that its end resolves; empty: it is left to itself, and no child."""
    life: int = 0
    """The life of the run, if it is new."""
    again: bool = False
    """Whether a run of this id that is over begins another life."""
    starts_at: datetime | None = None
    """When it begins; None: after `delay_s`, or at once."""
    delay_s: float | None = None
    """It begins so long after now, by the database's clock."""
    timeout_s: float | None = None
    """It is asked to end so long after it has begun."""
    tags: str | None = None
    """By which it is found, as JSON."""
    debounced: bool = False
    """It replaces a start of this id whose run has not begun; that of one that has begun is kept as its next life."""
    latest_at: datetime | None = None
    """Starts that replace this one put it off no further; None: `latest_s`, or there is no such bound."""
    latest_s: float | None = None
    """The same bound, counted from now by the database's clock."""

    def begins_anew(self, row: UnitRow) -> bool:
        """Whether the run that is there is to begin another life; its first one may be of this very write."""
        return (self.again or self.debounced) and row.ended_at is not None and not row.held and row.life != self.life

    def is_same(self, digest: bytes) -> bool:
        """Whether a stored digest is that of this payload."""
        return self.digest == digest


class UnitFork(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow to start with steps of another run."""

    start: UnitStart
    source: str
    """The other run."""
    life: int
    """Its life."""
    steps: tuple[StepRecord, ...]
    """Steps of it that are done, with their results."""


class UnitStartResult(msgspec.Struct, frozen=True):
    """The result of a `UnitStart`.

    started   it is new, or another life of one that was over
    pushed    it had not begun: it begins later, with this payload
    kept      it has begun: this is its next life
    there     it was there, with this payload
    conflict  it was there, with another one
    """

    told: Literal["started", "pushed", "kept", "there", "conflict"]
    row: UnitRow


def require_same(start: UnitStart, digest: bytes) -> None:
    """Refuse a start whose id belongs to a run with another payload.

    Raises:
        KeyConflict: The payloads differ.
    """
    if not start.debounced and not start.is_same(digest):
        raise KeyConflict(target=f"workflow {start.name!r}", key=start.id, message_id=start.unit)


class ParentEnded(Exception):
    """A child was not started: its parent workflow has ended."""


class DeferredRow(msgspec.Struct, frozen=True, gc=False):
    """A deferred that is resolved or rejected."""

    name: str
    value: bytes | None
    error: str | None


class UnitSnapshot(msgspec.Struct, frozen=True):
    """A unit with its steps and deferreds, for its holder."""

    row: UnitRow
    steps: tuple[StepRow, ...]
    deferreds: tuple[DeferredRow, ...]
    now: datetime


class TakenUnits(msgspec.Struct, frozen=True):
    """The workflows to run on a seat."""

    rows: tuple[UnitRow, ...]
    """Workflows to run, the oldest first."""
    wake_at: datetime | None
    """When the next suspended workflow is due by itself."""
    now: datetime


class ResolveResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a resolution.

    resolved   it is stored; `wake` is the seat of the unit that may wait for it, if known
    already    it was resolved or rejected before
    over       that life of its unit has ended
    """

    told: Literal["resolved", "already", "over"]
    wake: str | None = None


class UnitsPurged(msgspec.Struct, frozen=True):
    """What one purge has deleted."""

    abandoned: tuple[str, ...]
    """The abandoned units: no holder had continued them."""
    most: int
    """The largest number deleted of one kind; if it equals the requested maximum, there may be more."""


class TickKey(NamedTuple):
    """The tick that a unit belongs to."""

    cron: str
    kind: Kind
    at: datetime
    seq: int


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def unit_of_tick(seat: str, kind: Kind, at: datetime, seq: int) -> str:
    """The key of a tick's unit."""
    return f"{seat}/{kind}/{at.isoformat()}/{seq}"


def tick_of_unit(unit: str) -> TickKey | None:
    """The tick that a unit belongs to; None: the unit belongs to no tick."""
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
    """The life of a tick's unit, which every holder of the tick can compute before the unit begins."""
    return (claimed_at - _EPOCH) // timedelta(microseconds=1)


def claimed_at_of(life: int) -> datetime:
    """When the tick whose unit has this life was claimed."""
    return _EPOCH + timedelta(microseconds=life)


class UnitStore(Protocol):
    """The durable work of one cluster."""

    # For the holder of a seat, under the fence

    async def step(self, write: StepWrite) -> StepResult:
        """Durable when it returns "written". Concurrent steps share transactions."""
        ...

    async def end(self, write: UnitEnd) -> UnitEndResult:
        """Durable when it returns "written". Concurrent ends share transactions."""
        ...

    async def open(
        self, claim: Claim, *, unit: str, kind: UnitKind, name: str, id: str, life: int = 0
    ) -> UnitSnapshot | None:
        """Begin or continue a unit of a leader or a tick. Returns None if the seat is not held.

        `life` is for a new unit; an existing one keeps its own.
        """
        ...

    async def take(self, claims: Sequence[Claim], *, most: int, fresh: bool = False) -> Mapping[str, TakenUnits]:
        """Return the workflows to run on these seats, by seat, up to `most` of each.

        Suspended ones that are due are made running, those whose time is over are asked to end, and next lives that
        are kept of workflows that are over begin. A seat that is not held is left out. `fresh`: the seats have a
        new holder, whose code may be another one, so those that are stuck are made running too.
        """
        ...

    async def load(self, claim: Claim, unit: str) -> UnitSnapshot | None:
        """Load a unit with its steps and deferreds. None: the seat is not held, or has no such unit."""
        ...

    async def after_jobs(self, seats: Sequence[str]) -> Sequence[tuple[str, str]]:
        """Return the suspended workflows of these seats that wait for jobs which are all over, or one of which failed.

        A map of jobs is an open step of kind "map" that has the name of its task; the keys of its jobs begin with
        `map:`, the unit, its life, and the branch and position of the step.

        Returns:
            Pairs of unit and seat, in order of the units.
        """
        ...

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
        """Unload the unit until one of the deferreds named `waits` is resolved, something is sent to one of `inboxes`
        (steps wait there), or `wake_s` have passed. With `stuck` also until its seat has another holder.

        "ready": one of them is resolved already, something is in an inbox, or an interruption is requested: continue
        [M11]. What it waits for is locked while this is decided.
        """
        ...

    async def renew(self, next: NextLife) -> Literal["renewed", "over", "fenced"]:
        """Begin the next life of a running workflow. Repeated after a lost answer, it returns the same."""
        ...

    # For all processes

    async def start(self, start: UnitStart) -> UnitStartResult:
        """Store a workflow, to be run by the holder of its seat.

        Raises:
            ParentEnded: It is new, and its parent has ended.
        """
        ...

    async def fork(self, fork: UnitFork) -> Literal["started", "there", "undone", "gone"]:
        """Store a workflow that begins with steps of another run.

        "there": a run of its name exists. "undone": a compensation of the other run is stored. "gone": that life of
        it is not there any more.
        """
        ...

    async def resolve(
        self, unit: str, name: str, *, life: int = 0, value: bytes | None, error: str | None
    ) -> ResolveResult:
        """Store the result of a deferred of one life of a unit, once, whether or not the unit waits for it yet.

        A unit that does not exist counts as over, except that of a tick which has not ended: it begins with its first
        step.
        """
        ...

    async def interrupt_children(self, seats: Sequence[str], *, most: int) -> Sequence[tuple[str, str]]:
        """Request the interruption of up to `most` children of workflows on these seats that failed or were
        interrupted. Returns each with its seat; fewer than `most`: there are no others."""
        ...

    async def interrupt(self, unit: str) -> UnitRow | None:
        """Request the interruption of a workflow; one that is suspended, or has failed and is held, is made running.

        None: there is none.
        """
        ...

    async def retry(self, retries: Sequence[UnitRetry]) -> Literal["retried", "undone", "changed"]:
        """Have runs go on that have failed or were interrupted, all of them or none.

        "undone": a compensation of one is stored. "changed": one was retried meanwhile, or is not over.
        """
        ...

    async def resume(self, unit: str) -> UnitRow | None:
        """Make a suspended workflow running, unless it has not begun. Returns None if there is none."""
        ...

    async def get(self, unit: str) -> UnitRow | None:
        """Return a unit."""
        ...

    async def steps(self, unit: str) -> Sequence[StepRow]:
        """Return the steps of a unit, by branch and position; none if there is no such unit."""
        ...

    async def records(self, unit: str) -> Sequence[StepRecord]:
        """Return the steps of a unit for people to see, by branch and position."""
        ...

    async def list(
        self,
        *,
        status: UnitStatus | None,
        name: str | None,
        older_s: float | None,
        most: int,
        tag: tuple[str, str] | None = None,
    ) -> Sequence[UnitRow]:
        """Return units, the last changed first; with `older_s` only those that began longer ago than that."""
        ...

    async def purge(self, *, older_s: float, most: int) -> UnitsPurged:
        """Delete up to `most` of each kind, each with all its rows: workflows that ended longer ago than that;
        abandoned units of leaders and ticks, unchanged for so long and waiting for nothing (these are returned); and
        deferreds of units that never began."""
        ...
