"""What histories of jobs are made of, and their checkers: T1-T4, T6 and T9.

    JobSent(job, …)                     what a sender was told of a send
    JobStored(job, seat, part, …)       committed: a job is stored
    JobReady(job, at_ns)                committed: it may be claimed; so is a stored one that is due
    JobParked(job)                      committed: it is set aside, until it is ready again
    JobClaimed(job, claim, runner, …)   committed: it takes a slot
    JobFreed(job, claim)                committed: … and takes it no longer, whatever became of it
    JobEnded(job, how, claim)           committed: the last thing that happens to it, but for
    JobRevived(job)                     … a dead one
    JobLeft(job, state)                 a row of the table when everything was over
    CancelTold(job)                     somebody was told that nothing of it will commit
    EndTold(job, claim)                 whoever ran it under this claim was told that its end is stored
    QueueLimited(seat, …)               committed: the limits in force from then on
    QueuePaused(seat, paused)           committed
    QueueRefilled(seat, at_ns)          committed: its tokens were counted
    BodyBegan(job, claim, runner)       the code of a task began
    BodyOver(job, claim)                … and came to an end; that of a killed process never does
    RunnerLost(runner)                  it was evicted: its bodies count no longer, see T2

What was committed comes in the order of commits, best from triggers inside the database. `at_ns` is the instant that is
stored, by the database's clock. All is pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Literal

from tests.support.history.ownership import Event, Violation

End = Literal["done", "dead", "cancelled", "discarded"]


@dataclass(frozen=True, slots=True)
class JobSent(Event):
    """What a sender was told of a send: the id that it got (of an earlier job, if that had the key)."""

    job: str
    outcome: Literal["ok", "failed", "unknown"] = "ok"


@dataclass(frozen=True, slots=True)
class JobStored(Event):
    """A job is stored."""

    job: str
    seat: str
    part: str = ""
    at_ns: int = 0
    due_ns: int = 0
    """Not after `at_ns`: it is ready."""
    rank_ns: int = 0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class JobReady(Event):
    """A job is ready (again): due, given back, taken back, revived or known to somebody."""

    job: str
    at_ns: int
    rank_ns: int | None = None
    """Its rank from now on; None: as before."""
    lost: int = 0


@dataclass(frozen=True, slots=True)
class JobParked(Event):
    """A job is set aside."""

    job: str


@dataclass(frozen=True, slots=True)
class JobClaimed(Event):
    """A job takes a slot."""

    job: str
    claim: int
    runner: str = ""
    at_ns: int = 0


@dataclass(frozen=True, slots=True)
class JobFreed(Event):
    """A job takes no slot any more."""

    job: str
    claim: int


@dataclass(frozen=True, slots=True)
class JobEnded(Event):
    """A job has ended."""

    job: str
    how: End
    claim: int = 0
    """As its row has it."""


@dataclass(frozen=True, slots=True)
class JobRevived(Event):
    """A dead job begins anew."""

    job: str


@dataclass(frozen=True, slots=True)
class JobLeft(Event):
    """A row when everything was over."""

    job: str
    state: str


@dataclass(frozen=True, slots=True)
class CancelTold(Event):
    """Somebody was told that nothing of a job will commit."""

    job: str


@dataclass(frozen=True, slots=True)
class EndTold(Event):
    """Whoever ran a job was told that its end is stored."""

    job: str
    claim: int


@dataclass(frozen=True, slots=True)
class QueueLimited(Event):
    """The limits of a queue, from now on."""

    seat: str
    concurrency: int | None = None
    partition_concurrency: int | None = None
    rate: float | None = None
    burst: float | None = None


@dataclass(frozen=True, slots=True)
class QueuePaused(Event):
    """A queue is paused, or goes on."""

    seat: str
    paused: bool


@dataclass(frozen=True, slots=True)
class QueueRefilled(Event):
    """The tokens of a queue were counted, by this instant of the clock, whether or not a job began."""

    seat: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class BodyBegan(Event):
    """The code of a task began."""

    job: str
    claim: int
    runner: str = ""


@dataclass(frozen=True, slots=True)
class BodyOver(Event):
    """The code of a task came to an end."""

    job: str
    claim: int


@dataclass(frozen=True, slots=True)
class RunnerLost(Event):
    """A runner was evicted."""

    runner: str


@dataclass
class EveryJobEnds:
    """T1: what was acknowledged has ended once, or waits, if so allowed; what was said to have failed is not there."""

    pending_allowed: bool = False
    _told: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _stored: set[str] = field(default_factory=set)
    _ended: dict[str, JobEnded] = field(default_factory=dict)
    _left: dict[str, str] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Refuse a second end, and what happens after one."""
        if isinstance(event, JobSent):
            self._told[event.job].add(event.outcome)
        elif isinstance(event, JobStored):
            self._stored.add(event.job)
        elif isinstance(event, JobEnded):
            self._refuse_after_end(event.job, f"is {event.how}")
            self._ended[event.job] = event
        elif isinstance(event, JobRevived):
            ended = self._ended.pop(event.job, None)
            if ended is None or ended.how != "dead":
                raise Violation("T1", f"{event.job} was revived, and was not dead")
        elif isinstance(event, JobReady | JobParked | JobClaimed):
            self._refuse_after_end(event.job, "goes on")
        elif isinstance(event, JobLeft):
            self._left[event.job] = event.state

    def finish(self) -> None:
        """Compare what was told with what is there."""
        for job, outcomes in self._told.items():
            if "ok" in outcomes and job not in self._left:
                raise Violation("T1", f"{job} was acknowledged, and is not there")
            if outcomes == {"failed"} and job in self._stored:
                raise Violation("T1", f"{job} was said to have failed, and was stored")
        for job, state in self._left.items():
            ended = self._ended.get(job)
            if ended is not None and ended.how != state:
                raise Violation("T1", f"{job} is {state} at the end, and was {ended.how}")
            if ended is None and not self.pending_allowed:
                raise Violation("T1", f"{job} is {state}, and has not ended")
        for job in self._stored - self._left.keys():
            raise Violation("T1", f"the row of {job} is gone")

    def _refuse_after_end(self, job: str, what: str) -> None:
        if job in self._ended:
            raise Violation("T1", f"{job} {what}, and was {self._ended[job].how}")


@dataclass
class ClaimsGrow:
    """T1: each claim of a job has a number of its own, which grows; nobody holds two, and only the last one ends it.

    Bodies of one claim run one after another: what another commit has overtaken runs again. Whoever is told that its
    end is stored held that claim.
    """

    _last: dict[str, int] = field(default_factory=dict)
    _held: dict[str, int] = field(default_factory=dict)
    _running: set[tuple[str, int]] = field(default_factory=set)
    _ended: set[tuple[str, int]] = field(default_factory=set)
    _told: set[tuple[str, int]] = field(default_factory=set)

    def see(self, event: Event) -> None:
        """Compare the numbers."""
        if isinstance(event, JobClaimed):
            if event.job in self._held:
                raise Violation("T1", f"{event.job} was claimed, and claim {self._held[event.job]} held it")
            if event.claim <= self._last.get(event.job, 0):
                raise Violation("T1", f"{event.job}: claim {event.claim} came after {self._last[event.job]}")
            self._last[event.job] = self._held[event.job] = event.claim
        elif isinstance(event, JobFreed):
            if self._held.pop(event.job, None) != event.claim:
                raise Violation("T1", f"{event.job}: claim {event.claim} was given up, and did not hold it")
        elif isinstance(event, JobEnded):
            if event.claim < self._last.get(event.job, 0):
                raise Violation("T1", f"{event.job}: claim {event.claim} ended it after {self._last[event.job]}")
            self._ended.add((event.job, event.claim))
        elif isinstance(event, EndTold):
            self._told.add((event.job, event.claim))
        elif isinstance(event, BodyOver):
            self._running.discard((event.job, event.claim))
        elif isinstance(event, BodyBegan):
            if (event.job, event.claim) in self._running:
                raise Violation("T1", f"{event.job}: two of its bodies run under claim {event.claim}")
            self._running.add((event.job, event.claim))

    def finish(self) -> None:
        """Compare what was told with what was stored."""
        for job, claim in sorted(self._told - self._ended):
            raise Violation("T1", f"{job}: claim {claim} was told that it had ended it, and had not")


@dataclass
class WithinLimits:
    """T2, T9: of a queue and of each partition no more run than its limits allow, at each start; none while paused.

    In any t seconds at most rate * t + burst start, as long as both are the same. A clock that is set back adds
    nothing. Jobs take their slots from their claim until they are freed, in the order of the history.
    """

    _jobs: dict[str, JobStored] = field(default_factory=dict)
    _limits: dict[str, QueueLimited] = field(default_factory=dict)
    _running: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _paused: set[str] = field(default_factory=set)
    _buckets: dict[str, _Starts] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Judge each start."""
        if isinstance(event, JobStored):
            self._jobs[event.job] = event
        elif isinstance(event, QueueLimited):
            self._limit(event)
        elif isinstance(event, QueueRefilled):
            self._look(event)
        elif isinstance(event, QueuePaused):
            (self._paused.add if event.paused else self._paused.discard)(event.seat)
        elif isinstance(event, JobFreed):
            job = self._jobs[event.job]
            self._running[job.seat][job.part] -= 1
        elif isinstance(event, JobClaimed):
            self._start(self._jobs[event.job], event)

    def finish(self) -> None:
        """Nothing is left to judge."""

    def _look(self, event: QueueRefilled) -> None:
        """Read the clock: that it was set back since, and went on, no start may show."""
        bucket = self._buckets.get(event.seat)
        if bucket is not None:
            bucket.look(event.at_ns)

    def _limit(self, limits: QueueLimited) -> None:
        before = self._limits.get(limits.seat)
        self._limits[limits.seat] = limits
        if limits.rate is None or limits.burst is None:
            self._buckets.pop(limits.seat, None)
        elif before is None or (before.rate, before.burst) != (limits.rate, limits.burst):
            self._buckets[limits.seat] = _Starts(limits.rate, limits.burst)

    def _start(self, job: JobStored, event: JobClaimed) -> None:
        if job.seat in self._paused:
            raise Violation("T9", f"{event.job} began, and {job.seat} was paused")
        running, limits = self._running[job.seat], self._limits.get(job.seat, QueueLimited(job.seat))
        running[job.part] += 1
        if limits.concurrency is not None and running.total() > limits.concurrency:
            raise Violation("T2", f"{event.job} began: {running.total()} of {limits.concurrency} at {job.seat}")
        most = limits.partition_concurrency
        if most is not None and running[job.part] > most:
            problem = f"{event.job} began: {running[job.part]} of {most} in partition {job.part!r} of {job.seat}"
            raise Violation("T2", problem)
        bucket = self._buckets.get(job.seat)
        if bucket is not None:
            bucket.add(event)


@dataclass
class _Starts:
    """The starts under one rate."""

    rate: float
    burst: float
    _count: int = 0
    _at_ns: int | None = None
    _passed_s: float = 0.0
    _least: float = float("inf")

    def look(self, at_ns: int) -> None:
        """Let the time pass until an instant."""
        if self._at_ns is not None:
            self._passed_s += max(0, at_ns - self._at_ns) / 1e9
        self._at_ns = at_ns

    def add(self, event: JobClaimed) -> None:
        """Judge all windows that end with this start.

        A window from start i to start j has j - i + 1 of them: too many if j - rate * t(j) is more than burst - 1 above
        the least i - rate * t(i) before.
        """
        self.look(event.at_ns)
        self._count += 1
        surplus = self._count - self.rate * self._passed_s
        self._least = min(self._least, surplus)
        if (starts := surplus - self._least + 1) > self.burst + 1e-6:
            problem = f"{event.job} began: {starts:.3f} starts more than {self.rate:g}/s allow, burst {self.burst:g}"
            raise Violation("T2", problem)


@dataclass
class BodiesWithinLimits:
    """T2, T6: the code that runs, too: a slot is free only when its body has ended.

    Not of runners that were evicted: a body that ignores its cancellation is the one exception of the promise. Lowered
    limits hold for later claims: a body is judged by the widest ones since its claim.
    """

    _jobs: dict[str, JobStored] = field(default_factory=dict)
    _limits: dict[str, QueueLimited] = field(default_factory=dict)
    _widest: dict[str, QueueLimited] = field(default_factory=dict)
    """By job: since its last claim."""
    _bodies: dict[tuple[str, int], BodyBegan] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Count bodies at each beginning."""
        if isinstance(event, JobStored):
            self._jobs[event.job] = event
        elif isinstance(event, QueueLimited):
            self._limit(event)
        elif isinstance(event, JobClaimed):
            job = self._jobs[event.job]
            self._widest[event.job] = self._limits.get(job.seat, QueueLimited(job.seat))
        elif isinstance(event, BodyOver):
            self._bodies.pop((event.job, event.claim), None)
        elif isinstance(event, RunnerLost):
            self._bodies = {place: body for place, body in self._bodies.items() if body.runner != event.runner}
        elif isinstance(event, BodyBegan):
            self._bodies[event.job, event.claim] = event
            self._judge(self._jobs[event.job])

    def finish(self) -> None:
        """Nothing is left to judge."""

    def _limit(self, event: QueueLimited) -> None:
        self._limits[event.seat] = event
        for job, widest in self._widest.items():
            if widest.seat == event.seat:
                self._widest[job] = QueueLimited(
                    event.seat,
                    _wider(widest.concurrency, event.concurrency),
                    _wider(widest.partition_concurrency, event.partition_concurrency),
                )

    def _judge(self, job: JobStored) -> None:
        limits = self._widest.get(job.job) or self._limits.get(job.seat, QueueLimited(job.seat))
        beside = [each for each in (self._jobs[name] for name, _ in self._bodies) if each.seat == job.seat]
        same = [each for each in beside if each.part == job.part]
        for running, most in ((beside, limits.concurrency), (same, limits.partition_concurrency)):
            if most is not None and len(running) > most:
                raise Violation("T2", f"{job.job} runs: {len(running)} bodies at once, {most} are allowed")


def _wider(one: int | None, other: int | None) -> int | None:
    """The wider of two limits; None: there is none."""
    return None if one is None or other is None else max(one, other)


@dataclass
class FirstStartsInOrder:
    """T3: with one job of a partition at a time, jobs of equal priority begin first in the order of their sending.

    Jobs that were due when they were sent: others go by their time. What is parked or has ended holds up nobody.
    """

    _limits: dict[str, QueueLimited] = field(default_factory=dict)
    _waiting: dict[tuple[str, str, int], dict[str, JobStored]] = field(default_factory=lambda: defaultdict(dict))
    _jobs: dict[str, JobStored] = field(default_factory=dict)
    _aside: set[str] = field(default_factory=set)

    def see(self, event: Event) -> None:
        """Look for one that was sent before, at each first start."""
        if isinstance(event, QueueLimited):
            self._limits[event.seat] = event
        elif isinstance(event, JobStored) and event.due_ns <= event.at_ns:
            self._jobs[event.job] = event
            self._waiting[_queue_of(event)][event.job] = event
        elif isinstance(event, JobParked):
            self._aside.add(event.job)
        elif isinstance(event, JobReady):
            self._aside.discard(event.job)
        elif isinstance(event, JobEnded):
            self._forget(event.job)
        elif isinstance(event, JobClaimed):
            self._start(event)

    def finish(self) -> None:
        """Nothing is left to judge."""

    def _start(self, event: JobClaimed) -> None:
        job = self._jobs.get(event.job)
        if job is None or job.job not in self._waiting[_queue_of(job)]:
            return  # not its first start
        limits = self._limits.get(job.seat)
        if limits is not None and limits.partition_concurrency == 1:
            for other in self._waiting[_queue_of(job)].values():
                if other.job == job.job:
                    break
                if other.job not in self._aside and (other.rank_ns, other.job) < (job.rank_ns, job.job):
                    raise Violation("T3", f"{job.job} began before {other.job}, which was sent before it")
        self._forget(event.job)

    def _forget(self, name: str) -> None:
        job = self._jobs.get(name)
        if job is not None:
            self._waiting[_queue_of(job)].pop(name, None)


def _queue_of(job: JobStored) -> tuple[str, str, int]:
    return job.seat, job.part, job.priority


@dataclass
class RanksInOrder:
    """T4: within a partition nothing begins while one of a smaller rank is ready: by priority, waiting, due time, id.

    One that has been ready for less than `slack_s` may not be known to whoever decides. Those that begin at one instant
    begin together. A job whose runner was lost may wait for others of its kind: it is excused.
    """

    slack_s: float = 2.0
    _jobs: dict[str, JobStored] = field(default_factory=dict)
    _ready: dict[tuple[str, str], dict[str, tuple[int, int]]] = field(default_factory=lambda: defaultdict(dict))
    """By partition: rank and since when, of each job."""
    _begun: list[tuple[JobClaimed, int]] = field(default_factory=list)

    def see(self, event: Event) -> None:
        """Judge those that began together, when something else happens."""
        if self._begun and not (isinstance(event, JobClaimed) and event.at_ns == self._begun[0][0].at_ns):
            self.finish()
        if isinstance(event, JobStored):
            self._jobs[event.job] = event
            if event.due_ns <= event.at_ns:
                self._of(event.job)[event.job] = event.rank_ns, event.at_ns
        elif isinstance(event, JobReady):
            self._be_ready(event)
        elif isinstance(event, JobParked | JobEnded):
            self._of(event.job).pop(event.job, None)
        elif isinstance(event, JobClaimed):
            rank_ns, _ = self._of(event.job).pop(event.job, (self._jobs[event.job].rank_ns, 0))
            self._begun.append((event, rank_ns))

    def finish(self) -> None:
        """Judge the last ones."""
        begun, self._begun = self._begun, []
        for event, rank_ns in begun:
            for other, (other_ns, since_ns) in self._of(event.job).items():
                is_known = since_ns + self.slack_s * 1e9 <= event.at_ns
                if is_known and (other_ns, other) < (rank_ns, event.job):
                    ahead_s = (rank_ns - other_ns) / 1e9
                    problem = f"{event.job} began, and {other} was ready, {ahead_s:.3f}s before it by rank"
                    raise Violation("T4", problem)

    def _be_ready(self, event: JobReady) -> None:
        stored = self._jobs[event.job]
        if event.lost:
            return
        rank_ns = stored.rank_ns if event.rank_ns is None else event.rank_ns
        self._of(event.job)[event.job] = rank_ns, event.at_ns

    def _of(self, job: str) -> dict[str, tuple[int, int]]:
        stored = self._jobs[job]
        return self._ready[stored.seat, stored.part]


@dataclass
class CancelHolds:
    """T6: once somebody was told so, nothing of a job commits: it ends as cancelled, if it ends."""

    _cancelled: set[str] = field(default_factory=set)

    def see(self, event: Event) -> None:
        """Compare each end."""
        if isinstance(event, CancelTold):
            self._cancelled.add(event.job)
        elif isinstance(event, JobEnded) and event.job in self._cancelled and event.how != "cancelled":
            raise Violation("T6", f"{event.job} is {event.how}, and was cancelled before")

    def finish(self) -> None:
        """Nothing is left to judge."""


def checkers(
    *, pending_allowed: bool = False, slack_s: float = 2.0
) -> tuple[EveryJobEnds, ClaimsGrow, WithinLimits, BodiesWithinLimits, FirstStartsInOrder, RanksInOrder, CancelHolds]:
    """All of them, new."""
    return (
        EveryJobEnds(pending_allowed),
        ClaimsGrow(),
        WithinLimits(),
        BodiesWithinLimits(),
        FirstStartsInOrder(),
        RanksInOrder(slack_s),
        CancelHolds(),
    )
