"""Messages in the user's own transaction: what they add to it, and how long after its commit they run.

RAW of a transaction is the same one with the row alone; of the latency it is a plain send, from its return to the
handler in another process.
"""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import TYPE_CHECKING

import asyncpg

from bench.measure import Row, compare, compare_alone
from bench.messages import BODY, Echo, client, databases
from bench.ownership import Limit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie import Cluster

CALLERS = 8
MEDIAN_MOST_MS, MOST_MS = 50, 1_200


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """On asyncpg: alone, beside others, and the latency."""
    async with (
        databases("postgres") as (url, _),
        client(url) as cluster,
        asyncpg.create_pool(url, min_size=CALLERS, max_size=CALLERS) as pool,
    ):
        await pool.execute("create table rows (n bigint primary key, body bytea)")
        refs = itertools.cycle([cluster.ref(Echo, f"via-{number}") for number in range(500)])
        numbers = itertools.count()

        async def transaction(*, sends: bool) -> None:
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute("insert into rows values ($1, $2)", next(numbers), BODY)
                if sends:
                    await cluster.send(next(refs).echo(BODY), via=connection)

        ours, raw = partial(transaction, sends=True), partial(transaction, sends=False)
        yield await compare_alone(
            "row + via / row", ours=ours, raw=raw, goal=0.4, rounds=rounds, times=int(300 * seconds)
        )
        yield await compare(
            "row + via / row, beside", ours=ours, raw=raw, callers=CALLERS, goal=0.25, rounds=rounds, seconds=seconds
        )
        times = int(300 * seconds)
        yield _latency("commit to handler, via", await _late(cluster, pool, times=times, via=True))
        yield _latency("plain send to handler", await _late(cluster, pool, times=times, via=False), goal=None)


async def _late(cluster: Cluster, pool: asyncpg.Pool[asyncpg.Record], *, times: int, via: bool) -> list[float]:
    """From the commit to the handler, in ms; both processes read one clock."""
    late = []
    for number in range(times):
        call = cluster.ref(Echo, f"late-{number % 100}").lateness(0.0)
        if via:
            async with pool.acquire() as connection, connection.transaction():
                message = await cluster.send(call, via=connection)
        else:
            message = await cluster.send(call)
        committed_s = time.time()
        late.append(1e3 * (await cluster.result(message, timeout="60s") - committed_s))
    return sorted(late)


def _latency(scenario: str, late: list[float], *, goal: float | None = 1) -> Row:
    p50, p99 = (late[len(late) * part // 100] for part in (50, 99))
    ratio = min(MEDIAN_MOST_MS / max(p50, 0.001), MOST_MS / max(p99, 0.001))
    return Limit(scenario, 1, 0, 0, ratio, goal, p50, p99, "ms")
