"""Durable key-value writes: ours (group commit) beside the same driver behind the same hop doing one commit each."""

from __future__ import annotations

import asyncio
import itertools
import queue
import tempfile
import threading
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import apsw
import asyncpg
from tests.support.postgres import Server

from bench.measure import Row, Work, compare
from coterie import Cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

GOALS = {
    ("sqlite", 1): 0.6,
    ("sqlite", 16): None,
    ("sqlite", 100): 8.0,
    ("postgres", 1): 0.7,
    ("postgres", 16): None,
    ("postgres", 100): 4.0,
}
RAW_CONNECTIONS = 16
VALUE = b"v" * 100
ON_CONFLICT = "on conflict (key) do update set value = excluded.value, stamp = excluded.stamp"


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """A row for each engine and number of callers."""
    for engine, opened in (("sqlite", _sqlite), ("postgres", _postgres)):
        for callers in (1, 16, 100):
            async with opened() as (ours, raw):
                yield await compare(
                    f"kv set, {engine}",
                    ours=ours,
                    raw=raw,
                    callers=callers,
                    goal=GOALS[engine, callers],
                    rounds=rounds,
                    seconds=seconds,
                )


@asynccontextmanager
async def _sqlite() -> AsyncIterator[tuple[Work, Work]]:
    with tempfile.TemporaryDirectory() as folder:
        raw = _RawSqlite(f"{folder}/raw.db")
        cluster = Cluster(f"sqlite:///{folder}/ours.db")
        async with cluster.connect():
            yield _setter(cluster), raw.put
        raw.close()


def _setter(cluster: Cluster) -> Work:
    numbers = itertools.count()
    kv = cluster.kv

    async def put() -> None:
        await kv.set(f"key-{next(numbers) % 10_000}", VALUE)

    return put


class _RawSqlite:
    """One thread, one connection, one commit for each put."""

    def __init__(self, path: str) -> None:
        self._inbox: queue.SimpleQueue[tuple[int, asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, args=(path,))
        self._thread.start()

    async def put(self) -> None:
        done = self._loop.create_future()
        self._inbox.put((next(self._numbers), done))
        await done

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join()

    def _work(self, path: str) -> None:
        connection = apsw.Connection(path)
        connection.execute("pragma journal_mode=wal; pragma synchronous=full")
        connection.execute("create table kv(key text primary key, value blob, stamp integer) without rowid")
        upsert = f"insert into kv values (?, ?, ?) {ON_CONFLICT}"
        while (job := self._inbox.get()) is not None:
            number, done = job
            connection.execute("begin immediate")
            # Another stamp each time, as ours: a row that does not change would not be written at all.
            connection.execute(upsert, (f"key-{number % 10_000}", VALUE, number))
            connection.execute("commit")
            self._loop.call_soon_threadsafe(done.set_result, None)
        connection.close()


@asynccontextmanager
async def _postgres() -> AsyncIterator[tuple[Work, Work]]:
    with closing(Server(options={"fsync": "on", "full_page_writes": "on", "shared_buffers": "128MB"})) as server:
        server.start()
        url = server.url(server.create_database())
        pool = await asyncpg.create_pool(url, min_size=RAW_CONNECTIONS, max_size=RAW_CONNECTIONS, reset=_keep)
        await pool.execute("create table raw(key text primary key, value bytea, stamp bigint)")
        upsert = f"insert into raw values ($1, $2, $3) {ON_CONFLICT}"
        numbers = itertools.count()

        async def raw() -> None:
            number = next(numbers)
            await pool.execute(upsert, f"key-{number % 10_000}", VALUE, number)

        cluster = Cluster(url)
        async with cluster.connect():
            yield _setter(cluster), raw
        await pool.close()


async def _keep(_: object) -> None:
    """Nothing to reset: spares the pool's own round trip."""
