"""How long nobody saves when a leader is killed, freezes, is cut off or restarted, and what one save costs.

Three real processes, settings as by default, a leader that saves every 20 ms; a gap lasts from the last save of the
old leader to the first one of the new. Every trial ends with the judgement of all saves, see
`tests.cluster.leader_cluster`: none that was acknowledged is lost, none of a former leader is accepted.

RAW is one UPDATE of one row under the fence, by a worker that takes its jobs from a queue as our writer does, on SQLite
in a thread; it keeps no history.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import asyncpg
from tests.cluster.leader_cluster import block, crew, cut, freeze, kill, restart, roll

from bench.measure import Row, compare_alone
from bench.ownership import DURABLE, REST_S, limit
from coterie import Cluster, Leader
from coterie.kernel.service import Tasks
from coterie.testing import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import Any

    from tests.cluster.leader_cluster import Befall

    from bench.measure import Work

    Execute = Callable[..., Awaitable[Any]]

MOST_MS = 10_000
BLOCK_S = 12.0
"""Longer than a blocked leader takes to be replaced."""
GOAL = 1 / 1.5
BODY = "b" * 100


@dataclass
class Count:
    """A state that each save changes."""

    number: int = 0
    body: str = BODY


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """What a save costs, then a row for each thing that befalls a leader: 20 times unless a quick look is wanted."""
    trials = 20 if rounds >= 7 else 3
    with closing(Server(options=DURABLE)) as server, tempfile.TemporaryDirectory() as folder:
        server.start()
        database = server.create_database()
        times = int(300 * seconds)
        for engine, url in (("postgres", server.url(database)), ("sqlite", f"sqlite:///{folder}/saves.db")):
            async with _leader(url) as save, _raw(url.replace("saves.db", "raw.db")) as raw:
                yield await compare_alone(f"save, {engine}", ours=save, raw=raw, goal=GOAL, rounds=rounds, times=times)
        for what, befall, median in _befalls(server):
            url = server.url(server.create_database())
            yield limit(
                f"gap: {what}", await _gaps(what, befall, url, trials), trials=trials, median=median, most=MOST_MS
            )
        for number, (what, befall, _) in enumerate(_befalls(None)):
            url = f"sqlite:///{folder}/{number}.db"
            yield limit(f"gap: {what}, sqlite", await _gaps(what, befall, url, trials), trials=trials, most=MOST_MS)


def _befalls(server: Server | None) -> list[tuple[str, Befall, float | None]]:
    """With the goal for the median, in milliseconds. SQLite has no server, and no network to be cut."""
    anywhere: list[tuple[str, Befall, float | None]] = [
        ("SIGKILL", kill, 400),
        ("rolling restart", roll, 150),
        ("SIGSTOP, SIGCONT", freeze, None),
        ("blocked loop", block, None),
    ]
    return anywhere if server is None else [*anywhere, ("cut off", cut, None), ("restart", restart(server), None)]


async def _gaps(what: str, befall: Befall, url: str, trials: int) -> list[float]:
    gaps = []
    with tempfile.TemporaryDirectory() as folder:
        async with crew(url, Path(folder), times={}, proxied=befall is cut, block_s=BLOCK_S) as there:
            for number in range(trials):
                print(f"\r{what}: trial {number + 1} of {trials} ", end="", file=sys.stderr, flush=True)
                await asyncio.sleep(REST_S)
                gaps += await befall(there)
    print("\r" + " " * 50 + "\r", end="", file=sys.stderr, flush=True)
    return gaps


@asynccontextmanager
async def _leader(url: str) -> AsyncIterator[Work]:
    """A save by a leader in this process."""
    cluster = Cluster(url)
    found: asyncio.Future[Leader[Count]] = asyncio.get_running_loop().create_future()

    @cluster.singleton("count", state=Count)
    async def count(leader: Leader[Count]) -> None:
        found.set_result(leader)

    async with cluster:
        leader, numbers = await found, itertools.count(1)
        yield lambda: leader.save(Count(next(numbers)))


TABLES = (
    "create table raw(key text primary key, body text, version bigint)",
    "insert into raw values ('count', '', 0)",
    "create table seat(name text primary key, epoch bigint)",
    "insert into seat values ('count', 1)",
)
FENCED = """
    with held as materialized (select from seat where name = 'count' and epoch = 1 for share)
    update raw set body = $1, version = version + 1
    where key = 'count' and version = $2 and exists (select from held) returning version"""
FENCED_SQLITE = """
    update raw set body = ?, version = version + 1
    where key = 'count' and version = ? and exists (select 1 from seat where name = 'count' and epoch = 1)"""


@asynccontextmanager
async def _raw(url: str) -> AsyncIterator[Work]:
    """One UPDATE of one row while a seat is held, by the worker of a queue, on one connection."""
    opened = _raw_sqlite(url) if url.startswith("sqlite") else _raw_postgres(url)
    versions, inbox = itertools.count(), asyncio.Queue[asyncio.Future[None]]()

    async def work(execute: Execute) -> None:
        while True:
            done = await inbox.get()
            assert await execute(BODY, next(versions)), "it was not written"
            done.set_result(None)

    def update() -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        inbox.put_nowait(done)
        return done

    async with opened as execute:
        worker = Tasks("raw")
        worker.spawn(work(execute), name="work")
        yield update
        await worker.stop()


@asynccontextmanager
async def _raw_postgres(url: str) -> AsyncIterator[Execute]:
    session = await asyncpg.connect(url)
    for each in TABLES:
        await session.execute(each)
    statement = await session.prepare(FENCED)
    yield statement.fetch
    await session.close()


@asynccontextmanager
async def _raw_sqlite(url: str) -> AsyncIterator[Execute]:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.execute("pragma journal_mode=wal; pragma synchronous=full")
    for each in TABLES:
        connection.execute(each)

    def execute(*values: Any) -> int:
        connection.execute(FENCED_SQLITE, values)
        return connection.changes()

    with ThreadPoolExecutor(1) as thread:
        loop = asyncio.get_running_loop()
        yield lambda *values: loop.run_in_executor(thread, execute, *values)
    connection.close()
