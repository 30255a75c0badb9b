"""Calls from SQL beside those from Python, on PostgreSQL: from the commit to the handler, and many of them.

The limits are milliseconds from just before the commit until the handler runs, of lone calls at any moment of the
pause between two looks. RAW of the last row is `cluster.send_many` of as many calls, until all of them are done.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from typing import TYPE_CHECKING

import asyncpg

from bench.measure import Row
from bench.messages import ENTITIES, Echo, client, databases
from bench.ownership import Limit
from coterie import MessageId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from coterie import Cluster

PAUSE_S = 0.4
"""The longest pause between two lone calls: twice that between two looks."""
MOST_MS = 300
MANY = 5_000
_ONE = "select coterie.send('Echo', $1, 'lateness', jsonb_build_object('due_s', $2::float8))"
_MANY = """
select count(coterie.send('Echo', 'echo-' || n % $2, 'echo', '{"data": "YmJiYg=="}')) from generate_series(1, $1) as n
"""
_LEFT = "select exists (select from coterie.incoming) or exists (select from coterie.messages where status = 0)"


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """Lone calls, one after the other; then many at once."""
    async with databases("postgres") as (url, _), client(url) as cluster:
        session = await asyncpg.connect(url)
        times = int(120 * seconds)

        async def from_sql(name: str) -> float:
            sent = await session.fetchval(_ONE, name, time.time())
            return await cluster.result(MessageId[float](sent))

        async def from_python(name: str) -> float:
            return await cluster.result(await cluster.send(cluster.ref(Echo, name).lateness(time.time())))

        await from_sql("first")  # from here on it is looked five times a second
        yield await _late("SQL: commit to handler", from_sql, times=times, most_ms=MOST_MS)
        yield await _late("send: commit to handler", from_python, times=times, most_ms=None)
        yield await _many(cluster, session, rounds=min(rounds, 3))
        await session.close()


async def _late(what: str, send: Callable[[str], Awaitable[float]], *, times: int, most_ms: float | None) -> Row:
    late = []
    for number in range(times):
        await asyncio.sleep(random.uniform(0, PAUSE_S))
        late.append(1e3 * await send(f"late-{number}"))
    late.sort()
    p50, p99 = (late[len(late) * part // 100] for part in (50, 99))
    ratio, goal = (0.0, None) if most_ms is None else (most_ms / p99, 1.0)
    return Limit(what, 1, 0, 0, ratio, goal, p50, p99, "ms")


async def _many(cluster: Cluster, session: asyncpg.Connection, *, rounds: int) -> Row:
    refs = [cluster.ref(Echo, f"echo-{number}") for number in range(ENTITIES)]

    async def from_sql() -> None:
        await session.fetchval(_MANY, MANY, ENTITIES)

    async def from_python() -> None:
        await cluster.send_many(refs[number % ENTITIES].echo(b"bbbb") for number in range(MANY))

    async def per_s(send: Callable[[], Awaitable[None]]) -> float:
        began = time.perf_counter()
        await send()
        while await session.fetchval(_LEFT):
            await asyncio.sleep(0.005)
        return MANY / (time.perf_counter() - began)

    pairs = [(await per_s(from_sql), await per_s(from_python)) for _ in range(rounds)]
    ours, raw = (statistics.median(each) for each in zip(*pairs, strict=True))
    return Row("calls from SQL / send_many", MANY, ours, raw, statistics.median(a / b for a, b in pairs), None)
