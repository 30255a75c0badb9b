"""Crons under all faults: each tick has one verdict and one outcome (INV-C1, C2, C4, M8, M9).

A fixed sample of seeds here, thousands with `make sim`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from coterie import Cluster, LeadershipLost, Retry, Tick
from coterie.storage.sqlite.ticks import SqliteTicks
from coterie.storage.user_transaction import UserTransaction
from coterie.testing.loop.seeds import stream
from coterie.testing.run import current_loop
from coterie.testing.simulation import simulate
from tests.simulation.workloads import cron_deploys, crons
from tests.simulation.workloads.cron_history import judge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coterie.storage.contracts.ticks import CronBook, CronTakeover


@pytest.mark.simulated(seeds=3)
async def test_inv_c1_c2_c4_every_tick_is_accounted_for_under_all_faults() -> None:
    await crons.main()


@pytest.mark.simulated(seeds=2)
async def test_m8_inv_c2_no_tick_is_lost_doubled_or_invented_by_deploys_under_all_faults() -> None:
    await cron_deploys.main()


@pytest.mark.simulated(seeds=1)
async def test_m9_inv_c1_a_look_whose_answer_is_late_begins_nothing_twice_and_forgets_nothing() -> None:
    await late_looks()


async def late_looks() -> None:
    """What is read takes up to some seconds to arrive: much has ended and begun meanwhile."""
    stage, right = crons.new_stage(), SqliteTicks.take
    random = stream(current_loop().seed, "late looks")

    async def slow(self: SqliteTicks, takes: Sequence[CronTakeover]) -> Mapping[str, CronBook]:
        books = await right(self, takes)
        await asyncio.sleep(random.uniform(0, 3))
        return books

    with patch.object(SqliteTicks, "take", slow):
        async with simulate(stage.cluster, runners=0, start_at=crons.START_AT) as sim:
            stage.watch(sim)
            await sim.start(1)
            client = crons.Client(stage)
            await client.act(client.trigger, every_s=0.5, until_s=sim.loop.time() + 40)
            await crons.all_quiet(stage)
            events = stage.history.events()
    judge(events)


@pytest.mark.simulated(seeds=1)
async def test_c6_an_attempt_that_is_cut_off_while_it_commits_has_ended_before_the_next_one_begins() -> None:
    """What it wrote is there, and the next attempt sees it."""
    cluster, seen = Cluster("sqlite://", shards=1), list[int]()
    right = UserTransaction.commit

    async def slow(self: UserTransaction, *args: Any) -> Any:
        await asyncio.sleep(1)
        return await right(self, *args)

    @cluster.cron("x", "*/10 * * * * *", timeout="500ms", retry=Retry(2, base="0s"))
    async def body(tick: Tick) -> None:
        async with tick.transaction() as sql:
            seen.append(len(await sql.fetch("select * from done")))
            if tick.attempt == 1:
                await sql.execute("insert into done values (1)")

    with patch.object(UserTransaction, "commit", slow):
        async with simulate(cluster, runners=0) as sim:
            sim.database.main.execute("create table done (number integer)")
            await sim.start(1)
            await sim.wait_until(lambda: len(seen) >= 2, within="20s")
    assert seen == [0, 1]


@pytest.mark.simulated(seeds=1)
async def test_inv_c2_a_body_that_raises_of_another_seat_s_loss_has_failed_and_is_not_run_again_and_again() -> None:
    cluster, begun = Cluster("sqlite://", shards=1), list[int]()

    @cluster.cron("x", "*/10 * * * * *")
    async def body(tick: Tick) -> None:
        begun.append(tick.attempt)
        raise LeadershipLost(seat="singleton:other", epoch=3)

    async with simulate(cluster, runners=1) as sim:
        await sim.wait_until(lambda: begun)
        await sim.advance(5)
        (tick,) = await cluster.crons.history("x")
    assert begun == [1]
    assert tick.outcome == "failed"
    assert "LeadershipLost" in tick.errors[0]


@pytest.mark.simulated(seeds=2)
async def test_a_tick_that_is_left_to_the_next_holder_is_not_begun_again_at_once_by_the_same_one() -> None:
    """It may end so each time: then it would keep the runner and its database busy, and no time would pass."""
    cluster, begun = Cluster("sqlite://", shards=1), {"says lost": 0, "cancels itself": 0}

    @cluster.cron("says lost", "0 0 1 * *")
    async def says_lost(tick: Tick) -> None:
        begun[tick.name] += 1
        raise LeadershipLost(seat=f"cron:{tick.name}", epoch=1)

    @cluster.cron("cancels itself", "0 0 1 * *")
    async def cancels_itself(tick: Tick) -> None:
        begun[tick.name] += 1
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    async with simulate(cluster, runners=1) as sim:
        for name in begun:
            await cluster.crons.trigger(name)
        await sim.wait_until(lambda: all(begun.values()))
        await sim.advance(10)
        assert all(3 <= count <= 12 for count in begun.values()), begun
