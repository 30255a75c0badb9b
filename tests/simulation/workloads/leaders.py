"""Workload: a leader appends to a list in its state, while everything breaks.

It appends by `save`, by `update` and in transactions with SQL of its own. It raises now and then, resigns now and then,
and now and then leaves something behind that goes on writing, which must come to nothing. Hooks note what they see. A
second singleton runs periodically. What comes of it is judged by the order of commits, which triggers in the database
note.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from coterie import Cluster, CoterieError, Leader, LeadershipLost, PersistenceError
from coterie.testing import faults
from coterie.testing.loop.nodes import current_node
from coterie.testing.loop.seeds import stream
from coterie.testing.run import current_loop
from coterie.testing.simulation import Simulation, simulate
from tests.simulation.workloads.fenced import HISTORY
from tests.support.history.leader_checkers import HooksInOrder, Led, OnlyTheLeaderLeads, Outlived
from tests.support.history.ownership import (
    AppendOutcome,
    EpochsGrow,
    Final,
    Grant,
    NoStaleCommit,
    NothingLostNothingDoubled,
    OneChain,
    Saved,
    Violation,
    check,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coterie.testing.loop.nodes import Node
    from tests.support.history.ownership import Event

RUNNERS = 4
LASTING_S = 120
KEY = "singleton-state:ledger"
SEAT = "singleton:ledger"
ENTRIES = "create table entries (number integer primary key, epoch integer not null)"


@dataclass
class Ledger:
    """The state."""

    numbers: list[int] = field(default_factory=list)


@dataclass
class SimulatedLeaders:
    """A cluster with its singletons, and what was noted, each thing after so many rows of the database's history."""

    cluster: Cluster
    notes: list[tuple[int, Event]] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)
    outlived: list[str] = field(default_factory=list)
    """Processes that were alive when all were told to stop: the end of the simulation takes all of them away."""
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    in_transaction: set[int] = field(default_factory=set)
    watches: list[int] = field(default_factory=list)
    sim: Simulation | None = None

    def watch(self, sim: Simulation) -> None:
        """Before the first runner starts."""
        self.sim = sim
        main = sim.database.main
        main.create_scalar_function("virtual_ns", lambda *_: sim.loop.now_ns, 0)
        main.execute(HISTORY)
        main.execute(ENTRIES)

    def note_survivors(self) -> None:
        """Before all are told to stop."""
        self.outlived = [label for label, node in self.nodes.items() if node.alive]

    def note(self, event: Event) -> None:
        """Something happened after all that is committed now."""
        assert self.sim is not None
        self.notes.append((self.sim.database.main.execute("select coalesce(max(seq), 0) from history").get, event))

    def led(self, what: Any, leader: Leader[Ledger]) -> None:
        """What a leader does."""
        node = current_node.get()
        self.nodes[node.label] = node
        state = tuple(leader.state.numbers) if what == "becoming" else None
        self.note(Led(SEAT, leader.epoch, node.label, what, leader.is_leader, state))

    async def append(self, leader: Leader[Ledger], how: int) -> None:
        """Append a number, in one of several ways, and note what was told of it."""
        number = next(self.numbers)
        try:
            await self._append(leader, how, number)
        except BaseException as error:
            self.note(AppendOutcome(KEY, number, "unknown" if _is_in_doubt(error) else "failed"))
            raise
        self.note(AppendOutcome(KEY, number, "ok", tuple(leader.state.numbers)))

    async def _append(self, leader: Leader[Ledger], how: int, number: int) -> None:
        if how == 0:
            await leader.save(Ledger([*leader.state.numbers, number]))
        elif how == 1:
            self.in_transaction.add(number)
            async with leader.transaction() as sql:
                await sql.execute("insert into entries values ($1, $2)", number, leader.epoch)
                async with leader.update() as state:
                    state.numbers.append(number)
        else:
            async with leader.update() as state:
                state.numbers.append(number)

    def history(self) -> list[Event]:
        """What was committed and what was noted, in one order."""
        assert self.sim is not None
        rows = self.sim.database.main.execute(
            "select seq, what, name, seat, epoch, who, version, value, at_ns from history"
        )
        both = [*((seq, 0, event) for seq, event in _committed(rows)), *((seq, 1, event) for seq, event in self.notes)]
        return [event for _, _, event in sorted(both, key=lambda each: each[:2])]


def new_stage(**settings: Any) -> SimulatedLeaders:
    """A fresh program."""
    stage = SimulatedLeaders(Cluster("sqlite://", shards=2, **{"drain": "3s", "heartbeat": "5s", **settings}))

    async def become(leader: Leader[Ledger]) -> None:
        stage.led("becoming", leader)
        await asyncio.sleep(0.01)
        stage.led("became", leader)

    async def lose(leader: Leader[Ledger]) -> None:
        stage.led("losing", leader)
        await asyncio.sleep(0.01)
        stage.led("lost", leader)

    @stage.cluster.singleton("ledger", state=Ledger, on_become_leader=become, on_lose_leadership=lose)
    async def ledger(leader: Leader[Ledger]) -> None:
        random = stream(current_loop().seed, f"ledger {leader.epoch} {leader.meta.run_count}")
        stage.led("began", leader)
        while True:
            how = random.randrange(32)
            if how == 31:
                raise ValueError("now and then")
            if how == 30:
                await leader.cluster.singletons.resign(leader.name)
            with _stubborn(stage, leader, is_stubborn=how % 4 == 3):
                stage.led("acting", leader)
                await stage.append(leader, how % 3)
                await leader.sleep(random.uniform(0.05, 1.5))

    @stage.cluster.singleton("watch", every="3s")
    async def watch(leader: Leader[None]) -> None:
        del leader
        stage.watches.append(current_loop().now_ns)

    return stage


@contextmanager
def _stubborn(stage: SimulatedLeaders, leader: Leader[Ledger], *, is_stubborn: bool) -> Iterator[None]:
    """Now and then a body leaves something behind that goes on writing after it was cancelled."""
    try:
        yield
    except asyncio.CancelledError:
        if is_stubborn:
            asyncio.get_running_loop().create_task(_haunt(stage, leader))
        raise


async def _haunt(stage: SimulatedLeaders, leader: Leader[Ledger]) -> None:
    for _ in range(5):
        await asyncio.sleep(0.5)
        try:
            await stage.append(leader, 2)
        except CoterieError:
            continue


async def main(*, lasting_s: float = LASTING_S, runners: int = RUNNERS) -> int:
    """One seed: faults throughout, then calm, in which a leader is found, then a good end, then judgement."""
    stage = new_stage()
    async with simulate(stage.cluster, runners=0, faults=faults.EVERYTHING) as sim:
        stage.watch(sim)
        await sim.start(runners)
        await sim.advance(lasting_s)
        await sim.calm()
        noted, watched = len(stage.notes), len(stage.watches)
        await sim.wait_until(lambda: has_saved(stage, since=noted), within="60s")
        await sim.wait_until(lambda: len(stage.watches) > watched, within="60s")
        stage.note_survivors()
    return judge(stage)


def has_saved(stage: SimulatedLeaders, *, since: int = 0) -> bool:
    """Whether an append was acknowledged, after so many notes."""
    return any(isinstance(event, AppendOutcome) and event.outcome == "ok" for _, event in stage.notes[since:])


def judge(stage: SimulatedLeaders, *, least: int = 10) -> int:
    """After everybody has left; the number of events. Raises `Violation`."""
    history = stage.history()
    final = next((event.value for event in reversed(history) if isinstance(event, Saved)), ())
    survivors = [Outlived(label) for label in stage.outlived]
    judged = check(
        [*history, Final(KEY, final), *survivors],
        EpochsGrow(),
        NoStaleCommit(),
        OneChain(),
        NothingLostNothingDoubled(),
        HooksInOrder(),
        OnlyTheLeaderLeads(),
    )
    _judge_transactions(stage, set(final))
    assert len(final) >= least, "hardly anything was written: the run shows nothing"
    return judged


def _judge_transactions(stage: SimulatedLeaders, final: set[int]) -> None:
    """B3: SQL and state of one transaction are there together, or neither is."""
    assert stage.sim is not None
    entries = {number for (number,) in stage.sim.database.main.execute("select number from entries")}
    torn = (final & stage.in_transaction) ^ entries
    if torn:
        raise Violation("B3", f"the transactions of {sorted(torn)} were committed by half")


def _committed(rows: Any) -> Iterator[tuple[int, Event]]:
    for seq, what, name, seat, epoch, who, version, value, at_ns in rows:
        if what == "grant" and name == SEAT:
            yield seq, Grant(name, epoch, who, at_ns)
        elif what == "saved" and name == KEY:
            yield seq, Saved(name, seat, epoch, version, tuple(msgspec.msgpack.decode(value)[1]["numbers"]))


def _is_in_doubt(error: BaseException) -> bool:
    """Whether what failed so may have been written all the same."""
    if isinstance(error, PersistenceError):
        return error.outcome == "unknown"
    if isinstance(error, LeadershipLost):
        return error.in_doubt
    return not isinstance(error, CoterieError)
