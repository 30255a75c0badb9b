"""Persisted calls from one process to a runner in another: answered per second, one at a time, on time.

RAW is the barest prototype of the durable path on the same database (`durable_prototype`: an insert and an end under
the fence, group committed, no wires, no handlers, no keys); for a lone call it is one durable commit of one row, and
beside messages that are finished it is our own storage without these.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import apsw
import asyncpg
from tests.support.postgres import Server

from bench import durable_prototype, finished, peers
from bench.measure import Row, compare, compare_alone
from bench.ownership import Limit
from coterie import Cluster, Encrypted, Entity, rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.measure import Work

IN_FLIGHT = 500
ENTITIES = 500
BODY = b"b" * 100
FINISHED, FEW_ROUNDS = 1_000_000, 3
SCHEDULED, OVER_S, LATE_MOST_MS = 1_000, 60, 50


@dataclass
class Count:
    """A state that changes with each call."""

    calls: int = 0


class Echo(Entity):
    """The trivial handler, persisted."""

    @rpc(persisted=True)
    async def echo(self, data: bytes) -> int:
        return len(data)

    @rpc(persisted=True)
    async def lateness(self, due_s: float) -> float:
        return time.time() - due_s


class Counter(Entity[Count]):
    """A handler that changes its state."""

    @rpc(persisted=True)
    async def count(self, data: bytes) -> int:
        self.state.calls += len(data)
        return self.state.calls


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """Both engines: in flight, with state, alone, on time, and beside many that are done."""
    for engine in ("postgres", "sqlite"):
        async with databases(engine) as (url, _), client(url) as cluster:
            many = partial(compare, callers=IN_FLIGHT, rounds=rounds, seconds=seconds * 2)
            echo, count = spread(cluster, Echo, "echo"), spread(cluster, Counter, "count")
            async with commits(_beside(url)) as commit:  # first: what many leave behind is cleared away for a while
                times = int(300 * seconds)
                yield await compare_alone(
                    f"lone persisted / commit, {engine}", ours=echo, raw=commit, goal=0.25, rounds=rounds, times=times
                )
                taken = await _taken(echo, times=times * 3)
                p50, p99 = (1e3 * taken[len(taken) * part // 100] for part in (50, 99))
                yield Limit(f"lone persisted call, {engine}", 1, 0, 0, 1, None, p50, p99, "ms")
            async with durable_prototype.opened(_beside(url)) as raw:
                numbers = itertools.count()
                prototype = lambda raw=raw, numbers=numbers: raw(next(numbers))  # noqa: E731 a Work
                yield await many(f"persisted call, {engine}", ours=echo, raw=prototype, goal=0.45)
                yield await many(f"… with state, {engine}", ours=count, raw=prototype, goal=0.35)
            yield await _on_time(cluster, engine)
        yield await _beside_finished(engine, rounds=rounds, seconds=seconds)


async def _beside_finished(engine: str, *, rounds: int, seconds: float) -> Row:
    """Inserts and ends, without wires, on a table full of what is done; RAW is the same on an empty one."""
    count = FINISHED if rounds > FEW_ROUNDS else FINISHED // 10
    async with (
        databases(engine) as (url, other),
        finished.opened(url, count=count) as full,
        finished.opened(other, count=0) as empty,
    ):
        beside = partial(compare, callers=IN_FLIGHT, rounds=rounds, seconds=seconds * 2)
        return await beside(f"{count:,} finished, {engine}", ours=full, raw=empty, goal=0.8)


@asynccontextmanager
async def databases(engine: str) -> AsyncIterator[tuple[str, str]]:
    """Two new databases of an engine."""
    if engine == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/bench.db", f"sqlite:///{folder}/other.db"
        return
    with closing(Server(options={"fsync": "on", "full_page_writes": "on", "shared_buffers": "128MB"})) as server:
        server.start()
        yield server.url(server.create_database()), server.url(server.create_database())


def _beside(url: str) -> str:
    """Where the rival works: the same database on PostgreSQL, a file in the same folder on SQLite."""
    return url.replace("bench.db", "rival.db")


@asynccontextmanager
async def client(url: str, *, payloads: Encrypted | None = None) -> AsyncIterator[Cluster]:
    """A client, and a runner in another process."""
    async with peers.elsewhere(partial(_serve, url, payloads), pinned=False):
        cluster = _program(url, payloads)
        async with cluster.connect():
            yield cluster


def spread(cluster: Cluster, entity: type, method: str, *, body: bytes = BODY) -> Work:
    """Calls to one entity after another."""
    entities: list[Any] = [cluster.ref(entity, f"{method}-{number}") for number in range(ENTITIES)]
    refs = itertools.cycle(entities)
    return lambda: getattr(next(refs), method)(body)


async def _taken(work: Work, *, times: int) -> list[float]:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        await work()
        taken.append(time.perf_counter() - began)
    return sorted(taken)


async def _on_time(cluster: Cluster, engine: str) -> Row:
    """A thousand messages over a minute: how late they ran, by the clock that decides (here there is one)."""
    refs = [cluster.ref(Echo, f"late-{number}") for number in range(100)]
    begin = datetime.now(UTC) + timedelta(seconds=1)
    times = [begin + timedelta(seconds=number * OVER_S / SCHEDULED) for number in range(SCHEDULED)]
    sends = [cluster.send(refs[n % 100].lateness(at.timestamp()), at=at) for n, at in enumerate(times)]
    sent = await asyncio.gather(*sends)
    late = sorted([1e3 * each for each in await asyncio.gather(*(cluster.result(each, timeout="2m") for each in sent))])
    p50, p99 = (late[len(late) * part // 100] for part in (50, 99))
    ratio = LATE_MOST_MS / p99 if late[0] >= 0 else 0.0  # none may be early
    return Limit(f"scheduled: late, {engine}", SCHEDULED, 0, 0, ratio, 1, p50, p99, "ms")


@asynccontextmanager
async def commits(url: str) -> AsyncIterator[Work]:
    """One durable commit of one row on one connection."""
    numbers = itertools.count()
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.execute("pragma journal_mode=wal; pragma synchronous=full")
        connection.execute("create table if not exists raw(id integer primary key, body blob)")

        def insert() -> None:
            connection.execute("insert into raw values (?, ?)", (next(numbers), BODY))

        async def commit() -> None:
            await asyncio.get_running_loop().run_in_executor(None, insert)

        yield commit
        connection.close()
        return
    session = await asyncpg.connect(url)
    await session.execute("create table if not exists raw(id bigint primary key, body bytea)")
    statement = await session.prepare("insert into raw values ($1, $2)")

    async def commit_there() -> None:
        await statement.fetch(next(numbers), BODY)

    yield commit_there
    await session.close()


def _program(url: str, payloads: Encrypted | None) -> Cluster:
    cluster = Cluster(url, payloads=payloads)
    cluster.entity(Echo)
    cluster.entity(Counter)
    return cluster


async def _serve(url: str, payloads: Encrypted | None) -> str:
    cluster = _program(url, payloads)
    await cluster.start()
    await cluster.ready(timeout="30s")
    peers.keep.append(cluster)
    return url
