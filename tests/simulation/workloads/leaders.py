"""Workload: a leader appends to a list in its state, while everything breaks.

It appends by `save`, by `update` and in transactions with SQL of its own. It raises now and then, and now and then it
ignores its cancellation for a while and goes on writing, which must come to nothing. Hooks note what they see. A second
singleton runs periodically. What comes of it is judged by the order of commits, which triggers in the database note.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from coterie import Cluster, CoterieError, Leader
from coterie.testing import faults
from coterie.testing.checkers import EpochsGrow, Grant, NoStaleCommit, OneChain, Saved, Violation, check
from coterie.testing.running import current_loop
from coterie.testing.seeds import stream
from coterie.testing.simulation import Simulation, simulate

from .fenced import HISTORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from coterie.testing.checkers import Event

RUNNERS = 4
LASTING_S = 120
KEY = "singleton-state:ledger"
SEAT = "singleton:ledger"
ENTRIES = "create table entries (number integer primary key, epoch integer not null)"


@dataclass
class Ledger:
    """The state."""

    numbers: list[int] = field(default_factory=list)


class Noted(NamedTuple):
    """Something that a program saw of itself, after so many rows of the database's history."""

    after: int
    what: str
    who: str
    epoch: int
    number: int = 0
    is_leader: bool = False


@dataclass
class Stage:
    """A cluster with its singletons, and what was noted."""

    cluster: Cluster
    notes: list[Noted] = field(default_factory=list)
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

    def note(self, what: str, leader: Leader[Any], number: int = 0) -> None:
        assert self.sim is not None
        after = self.sim.database.main.execute("select coalesce(max(seq), 0) from history").get
        self.notes.append(
            Noted(after, what, f"{leader.meta.leader} {id(leader)}", leader.epoch, number, leader.is_leader)
        )

    async def append(self, leader: Leader[Ledger], how: int) -> None:
        """Append a number, in one of several ways; noted as acknowledged when it returned."""
        number = next(self.numbers)
        self.note("trying", leader, number)
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
        self.note("saved", leader, number)


def new_stage() -> Stage:
    """A fresh program."""
    stage = Stage(Cluster("sqlite://", shards=2, drain="3s", heartbeat="5s"))

    async def become(leader: Leader[Ledger]) -> None:
        stage.note("became", leader)
        await asyncio.sleep(0.01)

    async def lose(leader: Leader[Ledger]) -> None:
        stage.note("losing", leader)
        await asyncio.sleep(0.01)
        stage.note("lost", leader)

    @stage.cluster.singleton("ledger", state=Ledger, on_become_leader=become, on_lose_leadership=lose)
    async def ledger(leader: Leader[Ledger]) -> None:
        random = stream(current_loop().seed, f"ledger {leader.epoch} {leader.meta.run_count}")
        stage.note("began", leader)
        while True:
            how = random.randrange(16)
            if how == 15:
                raise ValueError("now and then")
            with _stubborn(stage, leader, is_stubborn=how % 4 == 3):
                await stage.append(leader, how % 3)
                await leader.sleep(random.uniform(0.05, 1.5))

    @stage.cluster.singleton("watch", every="3s")
    async def watch(leader: Leader[None]) -> None:
        del leader
        stage.watches.append(current_loop().now_ns)

    return stage


@contextmanager
def _stubborn(stage: Stage, leader: Leader[Ledger], *, is_stubborn: bool) -> Iterator[None]:
    """Now and then a body leaves something behind that goes on writing after it was cancelled."""
    try:
        yield
    except asyncio.CancelledError:
        if is_stubborn:
            asyncio.get_running_loop().create_task(_haunt(stage, leader))
        raise


async def _haunt(stage: Stage, leader: Leader[Ledger]) -> None:
    for _ in range(5):
        await asyncio.sleep(0.5)
        try:
            await stage.append(leader, 2)
        except CoterieError:
            continue


async def main(*, lasting_s: float = LASTING_S, runners: int = RUNNERS) -> int:
    """One seed: faults throughout, then calm, in which a leader is found, then judgement."""
    stage = new_stage()
    async with simulate(stage.cluster, runners=0, faults=faults.EVERYTHING) as sim:
        stage.watch(sim)
        await sim.start(runners)
        await sim.advance(lasting_s)
        await sim.calm()
        saved = len(stage.notes)
        await sim.wait_until(lambda: any(each.what == "saved" for each in stage.notes[saved:]), within="60s")
        await sim.wait_until(lambda: stage.watches[-1] > sim.loop.now_ns - 10 * 10**9, within="60s")
        for runner in sim.runners:
            runner.kill()
        await sim.advance(1)
        main = sim.database.main
        events = list(
            _history(main.execute("select seq, what, name, seat, epoch, who, version, value, at_ns from history"))
        )
        entries = {number for (number,) in main.execute("select number from entries")}
    judged = check([event for _, event in events], EpochsGrow(), NoStaleCommit(), OneChain())
    final = next((event.value for _, event in reversed(events) if isinstance(event, Saved)), ())
    _judge_numbers(stage, final, entries)
    _judge_hooks(stage.notes, events)
    assert len(final) > 10, "hardly anything was written: the run shows nothing"
    return judged


def _history(rows: Any) -> Iterator[tuple[int, Event]]:
    for seq, what, name, seat, epoch, who, version, value, at_ns in rows:
        if what == "grant" and name == SEAT:
            yield seq, Grant(name, epoch, who, at_ns)
        elif what == "saved" and name == KEY:
            yield seq, Saved(name, seat, epoch, version, tuple(msgspec.msgpack.decode(value)[1]["numbers"]))


def _judge_numbers(stage: Stage, final: Sequence[int], entries: set[int]) -> None:
    """S2: what was acknowledged is there; B3: SQL and state of one transaction are there together, or neither is."""
    lost = [each.number for each in stage.notes if each.what == "saved" and each.number not in set(final)]
    if lost:
        raise Violation("INV-S1", f"the appends {lost} were acknowledged, and are not in the state")
    if len(set(final)) != len(final):
        raise Violation("INV-S1", f"the state has numbers twice: {final}")
    torn = (set(final) & stage.in_transaction) ^ entries
    if torn:
        raise Violation("INV-S1", f"the transactions of {sorted(torn)} were committed by half")


def _judge_hooks(notes: Sequence[Noted], events: Sequence[tuple[int, Event]]) -> None:
    """S7: once each, in order; and whoever loses the leadership while it is its own does so before the next one."""
    seen: dict[tuple[str, int], list[str]] = {}
    for note in notes:
        if note.what in ("became", "began", "losing", "lost"):
            seen.setdefault((note.who, note.epoch), []).append(note.what)
    for (who, epoch), order in seen.items():
        hooks = [what for what in order if what != "began"]
        if hooks != ["became", "losing", "lost"][: len(hooks)] or order[0] != "became":
            raise Violation("INV-S2", f"the hooks of {who} at epoch {epoch} ran as {order}")
    granted = {event.epoch: seq for seq, event in events if isinstance(event, Grant)}
    for note in notes:
        later = min((seq for epoch, seq in granted.items() if epoch > note.epoch), default=None)
        if note.what in ("losing", "trying") and note.is_leader and later is not None and note.after >= later:
            raise Violation(
                "INV-S3", f"{note.who} took itself for the leader of epoch {note.epoch} after its successor"
            )
