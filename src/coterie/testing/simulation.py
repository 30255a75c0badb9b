"""A cluster under simulation: several runners that share one `Cluster`, in virtual time, with verbs to break things.

    async with simulate(cluster, runners=3) as sim:
        sim.runners[0].freeze()
        await sim.wait_until(lambda: …)

Every verb acts at once; what it returns may be awaited and need not be.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from coterie.cluster import Cluster, Connection, acting
from coterie.errors import PersistenceError
from coterie.kernel.addresses import new_incarnation
from coterie.kernel.chance import Chance
from coterie.kernel.clock import to_datetime, to_ns
from coterie.kernel.durations import to_seconds, to_timedelta
from coterie.storage.sqlite import SqliteStorage
from coterie.testing.clocks import LocalTime, SimClock
from coterie.testing.database import SimulatedDatabase
from coterie.testing.faults import Nemesis
from coterie.testing.network import Network
from coterie.testing.running import current_loop
from coterie.testing.seeds import stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

    from coterie.kernel.clock import Clock
    from coterie.kernel.durations import Duration
    from coterie.settings import Settings
    from coterie.testing.faults import Fault
    from coterie.testing.loop import SimLoop

T = TypeVar("T")

RESTART_S = 1.0

Peer = Literal["storage", "peers"]


class Runner:
    """One runner under simulation. It may die and start again under the same name, as another incarnation."""

    def __init__(self, simulation: Simulation, name: str, time: LocalTime) -> None:
        self.name = name
        self._simulation = simulation
        self._loop = simulation.loop
        self._node = self._loop.nodes.add(name, time=time)
        self._node_used = False
        self._stopped = False
        self._connection: Connection | None = None

    @property
    def alive(self) -> bool:
        """Whether it has been started and neither killed nor stopped since."""
        return self._connection is not None and self._node.alive and not self._stopped

    @property
    def frozen(self) -> bool:
        """Whether it is frozen."""
        return self._node.frozen

    @property
    def incarnation(self) -> str:
        """The identity of its present life."""
        assert self._connection is not None, f"{self.name} was never started"
        return self._connection.incarnation

    @property
    def storage(self) -> SqliteStorage:
        """Its storage, for bodies that stand in for what is not built yet."""
        assert self._connection is not None, f"{self.name} was never started"
        storage = self._connection.storage
        assert isinstance(storage, SqliteStorage)
        return storage

    @property
    def clock(self) -> Clock:
        """Its own clock, which may be wrong."""
        return SimClock(self._loop, self._node)

    def true_ns(self, steady_ns: int) -> int:
        """The true instant at which its steady clock shows `steady_ns`."""
        return self._node.time.true_ns(steady_ns)

    def start(self) -> Awaitable[None]:
        """Start it, or start it again after `kill` or `stop`, as a new incarnation."""
        assert not self.alive, f"{self.name} runs already"
        if self._node_used:
            self._loop.nodes.crash(self._node)  # what a stopped one has left behind
            self._node = self._loop.nodes.add(self.name)
        self._node_used, self._stopped = True, False
        self._connection = self._simulation.new_connection(self.name)
        self._note("start")
        return self._spawn(self._begin(), name="start")

    def stop(self) -> Awaitable[None]:
        """Let it leave in good order; done when it is gone."""
        assert self._connection is not None, f"{self.name} was never started"
        self._stopped = True
        self._note("stop")
        return self._spawn(self._connection.stop(), name="stop")

    def kill(self) -> Awaitable[None]:
        """End it as SIGKILL does: nothing of it runs any more, not even `finally`."""
        self._node_used = True
        self._loop.nodes.crash(self._node)
        return _done(self._loop)

    def freeze(self) -> Awaitable[None]:
        """Stop it as SIGSTOP does; what falls due meanwhile waits."""
        self._loop.nodes.freeze(self._node)
        return _done(self._loop)

    def thaw(self) -> Awaitable[None]:
        """Let a frozen runner go on, as SIGCONT does."""
        self._loop.nodes.thaw(self._node)
        return _done(self._loop)

    def cut(self, peer: Peer, *ways: Literal["requests", "replies"]) -> Awaitable[None]:
        """Cut it off from storage or from all peers; with `ways` only one direction to storage."""
        if peer == "storage":
            self._simulation.database.cut(self.name, *ways)
        else:
            for other in self._others():
                self._simulation.network.cut(self.name, other)
        return _done(self._loop)

    def heal(self) -> Awaitable[None]:
        """Mend everything that was cut."""
        self._simulation.database.heal(self.name)
        for other in self._others():
            self._simulation.network.heal(self.name, other)
        return _done(self._loop)

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str = "work") -> asyncio.Task[T]:
        """Run a coroutine on this runner: it dies and freezes with it, and `cluster` acts for this runner in it.

        Awaiting the task of a runner that was killed waits for ever, as a call to a dead process does.
        """
        return self._spawn(work, name=name)

    async def _begin(self) -> None:
        while not await self._started():
            await asyncio.sleep(RESTART_S)
            self._connection = self._simulation.new_connection(self.name)
        if self._simulation.body is not None:
            self._spawn(self._simulation.body(self), name="body")

    async def _started(self) -> bool:
        """One try. A process that cannot start ends, and its supervisor starts it again."""
        assert self._connection is not None
        try:
            await self._connection.start()
        except PersistenceError as error:
            self._loop.trace.note("start failed", problem=error.problem)
            return False
        return True

    def _spawn(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        assert self._connection is not None, f"{self.name} was never started"
        context = self._node.new_context()
        context.run(acting.set, (self._simulation.cluster, self._connection))
        return self._loop.create_task(work, name=f"{self.name}/{name}", context=context)

    def _others(self) -> list[str]:
        return [runner.name for runner in self._simulation.runners if runner is not self]

    def _note(self, what: str) -> None:
        self._loop.trace.note(what, of=self.name)


class Simulation:
    """What `simulate` gives: the runners of one cluster, their database, and the verbs of the whole.

    Attributes:
        seed: What decides this run.
        cluster: The cluster; outside of runners its methods act for a client that never fails.
        runners: All runners, dead ones too.
        body: A coroutine function that each runner executes once it is up; set it before `start`.
    """

    def __init__(self, cluster: Cluster, loop: SimLoop, faults: Sequence[Fault]) -> None:
        self.seed = loop.seed
        self.loop = loop
        self.cluster = cluster
        self.runners: list[Runner] = []
        self.body: Callable[[Runner], Coroutine[Any, Any, object]] | None = None
        self.database = SimulatedDatabase(loop)
        self.network = Network(loop)
        self._random = stream(loop.seed, "simulation")
        self._nemesis = Nemesis(self, faults)
        self._settings = replace(cluster.settings, url="sqlite://")

    def start(self, n: int = 1) -> Awaitable[Any]:
        """Start `n` more runners; done when they are up."""
        new = []
        for _ in range(n):
            drift = self._random.randint(-200, 200)
            time = LocalTime(
                boot_ns=self._random.randrange(10**15),
                drift_ppm=drift,
                wall_offset_ns=self._random.randint(-2 * 10**9, 2 * 10**9),
            )
            new.append(Runner(self, f"runner-{len(self.runners) + 1}", time))
            self.runners.append(new[-1])
        return asyncio.gather(*(runner.start() for runner in new))

    def now(self) -> datetime:
        """The true virtual time, which is the database's."""
        return to_datetime(self.database.clock.wall_ns())

    async def advance(self, by: Duration) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(to_seconds(by, what="by"))

    async def wait_until(self, condition: Callable[[], object], *, within: Duration = "60s") -> None:
        """Wait until a condition (a plain or a coroutine function) holds, for so much virtual time at most."""
        limit = to_timedelta(within, what="within")
        until = self.now() + limit
        while not await _holds(condition):
            if self.now() >= until:
                raise TimeoutError(f"{_name(condition)} did not come true within {limit.total_seconds():g}s")
            await asyncio.sleep(0.01)

    def restart_storage(self, *, down: Duration = "500ms") -> Awaitable[None]:
        """Restart the database: all connections break, new ones are refused for a while, nothing committed is lost."""
        self.database.restart(down_ns=int(to_seconds(down, what="down") * 1e9))
        return _done(self.loop)

    async def calm(self) -> None:
        """Stop all faults, mend everything, thaw and restart everybody: what must happen, happens from here on."""
        await self._nemesis.stop()
        self.database.weather.error_before = self.database.weather.error_after = 0.0
        for runner in self.runners:
            runner.heal()
            if runner.frozen:
                runner.thaw()
            if not runner.alive:
                runner.start()
        self.loop.trace.note("calm")

    def new_connection(self, host: str) -> Connection:
        """A connection to the simulated database, as a process on `host` makes it."""
        chance = Chance(self._random.getrandbits(64))
        incarnation = new_incarnation(chance)
        settings: Settings = self._settings
        clock = self.database.clock
        executors = self.database.executors(host)
        storage = SqliteStorage(settings, incarnation=incarnation, clock=clock, chance=chance, executors=executors)
        return Connection(settings, storage, clock=clock, chance=chance, incarnation=incarnation)

    async def _run(self, runners: int) -> None:
        await self.start(runners)
        self._nemesis.start()


@asynccontextmanager
async def simulate(
    cluster: Cluster,
    *,
    seed: int | None = None,
    runners: int = 3,
    start_at: datetime | None = None,
    faults: Sequence[Fault] = (),
    body: Callable[[Runner], Coroutine[Any, Any, object]] | None = None,
) -> AsyncIterator[Simulation]:
    """Run a cluster under simulation: `runners` runners on one simulated database.

    Args:
        cluster: Its definitions and settings; the url is replaced by a database in memory.
        seed: Only to check that the loop runs with this one; the loop's seed decides everything.
        start_at: What the clock says at the beginning.
        faults: What breaks by itself, as the seed decides; none by default, the verbs are yours.
        body: Executed by each runner once it is up, and again by each later incarnation.
    """
    loop = current_loop()
    if seed is not None and seed != loop.seed:
        raise RuntimeError(f"this loop runs with seed {loop.seed}, not {seed}: give the seed to run_simulation")
    if start_at is not None:
        loop.wall_start_ns = to_ns(start_at.astimezone(UTC)) - loop.now_ns
    simulation = Simulation(cluster, loop, faults)
    simulation.body = body
    with cluster.acting_as(simulation.new_connection("test")) as client:
        await client.start()
        await simulation._run(runners)
        try:
            yield simulation
        finally:
            await simulation._nemesis.stop()


def _done(loop: SimLoop) -> Awaitable[None]:
    """What a verb returns that has acted already."""
    done = loop.create_future()
    done.set_result(None)
    return done


async def _holds(condition: Callable[[], object]) -> bool:
    found = condition()
    return bool(await found if inspect.isawaitable(found) else found)


def _name(condition: Callable[[], object]) -> str:
    return getattr(condition, "__name__", "the condition").replace("<lambda>", "the condition")
