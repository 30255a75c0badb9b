"""What steps cost: workflows of ten steps, one and a hundred at once, in this process.

RAW is one INSERT of a row of the same size with a commit of its own, one after another on one connection. The time of a
run contains its start and its end, which are commits, too; a step is measured by itself, from its call to its result.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import apsw
import asyncpg

from bench import runs
from bench.measure import Row
from bench.ownership import DURABLE
from coterie import Cluster, Settings, Workflow
from coterie.kernel.random import Random
from coterie.kernel.supervisor import Supervisor
from coterie.testing import Server
from coterie.work.pruner import Pruner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Insert = Callable[[], Awaitable[object]]

STEPS = 10
RUNNING = 100
GOAL_MANY = 2.0
GOAL_ONE = 1 / 1.6
GOAL_PRUNED = 1.0
BODY = "b" * 100


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """Steps per second with many running, and the median time of a step with one, on both engines."""
    with closing(Server(options=DURABLE)) as server, tempfile.TemporaryDirectory() as folder:
        server.start()
        for engine, url in (
            ("postgres", server.url(server.create_database())),
            ("sqlite", f"sqlite:///{folder}/steps.db"),
        ):
            goals = (GOAL_MANY, GOAL_ONE) if engine == "postgres" else (None, None)
            async with Bench(url) as ours, _raw(url.replace("steps.db", "raw.db")) as raw:
                yield await _many(
                    f"steps / commits, {engine}", ours, raw, rounds=rounds, seconds=seconds, goal=goals[0]
                )
                yield await _pruned(f"runs pruned / ended, {engine}", ours, rounds=rounds, seconds=seconds)
                yield await _one(f"lone step / commit, {engine}", ours, raw, rounds=rounds, times=300, goal=goals[1])
            empty = server.url(server.create_database()) if engine == "postgres" else f"sqlite:///{folder}/runs.db"
            async for row in runs.run(engine, empty, quick=rounds < 7):
                yield row


class Bench:
    """A runner that runs workflows of ten steps."""

    def __init__(self, url: str) -> None:
        self._cluster = Cluster(url)
        self._ids = itertools.count(1)
        self._ended: dict[str, asyncio.Future[None]] = {}
        self.taken_s: list[float] = []
        self._body = self._cluster.workflow(name="ten")(self._ten)

    async def __aenter__(self) -> Bench:
        await self._cluster.start()
        await self._cluster.ready()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._cluster.stop()

    async def ten(self) -> None:
        """One run, from its start to its last step."""
        number = str(next(self._ids))
        done = self._ended[number] = asyncio.get_running_loop().create_future()
        await self._cluster.start_workflow(self._body, None, id=number)
        await done

    async def prune(self) -> int:
        """Delete all runs that are over, as a pruner does for whom they are old enough; how many it were."""
        here = self._cluster._acting()
        settings = Settings.load(dict.fromkeys(("retention", "key_retention", "call_timeout"), "10ms"), environ={})
        pruner = Pruner(here.storage, settings, chance=Random(), supervisor=Supervisor(), tables=["units"])
        return (await pruner.prune())["units"]

    async def _ten(self, workflow: Workflow, payload: None) -> None:
        del payload
        for number in range(STEPS):
            began = time.perf_counter()
            await workflow.step(f"step {number}", _step)
            self.taken_s.append(time.perf_counter() - began)
        self._ended.pop(workflow.id).set_result(None)


async def _step() -> str:
    return BODY


async def _many(scenario: str, ours: Bench, raw: Insert, *, rounds: int, seconds: float, goal: float | None) -> Row:
    pairs = []
    for _ in range(rounds):
        base = await _rate(raw, callers=1, seconds=seconds)
        pairs.append((STEPS * await _rate(ours.ten, callers=RUNNING, seconds=seconds), base))
    return _row(scenario, RUNNING, pairs, goal)


async def _pruned(scenario: str, ours: Bench, *, rounds: int, seconds: float) -> Row:
    """Runs that one pruner deletes per second, beside those that end: it must not fall behind."""
    pairs = []
    for _ in range(rounds):
        ended = await _rate(ours.ten, callers=RUNNING, seconds=seconds)
        began = time.perf_counter()
        deleted = await ours.prune()
        pairs.append((deleted / (time.perf_counter() - began), ended))
    return _row(scenario, RUNNING, pairs, GOAL_PRUNED)


async def _one(scenario: str, ours: Bench, raw: Insert, *, rounds: int, times: int, goal: float | None) -> Row:
    pairs = []
    for _ in range(rounds):
        base = []
        for _ in range(times):
            began = time.perf_counter()
            await raw()
            base.append(time.perf_counter() - began)
        ours.taken_s.clear()
        while len(ours.taken_s) < times:
            await ours.ten()
        pairs.append((1 / statistics.median(ours.taken_s), 1 / statistics.median(base)))
    return _row(scenario, 1, pairs, goal)


async def _rate(work: Insert, *, callers: int, seconds: float) -> float:
    until, done = time.perf_counter() + seconds, 0

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await work()
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return done / (time.perf_counter() - began)


def _row(scenario: str, callers: int, pairs: list[tuple[float, float]], goal: float | None) -> Row:
    return Row(
        scenario,
        callers,
        statistics.median(ours for ours, _ in pairs),
        statistics.median(base for _, base in pairs),
        statistics.median(ours / base for ours, base in pairs),
        goal,
    )


@asynccontextmanager
async def _raw(url: str) -> AsyncIterator[Insert]:
    numbers = itertools.count(1)
    table = "create table raw(number bigint primary key, body text)"
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.execute("pragma journal_mode=wal; pragma synchronous=full")
        connection.execute(table)
        with ThreadPoolExecutor(1) as thread:

            def insert() -> None:
                connection.execute("insert into raw values (?, ?)", (next(numbers), BODY))

            yield lambda: asyncio.get_running_loop().run_in_executor(thread, insert)
        connection.close()
        return
    session = await asyncpg.connect(url)
    await session.execute(table)
    statement = await session.prepare("insert into raw values ($1, $2)")
    yield lambda: statement.fetch(next(numbers), BODY)
    await session.close()
