"""Workload: crons of all kinds, triggered, paused and resumed by a client, while everything breaks.

    each      every second, `catch_up="all"`: after an outage it catches up with a bound
    latest    every 2 s, the newest counts; what is older than 20 s is not run at all
    skipping  every 2 s, jobs longer than that: ticks are left out meanwhile
    queueing  every 3 s, jobs longer than that: one waits
    failing   every 4 s, raises more often than not: retried, and given a rest by its breaker
    jittery   every 10 s and a bit later, some of its jobs too slow for its timeout
    zoned     by Zurich's clocks, while they are set forward; what is missed is missed

What comes of it is judged in `cron_history`: by the order of commits.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

from coterie import Breaker, Cluster, PersistenceError, Retry, Tick
from coterie.kernel.clock import to_ns
from coterie.testing.loop.nodes import current_node
from coterie.testing.loop.seeds import stream
from coterie.testing.run import current_loop
from coterie.testing.simulation import Simulation, simulate
from tests.simulation.workloads.calls import EVERYTHING
from tests.simulation.workloads.cron_history import CronHistory, judge
from tests.support.history.cron_events import BodyBegan, BodyEnded, Confirmed, Quiet, TickKey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from coterie.cron.definition import Cron
    from coterie.testing.loop.seeds import Stream

RUNNERS = 4
LASTING_S = 120
QUIET_S = 150
"""By when after the last fault all that was due before is over: leases, attempts, jobs that wait for each other."""
START_AT = datetime(2026, 3, 29, 0, 58, 30, tzinfo=UTC)
"""At one o'clock the clocks of Zurich are set forward."""
INSERT = "insert into effects (cron, kind, at_ns, epoch, attempt) values ($1, $2, $3, $4, $5)"


class Defect(Exception):
    """What a job raises now and then."""


@dataclass
class SimulatedCrons:
    """A cluster with its crons, and what was noted."""

    cluster: Cluster
    history: CronHistory = field(default_factory=CronHistory)
    sim: Simulation | None = None

    @property
    def known(self) -> dict[str, Cron]:
        """What it defines."""
        return self.cluster._program.crons.known

    def watch(self, sim: Simulation, *others: Cluster) -> None:
        """Before the first runner starts."""
        self.sim = sim
        programs = [self.cluster, *others]
        self.history.watch(sim, *(each._program.crons.known.values() for each in programs))

    def define(
        self, cluster: Cluster, name: str, schedule: str, *, longest_s: float, fails: float = 0.0, **options: Any
    ) -> None:
        """Add a cron to a program."""

        async def body(tick: Tick) -> None:
            await self.run(tick, longest_s=longest_s, fails=fails)

        cluster.cron(name, schedule, **options)(body)

    async def run(self, tick: Tick, *, longest_s: float, fails: float = 0.0) -> None:
        """What a job does: it takes its time, writes something under the fence, and returns, or not."""
        key, node = key_of(tick), current_node.get()
        random = stream(current_loop().seed, f"{key} {tick.attempt}")
        facts = (key, tick.epoch, tick.attempt, node.label)
        self.history.note(BodyBegan(*facts))
        try:
            await asyncio.sleep(random.uniform(0, longest_s))
            if random.random() < 0.1:
                tick.heartbeat("halfway", done=1, total=2)
            if random.random() < 0.3:
                async with tick.transaction() as sql:
                    await sql.execute(INSERT, key.cron, key.kind, to_ns(key.at), tick.epoch, tick.attempt)
            if random.random() < fails:
                raise Defect(f"{key} in attempt {tick.attempt}")
        except asyncio.CancelledError:
            self.history.note(BodyEnded(*facts, "cut"))
            raise
        except BaseException:
            self.history.note(BodyEnded(*facts, "raised"))
            raise
        self.history.note(BodyEnded(*facts, "returned"))


def key_of(tick: Tick) -> TickKey:
    """Of each instant one at most is triggered by hand."""
    return TickKey(tick.name, "manual" if tick.manual else "scheduled", tick.scheduled_at, int(tick.manual))


def new_stage(**settings: Any) -> SimulatedCrons:
    """A fresh program."""
    stage = SimulatedCrons(Cluster("sqlite://", **{"shards": 2, "drain": "3s", **settings}))
    define = partial(stage.define, stage.cluster)
    rest = Breaker(failures=2, reset="15s")
    define("each", "* * * * * *", longest_s=0.5, catch_up="all")
    define("latest", "*/2 * * * * *", longest_s=0.2, skip_if_older_than="20s")
    define("skipping", "*/2 * * * * *", longest_s=6, overlap="skip")
    define("queueing", "*/3 * * * * *", longest_s=8, overlap="queue", catch_up="all", skip_if_older_than="1m")
    define("failing", "*/4 * * * * *", longest_s=0.5, fails=0.7, retry=Retry(3, base="300ms"), breaker=rest)
    define("jittery", "*/10 * * * * *", longest_s=3, jitter="9s", timeout="2s", from_previous=True)
    define("zoned", "*/7 * 1-3 * * *", longest_s=1, timezone="Europe/Zurich", catch_up="none")
    return stage


async def main(*, lasting_s: float = LASTING_S, runners: int = RUNNERS, least: int = 60) -> int:
    """One seed: faults throughout, an outage of all now and then, then calm, in which all ends, then judgement."""
    stage = new_stage()
    async with simulate(stage.cluster, runners=0, faults=EVERYTHING, start_at=START_AT) as sim:
        stage.watch(sim)
        await sim.start(runners)
        async with asyncio.TaskGroup() as group:
            until_s, client = sim.loop.time() + lasting_s, Client(stage)
            group.create_task(client.act(client.trigger, client.trigger, client.make_up, every_s=2, until_s=until_s))
            group.create_task(client.act(client.pause, every_s=5, until_s=until_s))
            if crc32(f"outage {sim.seed}".encode()) % 3 == 0:
                group.create_task(_outage(sim, lasting_s))
        await calm(stage)
        await unheard(stage)
        await all_quiet(stage)
        events = stage.history.events()
    verdicts = judge(events)
    assert verdicts["runs"] > least, f"only {verdicts['runs']} ticks were claimed: the run shows nothing"
    return len(events)


async def _outage(sim: Simulation, lasting_s: float) -> None:
    """Everybody is gone for a while, at times for longer than is caught up with."""
    random = stream(sim.seed, "outage")
    await sim.advance(random.uniform(0, lasting_s))
    for _ in range(random.randint(5, 150)):
        for runner in sim.runners:
            if runner.alive:  # also those who come back meanwhile
                runner.kill()
        await sim.advance(1)
    for runner in sim.runners:
        if not runner.alive:
            runner.thaw()
            runner.start()


async def calm(stage: SimulatedCrons) -> None:
    """No fault any more, and nothing is paused any more."""
    sim = stage.sim
    assert sim is not None
    await sim.calm()
    for runner in sim.runners:
        sim.network.heal(sim.loop.test.name, runner.name)
    for name in stage.known:
        await sim.wait_until(partial(_resumed, stage, name))


async def unheard(stage: SimulatedCrons) -> None:
    """Trigger each, and have nobody told of it: those who hold them look now and then [M9]."""
    sim = stage.sim
    assert sim is not None
    for runner in sim.runners:
        sim.network.cut(sim.loop.test.name, runner.name)
    for name in stage.known:
        await Client(stage).trigger(name)


async def _resumed(stage: SimulatedCrons, name: str) -> bool:
    try:
        await stage.cluster.crons.resume(name)
    except PersistenceError:  # it may be down for a moment more
        return False
    return True


async def all_quiet(stage: SimulatedCrons) -> None:
    """Wait until all that is due now is over; what never ends is found by the judge."""
    sim = stage.sim
    assert sim is not None
    now = sim.now()
    for _ in range(QUIET_S):
        if not any(_is_busy(sim, cron, now) for cron in stage.known.values()):
            break
        await asyncio.sleep(1)
    stage.history.note(Quiet(now))


def _is_busy(sim: Simulation, cron: Cron, now: datetime) -> bool:
    """Whether something of a cron that was due by then lacks its verdict or its outcome."""
    main, now_ns = sim.database.main, to_ns(now)
    last_ns = main.execute("select last_at_ns from crons where name = ?", (cron.name,)).get
    due = cron.schedule.previous(now - cron.policy.delay + timedelta(microseconds=1))
    known = main.execute("select effective_from_ns from seats where name = ?", (cron.seat,)).get
    if to_ns(due) >= known and (last_ns is None or last_ns < to_ns(due)):
        return True
    sql = "select count(*) from ticks where name = ? and at_ns <= ? and outcome is null"
    return bool(main.execute(sql, (cron.name, now_ns)).get)


class Client:
    """Somebody who triggers, pauses and resumes."""

    def __init__(self, stage: SimulatedCrons) -> None:
        self._stage = stage
        self._crons = stage.cluster.crons
        self._random: Stream = stream(current_loop().seed, "client")
        self._made_up_for: set[tuple[str, datetime]] = set()

    async def act(self, *acts: Callable[[str], Awaitable[None]], every_s: float, until_s: float) -> None:
        """Now one, now another of them, until that time."""
        while current_loop().time() < until_s:
            await asyncio.sleep(self._random.expovariate(1 / every_s))
            name = self._random.choice([*self._stage.known])
            with suppress(PersistenceError, ValueError):  # ValueError: nobody has brought it yet
                await self._random.choice(acts)(name)

    async def trigger(self, name: str) -> None:
        """Now."""
        self._confirm(await self._crons.trigger(name))

    async def make_up(self, name: str) -> None:
        """For an instant of its schedule, once."""
        assert self._stage.sim is not None
        now = self._stage.sim.now()
        at = self._stage.known[name].schedule.previous(now - timedelta(seconds=self._random.uniform(0, 60)))
        if (name, at) not in self._made_up_for:
            self._made_up_for.add((name, at))
            self._confirm(await self._crons.trigger(name, at=at))

    async def pause(self, name: str) -> None:
        """For a while; for good, if the database is not there when that is over."""
        await self._crons.pause(name)
        await asyncio.sleep(self._random.uniform(0, 15))
        await self._crons.resume(name)

    def _confirm(self, told: Any) -> None:
        self._stage.history.note(Confirmed(TickKey(told.cron, told.kind, told.scheduled_at, told.number)))
