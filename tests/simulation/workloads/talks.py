"""Workload: runs are sent messages, publish, map, race and start others, while everything breaks (W6, W7, W10, W13).

A run does what its plan says. Clients send each message until it is acknowledged, with a key, also before the run
begins; they follow what it publishes, and interrupt some. What comes of it is judged in `talk_history`.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coterie import Cluster, CoterieError, PersistenceError, ReceiveTimeout, Retry, Workflow, WorkflowEnded
from coterie.testing.loop.seeds import stream
from coterie.testing.run import current_loop
from coterie.testing.simulation import simulate
from tests.simulation.workloads.calls import EVERYTHING
from tests.simulation.workloads.talk_history import Followed, Heard, Over, SendTold, TalkHistory, judge

if TYPE_CHECKING:
    from coterie.testing.faults import Fault
    from coterie.testing.loop.seeds import Stream
    from coterie.testing.simulation import Simulation

RUNNERS = 3
LASTING_S = 30
TALKS = 20
SETTLED_S = 25
SILENCE_S = 240
KINDS = ("receive", "receive", "patient", "publish", "map", "race", "race", "child", "both")


@dataclass
class Doing:
    """Something that a run does: `Talker` has a method for each kind."""

    kind: str
    name: str
    number: int = 0


@dataclass
class Talks:
    """A cluster with its workflows, and what was noted."""

    cluster: Cluster
    history: TalkHistory = field(default_factory=TalkHistory)
    talk: Any = None
    child: Any = None


def new_plan(random: Stream) -> list[Doing]:
    """Some acts; at the end the run waits for a word that is sent last."""
    numbers = itertools.count(1)
    kinds = [random.choice(KINDS) for _ in range(random.randint(2, 6))]
    plan = [Doing(kind, f"p{next(numbers)}", random.randint(1, 4)) for kind in kinds]
    return [*plan, Doing("fail" if random.random() < 0.2 else "publish", "p0")]


def needs(plan: list[Doing]) -> int:
    """How many messages the inbox `word` needs at most."""
    return sum({"receive": doing.number, "race": 3, "both": 2}.get(doing.kind, 0) for doing in plan)


@dataclass
class Talker:
    """Does what a plan says, in one run."""

    stage: Talks
    workflow: Workflow

    async def play(self, plan: list[Doing]) -> list[str]:
        """One act after the other."""
        return [await getattr(self, doing.kind)(doing) for doing in plan]

    def heard(self, what: str, value: object) -> str:
        """The body was given something."""
        self.stage.history.note(Heard(f"workflow:talk/{self.workflow.id}", what, str(value)))
        return f"{what}={value}"

    async def receive(self, doing: Doing) -> str:
        """Some messages, one after the other."""
        words = [await self.workflow.receive("word", int) for _ in range(doing.number)]
        return self.heard(f"heard {doing.name}", words)

    async def patient(self, doing: Doing) -> str:
        """A message that may come in time."""
        try:
            return self.heard(f"odd {doing.name}", await self.workflow.receive("odd", int, timeout=2.0 * doing.number))
        except ReceiveTimeout:
            return self.heard(f"odd {doing.name}", "timeout")

    async def publish(self, doing: Doing) -> str:
        """A value that is its own name."""
        await self.workflow.publish("said", doing.name)
        return doing.name

    async def map(self, doing: Doing) -> str:
        """Some items, of which one may fail for good."""
        try:
            found = await self.workflow.options(retry=Retry(2, base="100ms")).map(
                item, list(range(6 * doing.number)), limit=3, name=doing.name
            )
        except ValueError as error:
            return self.heard(f"map {doing.name}", f"failed: {error}")
        return self.heard(f"map {doing.name}", found)

    async def race(self, doing: Doing) -> str:
        """Messages against a sleep: what the loser has received is given back."""
        number, value = await self.workflow.first(self._words(2), self._nap(doing), name=f"race {doing.name}")
        return self.heard(f"race {doing.name}", f"{number} {value}")

    async def _words(self, count: int) -> list[int]:
        await pause(f"words of {self.workflow.id}")
        return [await self.workflow.receive("word", int) for _ in range(count)]

    async def _nap(self, doing: Doing) -> None:
        await pause(f"nap of {self.workflow.id}")
        await self.workflow.sleep(0.5 * doing.number, name=f"nap {doing.name}")

    async def both(self, doing: Doing) -> str:
        """Two branches that receive and publish."""

        async def branch(number: int) -> int:
            word = await self.workflow.receive("word", int)
            await self.workflow.publish("said", f"b{doing.name} {number}")
            return word

        return self.heard(f"both {doing.name}", await asyncio.gather(branch(0), branch(1)))

    async def child(self, doing: Doing) -> str:
        """Another run, which is told to end when this one is well."""
        run = await self.workflow.start(self.stage.child, doing.number, id=f"{self.workflow.id} {doing.name}")
        await self.workflow.sleep("500ms", name=f"before {doing.name}")
        await self.workflow.step(f"tell {doing.name}", tell, run)
        return f"told {doing.name}"

    async def fail(self, doing: Doing) -> str:
        """It fails for good, and leaves a child behind."""
        await self.workflow.start(self.stage.child, 0, id=f"{self.workflow.id} left")
        raise ValueError(doing.name)


async def pause(what: str) -> None:
    """A moment, another one in each run of a body: which side of a race begins first is open."""
    await asyncio.sleep(stream(current_loop().seed, f"{what} {current_loop().time()}").uniform(0, 0.01))


async def item(number: int) -> int:
    """An item of a map."""
    random = stream(current_loop().seed, f"item {number} {current_loop().time()}")
    await asyncio.sleep(random.uniform(0, 0.5) ** 2)
    if random.random() < 0.3:
        raise ValueError(str(number))
    return number


async def tell(run: Any) -> None:
    """Tell a child to end, which may have ended."""
    while True:
        try:
            await run.send("go", 1, key="go")
        except PersistenceError:
            await asyncio.sleep(0.3)
        except WorkflowEnded:
            return
        else:
            return


def new_stage(**settings: Any) -> Talks:
    """A fresh program."""
    stage = Talks(Cluster("sqlite://", **{"shards": 4, "drain": "3s", **settings}))

    @stage.cluster.workflow
    async def talk(workflow: Workflow, plan: list[Doing]) -> list[str]:
        return await Talker(stage, workflow).play(plan)

    @stage.cluster.workflow
    async def child(workflow: Workflow, number: int) -> list[str]:
        await workflow.publish("said", f"p{number}")
        await workflow.receive("go", int)
        return [f"p{number}"]

    stage.talk, stage.child = talk, child
    return stage


async def main(*, lasting_s: float = LASTING_S, talks: int = TALKS, faults: tuple[Fault, ...] = EVERYTHING) -> int:
    """One seed: faults throughout, then calm, in which all ends, then judgement."""
    stage = new_stage()
    async with simulate(stage.cluster, runners=0, faults=faults) as sim:
        stage.history.watch(sim)
        await sim.start(RUNNERS)
        random = stream(sim.seed, "talks")
        async with asyncio.TaskGroup() as group:
            clients = []
            for number in range(talks):
                talk = _talk(stage, f"{number}", new_plan(random), stream(sim.seed, f"talk {number}"))
                clients.append(group.create_task(talk))
                await asyncio.sleep(random.uniform(0, 2 * lasting_s / talks))
            await sim.calm()
            for runner in sim.runners:
                sim.network.heal(sim.loop.test.name, runner.name)
            await sim.advance(SETTLED_S)
            await _silence(sim)
            await sim.advance(5)  # who follows reads the rest
            for client in clients:
                client.cancel()
        events = stage.history.events()
    ended = sum(isinstance(event, Over) for event in events)
    assert ended >= talks, f"only {ended} runs have ended: the run shows nothing"
    return judge(events)


async def _talk(stage: Talks, id: str, plan: list[Doing], random: Stream) -> None:
    """All that clients do with one run."""
    handle, unit = stage.cluster.workflow_handle(stage.talk, id), f"workflow:talk/{id}"

    async def send(name: str, value: int) -> None:
        while True:
            with suppress(PersistenceError):
                with suppress(WorkflowEnded):
                    await handle.send(name, value, key=f"{value}")
                    stage.history.note(SendTold(unit, name, value))
                return
            await asyncio.sleep(0.3)

    async def words() -> None:
        for number in range(needs(plan)):
            await send("word", number)
            await asyncio.sleep(random.uniform(0, 1.5))

    async def odd() -> None:
        for number in range(len(plan)):
            await asyncio.sleep(random.uniform(0, 4))
            await send("odd", number)

    async def follow() -> None:
        values = [value async for value in handle.follow("said", str)]
        stage.history.note(Followed(unit, tuple(values)))

    async with asyncio.TaskGroup() as group:
        speaking = [group.create_task(words()), group.create_task(odd())]
        await asyncio.sleep(random.uniform(0, 1))
        while True:
            try:
                await stage.cluster.start_workflow(stage.talk, plan, id=id)
                break
            except PersistenceError:
                await asyncio.sleep(0.3)
        speaking.append(group.create_task(follow()))
        if random.random() < 0.2:
            await asyncio.sleep(random.uniform(0, 8))
            with suppress(CoterieError):
                await handle.interrupt()


async def _silence(sim: Simulation) -> None:
    """Wait until all runs are over; what never ends is found by the judge."""
    for _ in range(SILENCE_S):
        if not sim.database.main.execute("select count(*) from units where ended_at_ns is null").get:
            return
        await sim.advance(1)
