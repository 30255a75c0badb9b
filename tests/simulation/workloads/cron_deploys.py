"""Workload: programs with other schedules take turns under the names of the same crons, while everything breaks [M8].

    edited    every second, then every 4 s
    zoned     at the same times of another place
    optioned  the same ticks with another option: none is lost, none is doubled
    newcomer  only the new program knows it; while the old one is back, nobody does

The database's clock is left alone: since when a schedule counts is an instant of its own.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from coterie import Cluster
from coterie.testing.faults import StorageClockSteps
from coterie.testing.loop.seeds import stream
from coterie.testing.simulation import simulate
from tests.simulation.workloads.calls import EVERYTHING
from tests.simulation.workloads.cron_history import judge
from tests.simulation.workloads.crons import START_AT, SimulatedCrons, all_quiet, calm

if TYPE_CHECKING:
    from coterie.testing.simulation import Simulation

RUNNERS = 4
DEPLOYS = 4


async def main(*, runners: int = RUNNERS, deploys: int = DEPLOYS, least: int = 40) -> int:
    """One seed: some deploys and roll-backs under faults, the new program at last, then calm, then judgement."""
    old, new = (Cluster("sqlite://", shards=2, drain="3s") for _ in range(2))
    stage = SimulatedCrons(old)
    _define(stage, new)
    faults = [fault for fault in EVERYTHING if not isinstance(fault, StorageClockSteps)]
    async with simulate(old, runners=0, faults=faults, start_at=START_AT) as sim:
        stage.watch(sim, new)
        await sim.start(runners)
        for number in range(deploys):
            await sim.advance(stream(sim.seed, f"deploy {number}").uniform(1, 30))
            sim.cluster = new if number % 2 == 0 else old
            await _roll(sim, number)
        sim.cluster = stage.cluster = new
        with new._participant.bound(old._acting):
            await calm(stage)
            await _roll(sim, deploys)
            await sim.wait_until(lambda: all(runner.started for runner in sim.runners))
            await sim.advance(15)  # those that were killed on the way are found dead
            await all_quiet(stage)
        events = stage.history.events()
    verdicts = judge(events)
    assert verdicts["runs"] > least, f"only {verdicts['runs']} ticks were claimed: the run shows nothing"
    return len(events)


def _define(stage: SimulatedCrons, new: Cluster) -> None:
    before, after = partial(stage.define, stage.cluster), partial(stage.define, new)
    before("edited", "* * * * * *", longest_s=0.5, catch_up="all")
    after("edited", "*/4 * * * * *", longest_s=0.5, catch_up="all")
    before("zoned", "*/5 58-59 0 * * *", longest_s=4, overlap="skip")
    after("zoned", "*/5 * 2,3 * * *", longest_s=4, overlap="skip", timezone="Europe/Athens")
    before("optioned", "*/2 * * * * *", longest_s=1, catch_up="all", skip_if_older_than="1h")
    after("optioned", "*/2 * * * * *", longest_s=1, catch_up="all", skip_if_older_than="2h")
    after("newcomer", "*/3 * * * * *", longest_s=1, catch_up="all")


async def _roll(sim: Simulation, number: int) -> None:
    """One runner after the other starts anew, in good order or not, with the program that counts now."""
    random = stream(sim.seed, f"roll {number}")
    for runner in sim.runners:
        if runner.alive:
            if random.random() < 0.3:
                runner.kill()
            else:
                runner.stop()
        await sim.advance(random.uniform(0, 6))
        if not runner.alive:
            runner.thaw()
            runner.start()
