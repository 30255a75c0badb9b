"""Workload: schedules put, changed, paused, resumed, sent once more and removed, and timers, while everything breaks.

Each content has its own call, so that the judge knows of what is sent what put it. Handlers take their time, so that
overlaps happen, and have defects, so that timers which they set are undone. What comes of it is judged in
`schedule_history`: by the order of commits, and by what the clients were told.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from coterie import Cluster, CoterieError, Entity, Retry, rpc
from coterie.testing.loop.seeds import stream
from coterie.testing.run import current_loop
from coterie.testing.simulation import Simulation, simulate
from tests.simulation.workloads.calls import EVERYTHING
from tests.simulation.workloads.schedule_history import Judge, ScheduleLog, by_entity
from tests.support.history.ownership import Violation

if TYPE_CHECKING:
    from coterie.testing.loop.seeds import Stream

RUNNERS = 4
LASTING_S = 90
QUIET_S = 120
ENTITIES = 4
NAMES = 5
START_AT = datetime(2026, 3, 29, 0, 59, 30, tzinfo=UTC)
"""At one o'clock the clocks of Zurich are set forward."""


class Defect(Exception):
    """What a handler raises now and then."""


class Alarms(msgspec.Struct):
    """The timers that an entity believes to have set: the content of each by name."""

    set: dict[str, int] = msgspec.field(default_factory=dict)
    rung: int = 0


@dataclass
class SimulatedSchedules:
    """A cluster with what is called, and what was noted."""

    cluster: Cluster
    target: type[Any] = Entity
    sleeper: type[Any] = Entity
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))


def new_stage(**settings: Any) -> SimulatedSchedules:
    """A fresh program."""
    stage = SimulatedSchedules(Cluster("sqlite://", **{"shards": 4, "drain": "3s", **settings}))
    cluster = stage.cluster

    def think(what: str, number: int) -> tuple[float, bool]:
        random = stream(current_loop().seed, f"{what} {number} {current_loop().time()}")
        return random.uniform(0, 4) if random.random() < 0.3 else 0.0, random.random() < 0.15

    @cluster.entity(retry=Retry(attempts=50, base="200ms"))
    class Target(Entity):
        @rpc(persisted=True)
        async def note(self, number: int) -> None:
            think_s, fails = think("note", number)
            await asyncio.sleep(think_s)
            if fails:
                raise Defect(number)

    @cluster.entity(retry=Retry(attempts=50, base="200ms"), max_idle="5s")
    class Sleeper(Entity[Alarms]):
        @rpc(persisted=True)
        async def arm(self, name: str, number: int, after_s: float, every_s: int) -> None:
            self.state.set[name] = number
            ring = self.me.ring(name, number)
            if every_s:
                self.timer(name, ring, every=f"{every_s}s")
            else:
                self.timer(name, ring, after=after_s)
            await self._end("arm", number)

        @rpc(persisted=True)
        async def disarm(self, name: str, number: int) -> None:
            self.state.set.pop(name, None)
            self.state.rung += 1
            self.cancel_timer(name)
            await self._end("disarm", number)

        @rpc
        async def rearm(self, name: str, number: int, after_s: float) -> None:
            self.state.set[name] = number
            self.timer(name, self.me.ring(name, number), after=after_s)
            await self._end("rearm", number)

        @rpc(persisted=True)
        async def ring(self, name: str, number: int) -> None:
            self.state.rung += 1
            if self.state.set.get(name) == number and not name.startswith("beat"):
                del self.state.set[name]
            await self._end("ring", number)

        async def _end(self, what: str, number: int) -> None:
            think_s, fails = think(what, number)
            await asyncio.sleep(think_s / 4)
            if fails:
                raise Defect(number)

    stage.target, stage.sleeper = Target, Sleeper
    return stage


async def main(*, lasting_s: float = LASTING_S, runners: int = RUNNERS, least: int = 40) -> int:
    """One seed: faults throughout, then calm, in which all that is due is sent, then judgement."""
    stage = new_stage()
    async with simulate(stage.cluster, runners=0, faults=EVERYTHING, start_at=START_AT) as sim:
        log = ScheduleLog(sim)
        await sim.start(runners)
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(Client(stage, sim, log, number).act(until_s=sim.loop.time() + lasting_s))
        await sim.calm()
        for runner in sim.runners:
            sim.network.heal(sim.loop.test.name, runner.name)
        await settle(sim)
        judge = Judge()
        judge.see_all(log.events())
        judge.finish(sim.now())
        _require_timers_as_believed(sim)
    assert judge.sent > least, f"only {judge.sent} instants were sent: the run shows nothing"
    assert judge.timers, "no timer was set"
    assert judge.told, "no call has returned"
    return judge.sent


async def settle(sim: Simulation) -> None:
    """Wait until nothing is late, but for what waits for its last message; what is never sent is found by the judge."""
    sql = """
        select count(*) from schedules as r
        where next_at_ns <= ? and paused_at_ns is null
            and not exists (select 1 from messages as m where m.id = r.last_id and m.status = 0)
    """
    await sim.advance(15)
    for _ in range(QUIET_S):
        if not sim.database.main.execute(sql, (sim.database.clock.wall_ns() - 5_000_000_000,)).get:
            return
        await sim.advance(0.7)


def _require_timers_as_believed(sim: Simulation) -> None:
    """What an entity has committed about its timers is what is stored of them, and what is due once has rung."""
    rows = by_entity(sim)
    sql = "select key, value from states where key like 'entity-state:Sleeper/%'"
    for key, value in sim.database.main.execute(sql):
        entity = key.removeprefix("entity-state:")
        believed = set(msgspec.msgpack.decode(value)[-1]["set"])
        if believed != rows[entity]:
            raise Violation("C9", f"{entity} has set {sorted(believed)}, and stored are {sorted(rows[entity])}")


class Client:
    """One of those who put schedules, one call after the other."""

    def __init__(self, stage: SimulatedSchedules, sim: Simulation, log: ScheduleLog, number: int) -> None:
        self._stage = stage
        self._log = log
        self._cluster = stage.cluster
        self._sim = sim
        self._random: Stream = stream(current_loop().seed, f"client {number}")

    async def act(self, *, until_s: float) -> None:
        """Until that time."""
        acts = (
            *(self.put, self.put, self.put, self.again, self.pause, self.resume, self.resume, self.remove),
            self.backfill,
        )
        timers = (self.arm, self.arm, self.rearm, self.disarm)
        while current_loop().time() < until_s:
            await asyncio.sleep(self._random.expovariate(0.7))
            try:
                await self._random.choice((*acts, *timers))()
            except (CoterieError, ValueError, Defect):
                continue  # what came of it is in the database

    async def put(self) -> None:
        """Something new under a name."""
        random, number = self._random, next(self._stage.numbers)
        options: dict[str, Any] = {
            "overlap": random.choice(["allow", "allow", "skip", "queue"]),
            "catch_up": random.choice(["latest", "all", "none"]),
            "skip_if_older_than": random.choice([None, "10s", "1d"]),
        }
        now = self._sim.now()
        often, zoned = ["* * * * * *", "*/3 * * * * *", "@every 2s", "@every 7s"], "*/5 * 0-3 * * *"
        schedule: Any = random.choice([*often, zoned, None])
        if schedule is None:
            schedule = now + timedelta(seconds=random.uniform(0, 10))
        elif schedule == zoned:
            options["timezone"] = "Europe/Zurich"
        if random.random() < 0.2:
            options["jitter"] = "3s"
        if random.random() < 0.2:
            options["end"] = now + timedelta(seconds=random.randint(5, 30))
        if random.random() < 0.1:
            options["start"] = now + timedelta(seconds=random.randint(1, 10))
        await self._put(self._name(), schedule, number, **options)

    async def again(self) -> None:
        """The same twice: nothing changes by it."""
        name, number = self._name(), next(self._stage.numbers)
        for _ in range(2):
            await self._put(name, "@every 3s", number, overlap="queue")
            await asyncio.sleep(self._random.uniform(0, 3))

    async def _put(self, name: str, schedule: Any, number: int, **options: Any) -> None:
        began = self._log.begin()
        await self._cluster.schedules.put(name, schedule, self._call(number), **options)
        self._log.returned(began, "put", name, number=number)

    async def pause(self) -> None:
        """For a while."""
        name, began = self._name(), self._log.begin()
        await self._cluster.schedules.pause(name)
        self._log.returned(began, "pause", name)

    async def resume(self) -> None:
        """What is paused goes on."""
        for each in await self._cluster.schedules.list():
            if each.paused_at is not None:
                began = self._log.begin()
                await self._cluster.schedules.resume(each.name)
                self._log.returned(began, "resume", each.name)

    async def remove(self) -> None:
        """One of them."""
        name, began = self._name(), self._log.begin()
        await self._cluster.schedules.remove(name, cancel=self._random.random() < 0.3)
        self._log.returned(began, "remove", name)

    async def backfill(self) -> None:
        """Some instants once more, also of the time before it was put; now and then the same ones twice."""
        name, now = self._name(), self._sim.now()
        since = now - timedelta(seconds=self._random.uniform(0, 20))
        window = since, since + timedelta(seconds=self._random.uniform(0, 10))
        for _ in range(self._random.choice([1, 1, 2])):
            began, ids = self._log.begin(), None
            try:
                ids = tuple(map(str, await self._cluster.schedules.backfill(name, *window)))
            finally:
                self._log.returned(began, "backfill", name, window=window, ids=ids)

    async def arm(self) -> None:
        """Set a timer."""
        random, number = self._random, next(self._stage.numbers)
        name = random.choice(["once", "beat"])
        every_s = random.randint(1, 6) if name == "beat" else 0
        await self._cluster.send(self._sleeper().arm(name, number, random.uniform(0, 8), every_s))

    async def rearm(self) -> None:
        """Set one in a volatile call."""
        await self._sleeper().rearm("once", next(self._stage.numbers), self._random.uniform(0, 8))

    async def disarm(self) -> None:
        """Cancel one."""
        name = self._random.choice(["once", "beat"])
        await self._cluster.send(self._sleeper().disarm(name, next(self._stage.numbers)))

    def _name(self) -> str:
        return f"s{self._random.randrange(NAMES)}"

    def _call(self, number: int) -> Any:
        return self._cluster.ref(self._stage.target, f"t{number % ENTITIES}").note(number)

    def _sleeper(self) -> Any:
        return self._cluster.ref(self._stage.sleeper, f"e{self._random.randrange(ENTITIES)}")
