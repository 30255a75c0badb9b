"""Jobs on two runners: who starts them, in which order, within which limits; what happens when one leaves (T2-T4)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster
from coterie.storage.contracts.jobs import JobFilter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


class Worker:
    """One process with the program: a runner, what ran on it, and how many jobs ran at once."""

    def __init__(self, url: str, name: str, *, begin: asyncio.Event, has_mail: bool = True) -> None:
        self.cluster = cluster = Cluster(url, name="jobs", runner_name=name, shards=2, http_listen=None, jobs=20)
        self.name = name
        self.ran: list[tuple[str, int]] = []
        self.running: list[str] = []
        self.begin = begin

        @cluster.task
        async def free(number: int) -> str:
            self.ran.append(("free", number))
            return name

        self.free = free
        if not has_mail:
            return
        mails = cluster.queue("mails", concurrency=3, partition="tenant", partition_concurrency=1)
        slow = cluster.queue("slow", rate="20/s")

        @cluster.task(queue=mails)
        async def mail(tenant: str, number: int) -> str:
            self.ran.append((tenant, number))
            self.running.append(tenant)
            try:
                await self.begin.wait()
                await asyncio.sleep(0)
            finally:
                self.running.remove(tenant)
            return name

        @cluster.task(queue=slow)
        async def limited(number: int) -> str:
            return name

        self.mail, self.limited = mail, limited

    async def mail_is_defined(self) -> None:
        """Wait until the holder of its seat has stored the queue."""
        async with asyncio.timeout(120):
            while "mails" not in [each.name for each in await self.cluster.queues.list()]:
                await asyncio.sleep(0.01)


class Workers:
    """Two of them on one database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.begin = asyncio.Event()
        self.all: list[Worker] = []
        self._last = AsyncExitStack()

    async def start(self, name: str, **options: Any) -> Worker:
        made = Worker(self.url, name, begin=self.begin, **options)
        await self._last.enter_async_context(made.cluster)
        await made.cluster.ready()
        self.all.append(made)
        return made

    async def stop(self) -> None:
        self.begin.set()
        await self._last.aclose()

    @property
    def ran(self) -> list[tuple[str, int]]:
        return [each for worker in self.all for each in worker.ran]

    @property
    def running(self) -> list[str]:
        return [each for worker in self.all for each in worker.running]


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.postgres)])
async def workers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Workers]:
    is_file = request.param == "file"
    made = Workers(f"sqlite:///{tmp_path}/jobs.db" if is_file else request.getfixturevalue("migrated_url"))
    yield made
    await made.stop()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(0.01)


async def settled() -> None:
    """Let begin what may begin."""
    await asyncio.sleep(0.3)


async def test_jobs_without_a_queue_run_on_both_runners(workers: Workers) -> None:
    one, other = [await workers.start(name) for name in ("one", "other")]
    ids = await one.cluster.send_many(one.free.job(number) for number in range(200))
    done = {await one.cluster.result(each) for each in ids}
    assert done == {"one", "other"}
    assert sorted(workers.ran) == [("free", number) for number in range(200)]
    assert await other.free.job(1)


async def test_limits_hold_on_both_runners_together(workers: Workers) -> None:
    """T2, T3: three at a time, one of each tenant, first starts in order of sending."""
    one, other = [await workers.start(name) for name in ("one", "other")]
    sent = [(tenant, number) for number in range(4) for tenant in ("a", "b", "c", "d")]
    ids = [await one.cluster.send(one.mail.job(*each)) for each in sent]
    await until(lambda: len(workers.running) == 3)
    await settled()
    assert len(workers.running) == len(set(workers.running)) == 3
    workers.begin.set()
    for each in ids:
        await other.cluster.result(each)
    for tenant in "abcd":
        by_runner = [[n for t, n in worker.ran if t == tenant] for worker in workers.all]
        assert all(numbers == sorted(numbers) for numbers in by_runner)
        assert sorted(by_runner[0] + by_runner[1]) == [0, 1, 2, 3]


async def test_limits_that_are_set_at_run_time_hold_at_once_and_a_pause_stops_all(workers: Workers) -> None:
    """T9."""
    one = await workers.start("one")
    await one.mail_is_defined()
    await one.cluster.queues.limits("mails", concurrency=1)
    ids = [await one.cluster.send(one.mail.job(tenant, 1)) for tenant in "abc"]
    await until(lambda: workers.running)
    await settled()
    assert len(workers.running) == 1
    await one.cluster.queues.pause("mails")
    workers.begin.set()
    await until(lambda: not workers.running)
    await settled()
    assert len(workers.ran) == 1
    await one.cluster.queues.limits("mails", reset=True)
    await one.cluster.queues.resume("mails")
    for each in ids:
        assert await one.cluster.result(each) == "one"


async def test_starts_keep_to_the_rate(workers: Workers) -> None:
    """T2: in any t seconds at most rate x t + burst starts, by the database's clock; and not far less."""
    one = await workers.start("one")
    ids = await one.cluster.send_many(one.limited.job(number) for number in range(30))
    for each in ids:
        await one.cluster.result(each)
    rows = await one.cluster._acting().storage.jobs.list(JobFilter(task="limited"))
    starts = sorted(row.claimed_at.timestamp() for row in rows if row.claimed_at is not None)
    for first, began_s in enumerate(starts):
        for last in range(first + 1, len(starts)):
            assert last - first + 1 <= 20 * (starts[last] - began_s) + 3 + 1e-6


async def test_jobs_go_on_when_their_holder_leaves(workers: Workers) -> None:
    one = await workers.start("one")
    other = await workers.start("other")
    workers.begin.set()
    ids = await other.cluster.send_many(other.mail.job(f"t{number % 7}", number) for number in range(60))
    await one.cluster.stop()
    for each in ids:
        assert await other.cluster.result(each) in ("one", "other")
    assert await other.free.job(1) == "other"


async def test_jobs_of_a_task_that_no_runner_knows_wait_until_one_does(workers: Workers) -> None:
    """The queue of another program has a holder; its jobs are set aside, so that they stand before no others."""
    one = await workers.start("one")
    plain = await workers.start("plain", has_mail=False)
    workers.begin.set()
    await one.cluster.stop()
    storage = plain.cluster._acting().storage
    sender = Worker(workers.url, "sender", begin=workers.begin)
    async with sender.cluster.connect():
        job = await sender.cluster.send(sender.mail.job("a", 1))
        parked: list[Any] = []
        async with asyncio.timeout(120):
            while not parked:
                await asyncio.sleep(0.05)
                parked = list(await storage.jobs.parked("queue:mails"))
        again = await workers.start("again")
        assert await sender.cluster.result(job) == "again"
        assert again.ran == [("a", 1)]


async def test_a_task_that_is_defined_after_the_start_runs(workers: Workers) -> None:
    """O7."""
    cluster = Cluster(workers.url, name="jobs", shards=2, http_listen=None)
    async with cluster:
        late = cluster.queue("late", concurrency=1)

        @cluster.task
        async def double(number: int) -> int:
            return 2 * number

        @cluster.task(queue=late)
        async def triple(number: int) -> int:
            return 3 * number

        assert await double.job(2) == 4
        assert await triple.job(2) == 6
