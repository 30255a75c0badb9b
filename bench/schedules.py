"""Schedules on PostgreSQL: 100,000 of them, of which 5,000 are due at one instant: how late what they send is stored.

The limit is 2 s for the last of them; none may be lost, sent twice, or early.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import asyncpg

from bench.messages import Echo, client, databases
from bench.ownership import Limit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.measure import Row
    from coterie import Cluster

ALL, DUE, TEMPLATES = 100_000, 5_000, 100
LATE_MOST_S = 2.0
_WITHIN_S = 120
_COPY = """
insert into coterie.schedules
select (t.r).*
from (
    select jsonb_populate_record(r, jsonb_build_object('key', r.key || '/' || n, 'life', r.life + n)) as r
    from coterie.schedules as r cross join generate_series(1, $1::bigint) as n
    where r.key like $2 || '%'
) as t
"""
_SENT = """
select
    count(*), count(distinct id),
    extract(epoch from percentile_disc(0.5) within group (order by sent_at) - $1)::float8,
    extract(epoch from max(sent_at) - $1)::float8, extract(epoch from min(sent_at) - $1)::float8
from coterie.messages
"""


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """One instant for 5,000 of them."""
    del rounds, seconds
    async with databases("postgres") as (url, _), client(url) as cluster:
        session = await asyncpg.connect(url)
        await _put(cluster, session, "later", datetime.now(UTC) + timedelta(days=30), ALL - DUE)
        at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=15)
        await _put(cluster, session, "due", at, DUE)
        await session.execute("analyze coterie.schedules")
        assert datetime.now(UTC) < at, "it takes longer to make them than until they are due"
        late: list[float] = []
        async with asyncio.timeout(_WITHIN_S):
            while not late or late[0] < DUE:
                await asyncio.sleep(0.25)
                late = list(*await session.fetch(_SENT, at))
        await session.close()
    count, distinct, median, most, least = late
    is_exact = count == distinct == DUE and least >= 0
    ratio = LATE_MOST_S / most if is_exact else 0.0
    yield Limit(f"schedules: {DUE:,} due of {ALL:,}", DUE, 0, 0, ratio, 1.0, 1e3 * median, 1e3 * most, "ms")


async def _put(cluster: Cluster, session: asyncpg.Connection, name: str, at: datetime, count: int) -> None:
    """Some by the public face, and the others as copies of them: their ids differ as their keys and lives do."""
    for number in range(TEMPLATES):
        call = cluster.ref(Echo, f"{name}-{number}").lateness(at.timestamp())
        await cluster.schedules.put(f"{name}/{number}", at, call)
    await session.execute(_COPY, count // TEMPLATES - 1, f"schedule/{name}/")
