"""Workflows whose steps note each time that they run: `python workflow_program.py` is a runner or a client.

A step gives a stamp that no other run of it gives. So what every later run of the workflow was told, and what it has
given itself, says which run of the step it was that was stored.

Variables:
    HOLDER_JOURNAL: The folder of the journals, see `seat_program`.
    FLOW_TAKES_S: How long a step takes, at most.
    FLOW_ASK: What a client asks for, and of which run: "start 7", see `ASKS`; without it this process is a runner.
    FLOW_DIE: The moment at which to die by SIGKILL: "before units.step 3", see `kill_points`.
    FLOW_ABOUT: Of which run; of any if left out.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from coterie import Cluster, DeferredTimeout, Workflow
from coterie.kernel.service import Tasks
from tests.cluster import kill_points
from tests.cluster.seat_program import Journal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

SHARDS = 12
TAKES_S = float(os.environ.get("FLOW_TAKES_S", "0"))
DIE = os.environ.get("FLOW_DIE", "")
GATE = "gate"
OPEN = "open"
"""What a gate gives."""
LATE = "late"
"""What stands in its place if nobody has opened it in time."""


@dataclass
class Plan:
    """What a flow does, in this order."""

    steps: int = 10
    child: int = 0
    """Has another flow make so many steps."""
    gate: str = ""
    """Waits for somebody, for so long at most."""
    nap: str = ""
    """Sleeps for so long, and makes one more step."""
    undo: bool = False
    """Notes it if its first step is undone."""


async def flow(workflow: Workflow, plan: Plan) -> list[str]:
    """The body: all that its steps have given."""
    given: list[str] = []
    for number in range(plan.steps):
        given.append(await made(workflow, number))
        if plan.undo and not number:
            workflow.compensate("undo", undo, workflow.id, given[0])
    if plan.child:
        given += await workflow.child(flow, Plan(plan.child), id=f"{workflow.id}-child")
    if plan.gate:
        given.append(await passed(workflow, plan.gate))
    if plan.nap:
        await workflow.sleep(plan.nap, name="nap")
        given.append(await made(workflow, plan.steps))
    return given


async def made(workflow: Workflow, number: int) -> str:
    """A step, and a note of what it is said to have given."""
    stamp = await workflow.step(f"step {number}", act, workflow.id, number)
    note("saw", key=workflow.id, step=number, stamp=stamp)
    return stamp


async def passed(workflow: Workflow, timeout: str) -> str:
    """What came of waiting."""
    try:
        return await workflow.deferred(GATE, str).wait(timeout=timeout)
    except DeferredTimeout:
        return LATE


async def act(run: str, number: int) -> str:
    """What a step does."""
    stamp = secrets.token_hex(8)
    note("ran", key=run, step=number, stamp=stamp)
    await asyncio.sleep(random.uniform(0, TAKES_S))
    return stamp


async def undo(run: str, stamp: str) -> None:
    """What undoes the first step."""
    note("undone", key=run, step=0, stamp=stamp)


def program(cluster: Cluster) -> Cluster:
    """Define the flows."""
    cluster.workflow(flow)
    return cluster


@cache
def journal() -> Journal:
    """Of this process."""
    return Journal()


def note(what: str, **fields: object) -> None:
    """Note something, with who does."""
    journal().note(what, pid=os.getpid(), **fields)


# A client. Whatever it asks for may be asked for twice.

ASKED = Plan(3, gate="1h", undo=True)
"""What it starts."""


async def start(cluster: Cluster, run: str) -> None:
    """Start one that can be undone and waits."""
    await cluster.start_workflow(flow, ASKED, id=run)


async def resolve(cluster: Cluster, run: str) -> None:
    """Open its gate."""
    await cluster.resolve(await token(cluster, run), OPEN)


async def interrupt(cluster: Cluster, run: str) -> None:
    """Have it end."""
    await cluster.workflow_handle(flow, run).interrupt()


async def resume(cluster: Cluster, run: str) -> None:
    """Have it look whether it can go on."""
    await cluster.workflow_handle(flow, run).resume()


ASKS: dict[str, Callable[[Cluster, str], Awaitable[None]]] = {
    "start": start,
    "resolve": resolve,
    "interrupt": interrupt,
    "resume": resume,
}


async def token(cluster: Cluster, run: str) -> str:
    """The token of the gate of a run that was started."""
    unit = cluster._program.workflows.of(flow).unit(run)
    row = await cluster._acting().storage.units.get(unit)
    assert row is not None, f"{unit} was started"
    return cluster._acting().tokens.make(unit, GATE, life=row.life)


# A process


@asynccontextmanager
async def announced(cluster: Cluster) -> AsyncIterator[None]:
    """Note when this runner takes part; one that is to die may not come so far."""

    async def announce() -> None:
        if not DIE:
            await cluster.ready()
        note("up")

    announcing = Tasks("announce")
    announcing.spawn(announce(), name="announce")
    yield
    await announcing.stop()


async def ask(cluster: Cluster) -> None:
    """Ask for one thing."""
    what, run = os.environ["FLOW_ASK"].split()
    note("up")
    async with cluster.connect():
        await ASKS[what](cluster, run)


def main() -> None:
    if DIE:
        kill_points.install(DIE, about=os.environ.get("FLOW_ABOUT", ""))
    cluster = program(Cluster())
    if "FLOW_ASK" in os.environ:
        asyncio.run(ask(cluster))
    else:
        cluster.setup(lambda: announced(cluster))
        cluster.run()


if __name__ == "__main__":
    main()
