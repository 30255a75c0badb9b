"""Jobs of one seat in memory, a dispatcher on them, and runners that keep what they are given."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from coterie.errors import PersistenceError
from coterie.kernel.clock import Dial, SystemClock
from coterie.kernel.service import Tasks
from coterie.kernel.supervisor import Supervisor
from coterie.ownership.seats import Tenure, Trust
from coterie.storage.contracts.jobs import (
    JobDelivery,
    JobHead,
    JobsClaimed,
    LostJob,
    Matured,
    Partition,
    QueueBacklog,
    QueueLimits,
    QueueRow,
    RunningJob,
    TakenBack,
)
from coterie.storage.interface import Claim
from coterie.tasks.dispatcher.dispatcher import Dispatcher
from coterie.tasks.dispatcher.slots import Loads
from coterie.tasks.frames import Assignment, JobOver, JobsOver, JobsSent, KnownTask, PoolSlots, Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coterie.storage.contracts.jobs import JobClaim, QueueDefinition
    from coterie.tasks.exchange import JobExchange
    from coterie.tasks.frames import Frame, SlotsQuestion
    from coterie.work.services import Services

SEAT, ME = "queue:mail", "r1"
TASKS = {"mail": KnownTask("f1")}


def head(id: str, part: str = "", *, task: str = "mail", rank_s: float = 1.0, lost: int = 0) -> JobHead:
    return JobHead(id, part, task, "f1", rank_s, lost=lost)


class FakeStore:
    """What the holder of a seat uses of a `JobStore`."""

    def __init__(self, **limits: Any) -> None:
        now = datetime.now(UTC)
        tokens = limits.get("burst")
        self.row = QueueRow(
            seat=SEAT, group="default", fingerprint="", stamp=1, defined=QueueLimits(**limits), is_set=False,
            paused_at=None, tokens=tokens, refilled_at=now, now=now, **limits,
        )  # fmt: skip
        self.ready: dict[str, JobHead] = {}
        self.claimed: dict[str, tuple[JobHead, str | None, int]] = {}
        self.claims: dict[str, int] = {}
        self.parked_: dict[str, JobHead] = {}
        self.due: list[JobHead] = []
        self.calls: list[str] = []
        self.batches: list[list[str]] = []
        self.failing: dict[str, list[PersistenceError]] = {}
        self.is_fenced = False
        self.refuses: set[str] = set()
        """Jobs that the statement does not claim."""
        self.gate = asyncio.Event()
        """While it is clear claims do not return."""
        self.gate.set()

    def put(self, *heads: JobHead) -> tuple[JobHead, ...]:
        self.ready |= {each.id: each for each in heads}
        return heads

    def change(self, **fields: Any) -> None:
        self.row = replace(self.row, stamp=self.row.stamp + 1, **fields)

    def count(self, name: str) -> int:
        return self.calls.count(name)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.failing.get(name):
            raise self.failing[name].pop(0)

    async def define_queue(self, claim: Claim, definition: QueueDefinition | None) -> QueueRow | None:
        self._called("define_queue")
        return None if self.is_fenced else self.row

    async def queue(self, seat: str) -> QueueRow:
        self._called("queue")
        return self.row

    async def claim(self, write: JobClaim) -> JobsClaimed:
        self._called("claim")
        await asyncio.sleep(0)
        self.batches.append([job for job, _ in write.jobs])
        if self.is_fenced:
            return JobsClaimed("fenced")
        if write.stamp != self.row.stamp or self.row.paused_at is not None:
            return JobsClaimed("changed")
        begun = [
            self._begin(job, runner) for job, runner in write.jobs if job in self.ready and job not in self.refuses
        ]
        await self.gate.wait()
        return JobsClaimed("claimed", tuple(begun), None if self.row.rate is None else 0.0)

    def _begin(self, job: str, runner: str) -> JobDelivery:
        head_ = self.ready.pop(job)
        claim = self.claims[job] = self.claims.get(job, 0) + 1
        self.claimed[job] = head_, runner, claim
        return JobDelivery(
            job, SEAT, head_.part, head_.task, "f1", b"", None, claim, runner, 0, head_.lost, head_.rank_s
        )

    def end(self, job: str) -> int:
        """A job ends in storage. Returns its claim."""
        _, _, claim = self.claimed.pop(job)
        return claim

    def evict(self, runner: str) -> None:
        for job, (each, whose, claim) in list(self.claimed.items()):
            if whose == runner:
                self.claimed[job] = each, None, claim

    async def running(self, seat: str) -> list[RunningJob]:
        self._called("running")
        await asyncio.sleep(0)
        return [
            RunningJob(job, seat, each.part, each.task, claim, runner, False)
            for job, (each, runner, claim) in self.claimed.items()
        ]

    def _partitions(self, parts: Sequence[str], each: int) -> list[Partition]:
        found = []
        for part in parts:
            heads = sorted(
                (one for one in self.ready.values() if one.part == part), key=lambda one: (one.rank_s, one.id)
            )
            if heads:
                found.append(Partition(part, tuple(heads[:each]), len(heads) > each))
        return found

    async def sweep(self, seat: str, *, after: str | None, parts: int, each: int) -> list[Partition]:
        self._called("sweep")
        names = sorted({one.part for one in self.ready.values() if after is None or one.part > after})
        return self._partitions(names[:parts], each)

    async def refill(self, seat: str, parts: Sequence[str], *, each: int) -> list[Partition]:
        self._called("refill")
        found = self._partitions(parts, each)
        await asyncio.sleep(0)
        return found

    async def mature(self, claim: Claim, *, most: int) -> Matured:
        self._called("mature")
        due, self.due = tuple(self.due), []
        self.put(*due)
        return Matured(self.is_fenced, due)

    async def take_back(self, claim: Claim, **_: object) -> TakenBack:
        self._called("take_back")
        lost = []
        for job, (each, runner, _claim) in list(self.claimed.items()):
            if runner is None:
                del self.claimed[job]
                self.put(replace(each, lost=each.lost + 1))
                lost.append(LostJob(job, each.task, each.lost + 1, "ready"))
        return TakenBack(self.is_fenced, tuple(lost))

    async def park(self, claim: Claim, tasks: Sequence[str], *, most: int) -> int:
        self._called("park")
        found = [each for each in self.ready.values() if each.task in tasks]
        for each in found:
            self.parked_[each.id] = self.ready.pop(each.id)
        return len(found)

    async def unpark(self, claim: Claim, tasks: Sequence[str], *, most: int) -> int:
        self._called("unpark")
        found = [each for each in self.parked_.values() if each.task in tasks]
        self.put(*found)
        self.parked_.clear()
        return len(found)

    async def parked(self, seat: str) -> list[str]:
        return sorted({each.task for each in self.parked_.values()})

    def backlog(self) -> QueueBacklog:
        ready, later, parked, claimed = (
            min(1, len(each)) for each in (self.ready, self.due, self.parked_, self.claimed)
        )
        return QueueBacklog(SEAT, ready, later, parked, claimed, 0, None)


class FakeRunners:
    """The runners of the group, as an exchange that keeps what it is told."""

    def __init__(self, **free: int) -> None:
        self.free = free or {ME: 100}
        self.tasks = dict(TASKS)
        self.jobs: dict[str, list[JobDelivery]] = {}
        self.frames: list[Assignment] = []
        self.asked: list[str] = []

    def slots(self, runner: str) -> Slots:
        mine = len(self.jobs.get(runner, ()))
        return Slots(PoolSlots(self.free[runner] - mine, mine), PoolSlots(9), PoolSlots(9), tasks=dict(self.tasks))

    def tell_runner(self, runner: str, frame: Frame) -> None:
        assert isinstance(frame, Assignment)
        self.frames.append(frame)
        self.jobs.setdefault(runner, []).extend(frame.deliveries)

    async def ask_slots(self, runner: str, question: SlotsQuestion, *, within_s: float) -> Slots | None:
        self.asked.append(runner)
        return self.slots(runner)


class Bench:
    """A dispatcher on a fake store, with fake runners."""

    def __init__(self, store: FakeStore | None = None, **free: int) -> None:
        self.store = store or FakeStore()
        self.runners = FakeRunners(**free)
        self.tasks = Tasks("test")
        self.resigned: list[str] = []
        clock = SystemClock()
        self.trust = Trust(clock)
        self.trust.extend(1 << 62)
        self.trust.connected = True
        self.tenure = Tenure(Claim(ME, SEAT, 7), clean=True, trust=self.trust)
        services = SimpleNamespace(
            storage=SimpleNamespace(jobs=self.store),
            settings=SimpleNamespace(loss_limit=3, drain=SimpleNamespace(total_seconds=lambda: 1.0)),
            dial=Dial(lambda: clock.steady_ns() / 1e9, clock.wall_ns() / 1e9),
            supervise=self._supervise,
        )
        self.dispatcher = Dispatcher(
            self.tenure,
            cast("Services", services),
            copy_context(),
            definition=None,
            exchange=cast("JobExchange", self.runners),
            loads=Loads(),
            runners=lambda _: list(self.runners.free),
        )

    def _supervise(self, make: Any, name: str, tenure: Tenure, *, context: Any, cause: str) -> asyncio.Task[None]:
        return self.tasks.supervise(make, name=name, supervisor=Supervisor(), context=context)

    async def __aenter__(self) -> Bench:
        await self.until(lambda: self.dispatcher.lanes.is_complete and self.dispatcher.row is not None)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.dispatcher.end()
        await self.tasks.stop()

    def send(self, *heads: JobHead) -> None:
        """Store jobs, and tell the holder of them."""
        self.dispatcher.sent(JobsSent(SEAT, self.store.put(*heads)))

    def poll(self) -> None:
        self.dispatcher.poll(self.store.backlog())

    def over(self, job: str, **fields: Any) -> None:
        """A job is over in storage, and its runner says so."""
        runner = next(runner for runner, jobs in self.runners.jobs.items() if any(each.id == job for each in jobs))
        self.runners.jobs[runner] = [each for each in self.runners.jobs[runner] if each.id != job]
        over = JobOver(job, self.store.end(job), **fields)
        self.dispatcher.over(runner, JobsOver(SEAT, (over,), self.runners.slots(runner)))

    def begun(self, runner: str = "") -> list[str]:
        """The jobs that runners, or one of them, have been given."""
        return [each.id for where, jobs in self.runners.jobs.items() if runner in ("", where) for each in jobs]

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(120):
            while not holds():
                await asyncio.sleep(0.005)

    async def quiet(self) -> None:
        """Let pass what would be done without further news."""
        for _ in range(5):
            await asyncio.sleep(0.01)


def outage(outcome: str) -> PersistenceError:
    return PersistenceError(doing="claim", problem="the connection broke", outcome=cast("Any", outcome))
