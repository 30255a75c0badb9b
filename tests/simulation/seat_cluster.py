"""A stage for scenarios of ownership: a settled cluster whose seats are written to, and judged when it is over."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie import Cluster
from coterie.kernel import chaos
from coterie.testing.simulation import Runner, Simulation, simulate
from tests.simulation.workloads.seats import Notes, settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from coterie.ownership.admission import Definition

SHARDS = 6
TTL_S, RENEW_S, MARGIN_S = 6.0, 1.0, 1.5


class Row(NamedTuple):
    """A seat as the table has it."""

    holder: str | None
    epoch: int


class SimulatedSeats:
    """What a scenario works with."""

    def __init__(self, sim: Simulation, notes: Notes) -> None:
        self.sim = sim
        self.notes = notes

    @property
    def seats(self) -> dict[str, Row]:
        """All seats, by name."""
        rows = self.sim.database.main.execute("select name, holder, epoch from seats order by name")
        return {name: Row(holder, epoch) for name, holder, epoch in rows}

    def held_by(self, runner: Runner) -> list[str]:
        """What a runner holds by the table."""
        return [name for name, row in self.seats.items() if row.holder == runner.incarnation]

    def believed_by(self, runner: Runner) -> list[str]:
        """What a runner itself takes for its own."""
        tenures = [runner.real.tenure(name) for name in self.seats]
        return [tenure.seat for tenure in tenures if tenure is not None and tenure.held]

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """What the database says."""
        return list(self.sim.database.main.execute(sql, values))

    def grants(self, *, since_ns: int = 0) -> list[tuple[str, int, str, int]]:
        """Seat, epoch, runner and instant of each grant."""
        sql = "select name, epoch, who, at_ns from history where what = 'grant' and at_ns >= ? order by seq"
        return list(self.sim.database.main.execute(sql, (since_ns,)))

    def releases(self, *, since_ns: int = 0) -> list[tuple[str, int, str, int]]:
        """Seat, epoch, former holder and instant whenever a seat became free."""
        sql = "select name, epoch, who, at_ns from released where at_ns >= ? order by rowid"
        return list(self.sim.database.main.execute(sql, (since_ns,)))

    async def settle(self) -> None:
        """Wait until everything is where it should be and everybody knows."""
        for _ in range(240):  # not at each moment: it looks at everything
            if settled(self.sim):
                return
            await self.sim.advance(0.25)
        raise TimeoutError("not everything has found its place within 60s")


@asynccontextmanager
async def staged(
    *, runners: int = 3, definitions: Sequence[Definition] = (), drain: str = "3s", fair: bool = False
) -> AsyncIterator[SimulatedSeats]:
    """Runners on a simulated database, settled; at the end the history is judged [INV-F1 to F4, S1].

    Args:
        fair: Nothing is slow by chance, and nobody is at work for long: for scenarios that measure.
    """
    if fair:
        chaos.install(None)
    notes = Notes(pause_s=0.3 if fair else 1.0, think_s=0.1)
    async with simulate(Cluster("sqlite://", shards=SHARDS, drain=drain), runners=0, definitions=definitions) as sim:
        if fair:
            sim.database.weather.slow = 0.0
        notes.watch(sim)
        stage = SimulatedSeats(sim, notes)
        if runners:
            await sim.start(runners)
            await stage.settle()
            await sim.advance(3)  # everybody is connected to everybody
        yield stage
    notes.judge(sim)
