"""`simulate` and its verbs: what a runner can suffer, and what the database does meanwhile (B4)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coterie import Cluster, PersistenceError
from coterie.testing import EVERYTHING, Runner, run_simulation, simulate
from coterie.testing.campaign import run_seed

from .workloads import fenced, kv

cluster = Cluster("sqlite://")  # one for all runners and all tests, as a program has it
ROOT = Path(__file__).parents[2]


@pytest.mark.simulated(seeds=5)
async def test_runners_share_one_module_level_cluster_and_see_each_others_writes() -> None:
    async with simulate(cluster, runners=3) as sim:
        for runner in sim.runners:
            await runner.spawn(cluster.kv.modify("n", lambda n: (n or 0) + 1))
        assert await cluster.kv.get("n") == 3


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
async def test_clocks_of_runners_are_wrong_each_in_its_own_way() -> None:
    async with simulate(cluster, runners=3) as sim:
        walls = [runner.clock.wall_ns() for runner in sim.runners]
        steady = [runner.clock.steady_ns() for runner in sim.runners]
        await sim.advance("1h")
        later = [runner.clock.steady_ns() for runner in sim.runners]
    assert len(set(walls)) == 3
    assert len({after - before for after, before in zip(later, steady, strict=True)}) == 3


@pytest.mark.simulated(seeds=2)
async def test_time_starts_where_it_is_told_and_passes_for_nothing() -> None:
    start = datetime(2031, 5, 6, 7, 8, tzinfo=UTC)
    async with simulate(cluster, runners=1, start_at=start) as sim:
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


@pytest.mark.parametrize("workload", [kv.main, fenced.main])
def test_a_seed_replays_in_this_process(workload: object) -> None:
    seed = run_seed(workload, 3, replay=True)  # type: ignore[arg-type]  # a coroutine function
    assert not seed.failure
    assert seed.replayed
    assert not seed.diverged


PROGRAM = """
from coterie.testing.running import Run
from tests.simulation.workloads import {workload}
run = Run(11)
run({workload}.main)
print(run.loop.trace.digest())
"""


@pytest.mark.parametrize("workload", ["kv", "fenced"])
def test_a_seed_replays_in_other_processes_whatever_their_hash_seed(workload: str) -> None:
    digests = set()
    for hash_seed in ("0", "1", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(workload=workload)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1
