"""Workload: real runners settle who holds what under all faults; on each seat somebody appends to a fenced list.

The history is written by triggers inside the database, in commit order. At the instant of each grant everybody else is
asked whether it still believes to hold the seat: nobody may, by its own clock, however slow or frozen it is [INV-F4],
unless the database's clock was set forward since it last renewed its lease: the exception that INV-F4 names.
Nor may anybody still work on a seat that it has given back [L1].
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from coterie import Cluster, PersistenceError, ShuttingDown
from coterie.kernel.service import Tasks
from coterie.ownership.admission import Definition
from coterie.ownership.assignment import targets
from coterie.storage.interface import StateSave
from coterie.storage.sqlite import seats
from coterie.storage.sqlite.store import Scope
from coterie.testing import faults
from coterie.testing.loop.nodes import current_node
from coterie.testing.loop.seeds import stream
from coterie.testing.simulation import Simulation, simulate
from tests.simulation.workloads.fenced import HISTORY, history, seats_without_runner
from tests.support.history.ownership import (
    Drawn,
    EpochsGrow,
    IdsUnique,
    NoStaleCommit,
    OneChain,
    Saved,
    Violation,
    check,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie import runner as real
    from coterie.ownership.seats import Occupant, Occupy, Tenure
    from coterie.storage.interface import ClusterSnapshot
    from coterie.testing.loop.seeds import Stream

RUNNERS = 5
LASTING_S = 240
SHARDS = 6
SINGLETONS = ("singleton:importer", "singleton:mailer")
DRAIN_S = 3.0
STOP_MOST_S = DRAIN_S + 25
"""What a stop may take: the drain, the farewell, and what waits for an answer of a database that gives none."""
LEASE_NS = 6_000_000_000
SHUNNED_S = 11 * 60
"""By then a runner that once let a seat stand free is trusted with it again [m1]."""

ASK = """
create temp trigger believed after update of holder on main.seats when new.holder is not null begin
    select believed(new.name, new.epoch, new.holder);
end;
create temp table released (name text, epoch integer, who text, at_ns integer);
create temp trigger released after update of holder on main.seats when new.holder is null begin
    insert into released values (old.name, old.epoch, old.holder, virtual_ns());
end;
"""


async def main(*, lasting_s: float = LASTING_S, runners: int = RUNNERS) -> int:
    """One seed: faults throughout, then calm, in which everything settles, then judgement."""
    cluster = Cluster("sqlite://", shards=SHARDS, drain=DRAIN_S)
    notes = Notes()
    async with simulate(cluster, runners=0, faults=(*faults.EVERYTHING, JudgedStops(every_s=60, notes=notes))) as sim:
        notes.watch(sim)
        sim.definitions = [Definition(seat=seat, group="default", fingerprint="1") for seat in SINGLETONS]
        await sim.start(runners)
        drawing = Tasks("client")
        drawing.spawn(draw(cluster, notes), name="draw")
        await sim.advance(lasting_s)
        await sim.calm()
        try:
            await settle(sim)
        except Violation:
            notes.judge(sim)  # if more is broken, that is why
            raise
        await drawing.stop()
        events = history(sim.database.main)
        orphans = seats_without_runner(sim.database.main, cluster.settings.name)
    assert not orphans, f"seats of runners that do not exist: {orphans}"
    assert sum(isinstance(event, Saved) for event in events) > 10, "hardly anything was written: the run shows nothing"
    return notes.judge(sim)


async def draw(cluster: Cluster, notes: Notes) -> None:
    """A client draws ids."""
    while True:
        await asyncio.sleep(1)
        try:
            notes.drawn.append(Drawn(await cluster.next_id(), "client"))
        except PersistenceError:
            continue


# Whether everything has found its place


async def settle(sim: Simulation) -> None:
    """Wait until the cluster agrees with itself [INV-E3], and then until it is balanced too."""
    try:
        await sim.wait_until(lambda: agreed(sim), within="60s")
    except TimeoutError:
        raise Violation("INV-E3", "runners do not agree on who holds what a minute after the last fault") from None
    for _ in range(SHUNNED_S):
        if settled(sim):
            return
        await sim.advance(1)
    raise Violation("INV-E3", "seats are not where they should be, long after the last fault")


def agreed(sim: Simulation) -> bool:
    """INV-E3: every seat has one holder that lives and knows it, and all directories say the same."""
    runners = [each for each in sim.runners if each.alive]
    view = _view(sim)
    if {row.id for row in view.runners} != {each.incarnation for each in runners}:
        return False
    for row in view.seats:
        for each in runners:
            known = each.real.directory.holder(row.name)
            tenure = each.real.tenure(row.name)
            if row.holder is None or known is None or known.id != row.holder:
                return False
            if (tenure is not None and tenure.held) != (each.incarnation == row.holder):
                return False
    return True


def settled(sim: Simulation) -> bool:
    """Agreed, and every seat is where everybody's plan has it."""
    view = _view(sim)
    wanted = targets(view.runners, view.seats)
    return all(row.holder == wanted.get(row.name) for row in view.seats) and agreed(sim)


def _view(sim: Simulation) -> ClusterSnapshot:
    return seats.view(sim.database.main, Scope(sim.cluster.settings.name, 0), {})


# What is noted


@dataclass
class Notes:
    """What a run says of itself, besides the history."""

    pause_s: float = 4.0
    think_s: float = 3.0
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    drawn: list[Drawn] = field(default_factory=list)
    writers: defaultdict[str, list[Writer]] = field(default_factory=lambda: defaultdict(list))
    wrongs: list[Violation] = field(default_factory=list)
    on_grant: Callable[[str, int, str], None] | None = None
    """Called at the instant of each grant with seat, epoch and holder."""
    stepped_ns: int | None = None
    """When the database's clock was last set forward."""

    def watch(self, sim: Simulation) -> None:
        """Write the history, put writers on seats, and look into everybody's head at each grant."""
        main = sim.database.main
        main.create_scalar_function("virtual_ns", lambda *_: sim.loop.now_ns, 0)
        main.create_scalar_function("believed", lambda *grant: self._granted(sim.loop.now_ns, *grant), 3)
        main.execute(HISTORY)
        main.execute(ASK)
        sim.occupy = lambda runner: self._occupying(sim, runner)
        step_clock = sim.database.step_clock

        def stepped(by_s: float) -> None:
            if by_s > 0:
                self.stepped_ns = sim.loop.now_ns
            step_clock(by_s)

        sim.database.step_clock = stepped  # type: ignore[method-assign]  # faults come this way

    def judge(self, sim: Simulation) -> int:
        """Raise what was broken; how many events were judged."""
        for wrong in self.wrongs:
            raise wrong
        events = [*history(sim.database.main), *self.drawn]
        return check(events, EpochsGrow(), NoStaleCommit(), OneChain(), IdsUnique())

    def _granted(self, now_ns: int, seat: Any, epoch: Any, holder: Any) -> None:
        if self.on_grant is not None:
            self.on_grant(seat, epoch, holder)
        for each in self.writers[seat]:
            what = f"{holder} was granted {seat} at epoch {epoch} while {each.node.label}"
            is_excepted = self.stepped_ns is not None and now_ns - self.stepped_ns < LEASE_NS
            if each.believes and each.tenure.epoch < epoch and not is_excepted:
                self.wrongs.append(Violation("INV-F4", f"{what} believed in {each.tenure.epoch}"))
            if each.works_on:
                self.wrongs.append(Violation("L1", f"{what} worked on, having given back {each.tenure.epoch}"))

    def _occupying(self, sim: Simulation, runner: real.Runner) -> Occupy:
        """Put a writer on each seat of a runner."""
        random = stream(sim.seed, f"seats {runner.incarnation}")

        def occupy(tenure: Tenure) -> Occupant:
            writer = Writer(runner, tenure, random, self)
            self.writers[tenure.seat].append(writer)
            return writer

        return occupy


class Writer:
    """Appends numbers to the list of its seat, some quickly and some with a long think in the middle."""

    def __init__(self, runner: real.Runner, tenure: Tenure, random: Stream, notes: Notes) -> None:
        self.node = current_node.get()
        self.tenure = tenure
        self.abandoned = False
        self._runner = runner
        self._random = random
        self._notes = notes
        self._tasks = Tasks(f"writer on {tenure.seat}")
        self._draining = False
        self._working = self._tasks.spawn(self._work(), name="work")

    @property
    def believes(self) -> bool:
        """Whether its process lives and takes the seat for its own."""
        return self.node.alive and self.tenure.held

    @property
    def works_on(self) -> bool:
        """Whether it is at work although its seat was given back in good order."""
        return self.node.alive and self.tenure.ended and not (self.abandoned or self._working.done())

    async def drain(self) -> None:
        self._draining = True
        try:
            async with asyncio.timeout(DRAIN_S):
                await asyncio.shield(self._working)
        except TimeoutError:
            await self._tasks.stop()

    def abandon(self) -> None:
        self.abandoned = True
        if self._random.random() < 0.7:  # some work ignores its cancellation: the fence must hold
            self._working.cancel()

    async def _work(self) -> None:
        while not (self._draining or self.tenure.ended):
            await asyncio.sleep(self._random.uniform(0.05, self._notes.pause_s))
            if not self.tenure.may_start:
                continue
            try:
                await self._append()
                await self._draw()
            except PersistenceError:
                continue
            except ShuttingDown:
                return

    async def _append(self) -> None:
        states, claim = self._runner.storage.states, self.tenure.claim
        loaded = await states.load(claim, claim.seat)
        if loaded is None:
            return
        await asyncio.sleep(self._random.uniform(0, self._notes.think_s))  # user code runs here
        before: list[Any] = msgspec.msgpack.decode(loaded.value) if loaded.value else []
        value = msgspec.msgpack.encode([*before, next(self._notes.numbers)])
        await states.save(StateSave(claim, claim.seat, value, loaded.version))

    async def _draw(self) -> None:
        drawn = await self._runner.ids.take()
        self._notes.drawn.append(Drawn(drawn, self.node.label))


# What is done


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedStops(faults.Fault):
    """L1, L2: a runner that is stopped ends within its limit, whatever happens meanwhile, and holds nothing then."""

    notes: Notes

    async def strike(self, simulation: Simulation, random: Stream) -> None:
        """Stop one, wait for it, start it again."""
        well = [runner for runner in simulation.runners if runner.alive and not runner.frozen]
        if not well:
            return
        runner = random.choice(well)
        stopping, stopped = runner.real, runner.stop()
        began_ns = simulation.loop.now_ns
        try:
            async with asyncio.timeout(STOP_MOST_S):
                await stopped
        except TimeoutError:
            self._wrong(f"{runner.name} has not stopped after {STOP_MOST_S:g}s")
        simulation.loop.trace.note("stopped", of=runner.name, after_s=(simulation.loop.now_ns - began_ns) / 1e9)
        if runner.real is stopping and stopping.seats:
            self._wrong(f"{runner.name} has stopped and believes in {', '.join(stopping.seats)}")
        if not runner.alive:
            runner.start()

    def _wrong(self, problem: str) -> None:
        self.notes.wrongs.append(Violation("L1", problem))
