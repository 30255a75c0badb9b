"""Workload: 20 clients call entities while runners are killed, frozen, blocked, and cut from peers and from storage.

Handlers append the number of their call to a list in fenced state, some after a long think, some by way of another
entity. What handlers began with and what callers were told is noted; the list's history is written by the database.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from coterie import (
    Cluster,
    CoterieError,
    Entity,
    EntityNotAssigned,
    MailboxFull,
    RunnerUnavailable,
    current,
    rpc,
)
from coterie.kernel.ids import Seat
from coterie.storage.interface import Claim, StateSave
from coterie.testing import faults
from coterie.testing.faults import Fault
from coterie.testing.loop.seeds import stream
from coterie.testing.run import current_loop
from coterie.testing.simulation import Simulation, simulate
from tests.simulation.workloads.fenced import HISTORY, history
from tests.support.history.ownership import (
    Answered,
    AtMostOnce,
    EndedInTime,
    EpochsGrow,
    NoStaleCommit,
    OneChain,
    Ran,
    check,
)

if TYPE_CHECKING:
    from coterie.storage.interface import StateStore
    from coterie.testing.loop.seeds import Stream
    from tests.support.history.ownership import Event

RUNNERS = 4
CLIENTS = 20
LASTING_S = 90
ENTITIES = 12
SHARDS = 6
TIMEOUTS_S = (0.3, 2.0, 8.0)


class ClientCuts(Fault):
    """The clients are cut off from a runner."""

    async def strike(self, simulation: Simulation, random: Stream) -> None:
        """Cut, wait, heal."""
        runner, client = random.choice(simulation.runners), simulation.loop.test.name
        simulation.network.cut(client, runner.name)
        await self._last(random)
        simulation.network.heal(client, runner.name)


EVERYTHING = (*faults.EVERYTHING, ClientCuts(every_s=20, lasting_s=6))


class Fenced(Exception):
    """The shard is not held any more."""


@dataclass
class SimulatedCalls:
    """A cluster with its entity, and what was noted of its calls."""

    cluster: Cluster
    account: type[Any] = Entity
    events: list[Event] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))


def new_stage() -> SimulatedCalls:
    """A fresh program."""
    stage = SimulatedCalls(Cluster("sqlite://", shards=SHARDS, drain="3s"))
    cluster = stage.cluster

    @cluster.entity(mailbox=3, max_idle="20s")
    class Account(Entity):
        @rpc(errors=[Fenced])
        async def append(self, number: int, think_s: float) -> list[int]:
            stage.events.append(Ran(number, self.id, current().runner_id or ""))
            return await self.add(number, think_s)

        @rpc(errors=[Fenced])
        async def pass_on(self, number: int, inner: int, to: str) -> list[int]:
            """Await another entity's call."""
            stage.events.append(Ran(number, self.id, current().runner_id or ""))
            return await cluster.ref(Account, to).append(inner, 0.01)

        async def add(self, number: int, think_s: float) -> list[int]:
            states: StateStore = cluster._acting().storage.states
            claim = claim_here()
            loaded = await states.load(claim, self.id)
            if loaded is None:
                raise Fenced
            await asyncio.sleep(think_s)
            value = [*(msgspec.msgpack.decode(loaded.value) if loaded.value else []), number]
            if await states.save(StateSave(claim, self.id, msgspec.msgpack.encode(value), loaded.version)) != "written":
                raise Fenced
            return value

    stage.account = Account
    return stage


def claim_here() -> Claim:
    """What a handler proves to the fence."""
    context = current()
    assert context.runner_id is not None
    assert context.shard is not None
    assert context.epoch is not None
    return Claim(context.runner_id, Seat.shard(context.shard), context.epoch)


async def main(*, lasting_s: float = LASTING_S, runners: int = RUNNERS) -> int:
    """One seed: faults throughout, then calm, in which every call succeeds, then judgement."""
    stage = new_stage()
    async with simulate(stage.cluster, runners=0, faults=EVERYTHING) as sim:
        sim.database.main.create_scalar_function("virtual_ns", lambda *_: sim.loop.now_ns, 0)
        sim.database.main.execute(HISTORY)
        await sim.start(runners)
        async with asyncio.TaskGroup() as group:
            for client in range(CLIENTS):
                group.create_task(call_on(stage, client, until_s=sim.loop.time() + lasting_s))
        await sim.calm()
        for runner in sim.runners:
            sim.network.heal(sim.loop.test.name, runner.name)
        await all_answer(stage)
        events = [*history(sim.database.main), *stage.events]
    judged = check(events, EpochsGrow(), NoStaleCommit(), OneChain(), AtMostOnce(), EndedInTime())
    answered = sum(isinstance(event, Answered) and event.outcome == "ok" for event in events)
    assert answered > 50, f"only {answered} calls were answered: the run shows nothing"
    return judged


async def call_on(stage: SimulatedCalls, client: int, *, until_s: float) -> None:
    """One client: a call after the other, each with a deadline of its own."""
    loop = current_loop()
    random = stream(loop.seed, f"client {client}")
    while loop.time() < until_s:
        await asyncio.sleep(random.expovariate(1.0))
        await call_once(stage, random)


async def call_once(stage: SimulatedCalls, random: Stream) -> None:
    loop = current_loop()
    number, within_s = next(stage.numbers), random.choice(TIMEOUTS_S)
    entity, other = (f"account-{random.randrange(ENTITIES)}" for _ in range(2))
    ref = stage.cluster.ref(stage.account, entity, timeout=within_s)
    call = ref.append(number, random.choice((0.0, 0.01, 1.0)))
    if random.random() < 0.2:
        call.close()
        call = ref.pass_on(number, next(stage.numbers), other)
    deadline_s = loop.time() + within_s
    try:
        await call
    except (CoterieError, Fenced) as error:
        outcome, told = "not run" if did_not_run(error) else "unknown", repr(error)
    else:
        outcome, told = "ok", "a reply"
    stage.events.append(Answered(number, outcome, told, loop.time() - deadline_s))  # type: ignore[arg-type] # one of three


def did_not_run(error: Exception) -> bool:
    """Whether an error says that no handler ran."""
    if isinstance(error, RunnerUnavailable):
        return not error.sent
    return isinstance(error, EntityNotAssigned | MailboxFull)


async def all_answer(stage: SimulatedCalls) -> None:
    """Without faults every entity can be called within a minute."""
    loop = current_loop()
    for number in range(ENTITIES):
        until_s = loop.time() + 60
        while True:
            try:
                await stage.cluster.ref(stage.account, f"account-{number}").append(next(stage.numbers), 0.0)
                break
            except (CoterieError, Fenced):
                if loop.time() > until_s:
                    raise
                await asyncio.sleep(0.5)
