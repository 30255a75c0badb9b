"""A cron of one's own under simulated faults, in one's own pytest: whoever runs it is killed and frozen, 20 seeds.

    pytest examples/test_report.py

A report is written every ten seconds. Whoever writes it, and however that ends: each instant has its one report.
"""

from datetime import datetime, timedelta

import pytest

from coterie import Cluster, Tick
from coterie.testing import simulate

cluster = Cluster("sqlite://", shards=1)

EVERY = timedelta(seconds=10)
CREATE = "create table if not exists reports (at text primary key, attempt integer)"
INSERT = "insert into reports values ($1, $2) on conflict do nothing"  # an attempt that was cut off may have written it

written: set[datetime] = set()


@cluster.cron("report", "*/10 * * * * *", catch_up="all")
async def report(tick: Tick) -> None:
    async with tick.transaction() as sql:  # committed if this runner still has the tick, else nothing is written
        await sql.execute(CREATE)
        await sql.execute(INSERT, tick.scheduled_at.isoformat(), tick.attempt)
    written.add(tick.scheduled_at)


@pytest.mark.simulated(seeds=20)
async def test_each_report_is_written_when_runners_die_and_freeze() -> None:
    written.clear()
    async with simulate(cluster, runners=3) as sim:
        await sim.wait_until(lambda: len(written) >= 2)

        sim.owner("cron:report").kill()
        await sim.wait_until(lambda: len(written) >= 4)

        frozen = sim.owner("cron:report")
        frozen.freeze()
        await sim.wait_until(lambda: len(written) >= 6)
        frozen.thaw()  # it may still have a tick in its hands: what it writes now is refused
        await sim.wait_until(lambda: len(written) >= 8)

        over = [tick for tick in await cluster.crons.history("report") if tick.outcome is not None]
        instants = sorted(tick.scheduled_at for tick in over)
        assert {tick.outcome for tick in over} == {"ran"}
        assert instants == [instants[0] + EVERY * number for number in range(len(instants))], "lost, or doubled"
        assert written >= set(instants)
