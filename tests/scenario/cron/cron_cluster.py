"""What bodies of crons wrote down, who ran them and when; and a cluster to run them in, in virtual time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from coterie import Cluster, current
from coterie.kernel import chaos
from coterie.kernel.ids import Seat
from coterie.testing.loop.nodes import current_node
from coterie.testing.run import current_loop
from coterie.testing.simulation import Simulation, simulate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from coterie import Tick, TickInfo
    from coterie.testing.simulation import Runner

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EVERY_SECOND = "@every 1s"


def noon(seconds: float) -> datetime:
    """So long after noon, when simulations begin."""
    return NOON + timedelta(seconds=seconds)


@dataclass(frozen=True)
class Line:
    """A run that began."""

    cron: str
    at: datetime
    attempt: int
    runner: str
    epoch: int
    manual: bool
    began_s: float
    """After noon."""


class Logbook:
    """Of all crons of a test."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.ended: list[Line] = []
        self.cancelled: list[Line] = []
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """By name of a cron: its runs end when it is set."""

    def begin(self, tick: Tick) -> Line:
        """A run begins here and now."""
        here = current_node.get().label
        began_s = current_loop().now_ns / 1e9
        line = Line(tick.name, tick.scheduled_at, tick.attempt, here, tick.epoch, tick.manual, began_s)
        self.lines.append(line)
        return line

    def of(self, name: str = "x") -> list[Line]:
        """The runs of one cron."""
        return [line for line in self.lines if line.cron == name]

    def seconds(self, name: str = "x") -> list[float]:
        """The instants for which it ran, after noon."""
        return [(line.at - NOON).total_seconds() for line in self.of(name)]

    def attempts(self, name: str = "x") -> list[tuple[float, int]]:
        """The same, with the number of the attempt."""
        return [((line.at - NOON).total_seconds(), line.attempt) for line in self.of(name)]


def new_cluster(**settings: Any) -> Cluster:
    """Of one name, whatever its program: programs of several versions meet in it."""
    return Cluster("sqlite://", shards=1, **{"drain": "3s", **settings})


def define(
    cluster: Cluster,
    book: Logbook,
    *,
    name: str = "x",
    schedule: str = EVERY_SECOND,
    gated: bool = False,
    **options: Any,
) -> None:
    """A cron that writes down its runs. With `gated` they end when the gate of its name opens."""

    @cluster.cron(name, schedule, **options)
    async def body(tick: Tick) -> None:
        assert current().seat == Seat.cron(name)
        line = book.begin(tick)
        if gated:
            try:
                await book.gates[name].wait()
            except asyncio.CancelledError:
                book.cancelled.append(line)
                raise
        book.ended.append(line)


@asynccontextmanager
async def simulated(
    cluster: Cluster, *, runners: int = 2, at: datetime = NOON, fair: bool = True
) -> AsyncIterator[Simulation]:
    """A cluster in virtual time from noon on. Fair: nothing is slow by chance."""
    if fair:
        chaos.install(None)
    async with simulate(cluster, runners=0, start_at=at) as sim:
        if fair:
            sim.database.weather.slow = 0.0
        await sim.start(runners)
        yield sim


def holder(sim: Simulation, name: str = "x") -> Runner:
    """Who holds a cron just now."""
    return sim.owner(Seat.cron(name))


async def until(sim: Simulation, at: datetime) -> None:
    """Let time pass until the database's clock shows that."""
    await sim.advance(max(0.0, (at - sim.now()).total_seconds()) + 0.000001)


async def stop_all(sim: Simulation) -> None:
    """Everybody leaves in good order."""
    await asyncio.gather(*(runner.stop() for runner in sim.runners if runner.alive))


def kill_all(sim: Simulation) -> None:
    """Everybody is killed."""
    for runner in sim.runners:
        if runner.alive:
            runner.kill()


async def deploy(sim: Simulation, cluster: Cluster, runners: int = 2) -> None:
    """Start runners of another version of the program."""
    sim.cluster = cluster
    await sim.start(runners)


async def history(cluster: Cluster, name: str = "x", **options: Any) -> list[TickInfo]:
    """All ticks, the oldest first."""
    return list(await cluster.crons.history(name, **{"limit": 1000, **options}))[::-1]


def told(ticks: Sequence[TickInfo]) -> list[str]:
    """Ticks in short: `1 ran`, `2-9 skipped superseded`, `10 failed/3` (after three attempts), `11 open`."""
    return [_told(tick) for tick in ticks]


def _told(tick: TickInfo) -> str:
    first, last = ((at - NOON).total_seconds() for at in (tick.scheduled_at, tick.until))
    span = f"{first:g}" if tick.count == 1 else f"{first:g}-{last:g}"
    manual = "manual " if tick.kind == "manual" else ""
    attempts = f"/{tick.attempt}" if tick.attempt > 1 else ""
    return f"{span} {manual}{tick.outcome or 'open'}{attempts}{' ' if tick.reason else ''}{tick.reason}"


def accounted(ticks: Sequence[TickInfo], *, every_s: int = 1) -> list[int]:
    """The seconds after noon that have a verdict by the schedule; each of them once, and none left out [INV-C2]."""
    found: list[int] = []
    for tick in ticks:
        if tick.kind == "scheduled":
            first, last = (round((at - NOON).total_seconds()) for at in (tick.scheduled_at, tick.until))
            assert tick.count == (last - first) // every_s + 1
            found += range(first, last + 1, every_s)
    assert found == list(range(found[0], found[-1] + 1, every_s)), told(ticks)
    return found
