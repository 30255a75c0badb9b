"""Jobs from one process on two runners in others: a second end to end, one at a time, at a rate, beside a backlog.

A task that does nothing. RAW of the lone job is one durable commit of one row; of jobs end to end it is the goal;
beside a backlog it is a queue that has a short one; beside other task queues (see `task_peers`) it is these, taking
turns on the same server, each with a database, two workers and a sender of its own. Starts are counted by their
stored instants.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import itertools
import statistics
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import apsw
import asyncpg

from bench import peers, task_peers
from bench.measure import Row, compare, compare_alone
from bench.messages import commits, databases
from bench.ownership import Limit
from coterie import Cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from bench.task_peers import Drain

RUNNERS = 2
LEAST_PER_S, MOST_COMMITS = 5_000, 6
LOOK_S, WITHIN_S = 0.01, 600
RATE, WINDOW_S, RATE_WITHIN = 100, 60, 0.02
BACKLOG, FEW, TEMPLATES, TENANTS, CALLERS = 1_000_000, 1_000, 100, 500, 100
FEW_ROUNDS = 3
_OPEN = "select " + " or ".join(f"exists (select 1 from coterie.jobs where state = {state})" for state in range(4))
"""Each of these states has an index, which is empty or small; the table is full of what is over."""
_STARTS = "select extract(epoch from claimed_at)::float8 from coterie.jobs where task = 'limited' order by 1"
_COPY = """
insert into coterie.jobs
select (t.r).*
from (
    select jsonb_populate_record(r, jsonb_build_object('id', 'j' || md5(r.id || n))) as r
    from coterie.jobs as r cross join generate_series(1, $1::bigint) as n
    where r.task = 'held' and r.state = 1
) as t
"""


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """Both engines; what needs many rows, a rate or another task queue on PostgreSQL."""
    names = task_peers.set_up()
    for engine in ("postgres", "sqlite"):
        async with databases(engine) as (url, other), _running(url) as jobs:
            async with commits(other) as commit:
                times = int(300 * seconds)
                yield await compare_alone(
                    f"lone job / commit, {engine}",
                    ours=jobs.lone,
                    raw=commit,
                    goal=1 / MOST_COMMITS,
                    rounds=rounds,
                    times=times,
                )
            yield await _drained(jobs.drain, engine, rounds=rounds, seconds=seconds)
            if engine == "postgres":
                yield await _at_rate(jobs, url, rounds=rounds)
                for name in names:
                    yield await _beside_peer(name, other, jobs.drain, rounds=rounds, seconds=seconds)
    yield await _beside_backlog(rounds=rounds, seconds=seconds)


@dataclass(frozen=True)
class Jobs:
    """A client, with two runners elsewhere."""

    cluster: Cluster
    program: Program
    is_open: Callable[[], Any]
    """Whether any job is not over."""

    async def lone(self) -> object:
        return await self.program.nothing.job(1)

    async def drain(self, count: int) -> float:
        """Send so many and wait until they are over: how many seconds it took."""
        began = time.perf_counter()
        await self.cluster.send_many(self.program.nothing.job(number) for number in range(count))
        async with asyncio.timeout(WITHIN_S):
            while await self.is_open():
                await asyncio.sleep(LOOK_S)
        return time.perf_counter() - began


class Program:
    """The tasks, the same in each process."""

    def __init__(self, url: str) -> None:
        self.cluster = Cluster(url)
        self.nothing = self.cluster.task(name="nothing")(_nothing)
        limited = self.cluster.queue("limited", rate=f"{RATE}/s")
        self.limited = self.cluster.task(name="limited", queue=limited)(_nothing)
        options: dict[str, Any] = {"partition": "tenant", "partition_concurrency": 1}
        full, empty = self.cluster.queue("full", **options), self.cluster.queue("empty", **options)
        self.held = self.cluster.task(name="held", queue=full)(_held)
        self.beside_held = self.cluster.task(name="beside_held", queue=full)(_of_tenant)
        self.beside_few = self.cluster.task(name="beside_few", queue=empty)(_of_tenant)
        self.few = self.cluster.task(name="few", queue=empty)(_held)


async def _nothing(number: int) -> int:
    return number


async def _of_tenant(tenant: str) -> str:
    return tenant


async def _held(tenant: str) -> None:
    """Keeps the only place of its tenant for as long as it is measured."""
    await asyncio.sleep(WITHIN_S + len(tenant))


@asynccontextmanager
async def _running(url: str) -> AsyncIterator[Jobs]:
    async with AsyncExitStack() as stack:
        for _ in range(RUNNERS):
            await stack.enter_async_context(peers.elsewhere(partial(_serve, url), pinned=False))
        program = Program(url)
        await stack.enter_async_context(program.cluster.connect())
        is_open = await stack.enter_async_context(_open_jobs(url))
        yield Jobs(program.cluster, program, is_open)


@asynccontextmanager
async def _open_jobs(url: str) -> AsyncIterator[Callable[[], Any]]:
    if url.startswith("sqlite"):
        with contextlib.closing(apsw.Connection(url.removeprefix("sqlite:///"))) as connection:

            async def is_open() -> bool:
                return bool(connection.execute(_OPEN.replace("coterie.", "")).get)

            yield is_open
        return
    session = await asyncpg.connect(url, server_settings={"enable_seqscan": "off"})
    try:
        yield partial(session.fetchval, _OPEN)
    finally:
        await session.close()


async def _serve(url: str) -> str:
    cluster = Program(url).cluster
    await cluster.start()
    await cluster.ready(timeout="30s")
    peers.keep.append(cluster)
    return url


async def _sized(drain: Drain, *, seconds: float) -> int:
    """How many jobs take about four times `seconds`; it is warm then."""
    size = 200
    while (took := await drain(size)) < seconds:
        size = min(4 * size, int(4 * seconds * size / took) + 1)
    return int(4 * seconds * size / took)


async def _drained(drain: Drain, engine: str, *, rounds: int, seconds: float) -> Row:
    count = await _sized(drain, seconds=seconds)
    per_s = [count / await drain(count) for _ in range(rounds)]
    median = statistics.median(per_s)
    goal = 1.0 if engine == "postgres" else None
    return Row(f"jobs end to end, {engine}", RUNNERS, median, LEAST_PER_S, median / LEAST_PER_S, goal)


async def _beside_peer(name: str, url: str, drain: Drain, *, rounds: int, seconds: float) -> Row:
    """Both are given what takes them about as long, in turns."""
    async with task_peers.peer(name, url) as theirs:
        count = await _sized(drain, seconds=seconds)
        their_count = await _sized(theirs, seconds=seconds)
        pairs = [(count / await drain(count), their_count / await theirs(their_count)) for _ in range(rounds)]
    ours, raw = (statistics.median(each) for each in zip(*pairs, strict=True))
    ratio = statistics.median(mine / other for mine, other in pairs)
    return Row(f"jobs end to end / {name}", task_peers.WORKERS, ours, raw, ratio, None)


async def _at_rate(jobs: Jobs, url: str, *, rounds: int) -> Row:
    """The starts in each window of a minute (of 10 s in a quick look), by the stored instants."""
    window_s = WINDOW_S if rounds > FEW_ROUNDS else 10
    await jobs.cluster.send_many(jobs.program.limited.job(number) for number in range(int(RATE * window_s * 1.25)))
    async with asyncio.timeout(WITHIN_S):
        while await jobs.is_open():
            await asyncio.sleep(0.5)
    session = await asyncpg.connect(url)
    starts = [row[0] for row in await session.fetch(_STARTS)]
    await session.close()
    off = sorted(abs(count / (RATE * window_s) - 1) for count in _counts(starts, window_s))
    ratio = RATE_WITHIN / max(off[-1], 1e-9)
    median, most = (100 * each for each in (statistics.median(off), off[-1]))
    return Limit(f"rate {RATE}/s off in {window_s} s", RATE, 0, 0, min(ratio, 99), 1, median, most, "%")


def _counts(starts: Sequence[float], window_s: float) -> list[int]:
    """How many starts each window holds that begins with one and ends before the last one."""
    begins = [at for at in starts if at + window_s <= starts[-1]]
    return [bisect.bisect_left(starts, at + window_s) - number for number, at in enumerate(begins)]


async def _beside_backlog(*, rounds: int, seconds: float) -> Row:
    """Jobs of tenants beside very many of another one who is at his limit; RAW is the same beside a thousand."""
    count = BACKLOG if rounds > FEW_ROUNDS else BACKLOG // 10
    async with databases("postgres") as (url, _), _running(url) as jobs:
        program, send_many = jobs.program, jobs.cluster.send_many
        await send_many(program.held.job("busy") for _ in range(TEMPLATES + 1))
        await send_many(program.few.job("busy") for _ in range(FEW))
        await program.beside_held.job("first")  # by now one of the busy tenant runs
        session = await asyncpg.connect(url)
        await session.execute(_COPY, count // TEMPLATES - 1, timeout=WITHIN_S)
        await session.execute("vacuum analyze coterie.jobs", timeout=WITHIN_S)
        await session.close()
        tenants = itertools.cycle([f"tenant-{number}" for number in range(TENANTS)])
        return await compare(
            f"beside {count:,} waiting",
            ours=lambda: program.beside_held.job(next(tenants)),
            raw=lambda: program.beside_few.job(next(tenants)),
            callers=CALLERS,
            goal=0.8,
            rounds=rounds,
            seconds=2 * seconds,
        )
