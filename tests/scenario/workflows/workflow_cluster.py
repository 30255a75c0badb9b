"""What steps of workflows wrote down, who ran them and when; and a cluster to run them in, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie import Cluster
from coterie.kernel import chaos
from coterie.testing.loop.nodes import current_node
from coterie.testing.run import current_loop
from coterie.testing.simulation import Simulation, simulate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie import Deferred
    from coterie.testing.simulation import Runner

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SWEEP_S = 2.5
"""What is found sooner than this was told, and not found by looking at all shards now and then."""


class Ran(NamedTuple):
    """A step that began."""

    what: str
    runner: str
    at_s: float
    """After noon."""


class Diary:
    """Of all steps of a test."""

    def __init__(self) -> None:
        self.lines: list[Ran] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.bodies: list[str] = []
        """Runs of bodies that began: who ran them."""
        self.tokens: dict[str, str] = {}
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.fails: Counter[str] = Counter()
        """How often a step fails before it gives something."""

    @property
    def ran(self) -> list[str]:
        """The steps that began, in order."""
        return [line.what for line in self.lines]

    def body(self) -> None:
        """A body begins here."""
        self.bodies.append(current_node.get().label)

    async def do(self, what: str, gives: int = 0) -> int:
        """A step that writes itself down."""
        self.lines.append(Ran(what, current_node.get().label, current_loop().now_ns / 1e9))
        await asyncio.sleep(0.001)
        if self.fails[what]:
            self.fails[what] -= 1
            raise ValueError(f"{what} did not work")
        self.ended.append(what)
        return gives

    async def gated(self, what: str, gives: int = 0) -> int:
        """The same; it ends when its gate opens."""
        self.lines.append(Ran(what, current_node.get().label, current_loop().now_ns / 1e9))
        try:
            await self.gates[what].wait()
        except asyncio.CancelledError:
            self.cancelled.append(what)
            raise
        self.ended.append(what)
        return gives

    def give(self, name: str, deferred: Deferred[Any]) -> None:
        """Hand out a token."""
        self.tokens[name] = deferred.token


def new_cluster(**settings: Any) -> Cluster:
    """Of one name, whatever its program: programs of several versions meet in it."""
    return Cluster("sqlite://", **{"shards": 2, "drain": "3s", **settings})


@asynccontextmanager
async def simulated(cluster: Cluster, *, runners: int = 2) -> AsyncIterator[Simulation]:
    """A cluster in virtual time from noon on, in which nothing is slow by chance."""
    chaos.install(None)
    async with simulate(cluster, runners=0, start_at=NOON) as sim:
        sim.database.weather.slow = 0.0
        await sim.start(runners)
        await cluster.ready()
        yield sim


def seat(sim: Simulation, workflow: Any, id: str) -> str:
    """Of a run."""
    kind = sim.cluster._program.workflows.of(workflow)
    return kind.seat(id, sim.cluster.settings.shards)


def holder(sim: Simulation, workflow: Any, id: str = "1") -> Runner:
    """Who holds a run just now."""
    return sim.owner(seat(sim, workflow, id))


def seconds(sim: Simulation) -> float:
    """After noon, by the database's clock."""
    return (sim.now() - NOON).total_seconds()


def noon(after_s: float) -> datetime:
    return NOON + timedelta(seconds=after_s)


async def deploy(sim: Simulation, cluster: Cluster, runners: int = 1) -> None:
    """Start runners of another version of the program."""
    sim.cluster = cluster
    await sim.start(runners)


async def restart(sim: Simulation, *, down_s: float = 0.0) -> None:
    """Everybody is killed, and others come."""
    alive = [runner for runner in sim.runners if runner.alive]
    for runner in alive:
        runner.kill()
    await sim.advance(down_s)
    await sim.start(len(alive))


def rows(sim: Simulation, table: str = "steps", *, where: str = "true") -> list[Any]:
    """What is stored."""
    return sim.database.main.execute(f"select * from {table} where {where}").fetchall()


def steps(sim: Simulation) -> list[tuple[str, int, str, str]]:
    """Branch, position, kind and name of what is stored."""
    sql = "select branch, position, kind, name from steps order by unit, branch, position"
    return [tuple(row) for row in sim.database.main.execute(sql)]


async def token_of(cluster: Cluster, unit: str, name: str) -> str:
    """The token of a deferred of a unit that has begun."""
    row = await cluster._acting().storage.units.get(unit)
    assert row is not None
    return cluster._acting().tokens.make(unit, name, life=row.life)


async def over(handle: Any, *, within: str = "60s") -> Any:
    """The result, or the error."""
    try:
        return await handle.result(timeout=within)
    except Exception as error:
        return error


async def suspended(sim: Simulation, handle: Any) -> None:
    """Wait until nobody has it in memory."""

    async def is_suspended() -> bool:
        return bool(await handle.status() == "suspended")

    await sim.wait_until(is_suspended)


def kill_here(sim: Simulation) -> None:
    """Kill the runner that has just come here."""
    here = current_node.get().label.split("/")[0]
    next(runner for runner in sim.runners if runner.alive and here.startswith(runner.name)).kill()
