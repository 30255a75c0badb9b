"""Workload: jobs sent, cancelled, paused and limited anew, while everything breaks.

Bodies take their time, have defects, snooze, discard themselves and send further jobs. What was committed is written
down by the database, what bodies do and what clients are told beside it; the checkers of T1-T4, T6 and T9 judge it.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from zlib import crc32

from coterie import Cluster, CoterieError, Discard, Retry, Snooze, current
from coterie.storage.sqlite.jobs.jobs import SqliteJobs
from coterie.tasks.worker.attempt import JobRun
from coterie.testing.loop.seeds import stream
from coterie.testing.run import current_loop
from coterie.testing.simulation import Simulation, simulate
from tests.simulation.workloads.calls import EVERYTHING
from tests.support.history.job_recorder import JobRecorder
from tests.support.history.jobs import BodyBegan, BodyOver, CancelTold, EndTold, JobSent, RanksInOrder, checkers
from tests.support.history.ownership import check

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import AsyncIterator, Callable, Iterator

    from coterie.storage.contracts.jobs import JobEnd, JobEnded
    from coterie.tasks.worker.attempt import AttemptOutcome
    from coterie.testing.faults import Fault
    from coterie.testing.loop.seeds import Stream

RUNNERS = 4
CLIENTS = 6
LASTING_S = 90
TENANTS = 4
QUIET_S = 240
"""By when after the last fault every job has ended: leases, retries, snoozes, and the queues' limits."""
SLACK_S = 15.0
"""How long a job may be ready before whoever decides must know of it: a failover, and a sweep after it."""
IN_ORDER = tuple(
    each for each in EVERYTHING if type(each).__name__ in ("Kills", "Stops", "PeerCuts", "ClientCuts", "TaskFailures")
)
"""Faults under which jobs begin in the order of their ranks: storage answers, and its clock is right."""
QUEUES = ("slots", "line", "rated", "wide")


_running: ContextVar[JobRun] = ContextVar("running_job")
"""The job whose body runs here."""


class Defect(Exception):
    """What a body raises now and then."""


@dataclass
class SimulatedJobs:
    """A cluster with its tasks, and what was noted."""

    cluster: Cluster
    tasks: dict[str, Any] = field(default_factory=dict)
    """By the name of their queue; without one: `free`."""
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    recorder: JobRecorder | None = None

    @property
    def recorded(self) -> JobRecorder:
        """From the start of the simulation."""
        assert self.recorder is not None
        return self.recorder

    def job(self, task: str, tenant: str, number: int) -> Any:
        """A call that has its own key."""
        return self.tasks[task].job(tenant, number, f"n{number}")

    @contextmanager
    def body(self) -> Iterator[None]:
        """The code of a task runs."""
        job, claim = _running.get().claim
        self.recorded.note(BodyBegan(job, claim, current().runner_id or ""))
        try:
            yield
        finally:
            self.recorded.note(BodyOver(job, claim))

    @contextmanager
    def watching(self, sim: Simulation) -> Iterator[None]:
        """Write down what happens to jobs."""
        recorder = self.recorder = JobRecorder(sim.database.main, now_ns=sim.database.clock.wall_ns)
        right = SqliteJobs.end

        def end(store: SqliteJobs, write: JobEnd) -> Future[JobEnded]:
            told = right(store, write)

            def note(future: Future[JobEnded]) -> None:
                if not future.cancelled() and future.exception() is None and future.result() == "written":
                    recorder.note(EndTold(write.job, write.claim))

            told.add_done_callback(note)
            return told

        begin = JobRun.attempt

        async def attempt(run: JobRun) -> AttemptOutcome:
            _running.set(run)
            return await begin(run)

        with patch.object(SqliteJobs, "end", end), patch.object(JobRun, "attempt", attempt):
            yield


def new_stage(**settings: Any) -> SimulatedJobs:
    """A fresh program."""
    stage = SimulatedJobs(Cluster("sqlite://", **{"shards": 2, "drain": "3s", "jobs": 6, **settings}))
    cluster = stage.cluster
    cluster.queue("slots", concurrency=3)
    cluster.queue("line", partition="tenant", partition_concurrency=1)
    cluster.queue("rated", rate="3/s", burst=2, concurrency=4)
    cluster.queue("wide", concurrency=6, partition="tenant", partition_concurrency=2)

    def define(queue: str | None) -> None:
        @cluster.task(
            name=queue or "free",
            queue=queue,
            retry=Retry(attempts=4, base="200ms"),
            key="key",
            timeout="20s",
        )
        async def work(tenant: str, number: int, key: str) -> int:
            with stage.body():
                await _live(stage, tenant, number)
            return number

        stage.tasks[queue or "free"] = work

    for queue in (*QUEUES, None):
        define(queue)
    return stage


async def _live(stage: SimulatedJobs, tenant: str, number: int) -> None:
    """What a body does, as its number and the attempt decide."""
    attempt = current().attempt or 1
    random = stream(current_loop().seed, f"body {number} {attempt}")
    if random.random() < 0.5:
        await asyncio.sleep(random.choice([0.05, 0.3, 1.0, 1.0, 8.0]))
    chance = random.random()
    if chance < 0.08:
        raise Defect(f"{number} fails this time")
    if chance < 0.12 and attempt == 1 and crc32(str(current_loop().time()).encode()) % 2:
        raise Snooze(random.uniform(0.1, 3.0))
    if chance < 0.15:
        raise Discard("no longer wanted")
    if chance < 0.25 and number < 1_000_000:
        await stage.cluster.send(stage.job(random.choice([*QUEUES, "free"]), tenant, number + 1_000_000))
    if number % 37 == 0:
        raise Defect(f"{number} always fails")


async def main(*, lasting_s: float = LASTING_S, runners: int = RUNNERS, least: int = 60) -> int:
    """One seed: faults throughout, then calm, in which all jobs end, then judgement."""
    return await run(lasting_s=lasting_s, runners=runners, least=least)


async def run(
    *,
    lasting_s: float = LASTING_S,
    runners: int = RUNNERS,
    least: int = 60,
    faults: tuple[Fault, ...] = EVERYTHING,
    ranks: bool = False,
) -> int:
    """As `main`, with other faults; with `ranks` the order of ranks is judged, too."""
    async with simulated(faults) as (stage, sim):
        await sim.start(runners)
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(Client(stage, number).act(until_s=sim.loop.time() + lasting_s))
        await sim.calm()
        for runner in sim.runners:
            sim.network.heal(sim.loop.test.name, runner.name)
        await settle(stage, sim)
        history = stage.recorded.history()
    judges = [each for each in checkers(slack_s=SLACK_S) if ranks or not isinstance(each, RanksInOrder)]
    check(history, *judges)
    ended = sum(isinstance(event, EndTold) for event in history)
    assert ended > least, f"only {ended} jobs have ended: the run shows nothing"
    assert any(isinstance(event, CancelTold) for event in history), "nothing was cancelled"
    return ended


@asynccontextmanager
async def simulated(faults: tuple[Fault, ...]) -> AsyncIterator[tuple[SimulatedJobs, Simulation]]:
    """A cluster without runners, in which is written down what happens to jobs."""
    stage = new_stage()
    async with simulate(stage.cluster, runners=0, faults=faults) as sim:
        with ExitStack() as watching:
            watching.enter_context(stage.watching(sim))
            yield stage, sim


async def settle(stage: SimulatedJobs, sim: Simulation) -> None:
    """Wait until every job has ended; what never ends is found by the judge."""
    for queue in QUEUES:
        await _insist(partial(stage.cluster.queues.resume, queue))
        await _insist(partial(stage.cluster.queues.limits, queue, reset=True))
    for _ in range(QUIET_S):
        if not sim.database.main.execute("select count(*) from jobs where state < 4").get:
            return
        await sim.advance(1)


async def _insist(act: Callable[[], Any]) -> None:
    for _ in range(60):
        try:
            await act()
        except CoterieError:
            await asyncio.sleep(1)
        else:
            return
    raise TimeoutError("the database does not answer")


class Client:
    """One of those who send, one call after the other."""

    def __init__(self, stage: SimulatedJobs, number: int) -> None:
        self._stage = stage
        self._cluster = stage.cluster
        self._random: Stream = stream(current_loop().seed, f"client {number}")
        self._sent: list[Any] = []

    async def act(self, *, until_s: float) -> None:
        """Until that time."""
        often = (self.send, self.send, self.send, self.burst, self.wait)
        acts = (*often, *often, self.cancel, self.cancel, self.pause, self.resume, self.resume, self.limit, self.revive)
        while current_loop().time() < until_s:
            await asyncio.sleep(self._random.expovariate(1.2))
            try:
                await self._random.choice(acts)()
            except (CoterieError, Defect, ValueError):
                continue  # what came of it is in the database

    async def send(self) -> None:
        """One, now or later, with a priority, or a key that repeats."""
        random, options = self._random, {}
        if random.random() < 0.2:
            options["delay"] = random.uniform(0, 10)
        if random.random() < 0.2:
            options["priority"] = random.randint(-2, 2)
        number = 1000 + random.randrange(20) if random.random() < 0.15 else next(self._stage.numbers)
        tenant = f"t{number % TENANTS}"  # of one key
        await self._send(self._stage.job(self._task(), tenant, number), **options)

    async def burst(self) -> None:
        """Several of one queue."""
        task, numbers = self._task(), [next(self._stage.numbers) for _ in range(self._random.randint(2, 12))]
        calls = [self._stage.job(task, f"t{self._random.randrange(TENANTS)}", number) for number in numbers]
        try:
            ids = await self._cluster.send_many(calls)
        except CoterieError as error:
            ids = list(getattr(error, "stored", ()))
            for each in ids:
                self._stage.recorded.note(JobSent(str(each)))
            raise
        for each in ids:
            self._stage.recorded.note(JobSent(str(each)))
        self._sent += ids

    async def wait(self) -> None:
        """For the result of one that was sent, whatever it is."""
        if self._sent:
            await self._cluster.result(self._random.choice(self._sent[-10:]), timeout=self._random.choice([1, 10]))

    async def cancel(self) -> None:
        """One of the last ones."""
        if self._sent:
            job = self._random.choice(self._sent[-4:])
            if await self._cluster.cancel(job):
                self._stage.recorded.note(CancelTold(str(job)))

    async def pause(self) -> None:
        """A queue, for a while."""
        queue = self._random.choice(QUEUES)
        await self._cluster.queues.pause(queue)
        await asyncio.sleep(self._random.uniform(0, 3))
        await self._cluster.queues.resume(queue)

    async def resume(self) -> None:
        """All queues."""
        for each in QUEUES:
            await self._cluster.queues.resume(each)

    async def limit(self) -> None:
        """Other limits, or those of the program again."""
        random, queue = self._random, self._random.choice(["slots", "wide", "rated"])
        if random.random() < 0.4:
            await self._cluster.queues.limits(queue, reset=True)
        elif queue == "rated":
            await self._cluster.queues.limits(queue, rate=random.choice(["1/s", "5/s"]))
        else:
            await self._cluster.queues.limits(queue, concurrency=random.randint(1, 6))

    async def revive(self) -> None:
        """A dead one."""
        dead = await self._cluster.jobs.list(state="dead", limit=3)
        if dead:
            await self._cluster.jobs.retry(self._random.choice(dead).id)

    async def _send(self, call: Any, **options: Any) -> None:
        job = await self._cluster.send(call, **options)
        self._stage.recorded.note(JobSent(str(job)))
        self._sent.append(job)

    def _task(self) -> str:
        return self._random.choice([*QUEUES, "free"])
