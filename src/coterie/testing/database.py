"""The one database of a simulation: real SQLite in memory, each piece of work executed at one virtual instant.

    a runner's executor ──request──▶ waits its turn ──▶ executed ──▶ reply ──▶ the runner's future
                          latency                      (at once)    latency

The database is a node of its own: work that was sent is executed even if the sender has died meanwhile, and a reply to
a dead sender is lost. Faults: slow links, errors before the work and *after its commit* (the outcome is unknown to the
caller), links cut in one direction or both, restarts that break all connections, and requests that were stuck in a cut
link and arrive after their sender has given up. A restart ends a runner's ownership session, and its liveness lock with
it: the session must be opened anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import apsw

from coterie.errors import CoterieError, Outcome, PersistenceError
from coterie.kernel.random import Random
from coterie.storage.sqlite.database import Patience, SqliteConnections, desk_in_memory
from coterie.testing.loop.clocks import SimClock
from coterie.testing.loop.nodes import current_node
from coterie.testing.loop.seeds import stream
from coterie.testing.witness import SimulatedWitness

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from coterie.storage.sqlite.executor import Role
    from coterie.testing.loop.loop import SimLoop

T = TypeVar("T")

Way = Literal["requests", "replies"]
GIVE_UP_NS = 5_000_000_000
"""When a caller whose request or reply is lost stops waiting, as a driver's own deadline would make it."""


@dataclass(slots=True)
class Weather:
    """How the database and the links to it behave."""

    latency_ns: int = 200_000
    jitter_ns: int = 400_000
    slow: float = 0.002
    """The probability that a request or reply takes up to a second."""
    error_before: float = 0.0
    error_after: float = 0.0
    late: float = 0.3
    """The probability that a request that was stuck in a cut link is executed after the link has healed."""


class SimulatedDatabase:
    """The database that all runners of a simulation share. Engines use its `executors(host)` and `witness`."""

    def __init__(self, loop: SimLoop) -> None:
        self.weather = Weather()
        self.node = loop.nodes.add("database")
        self.clock = SimClock(loop, self.node)
        never_busy = Patience(chance=Random(loop.seed), limit_s=0, pause_s=0, holder=lambda: None)
        self.desk = desk_in_memory(patience=never_busy, clock=self.clock)
        self.main = self.desk.main
        self.leases = self.desk.leases
        self.witness = SimulatedWitness(loop, lambda: self._restarts, lambda: self._up_ns)
        self.commits = 0
        loop.at_end.append(self.close)
        self._loop = loop
        self._random = stream(loop.seed, "database")
        self._context = self.node.new_context()
        self._cut: dict[str, set[Way]] = {}
        self._stuck: dict[str, list[_Request]] = {}
        self._down = False
        self._restarts = 0
        self._up_ns = 0

    def close(self) -> None:
        """Release everything, functions of the test too, which the garbage collector does not see through SQLite."""
        self.main.close()
        self.leases.close()

    def executors(self, host: str) -> Callable[[Role, Any], SimulatedExecutor]:
        """A factory for the executors of one host's storage: connections to this database."""

        def make(role: Role, _: Any) -> SimulatedExecutor:
            return SimulatedExecutor(self, host, is_session=role == "ownership")

        return make

    # Verbs

    def cut(self, host: str, *ways: Way) -> None:
        """Lose what is sent between a host and the database: requests, replies, or (by default) both."""
        self._cut.setdefault(host, set()).update(ways or ("requests", "replies"))
        self._note("cut", host=host, ways="+".join(sorted(self._cut[host])))

    def heal(self, host: str) -> None:
        """Let everything through again; what was stuck may still arrive."""
        if self._cut.pop(host, None):
            self._note("heal", host=host)
        for request in self._stuck.pop(host, []):
            if self._random.random() < self.weather.late:
                self._at(self._loop.now_ns + self._delay_ns(), self._arrive, request)

    def restart(self, *, down_ns: int) -> None:
        """Break all connections and refuse new ones for a while; what was committed stays."""
        self._restarts += 1
        self._down = True
        self._note("restart", down_s=down_ns / 1e9)
        self._at(self._loop.now_ns + down_ns, self._come_up, self._restarts)

    def step_clock(self, by_s: float) -> None:
        """Set its clock forward, or back. Leases are judged by it, as by the wall clock of a server [M1]."""
        self._note("clock step", by_s=by_s)
        self.node.time.step(round(by_s * 1e9))

    def _come_up(self, restarts: int) -> None:
        if restarts == self._restarts:
            self._down = False
            self._up_ns = self._loop.now_ns

    @property
    def is_well(self) -> bool:
        """Whether it is up, reachable from all hosts, and no slower than usual."""
        weather, usual = self.weather, Weather()
        return not self._down and not self._cut and not self._stuck and weather == usual

    # The path of a request

    def send(
        self, executor: SimulatedExecutor, work: Callable[[SqliteConnections], T], done: asyncio.Future[T]
    ) -> None:
        """Send a request."""
        request = _Request(executor, work, done, self._restarts)
        if self._down:
            request.fail("the server refuses connections", "unreachable")
            return
        if "requests" in self._cut.get(executor.host, ()):
            self._stuck.setdefault(executor.host, []).append(request)
            self._lose(request)
            return
        self._at(executor.next_arrival(self._loop.now_ns + self._delay_ns()), self._arrive, request)

    def _arrive(self, request: _Request) -> None:
        if request.restarts != self._restarts:
            request.fail("the connection was reset", "unknown")  # all that the sender knows is that it was sent
            return
        if self._random.random() < self.weather.error_before:
            request.fail("a simulated error before the work", "refused")
            return
        result, error = self._execute(request)
        if error is None and self._random.random() < self.weather.error_after:
            request.fail("a simulated loss of the connection after the commit", "unknown")
        elif "replies" in self._cut.get(request.executor.host, ()):
            self._lose(request)
        else:
            arrival = request.executor.next_reply(self._loop.now_ns + self._delay_ns())
            self._at(arrival, self._reply, request, result, error)

    def _execute(self, request: _Request) -> tuple[Any, Exception | None]:
        self.commits += 1
        try:
            return request.work(self.desk), None
        except (CoterieError, apsw.Error) as error:
            return None, error

    def _reply(self, request: _Request, result: Any, error: Exception | None) -> None:
        if request.restarts != self._restarts:
            request.fail("the connection was reset", "unknown")
        elif request.done.done():
            return
        elif error is not None:
            request.done.set_exception(error)
        else:
            request.done.set_result(result)

    def _lose(self, request: _Request) -> None:
        self._at(self._loop.now_ns + GIVE_UP_NS, request.fail, "no answer within 5s", "unknown")

    def _delay_ns(self) -> int:
        weather = self.weather
        if self._random.random() < weather.slow:
            return self._random.randrange(1_000_000_000)
        return weather.latency_ns + self._random.randrange(weather.jitter_ns + 1)

    def _at(self, at_ns: int, callback: Callable[..., object], *args: object) -> None:
        self._loop.call_at_ns(at_ns, callback, *args, context=self._context)

    def _note(self, what: str, **facts: object) -> None:
        self._loop.trace.note(f"database {what}", **facts)


class SimulatedExecutor:
    """One connection of a host: requests arrive in the order they were sent, and so do the replies.

    Args:
        is_session: It must be opened, which may fail, and is lost when the server restarts.
    """

    def __init__(self, database: SimulatedDatabase, host: str, *, is_session: bool) -> None:
        self.host = host
        self._database = database
        self._is_session = is_session
        self._restarts = 0
        self._arrival_ns = 0
        self._reply_ns = 0

    async def start(self) -> None:
        """Open a session, if this is one."""
        if self._is_session:
            self._restarts = self._database._restarts
            await self.run(lambda _: None)

    async def stop(self) -> None:
        """Do nothing: there is nothing to close."""

    async def run(self, work: Callable[[SqliteConnections], T]) -> T:
        """The result of `work`, executed at some later instant."""
        loop = self._database._loop
        if loop.over or not current_node.get(loop.test).alive:
            raise PersistenceError(doing="reach the database", problem="the simulation is over", outcome="unreachable")
        if self._is_session and self._restarts != self._database._restarts:
            raise PersistenceError(doing="reach the database", problem="the session is lost", outcome="unreachable")
        done: asyncio.Future[T] = loop.create_future()
        self._database.send(self, work, done)
        return await done

    def next_arrival(self, at_ns: int) -> int:
        """When the next request arrives: not before the previous one."""
        self._arrival_ns = max(self._arrival_ns, at_ns)
        return self._arrival_ns

    def next_reply(self, at_ns: int) -> int:
        """When the next reply arrives: not before the previous one."""
        self._reply_ns = max(self._reply_ns, at_ns)
        return self._reply_ns


@dataclass(slots=True)
class _Request:
    executor: SimulatedExecutor
    work: Callable[[SqliteConnections], Any]
    done: asyncio.Future[Any]
    restarts: int

    def fail(self, problem: str, outcome: Outcome) -> None:
        if not self.done.done():
            self.done.set_exception(PersistenceError(doing="reach the database", problem=problem, outcome=outcome))
