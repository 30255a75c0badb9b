"""The storage contract of jobs: calls of tasks, from their insert to their end, and the queues that limit them.

    inserted ──▶ later ──▶ ready ──▶ claimed ──▶ done · discarded · cancelled · dead      kept for the retention time
                   ▲         ▲ │        │
                   │         │ ▼        │ given back, taken back
                   │      parked        │
                   └────────────────────┘ a failed attempt, or put off: due again later

One seat decides what may start: the holder of a queue's seat claims jobs for runners, and the statement that claims
proves that it holds the seat and that the limits are kept. Whoever runs a job proves that it lives and that the claim
is still its own: a job's `claim` grows with each claim and never falls. All instants are by the database's clock.
"""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 msgspec reads annotations at run time
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import msgspec

from coterie.storage.contracts.messages import Attempt, Message  # noqa: TC001 likewise

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Mapping, Sequence

    from coterie.storage.interface import Claim

JobState = Literal["later", "ready", "claimed", "parked", "done", "dead", "cancelled", "discarded"]
JOB_STATES: tuple[JobState, ...] = get_args(JobState)
"""Indexed by the stored number."""


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A job, as its sender passes it."""

    id: str
    seat: str
    """The seat of its queue."""
    part: str
    """Its partition within the seat: the value of the queue's parameter, or the task's name where there is none."""
    task: str
    payload: bytes
    fingerprint: str = ""
    """Of the task's parameters, as its sender knows them."""
    key: str | None = None
    """Unique for its task while the row exists."""
    digest: bytes = b""
    """A digest of the arguments: the same key with another digest is a conflict. Empty without a key."""
    priority: int = 0
    age_s: float = 3600.0
    """How long it waits to gain one level of priority: `rank_at` is due_at - priority x age."""
    due_at: datetime | None = None
    """When it may run; None: `delay_s` from now."""
    delay_s: float = 0.0
    tags: tuple[tuple[str, str], ...] = ()
    trace_id: str | None = None


class JobInsert(msgspec.Struct, frozen=True, gc=False):
    """Store jobs in one commit, except those whose key exists already. The result is a tuple of a `JobReceipt` each."""

    jobs: tuple[NewJob, ...]


class JobReceipt(msgspec.Struct, frozen=True, gc=False):
    """The stored job: the one passed, or the one that had the key before.

    An id that exists already comes from an earlier try of this insert whose outcome was unknown: it counts as fresh.
    """

    id: str
    fresh: bool
    state: JobState
    due_at: datetime
    rank_s: float
    """Its rank, in seconds since 1970: what `JobHead.rank_s` of it is."""
    now: datetime
    """The database's clock."""
    digest: bytes = b""
    reply: bytes | None = None


class JobHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A ready job, as the holder of its queue's seat keeps it in memory.

    It travels between runners: fields are only ever added at the end, with a default.
    """

    id: str
    part: str
    task: str
    fingerprint: str
    rank_s: float
    """Its rank, in seconds since 1970: the smaller, the earlier within its partition; equal ones by id."""
    lost: int = 0
    """How many runners were lost while they ran it."""
    priority: int = 0
    """As it was sent. Waiting raises a job between partitions only up to the highest one that waits."""


class Partition(msgspec.Struct, frozen=True, gc=False):
    """A partition with ready jobs."""

    part: str
    heads: tuple[JobHead, ...]
    """Its first jobs, in order of rank and id."""
    more: bool
    """Whether it has more of them."""


class Matured(msgspec.Struct, frozen=True, gc=False):
    """Jobs that have become ready because they are due."""

    fenced: bool
    heads: tuple[JobHead, ...] = ()
    next_in_s: float | None = None
    """How long until the next one is due; None: there is none that waits for its time."""


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue allows at most, in the whole cluster. None: no limit."""

    concurrency: int | None = None
    partition_concurrency: int | None = None
    rate: float | None = None
    """Starts a second."""
    burst: float | None = None
    """The size of the bucket of tokens; given wherever there is a rate."""


class QueueDefinition(QueueLimits, frozen=True, kw_only=True):
    """A queue as a program defines it."""

    seat: str
    group: str
    fingerprint: str
    age_s: float = 3600.0
    takeover_delay_s: float = 0.0
    expected_wait_s: float | None = None
    """The age of the oldest waiting job from which on the queue counts as degraded."""


class QueueRow(QueueDefinition, frozen=True, kw_only=True):
    """A queue as stored. Its limits are those in force; `defined` has those of the program."""

    stamp: int
    """Changes with everything that a claim depends on: definition, limits set at run time, pauses."""
    defined: QueueLimits
    is_set: bool
    """Whether its limits were set at run time."""
    paused_at: datetime | None
    tokens: float | None
    """As of `refilled_at`."""
    refilled_at: datetime
    now: datetime
    paused_tasks: tuple[str, ...] = ()
    """All tasks that are paused, also those of other queues."""
    is_group_paused: bool = False

    @property
    def is_paused(self) -> bool:
        """Whether none of its jobs may start: it is paused, or its group is."""
        return self.is_group_paused or self.paused_at is not None


class JobDelivery(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A claimed job, with all that is needed to run it.

    It travels between runners: fields are only ever added at the end, with a default.
    """

    id: str
    seat: str
    part: str
    task: str
    fingerprint: str
    payload: bytes
    key: str | None
    claim: int
    runner: str
    """The incarnation for which it was claimed."""
    failures: int
    """The number of failed attempts."""
    lost: int
    due_s: float
    """When it might run, in seconds since 1970."""
    trace_id: str | None = None


class JobClaim(msgspec.Struct, frozen=True, gc=False):
    """Claim jobs for runners, under the fence of their queue's seat."""

    claim: Claim
    stamp: int
    """The queue's stamp as the holder knows it."""
    jobs: tuple[tuple[str, str], ...]
    """Pairs of a job's id and the incarnation of a runner, in the order in which they are to start."""


class JobsClaimed(msgspec.Struct, frozen=True, gc=False):
    """The result of a `JobClaim`: those that were ready, not cancelled, within all limits, on a runner that is there.

    changed: the queue has another stamp, or is paused: nothing was claimed. fenced: the seat is not held.
    """

    outcome: Literal["claimed", "changed", "fenced"]
    jobs: tuple[JobDelivery, ...] = ()
    tokens: float | None = None
    """What the bucket holds after it."""


class RunningJob(msgspec.Struct, frozen=True, gc=False):
    """A claimed job, as those see it who look after claims."""

    id: str
    seat: str
    part: str
    task: str
    claim: int
    runner: str | None
    """None: its runner is gone."""
    cancelling: bool
    """Whether nothing of it may commit any more."""


class JobEnd(msgspec.Struct, frozen=True, gc=False):
    """The end of a job by whoever runs it, with what it sends, in one commit. The result is a `JobEnded`.

    The fence is the runner's own row and the claim's number.
    """

    runner: str
    job: str
    claim: int
    reply: bytes
    discarded: bool = False
    sends: tuple[Message, ...] = ()
    jobs: tuple[NewJob, ...] = ()
    cancelled_reply: bytes = b""
    """The reply that is stored instead if it was cancelled meanwhile."""


JobEnded = Literal["written", "fenced", "gone", "cancelled", "taken"]
"""The result of a `JobEnd`, and of a `JobSetback`:

written    all of it is durable; also if an earlier try of the same write, whose outcome was unknown, did it
fenced     the runner's row is gone: it was evicted
gone       the claim is no longer this one
cancelled  it was cancelled meanwhile: it has ended so, nothing of the write is stored but that
taken      a message or job that it sends has a key that another one uses
"""


class JobSetback(msgspec.Struct, frozen=True, gc=False):
    """A failed attempt, or one that is put off: due again later, or dead. The result is a `JobEnded`, never "taken"."""

    runner: str
    job: str
    claim: int
    again_s: float | None
    """The delay before the next attempt; None: no further attempt, the job is dead."""
    error: str | None
    """Counted as a failure and kept; None: it was put off, which counts nothing."""
    cancelled_reply: bytes = b""


class GiveBack(msgspec.Struct, frozen=True, gc=False):
    """Give jobs back that were not begun, or were stopped by a drain: ready again, or parked, without a failure."""

    runner: str
    jobs: tuple[tuple[str, int], ...]
    """Pairs of id and claim."""
    park: bool = False


class LostJob(msgspec.Struct, frozen=True, gc=False):
    """A job whose runner was lost."""

    id: str
    task: str
    lost: int
    state: JobState
    """What it is now: ready again, cancelled, or dead at the limit of losses."""


class TakenBack(msgspec.Struct, frozen=True, gc=False):
    """The result of taking back the jobs of lost runners."""

    fenced: bool
    lost: tuple[LostJob, ...] = ()
    next_in_s: float | None = None
    """How long until the takeover delay of the next one is over; None: there is none."""


JobCancelled = Literal["cancelled", "cancelling", "over", "unknown"]
"""cancelled: it waited, and has ended. cancelling: it runs; nothing of it will commit. over: it had ended before."""


class JobProgress(msgspec.Struct, frozen=True, gc=False):
    """How far a running job is."""

    done: float
    total: float | None = None
    note: str | None = None
    at: datetime | None = None


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job with all its columns."""

    id: str
    seat: str
    part: str
    task: str
    fingerprint: str
    state: JobState
    key: str | None
    priority: int
    sent_at: datetime
    due_at: datetime
    claimed_at: datetime | None
    """When the last claim was made."""
    ended_at: datetime | None
    claim: int
    runner: str | None
    ran_by: str | None
    """The incarnation for which it was claimed last."""
    failures: int
    lost: int
    cancelling: bool
    errors: tuple[Attempt, ...]
    """The errors of the last failed attempts (a bounded number), the oldest first."""
    payload: bytes
    reply: bytes | None
    tags: dict[str, str]
    progress: JobProgress | None
    trace_id: str | None


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects jobs; fields that are None do not restrict it."""

    state: JobState | None = None
    seat: str | None = None
    task: str | None = None
    tag: tuple[str, str] | None = None
    older_than_s: float | None = None
    """Minimum age since it was sent, or, if it has ended, since its end."""


class QueueBacklog(msgspec.Struct, frozen=True, gc=False):
    """How much waits and runs at a seat of jobs."""

    seat: str
    ready: int
    later: int
    parked: int
    claimed: int
    dead: int
    oldest_s: float | None
    """How long the ready job with the earliest due time among the heads of partitions waits; None: none waits."""


class JobStore(Protocol):
    """The jobs and queues of one cluster."""

    # Senders

    def insert(self, write: JobInsert) -> Future[tuple[JobReceipt, ...]]:
        """Store jobs, all or none. Concurrent inserts share transactions; each is independent."""
        ...

    async def find(self, task: str, key: str) -> JobReceipt | None:
        """Return the job that has a key, or None."""
        ...

    async def look(self, ids: Sequence[str]) -> Sequence[JobRow]:
        """Return these jobs; those that do not exist (any more) are left out."""
        ...

    async def cancel(self, id: str, *, reply: bytes) -> tuple[JobCancelled, RunningJob | None]:
        """End a job that waits, with this reply, or store that nothing of it may commit. With the claim if it runs.

        Its key may be used again. The end, setback or return of a running one ends it as cancelled, with this reply
        unless that write has another one.
        """
        ...

    # The holder of a queue's seat

    async def define_queue(self, claim: Claim, definition: QueueDefinition | None) -> QueueRow | None:
        """Store what the program defines, unless it is stored already, and return the row. None: the seat is not held.

        Without a definition (no program at hand has one) what is stored stays; if nothing is, it is a queue without
        limits. Limits set at run time and a pause stay in force.
        """
        ...

    async def queue(self, seat: str) -> QueueRow | None:
        """Return a queue."""
        ...

    async def sweep(self, seat: str, *, after: str | None, parts: int, each: int) -> Sequence[Partition]:
        """Of the next `parts` partitions with ready jobs, in order of their names after `after`, the first `each`."""
        ...

    async def refill(self, seat: str, parts: Sequence[str], *, each: int) -> Sequence[Partition]:
        """Return the first `each` ready jobs of these partitions, those without any left out."""
        ...

    async def mature(self, claim: Claim, *, most: int) -> Matured:
        """Make up to `most` jobs ready that are due, under the fence."""
        ...

    async def claim(self, write: JobClaim) -> JobsClaimed:
        """See `JobClaim`. Not repeated by the caller if its outcome is unknown: `running` tells what was claimed."""
        ...

    async def running(self, seat: str) -> Sequence[RunningJob]:
        """Return the claimed jobs of a seat."""
        ...

    async def take_back(self, claim: Claim, *, takeover_delay_s: float, loss_limit: int, most: int) -> TakenBack:
        """Make jobs of lost runners ready again, or end them, under the fence of the seat."""
        ...

    async def park(self, claim: Claim, tasks: Sequence[str], *, most: int) -> int:
        """Set aside ready jobs of these tasks, which nobody can run now, under the fence. Returns the number."""
        ...

    async def unpark(self, claim: Claim, tasks: Sequence[str], *, most: int) -> int:
        """Make parked jobs of these tasks ready again, under the fence. Returns the number."""
        ...

    async def parked(self, seat: str) -> Sequence[str]:
        """Return the tasks of which jobs are parked at a seat."""
        ...

    # Who runs jobs

    async def claimed(self, runner: str) -> Sequence[RunningJob]:
        """Return the jobs that are claimed for a runner."""
        ...

    async def fetch(self, claims: Mapping[str, int]) -> Sequence[JobDelivery]:
        """Return those of these jobs whose claim is still this one, and that are not cancelled."""
        ...

    def end(self, write: JobEnd) -> Future[JobEnded]:
        """See `JobEnd`. Concurrent ends share transactions; each is independent."""
        ...

    def setback(self, write: JobSetback) -> Future[JobEnded]:
        """See `JobSetback`."""
        ...

    async def give_back(self, write: GiveBack) -> int:
        """See `GiveBack`. Those whose claim is another one are left alone. Returns the number given back."""
        ...

    async def progress(self, runner: str, job: str, claim: int, progress: JobProgress) -> bool:
        """Store how far a job is, under the fence of `JobEnd`."""
        ...

    # Operators

    async def queues(self) -> Sequence[QueueRow]:
        """Return all queues, those without limits as well, in order of their seats."""
        ...

    async def set_limits(self, seat: str, limits: QueueLimits | None) -> QueueRow | None:
        """Set limits that beat the definition; None: the definition's again. None if there is no such queue."""
        ...

    async def pause(self, seat: str, *, paused: bool) -> QueueRow | None:
        """Once it has returned nothing is claimed, or may be again."""
        ...

    async def backlog(self, seats: Sequence[str], *, most: int) -> Sequence[QueueBacklog]:
        """Return how much waits and runs at seats; each number counts up to `most`."""
        ...

    async def list(
        self, chosen: JobFilter, *, after: str | None = None, most: int = 100, newest: bool = False
    ) -> Sequence[JobRow]:
        """Return jobs after the id `after`, in order of their ids; with `newest` in the reverse order."""
        ...

    async def count(self, chosen: JobFilter, *, most: int) -> int:
        """Count the jobs, up to `most`."""
        ...

    async def revive(self, chosen: JobFilter, *, id: str | None = None, most: int) -> int:
        """Make dead jobs ready, due now, without failures or losses; their claim numbers go on. Returns the number."""
        ...

    async def remove(self, chosen: JobFilter, *, most: int) -> int:
        """Delete up to `most` jobs that have ended. Returns the number deleted."""
        ...

    async def purge(self, *, after: str, retention_s: float, key_retention_s: float, most: int) -> tuple[int, str]:
        """Delete jobs that ended longer ago than that, among the next `most` ids after `after`; dead ones stay.

        Returns:
            The number deleted, and the id to continue after: empty when the end, or a job too young, was reached.
        """
        ...
