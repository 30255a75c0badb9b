"""Real processes that send and run jobs of queues with limits, judged at the end."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie import Cluster, CoterieError
from coterie.testing import processes
from tests.cluster import job_load_program
from tests.cluster.job_history import Notes, judge
from tests.cluster.job_load_program import KINDS, NUMBER, Journal, define
from tests.cluster.job_trail import Trail
from tests.cluster.process_roles import ProcessRoles
from tests.cluster.seat_cluster import NO_HTTP, QUICK

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from coterie.storage.contracts.jobs import JobState
    from coterie.testing import Process, Processes
    from tests.cluster.job_load_program import Tasks
    from tests.support.history.ownership import Event

PROGRAM = Path(job_load_program.__file__)
ROOT = PROGRAM.parent.parent.parent
QUIET_S = 300.0
BACKLOG = 100
"""Of the queue with a rate: so many of its jobs wait at least, so that it is busy."""
UNFINISHED: tuple[JobState, ...] = ("later", "ready", "claimed", "parked")


class Load(ProcessRoles):
    """Runners and clients, an operator in this process, and what all have noted."""

    def __init__(self, cluster: Processes, client: Cluster, tasks: Tasks, folder: Path) -> None:
        super().__init__(cluster)
        self.client = client
        self.trail = Trail(cluster.url)
        self.wait_until = cluster.wait_until
        self.retried = 0
        """Dead jobs that were run again."""
        self.orders = 0
        """What the operator did."""
        self._tasks = tasks
        self._folder = folder
        self._journal = Journal(str(folder), "operator")
        self._numbers = itertools.count(1)
        self._feeding: asyncio.Task[None] | None = None

    async def start_runners(self, n: int = 1, **variables: str) -> list[Process]:
        """Start runners; when this returns their queues are there."""
        new = await super().start_runners(n, **variables)
        await self.wait_until(self._has_queues)
        return new

    async def start_clients(self, n: int, *, senders: int) -> None:
        """Start clients that send jobs."""
        self.clients += await self.start(n, {"JOBS_SENDS": str(senders)})

    def notes(self) -> Notes:
        """What all processes have noted so far."""
        return Notes.read(self._folder)

    def feed(self) -> None:
        """From now on let jobs of the queue with a rate wait, always."""
        self._feeding = asyncio.create_task(self._feed_on())

    async def operate(self, *, until_s: float, seed: int) -> None:
        """Pause queues, let them go on, change their limits and retry what is dead until the time is over."""
        chance = random.Random(seed)
        while time.monotonic() < until_s:
            await asyncio.sleep(chance.uniform(0.2, 2.0))
            name = chance.choice(("narrow", "shared", "rated"))
            act = chance.choice((self._pause, self._limit, self._limit, self._retry_dead))
            with suppress(CoterieError):
                await act(name, chance)
                self.orders += 1
        for name in ("narrow", "shared", "rated"):
            await _until_answered(lambda name=name: self.client.queues.resume(name))  # type: ignore[misc]
            await _until_answered(lambda name=name: self.client.queues.limits(name, reset=True))  # type: ignore[misc]

    async def close(self) -> tuple[Counter[str], list[tuple[int, Event]]]:
        """Let clients and jobs come to their end, and judge all; how many there were of each kind, and the trail."""
        if self._feeding is not None:
            self._feeding.cancel()
            with suppress(asyncio.CancelledError):
                await self._feeding
        leaving = [each for each in self.clients if each.alive]
        codes = await asyncio.gather(*(each.stop(within=QUIET_S) for each in leaving))
        assert not any(codes), [each.tail() for each in leaving]
        await _until_answered(lambda: self.client.queues.limits("rated", rate=None))
        await self.wait_until(self._is_quiet, within=QUIET_S)
        committed, left = await self.trail.committed(), await self.trail.left()
        return judge(committed, self.notes(), left), committed

    async def _has_queues(self) -> bool:
        with suppress(CoterieError):
            return len(await self.client.queues.list()) == 3
        return False

    async def _is_quiet(self) -> bool:
        """Whether every job has ended; what is dead is run again. At last in one look: between two a job goes on."""
        jobs = self.client.jobs
        try:
            for state in UNFINISHED:
                if await jobs.list(state=state, limit=1):
                    return False
            dead = await jobs.list(state="dead", limit=1000)
            for each in dead:
                self.retried += await jobs.retry(each.id)
        except CoterieError:
            return False
        return not dead and not {each.state for each in await self.trail.left()} & {"dead", *UNFINISHED}

    async def _feed_on(self) -> None:
        while True:
            queue = await _until_answered(lambda: self.client.queues.get("rated"))
            if queue.ready < BACKLOG:
                numbers = [next(self._numbers) for _ in range(BACKLOG)]
                kinds = random.choices(KINDS, k=BACKLOG)
                for number in numbers:
                    self._journal.note("tried", number=number)
                for number, kind in zip(numbers, kinds, strict=True):
                    tags, job = {NUMBER: str(number)}, lambda number=number, kind=kind: self._rated(number, kind)
                    id_ = await _until_answered(lambda job=job, tags=tags: self.client.send(job(), tags=tags))  # type: ignore[misc]
                    self._journal.note("sent", number=number, job=str(id_))
            await asyncio.sleep(0.3)

    def _rated(self, number: int, kind: str) -> Any:
        return self._tasks.rated.job(number, kind)

    async def _pause(self, name: str, chance: random.Random) -> None:
        await self.client.queues.pause(name)
        await asyncio.sleep(chance.uniform(0, 2.0))
        await self.client.queues.resume(name)

    async def _limit(self, name: str, chance: random.Random) -> None:
        queues = self.client.queues
        if chance.random() < 0.3:
            await queues.limits(name, reset=True)
        elif name == "rated":
            await queues.limits(name, rate=f"{chance.randint(5, 30)}/s", burst=chance.randint(1, 10))
        elif name == "shared":
            await queues.limits(name, concurrency=chance.randint(4, 12), partition_concurrency=chance.randint(1, 3))
        else:
            await queues.limits(name, concurrency=chance.randint(1, 8))

    async def _retry_dead(self, name: str, _: random.Random) -> None:
        for each in await self.client.jobs.list(state="dead", queue=name, limit=20):
            self.retried += await self.client.jobs.retry(each.id)


async def _until_answered(act: Callable[[], Awaitable[Any]]) -> Any:
    while True:
        try:
            return await act()
        except CoterieError:
            await asyncio.sleep(0.1)


@asynccontextmanager
async def load(
    url: str, folder: Path, *, times: Mapping[str, str] = QUICK, directory: Path | None = None
) -> AsyncIterator[Load]:
    """A database in which the trail is kept, and no process yet."""
    journals = folder / "journals"
    journals.mkdir()
    env = {
        "JOBS_JOURNAL": str(journals),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/src",
        "COTERIE_DRAIN": "2s",
        **NO_HTTP,
        **times,
    }

    def ready(process: Process) -> object:
        return (journals / f"{process.name}.{process.pid}.jsonl").exists()

    client = Cluster(url)
    tasks = define(client)
    opened = processes(PROGRAM, runners=0, url=url, env=env, directory=directory, ready=ready)
    async with opened as cluster, client.connect():
        here = Load(cluster, client, tasks, journals)
        await here.trail.begin()
        yield here
