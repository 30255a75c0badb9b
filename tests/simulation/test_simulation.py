"""`simulate` and its verbs: what a runner can suffer, and what the database does meanwhile (B4)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coterie import Cluster, ConfigurationError, NotStarted, PersistenceError, ShardId
from coterie.kernel.service import Tasks
from coterie.ownership.admission import Definition
from coterie.runner import NoOccupant
from coterie.testing import EVERYTHING, NobodyHolds, Runner, Simulation, run_simulation, simulate
from coterie.testing.lease_thread import SimSideLoop
from coterie.testing.loop.nodes import current_node
from coterie.testing.run import current_loop
from tests.simulation.workloads import fenced, kv
from tests.support.campaign import run_seed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

cluster = Cluster("sqlite://", shards=4)  # one for all runners and all tests, as a program has it
ROOT = Path(__file__).parents[2]


@pytest.mark.simulated(seeds=5)
async def test_runners_share_one_module_level_cluster_and_see_each_others_writes() -> None:
    async with simulate(cluster, runners=3) as sim:
        for runner in sim.runners:
            await runner.spawn(cluster.kv.modify("n", lambda n: (n or 0) + 1))
        assert await cluster.kv.get("n") == 3


@pytest.mark.simulated(seeds=2)
async def test_inside_of_a_runners_work_the_cluster_is_started_already() -> None:
    async with simulate(cluster, runners=1) as sim:
        with pytest.raises(RuntimeError, match="started already, as a runner"):
            await sim.runners[0].spawn(cluster.start())


@pytest.mark.simulated(seeds=5)
async def test_of_a_killed_runner_nothing_runs_any_more() -> None:
    ran = []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
            ran.append("woke")
        finally:
            ran.append("finally")

    async with simulate(cluster, runners=2) as sim:
        sim.runners[0].spawn(work())
        await sim.advance(1)
        sim.runners[0].kill()
        await sim.advance(60)
        assert not sim.runners[0].alive
    assert ran == []


@pytest.mark.simulated(seeds=10)
async def test_a_write_that_was_sent_before_the_kill_may_still_commit() -> None:
    async with simulate(cluster, runners=1) as sim:
        runner = sim.runners[0]
        runner.spawn(cluster.kv.set("a", 1))
        await asyncio.sleep(0.0001)
        runner.kill()
        await sim.advance(10)
        assert await cluster.kv.get("a") in (None, 1)


@pytest.mark.simulated(seeds=5)
async def test_a_frozen_runner_stands_still_and_goes_on_after_the_thaw() -> None:
    ticks: list[datetime] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(sim.now())

    async with simulate(cluster, runners=1) as sim:
        runner = sim.runners[0]
        runner.spawn(tick())
        await sim.advance(5.5)
        runner.freeze()
        before = len(ticks)
        await sim.advance(60)
        assert len(ticks) == before
        runner.thaw()
        await sim.advance(2)
        assert len(ticks) > before


@pytest.mark.simulated(seeds=5)
@pytest.mark.parametrize("ways", [(), ("requests",), ("replies",)])
async def test_a_runner_cut_off_from_storage_learns_that_the_outcome_is_unknown(ways: tuple[str, ...]) -> None:
    async with simulate(cluster, runners=2) as sim:
        runner, other = sim.runners
        runner.cut("storage", *ways)  # type: ignore[arg-type]  # texts from the parameters
        with pytest.raises(PersistenceError) as caught:
            await runner.spawn(cluster.kv.set("a", 1))
        assert caught.value.outcome == "unknown"
        assert await cluster.kv.has("a") is (ways == ("replies",))
        await other.spawn(cluster.kv.set("b", 1))
        runner.heal()
        await runner.spawn(cluster.kv.set("c", 1))


@pytest.mark.simulated(seeds=20)
async def test_a_request_stuck_in_a_cut_link_may_arrive_after_its_sender_gave_up() -> None:
    async with simulate(cluster, runners=1) as sim:
        runner = sim.runners[0]
        sim.database.weather.late = 1.0
        runner.cut("storage", "requests")
        with pytest.raises(PersistenceError):
            await runner.spawn(cluster.kv.set("a", 1))
        assert not await cluster.kv.has("a")
        runner.heal()
        await sim.wait_until(lambda: cluster.kv.has("a"), within="5s")


@pytest.mark.simulated(seeds=5)
async def test_a_restart_of_storage_breaks_connections_and_keeps_what_was_committed() -> None:
    async with simulate(cluster, runners=1) as sim:
        await cluster.kv.set("a", 1)
        sim.restart_storage(down="2s")
        with pytest.raises(PersistenceError) as caught:
            await cluster.kv.set("b", 1)
        assert caught.value.outcome == "unreachable"
        await sim.advance(3)
        assert await cluster.kv.get("a") == 1
        assert not await cluster.kv.has("b")


@pytest.mark.simulated(seeds=5)
async def test_errors_after_the_commit_are_unknown_to_the_caller() -> None:
    async with simulate(cluster, runners=1) as sim:
        sim.database.weather.error_after = 1.0
        with pytest.raises(PersistenceError) as caught:
            await sim.runners[0].spawn(cluster.kv.set("a", 1))
        assert caught.value.outcome == "unknown"
        sim.database.weather.error_after = 0.0
        assert await cluster.kv.get("a") == 1


@pytest.mark.simulated(seeds=5)
async def test_a_runner_starts_again_as_another_incarnation_and_runs_its_body() -> None:
    lives: list[str] = []

    async def body(runner: Runner) -> None:
        lives.append(runner.incarnation)

    async with simulate(cluster, runners=1, body=body) as sim:
        runner = sim.runners[0]
        await sim.wait_until(lambda: len(lives) == 1)
        runner.kill()
        await runner.start()
        await sim.wait_until(lambda: len(lives) == 2)
        await runner.stop()
        await runner.start()
        await sim.wait_until(lambda: len(lives) == 3)
        await sim.start(2)
        await sim.wait_until(lambda: len(lives) == 5)
    assert len(set(lives)) == 5


@pytest.mark.simulated(seeds=5)
async def test_nobody_waits_for_the_start_or_the_end_of_a_runner_that_was_killed_meanwhile() -> None:
    """Faults go on as long as a test waits, so it would wait for ever, and the run would grow without end."""
    async with simulate(cluster, runners=1) as sim:
        starting = asyncio.ensure_future(sim.start(2))
        await asyncio.sleep(0.001)
        sim.runners[1].kill()
        await sim.wait_until(starting.done)
        starting = asyncio.ensure_future(sim.runners[1].start())
        await asyncio.sleep(0.001)
        stopping = asyncio.ensure_future(sim.runners[1].stop())
        sim.runners[1].start()
        await sim.wait_until(lambda: starting.done() and stopping.done())
        await sim.wait_until(lambda: len(sim.runners[1].real.seats) > 0)


@pytest.mark.simulated(seeds=2)
async def test_what_keeps_a_runner_from_starting_reaches_whoever_waits_for_it() -> None:
    async with simulate(cluster, runners=1) as sim:
        with pytest.raises(ConfigurationError):
            await sim.start(1, shards=5)


@pytest.mark.simulated(seeds=5)
async def test_clocks_of_runners_are_wrong_each_in_its_own_way() -> None:
    async with simulate(cluster, runners=3) as sim:
        walls = [runner.clock.wall_ns() for runner in sim.runners]
        steady = [runner.clock.steady_ns() for runner in sim.runners]
        await sim.advance("1m")
        later = [runner.clock.steady_ns() for runner in sim.runners]
    assert len(set(walls)) == 3
    assert len({after - before for after, before in zip(later, steady, strict=True)}) == 3


@pytest.mark.simulated(seeds=2)
async def test_time_starts_where_it_is_told_and_passes_for_nothing_while_nobody_renews_a_lease() -> None:
    start = datetime(2031, 5, 6, 7, 8, tzinfo=UTC)
    async with simulate(cluster, runners=0, start_at=start) as sim:
        await sim.advance("365d")
        passed = sim.now() - start
    assert timedelta(days=365) <= passed < timedelta(days=365, seconds=5)


@pytest.mark.simulated(seeds=2)
async def test_waiting_has_a_limit_in_virtual_time() -> None:
    async with simulate(cluster, runners=1) as sim:
        with pytest.raises(TimeoutError, match="did not come true within 30s"):
            await sim.wait_until(lambda: False, within="30s")


async def test_on_any_other_loop_simulate_says_what_it_needs() -> None:
    with pytest.raises(RuntimeError, match="run_simulation"):
        async with simulate(cluster):
            pass


def test_another_seed_than_the_loops_is_refused() -> None:
    async def main() -> None:
        async with simulate(cluster, seed=2):
            pass

    with pytest.raises(RuntimeError, match="seed 1, not 2"):
        run_simulation(main, seed=1)


@pytest.mark.simulated(seeds=3)
async def test_calm_mends_everything() -> None:
    async with simulate(cluster, runners=4, faults=EVERYTHING) as sim:
        await sim.advance("5m")
        await sim.calm()
        await sim.wait_until(lambda: all(runner.alive for runner in sim.runners))
        await sim.advance(10)
        for number, runner in enumerate(sim.runners):
            await runner.spawn(cluster.kv.set(f"after-{number}", number))
        assert await cluster.kv.prefix("after-").size() == 4


# Seats


def rows(sim: Simulation, sql: str) -> list[tuple[object, ...]]:
    return list(sim.database.main.execute(sql))


def held(sim: Simulation) -> int:
    """How many seats have a holder."""
    return len(rows(sim, "select 1 from seats where holder is not null"))


IMPORTER = Definition(seat="singleton:importer", group="default")


@pytest.mark.simulated(seeds=5)
async def test_owner_and_leader_say_who_holds_a_seat_in_truth() -> None:
    async with simulate(cluster, runners=3, definitions=[IMPORTER]) as sim:
        await sim.wait_until(lambda: held(sim) == 5)
        leader = sim.leader("importer")
        assert leader is sim.owner("singleton:importer")
        assert leader.real.tenure("singleton:importer") is not None
        assert sim.owner(ShardId("default", 2)).incarnation in (each.incarnation for each in sim.runners)
        with pytest.raises(NobodyHolds, match="singleton:other is held by nobody"):
            sim.leader("other")


@pytest.mark.simulated(seeds=10)
async def test_a_killed_leader_is_replaced_within_ten_seconds() -> None:
    """B1, B2."""
    async with simulate(cluster, runners=3, definitions=[IMPORTER]) as sim:
        await sim.wait_until(lambda: held(sim) == 5)
        dead = sim.leader("importer")
        dead.kill()
        await sim.wait_until(lambda: sim.leader("importer") is not dead, within="10s")


@pytest.mark.simulated(seeds=5)
async def test_what_a_killed_leader_held_is_nobodys_once_it_has_started_anew() -> None:
    async with simulate(cluster, runners=1, definitions=[IMPORTER]) as sim:
        (runner,) = sim.runners
        await sim.wait_until(lambda: sim.leader("importer") is runner)
        runner.kill()
        assert sim.leader("importer") is runner, "nobody has evicted it yet"
        await runner.start()
        with pytest.raises(NobodyHolds):
            sim.leader("importer")
        await sim.wait_until(lambda: sim.leader("importer") is runner)


@pytest.mark.simulated(seeds=5)
async def test_a_runner_blocked_for_less_than_the_stall_limit_keeps_its_seats() -> None:
    """M16: the lease is kept beside the loop."""
    async with simulate(cluster, runners=2) as sim:
        await sim.wait_until(lambda: held(sim) == 4)
        await sim.advance(5)
        before = rows(sim, "select name, holder, epoch from seats")
        await sim.runners[0].block("7s")
        await sim.advance(5)
        assert rows(sim, "select name, holder, epoch from seats") == before


@pytest.mark.simulated(seeds=5)
async def test_a_runner_blocked_for_longer_is_replaced_and_comes_back_as_another_incarnation() -> None:
    """M16, B2: it evicts itself at the stall limit, so nobody waits for its lease."""
    async with simulate(cluster, runners=2, definitions=[IMPORTER]) as sim:
        await sim.wait_until(lambda: held(sim) == 5)
        await sim.advance(5)
        blocked = sim.leader("importer")
        incarnation = blocked.incarnation
        over = blocked.block("20s")
        await sim.wait_until(lambda: sim.leader("importer") is not blocked, within="10s")
        assert blocked.incarnation == incarnation, "its loop stands still, so it knows nothing yet"
        await over
        await sim.wait_until(lambda: blocked.incarnation != incarnation, within="5s")
        await blocked.spawn(cluster.ready(timeout="10s"))
        await blocked.spawn(cluster.kv.set("after", True))


@pytest.mark.simulated(seeds=5)
async def test_blocks_may_overlap() -> None:
    async with simulate(cluster, runners=1) as sim:
        (runner,) = sim.runners
        long, short = runner.block(3), runner.block(1)
        ticked = runner.spawn(asyncio.sleep(0))
        await short
        await sim.advance(1.5)
        assert not ticked.done()
        await long
        await sim.wait_until(ticked.done, within=0.1)


@pytest.mark.simulated(seeds=5)
async def test_a_runner_that_stops_leaves_nothing_behind() -> None:
    """F6: released, clean, its row deleted; whoever is left has everything at once."""
    async with simulate(cluster, runners=2) as sim:
        await sim.wait_until(lambda: held(sim) == 4)
        first, second = sim.runners
        await first.stop()
        assert rows(sim, "select name from runners") == [(second.name,)]
        await sim.wait_until(lambda: held(sim) == 4, within="1s")
        assert {sim.owner(ShardId("default", number)) for number in range(4)} == {second}


@pytest.mark.simulated(seeds=5)
async def test_at_the_end_everybody_leaves() -> None:
    async with simulate(cluster, runners=4) as sim:
        await sim.wait_until(lambda: held(sim) == 4)
        sim.runners[0].freeze()
        sim.runners[1].kill()
        sim.runners[2].cut("storage")
    assert {name for (name,) in rows(sim, "select name from runners")} <= {"runner-1", "runner-2"}
    with pytest.raises(NotStarted):
        await cluster.kv.get("a")


@pytest.mark.simulated(seeds=3)
async def test_an_error_inside_of_the_block_is_the_one_that_is_seen() -> None:
    async def fails() -> None:
        async with simulate(cluster, runners=2) as sim:
            sim.database.restart(down_ns=10**15)  # so that nobody could leave
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()
    with pytest.raises(NotStarted):  # the cluster is free again
        await cluster.kv.get("a")


class NotingOccupant(NoOccupant):
    """Notes for whom the cluster acts on its seat."""

    def __init__(self, seat: str, seen: dict[str, str]) -> None:
        self._seat, self._seen = seat, seen
        self._tasks = Tasks("sitter")
        self._tasks.spawn(self._sit(), name="sit")

    async def _sit(self) -> None:
        await cluster.kv.set(self._seat, True)
        self._seen[self._seat] = cluster._acting().incarnation

    async def drain(self) -> None:
        await self._tasks.stop()


@pytest.mark.simulated(seeds=5)
async def test_whoever_sits_on_a_seat_acts_for_its_runner() -> None:
    seen: dict[str, str] = {}
    async with simulate(cluster, runners=3, occupy=lambda _: lambda tenure: NotingOccupant(tenure.seat, seen)) as sim:
        await sim.wait_until(lambda: held(sim) == len(seen) == 4)
        await sim.wait_until(
            lambda: all(sim.owner(seat).incarnation == incarnation for seat, incarnation in seen.items())
        )


@pytest.mark.simulated(seeds=5)
async def test_runners_may_have_settings_and_definitions_of_their_own() -> None:
    """M8: only who knows a singleton is a candidate for it."""
    async with simulate(cluster, runners=2) as sim:
        await sim.start(1, groups=("other",))
        assert rows(sim, "select count(*) from seats where \"group\" = 'other'") == [(4,)]
        await sim.runners[1].stop()
        sim.runners[1].definitions = [IMPORTER]
        await sim.runners[1].start()
        await sim.wait_until(lambda: sim.leader("importer") is sim.runners[1])


@pytest.mark.simulated(seeds=3)
async def test_setups_are_opened_and_closed_by_each_runner() -> None:
    equipped = Cluster("sqlite://", shards=1)
    log: list[str] = []

    @equipped.setup
    @asynccontextmanager
    async def pool() -> AsyncIterator[None]:
        log.append("opened")
        yield
        log.append("closed")

    async with simulate(equipped, runners=3) as sim:
        sim.runners[0].kill()
    assert log == ["opened"] * 3 + ["closed"] * 2


# The place beside the loop


async def counts(ticks: list[int]) -> None:
    while True:
        await asyncio.sleep(1)
        ticks.append(current_loop().now_ns)


@pytest.mark.simulated(seeds=5)
async def test_the_place_beside_a_loop_goes_on_while_that_is_blocked_and_stops_with_the_process() -> None:
    loop = current_loop()
    node = loop.nodes.add("runner")
    ticks: list[int] = []

    async def live() -> None:
        async with SimSideLoop(loop, node) as aside:
            await aside.run(lambda: counts(ticks))

    loop.spawn(node, live())
    await asyncio.sleep(3.5)
    for verb, back, goes_on in (
        (loop.nodes.block, loop.nodes.unblock, True),
        (loop.nodes.freeze, loop.nodes.thaw, False),
    ):
        before = len(ticks)
        verb(node)
        await asyncio.sleep(5)
        assert (len(ticks) > before) is goes_on
        back(node)
    loop.nodes.crash(node)
    before = len(ticks)
    await asyncio.sleep(5)
    assert len(ticks) == before


@pytest.mark.simulated(seeds=5)
async def test_results_errors_and_cancellation_cross_over_and_back() -> None:
    loop = current_loop()
    node = loop.nodes.add("runner")
    ended: list[str] = []

    async def answer() -> str:
        return current_node.get().name

    async def fail() -> None:
        raise OSError("over there")

    async def wait() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("cancelled")

    async def live() -> str:
        async with SimSideLoop(loop, node) as aside:
            told: list[str] = []
            with pytest.raises(OSError, match="over there"):
                await aside.run(fail)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await aside.run(wait)
            await asyncio.sleep(0.1)
            assert ended == ["cancelled"]

            async def tell() -> None:
                aside.tell(lambda: told.append(current_node.get().name))

            await aside.run(tell)
            await asyncio.sleep(0.1)
            assert told == ["runner"]
            return await aside.run(answer)

    assert await loop.spawn(node, live()) == "runner/aside"


@pytest.mark.parametrize("workload", [kv.main, fenced.main])
def test_a_seed_replays_in_this_process(workload: object) -> None:
    seed = run_seed(workload, 3, replay=True)  # type: ignore[arg-type]  # a coroutine function
    assert not seed.failure
    assert seed.replayed
    assert not seed.diverged


PROGRAM = """
from coterie.testing.run import SeedRun
from tests.simulation.workloads import fenced, kv
for workload in kv, fenced:
    run = SeedRun(11)
    run(workload.main)
    print(run.loop.trace.digest())
"""


def test_a_seed_replays_in_other_processes_whatever_their_hash_seed() -> None:
    first, other = (
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for hash_seed in ("0", "4711")
    )
    assert len(set(first)) == 2
    assert first == other
