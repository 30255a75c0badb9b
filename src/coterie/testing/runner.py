"""One simulated runner: the real one with simulated I/O, and the verbs that break it.

Every verb acts at once; what it returns may be awaited and need not be.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from coterie.errors import PersistenceError, ShuttingDown
from coterie.kernel.durations import Duration, to_seconds
from coterie.storage.sqlite import SqliteStorage
from coterie.testing.loop.clocks import LocalTime, SimClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Sequence

    from coterie import runner
    from coterie.kernel.clock import Clock
    from coterie.ownership.admission import Definition
    from coterie.ownership.membership import Membership
    from coterie.settings import Settings
    from coterie.testing.loop.loop import SimLoop
    from coterie.testing.simulation import Simulation

T = TypeVar("T")

RESTART_S = 1.0

Peer = Literal["storage", "peers"]


class Runner:
    """One simulated runner. It may die and start again under the same name, as another incarnation.

    Attributes:
        name: Its name, the same for all incarnations.
        settings: Its settings; a change applies from its next start on.
        definitions: What its program defines besides shards; a change applies from its next start on, as a deploy does.
    """

    def __init__(self, simulation: Simulation, settings: Settings, time: LocalTime) -> None:
        assert settings.runner_name is not None, "given by the simulation"
        self.name = settings.runner_name
        self.settings = settings
        self.definitions: Sequence[Definition] = simulation.definitions
        self._simulation = simulation
        self._loop = simulation.loop
        self._node = self._loop.nodes.add(self.name, time=time)
        self._node_used = False
        self._stopped = False
        self._blocked_until_ns = 0
        self._death: asyncio.Future[None] = self._loop.create_future()
        self._real: runner.Runner | None = None

    @property
    def alive(self) -> bool:
        """Whether it has been started and neither killed nor stopped since."""
        return self._real is not None and self._node.alive and not self._stopped

    @property
    def frozen(self) -> bool:
        """Whether it is frozen."""
        return self._node.frozen

    @property
    def is_well(self) -> bool:
        """Whether it runs and has joined, and no fault or verb of the simulation affects it."""
        node = self._node
        if not self.alive or node.frozen or node.blocked or node.held:
            return False
        return self.membership is not None and self.membership.trust.holds

    @property
    def membership(self) -> Membership | None:
        """Membership of its current incarnation; None: it has not joined yet."""
        life = self.real._life
        return None if life is None else life.membership

    @property
    def started(self) -> bool:
        """Whether it was ever started."""
        return self._real is not None

    @property
    def real(self) -> runner.Runner:
        """The wrapped runner, as a real process has it."""
        assert self._real is not None, f"{self.name} was never started"
        return self._real

    @property
    def incarnation(self) -> str:
        """The id of its current incarnation."""
        return self.real.incarnation

    @property
    def storage(self) -> SqliteStorage:
        """Its storage, for test bodies that access it directly."""
        storage = self.real.storage
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
        """Start it, or start it again after `kill` or `stop`, as a new incarnation.

        Done when it is registered, or was killed before.
        """
        assert not self.alive, f"{self.name} runs already"
        if self._node_used:
            self._crash()  # remains of a stopped one
            self._node = self._loop.nodes.add(self.name)
            self._death = self._loop.create_future()
        self._node_used, self._stopped, self._blocked_until_ns = True, False, 0
        self._real = self._simulation.new_runner(self, self._node)
        self._note("start")
        return self._or_death(self._begin(), name="start")

    def stop(self) -> Awaitable[None]:
        """Stop it gracefully; done when it is gone, even if killed."""
        self._stopped = True
        self._note("stop")
        return self._or_death(self.real.stop(), name="stop")

    def kill(self) -> Awaitable[None]:
        """End it as SIGKILL does: nothing of it runs any more, not even `finally`."""
        self._node_used = True
        self._crash()
        return done(self._loop)

    def freeze(self) -> Awaitable[None]:
        """Stop it as SIGSTOP does; what falls due meanwhile waits."""
        self._loop.nodes.freeze(self._node)
        return done(self._loop)

    def thaw(self) -> Awaitable[None]:
        """Resume a frozen runner, as SIGCONT does."""
        self._loop.nodes.thaw(self._node)
        return done(self._loop)

    def block(self, duration: Duration) -> Awaitable[None]:
        """Block its event loop, as a long computation does; its lease thread goes on. Done afterwards."""
        over: asyncio.Future[None] = self._loop.create_future()
        until_ns = self._loop.now_ns + round(to_seconds(duration, what="duration") * 1e9)
        self._blocked_until_ns = max(self._blocked_until_ns, until_ns)
        self._loop.nodes.block(self._node)
        context = self._loop.test.new_context()
        self._loop.call_at_ns(until_ns, self._unblock, self._node, over, context=context)
        return over

    def step_clock(self, by_s: float) -> Awaitable[None]:
        """Set its wall clock forward, or back; its steady clock is not affected."""
        self._loop.trace.note("clock step", of=self.name, by_s=by_s)
        self._node.time.wall_offset_ns += round(by_s * 1e9)
        return done(self._loop)

    def drift(self, ppm: int) -> Awaitable[None]:
        """Let its clocks run too fast from now on, by so many millionths; too slow if negative."""
        self._loop.trace.note("drift", of=self.name, ppm=ppm)
        self._node.time.set_drift(ppm, now_ns=self._loop.now_ns)
        return done(self._loop)

    def cut(self, peer: Peer, *ways: Literal["requests", "replies"]) -> Awaitable[None]:
        """Cut it off from storage or from all peers; with `ways` only one direction to storage."""
        if peer == "storage":
            self._simulation.database.cut(self.name, *ways)
        else:
            for other in self._others():
                self._simulation.network.cut(self.name, other)
        return done(self._loop)

    def heal(self) -> Awaitable[None]:
        """Heal everything that was cut."""
        self._simulation.database.heal(self.name)
        for other in self._others():
            self._simulation.network.heal(self.name, other)
        return done(self._loop)

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str = "work") -> asyncio.Task[T]:
        """Run a coroutine on this runner: it dies and freezes with it, and `cluster` acts for this runner in it.

        Awaiting the task of a runner that was killed waits for ever, as a call to a dead process does.
        """
        return self._spawn(work, name=name)

    async def _begin(self) -> None:
        while not await self._started():
            await asyncio.sleep(RESTART_S)
            if self._stopped:
                return
            self._real = self._simulation.new_runner(self, self._node)
            self._simulation.cluster._participant.enter(self._real)  # in this task, and so in all tasks that it starts
        if self._simulation.body is not None:
            self._spawn(self._simulation.body(self), name="body")

    async def _started(self) -> bool:
        """One attempt. A process that cannot start exits, and its supervisor starts it again."""
        try:
            await self.real.start()
        except PersistenceError as error:
            self._loop.trace.note("start failed", problem=error.problem)
            return False
        except ShuttingDown:
            assert self._stopped, "nobody else stops it"
            return False
        return True

    def _crash(self) -> None:
        self._loop.nodes.crash(self._node)
        if not self._death.done():
            self._death.set_result(None)

    def _or_death(self, work: Coroutine[Any, Any, None], *, name: str) -> Awaitable[None]:
        """Spawn work that others wait for; the death of the runner ends their wait, which would last for ever."""
        task = self._spawn(work, name=name)
        return self._loop.spawn(self._loop.test, _first(task, self._death), name=f"{name} of {self.name}")

    def _unblock(self, node: object, over: asyncio.Future[None]) -> None:
        if node is self._node and self._loop.now_ns >= self._blocked_until_ns:
            self._loop.nodes.unblock(self._node)
        if not over.done():
            over.set_result(None)

    def _spawn(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        context = self._node.new_context()
        context.run(self._simulation.cluster._participant.enter, self.real)
        return self._loop.create_task(work, name=f"{self.name}/{name}", context=context)

    def _others(self) -> list[str]:
        return [runner.name for runner in self._simulation.runners if runner is not self]

    def _note(self, what: str) -> None:
        self._loop.trace.note(what, of=self.name)


async def _first(work: asyncio.Task[None], death: asyncio.Future[None]) -> None:
    await asyncio.wait((work, death), return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()


def done(loop: SimLoop) -> Awaitable[None]:
    """What a verb returns that has already acted."""
    future = loop.create_future()
    future.set_result(None)
    return future
