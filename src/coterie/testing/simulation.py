"""A simulated cluster: several runners that share one `Cluster`, in virtual time, with verbs to break things.

    async with simulate(cluster, runners=3) as sim:
        sim.runners[0].freeze()
        await sim.wait_until(lambda: …)

Every verb acts at once; what it returns may be awaited and need not be.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Unpack

from coterie.client import Client, ClientParts
from coterie.entities.reference import address_of
from coterie.kernel.clock import to_datetime, to_ns
from coterie.kernel.durations import Duration, to_seconds, to_timedelta
from coterie.kernel.ids import Seat, ShardId
from coterie.kernel.random import Random
from coterie.kernel.supervisor import Supervisor
from coterie.runner import no_occupants
from coterie.storage.engines import encrypt
from coterie.storage.sqlite import SqliteStorage
from coterie.testing.database import SimulatedDatabase
from coterie.testing.faults import Fault, Nemesis
from coterie.testing.lease_thread import SimSideLoop
from coterie.testing.loop.clocks import LocalTime, SimClock
from coterie.testing.loop.idle import IdleTime
from coterie.testing.loop.seeds import stream
from coterie.testing.network.network import Network
from coterie.testing.network.wire import SimWire
from coterie.testing.run import current_loop
from coterie.testing.runner import Runner, done
from coterie.testing.threads import SteppedProcesses, SteppedThreads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence

    from coterie import runner as real
    from coterie.cluster import Cluster
    from coterie.entities.entity import Entity
    from coterie.ownership.admission import Definition
    from coterie.ownership.seats import Occupy
    from coterie.settings import SettingsOverrides
    from coterie.testing.loop.loop import SimLoop
    from coterie.testing.loop.nodes import Node

    Body = Callable[[Runner], Coroutine[Any, Any, object]]
    Occupants = Callable[[real.Runner], Occupy]

__all__ = ["NobodyHolds", "Runner", "Simulation", "simulate"]

STOP_S = 30.0
"""How long the end of a simulation may take beyond the drain. A runner that has not stopped by then hangs [L1]."""


class NobodyHolds(LookupError):
    """The seat has no holder just now, or one that is gone and not evicted yet."""


class Simulation:
    """What `simulate` returns: the runners of one cluster, their database, and the verbs for the whole cluster.

    Attributes:
        seed: The seed that decides this run.
        cluster: The cluster; outside of runners its methods act for a client that never fails.
        runners: All runners, dead ones too.
        body: A coroutine function that each runner executes once it is up; set it before `start`.
        occupy: Makes the occupants of seats, for runners that start from now on, where no package of coterie does.
        definitions: What the programs of new runners define besides shards and what the cluster defines.
        strikes: How often each fault has struck, by the name of its class.
    """

    def __init__(self, cluster: Cluster, loop: SimLoop, faults: Sequence[Fault]) -> None:
        self.seed = loop.seed
        self.loop = loop
        self.cluster = cluster
        self.strikes = loop.strikes
        self.runners: list[Runner] = []
        self.body: Body | None = None
        self.occupy: Occupants = no_occupants
        self.definitions: Sequence[Definition] = ()
        self.database = SimulatedDatabase(loop)
        self.network = Network(loop)
        number = "" if loop.simulations == 1 else f" {loop.simulations}"  # known seeds keep their streams
        self._random = stream(loop.seed, f"simulation{number}")
        self._nemesis = Nemesis(self, faults)
        self._settings = replace(cluster.settings, url="sqlite://")

    def start(self, n: int = 1, **overrides: Unpack[SettingsOverrides]) -> Awaitable[Any]:
        """Start `n` more runners, optionally with settings of their own; done when they are registered, or killed."""
        first = len(self.runners) + 1
        for number in range(first, first + n):
            given: dict[str, Any] = {"runner_name": f"runner-{number}", **overrides}
            self.runners.append(Runner(self, replace(self._settings, **given), self._new_time()))
        return asyncio.gather(*(runner.start() for runner in self.runners[first - 1 :]))

    def owner(self, seat: str | ShardId | Entity[Any]) -> Runner:
        """The runner that holds a seat, or the shard of an entity, according to the database, alive or not.

        Args:
            seat: Its name, a shard, or a reference to an entity.

        Raises:
            NobodyHolds: The seat has no holder, or its holder has been restarted since.
        """
        if not isinstance(seat, str | ShardId):
            address = address_of(seat)
            seat = self.cluster.shard_of(address.type, address.id)
        name = Seat.shard(seat) if isinstance(seat, ShardId) else seat
        holder = self._holder(name)
        for runner in self.runners:
            if runner.started and runner.incarnation == holder:
                return runner
        raise NobodyHolds(f"{name} is held by {holder or 'nobody'} at {self.now():%H:%M:%S.%f}")

    def leader(self, name: str) -> Runner:
        """The runner that holds a singleton's seat. Raises as `owner` does."""
        return self.owner(Seat.singleton(name))

    def now(self) -> datetime:
        """The virtual time, by the database's clock."""
        return to_datetime(self.database.clock.wall_ns())

    async def advance(self, by: Duration) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(to_seconds(by, what="by"))

    async def wait_until(self, condition: Callable[[], object], *, within: Duration = "60s") -> None:
        """Wait until a condition (a plain or a coroutine function) holds, at most `within` of virtual time.

        A condition that raises `NobodyHolds` does not hold.
        """
        limit = to_timedelta(within, what="within")
        until_ns = self.loop.now_ns + round(limit.total_seconds() * 1e9)
        while not await holds(condition):
            if self.loop.now_ns >= until_ns:
                raise TimeoutError(f"{name_of(condition)} did not come true within {limit.total_seconds():g}s")
            await asyncio.sleep(0.01)

    def restart_storage(self, *, down: Duration = "500ms") -> Awaitable[None]:
        """Restart the database: all connections break, new ones are refused for a while, nothing committed is lost."""
        self.database.restart(down_ns=int(to_seconds(down, what="down") * 1e9))
        return done(self.loop)

    async def calm(self) -> None:
        """Stop all faults, heal all cuts, thaw and restart all runners: from here on the cluster must recover."""
        await self._nemesis.stop()
        self.database.weather.error_before = self.database.weather.error_after = 0.0
        for runner in self.runners:
            runner.heal()
            if runner.frozen:
                runner.thaw()
            if not runner.alive:
                runner.start()
        self.loop.trace.note("calm")

    def new_runner(self, runner: Runner, node: Node) -> real.Runner:
        """The wrapped runner, as a process would create it, on a node."""
        return self.cluster._program.new_runner(
            runner.settings, parts=self._parts(node), definitions=runner.definitions, occupy=self.occupy
        )

    def new_client(self) -> Client:
        """The client for which the cluster acts outside of runners."""
        return Client(self._settings, self._parts(self.loop.test))

    def _parts(self, node: Node) -> ClientParts:
        chance = Random(self._random.getrandbits(64))
        supervisor = Supervisor(chance)
        executors = self.database.executors(node.name)

        def open_storage(incarnation: str) -> SqliteStorage:
            storage = SqliteStorage(
                self._settings,
                incarnation=incarnation,
                clock=self.database.clock,
                chance=chance,
                executors=executors,
                witness=self.database.witness,
                supervisor=supervisor,
            )
            encrypt(storage, self._settings, chance)
            return storage

        return ClientParts(
            clock=SimClock(self.loop, node),
            chance=chance,
            open_storage=open_storage,
            new_wire=lambda: SimWire(self.network, node),
            new_aside=lambda: SimSideLoop(self.loop, node),
            host=node.name,
            supervisor=supervisor,
            new_threads=lambda _: SteppedThreads(self.loop),
            new_processes=lambda _: SteppedProcesses(SteppedThreads(self.loop)),
        )

    def _new_time(self) -> LocalTime:
        drift = self._random.randint(-200, 200)
        return LocalTime(
            boot_ns=self._random.randrange(10**15),
            drift_ppm=drift,
            wall_offset_ns=self._random.randint(-2 * 10**9, 2 * 10**9),
        )

    def _holder(self, seat: str) -> str | None:
        sql = "select holder from seats where cluster = ? and name = ?"
        holder: str | None = self.database.main.execute(sql, (self._settings.name, seat)).get
        return holder

    def _dispose(self) -> None:
        """Let nothing of it run any more: the next simulation on this loop has nodes of the same names."""
        for runner in self.runners:
            runner.kill()
        self.loop.nodes.crash(self.database.node)

    async def _run(self, runners: int) -> None:
        await self.start(runners)
        self._nemesis.start()

    async def _end(self) -> None:
        """Stop all runners gracefully where possible; kill the others."""
        self.database.weather.error_before = self.database.weather.error_after = 0.0
        for runner in self.runners:
            runner.heal()
            if runner.frozen:
                runner.kill()
        limit_s = self._settings.drain.total_seconds() + STOP_S
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*(runner.stop() for runner in self.runners if runner.alive))
        except TimeoutError:
            raise TimeoutError(f"not all runners have left {limit_s:g}s after they were told to") from None


@asynccontextmanager
async def simulate(
    cluster: Cluster,
    *,
    seed: int | None = None,
    runners: int = 3,
    start_at: datetime | None = None,
    faults: Sequence[Fault] = (),
    without: Sequence[str] = (),
    skip_idle: bool = True,
    body: Body | None = None,
    occupy: Occupants = no_occupants,
    definitions: Sequence[Definition] = (),
) -> AsyncIterator[Simulation]:
    """Run a simulated cluster: `runners` runners on one simulated database, which stop when the block ends.

    Args:
        cluster: Its definitions and settings; the url is replaced by a database in memory.
        seed: Only to check that the loop runs with this one; the loop's seed decides everything.
        start_at: The time at the start of the run.
        faults: Faults that strike by themselves, as the seed decides; none by default: the test uses the verbs.
        without: What is left out, by name: faults of `faults` by their class ("Kills"), singletons and crons of the
            program by theirs ("pulse").
        skip_idle: Whether idle time is skipped, an hour of it in milliseconds, or passes second by second.
        body: Executed by each runner once it is up, and again after each restart.
        occupy: Makes the occupants of a runner's seats; none by default.
        definitions: Seats besides shards that each runner's program defines, and the cluster does not.

    Raises:
        ValueError: A name in `without` does not exist.
        RuntimeError: Another loop runs; or the block of another simulation on this loop has not ended.
    """
    loop = current_loop()
    if loop.is_simulating:
        raise RuntimeError("a simulation runs on this loop: end its `async with` block before the next one begins")
    if seed is not None and seed != loop.seed:
        raise RuntimeError(f"this loop runs with seed {loop.seed}, not {seed}: give the seed to run_simulation")
    if start_at is not None:
        loop.wall_start_ns = to_ns(start_at.astimezone(UTC)) - loop.now_ns
    with _left_out(cluster, faults, without) as wanted, _alone(loop):
        loop.faults += [type(fault).__name__ for fault in wanted]
        simulation = Simulation(cluster, loop, wanted)
        simulation.body, simulation.occupy, simulation.definitions = body, occupy, definitions
        loop.skip = IdleTime(simulation).skip if skip_idle else None
        with cluster._participant.bound(simulation.new_client) as client:
            await client.start()
            await simulation._run(runners)
            try:
                yield simulation
            finally:
                await simulation._nemesis.stop()
            await simulation._end()
            await client.stop()
            simulation._dispose()


@contextmanager
def _alone(loop: SimLoop) -> Iterator[None]:
    """One simulation at a time: its runners, its database and its network have names on the loop."""
    loop.is_simulating = True
    loop.simulations += 1
    try:
        yield
    finally:
        loop.is_simulating, loop.skip = False, None


@contextmanager
def _left_out(cluster: Cluster, faults: Sequence[Fault], without: Sequence[str]) -> Iterator[Sequence[Fault]]:
    """The remaining faults; meanwhile the cluster lacks the singletons and crons in `without`."""
    program = cluster._program
    defined: list[dict[str, Any]] = [program.singletons.known]
    defined += [program.crons.known] if "cron" in program.names() else []
    names = {type(fault).__name__ for fault in faults}
    known = sorted(names.union(*defined))
    for name in without:
        if name not in known:
            raise ValueError(
                f"without names {name!r}, and there is no such fault, singleton or cron: {', '.join(known)}"
            )
    before = [dict(each) for each in defined]
    for each in defined:
        for name in without:
            each.pop(name, None)
    try:
        yield [fault for fault in faults if type(fault).__name__ not in without]
    finally:
        for each, all_of in zip(defined, before, strict=True):
            each.clear()
            each.update(all_of)


async def holds(condition: Callable[[], object]) -> bool:
    """Whether a condition, a plain or a coroutine function, holds; it does not while it raises `NobodyHolds`."""
    try:
        found = condition()
        return bool(await found if inspect.isawaitable(found) else found)
    except NobodyHolds:
        return False


def name_of(condition: Callable[[], object]) -> str:
    """The name of a condition, for errors."""
    return getattr(condition, "__name__", "the condition").replace("<lambda>", "the condition")
