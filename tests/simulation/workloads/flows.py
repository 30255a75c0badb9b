"""Workload: workflows and units of a leader do what their plans say, while everything breaks.

A plan is a list of acts, drawn by the seed: steps that may fail, steps that are to be undone, durable sleeps, deferreds
with and without a time, children, branches side by side. Clients start them (some twice), resolve and reject what they
wait for: before there is anybody, at once, at the very moment of the suspension, late, two at a time; they interrupt
some and resume others. What comes of it is judged in `flow_history`: by the order of commits.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from zlib import crc32

from coterie.testing.faults import Kills, StorageCuts, StorageErrors
from coterie.testing.simulation import simulate
from tests.simulation.workloads.calls import EVERYTHING
from tests.simulation.workloads.flow_clients import Client
from tests.simulation.workloads.flow_history import judge
from tests.simulation.workloads.flow_plans import new_errand, new_plan, new_tree
from tests.simulation.workloads.flow_program import new_stage
from tests.support.history.workflow_events import Calm, Ended, Silence

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.testing.faults import Fault
    from coterie.testing.loop.seeds import Stream
    from coterie.testing.simulation import Simulation
    from tests.simulation.workloads.flow_plans import Act
    from tests.simulation.workloads.flow_program import SimulatedFlows

RUNNERS = 3
LASTING_S = 40
FLOWS = 24
LATE_FLOWS = 6
"""Those that are started when all is calm: they must not wait for anything that is there."""
SETTLED_S = 25
"""By when after the last fault every seat has a holder that all the others know."""
WITHIN_S = 10
"""How long after that somebody may wait for what is there, also if no hint comes: then a sweep or a look finds it
within 5 s, and what a slow database adds to the reads and writes in between."""
SILENCE_S = 240


async def main(
    *,
    lasting_s: float = LASTING_S,
    runners: int = RUNNERS,
    flows: int = FLOWS,
    faults: tuple[Fault, ...] = EVERYTHING,
    draw: Callable[[Stream], list[Act]] = new_plan,
) -> int:
    """One seed: faults throughout, then calm, in which all ends, then judgement."""
    stage = new_stage()
    async with simulate(stage.cluster, runners=0, faults=faults) as sim:
        stage.history.watch(sim)
        await sim.start(runners)
        client = Client(stage, sim, draw)
        async with asyncio.TaskGroup() as group:
            resolving = group.create_task(client.answer(group))
            await client.act(group, flows=flows, lasting_s=lasting_s)
            await calm(stage, sim)
            if crc32(f"unheard {sim.seed}".encode()) % 2:
                unheard(sim)
            await client.act(group, flows=LATE_FLOWS, lasting_s=5)
            await silence(stage, sim)
            resolving.cancel()
            client.stop()
        events = stage.history.events()
    judged = judge(events, within_s=WITHIN_S)
    ended = sum(isinstance(event, Ended) for event in events)
    assert ended >= flows, f"only {ended} units have ended: the run shows nothing"
    return judged


async def calm(stage: SimulatedFlows, sim: Simulation) -> None:
    """No fault any more; after a while all know who holds what."""
    await sim.calm()
    for runner in sim.runners:
        sim.network.heal(sim.loop.test.name, runner.name)
    await sim.advance(SETTLED_S)
    stage.history.note(Calm(stage.history.now_s))


async def late() -> int:
    """Runners are cut off from the database for longer than their leases; what they wrote arrives all the same."""
    cuts = (StorageCuts(every_s=3, lasting_s=25), Kills(), StorageErrors(every_s=6, lasting_s=10))
    return await main(lasting_s=50, runners=4, flows=26, faults=cuts, draw=new_errand)


async def nested() -> int:
    """Branches in branches, with much to undo, while runners are killed and values rejected."""
    return await main(faults=(Kills(every_s=8, lasting_s=3),), draw=new_tree)


def unheard(sim: Simulation) -> None:
    """Have nobody told of anything: those who hold units look now and then."""
    for runner in sim.runners:
        sim.network.cut(sim.loop.test.name, runner.name)


async def silence(stage: SimulatedFlows, sim: Simulation) -> None:
    """Wait until all runs are over; what never ends is found by the judge."""
    stage.is_over = True
    for _ in range(SILENCE_S):
        if not sim.database.main.execute("select count(*) from units where ended_at_ns is null").get:
            break
        await sim.advance(1)
    stage.history.note(Silence(stage.history.now_s))
