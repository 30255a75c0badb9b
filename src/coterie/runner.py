"""A process that takes part in a cluster as a runner: a client that also holds seats, in one life after another.

start    storage ─▶ setups ─▶ listener ─▶ session and lock ─▶ row           [M2]
stop     drain, release, offer ─▶ row deleted ─▶ listener closed ─▶ setups closed ─▶ storage
evicted  row gone ─▶ what is left of the life ends at once ─▶ another life, under a new incarnation
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import AsyncExitStack
from contextvars import copy_context
from typing import TYPE_CHECKING, Protocol

from coterie.client import Client, ClientParts
from coterie.errors import ConfigurationError, CoterieError, PersistenceError, StorageReplaced
from coterie.kernel import spans
from coterie.kernel.ids import Seat, new_incarnation
from coterie.kernel.retry import Retry
from coterie.kernel.service import Service, State
from coterie.observe import otlp
from coterie.observe.collect import FactsServer
from coterie.observe.facts import LocalFacts, facts_of
from coterie.ownership.membership import Membership
from coterie.setup import Setups
from coterie.storage.engines import withdraw_key
from coterie.transport.credentials import credentials_of
from coterie.transport.interface import Route, Transport
from coterie.transport.requests import Routes
from coterie.work.middleware import Middleware
from coterie.work.pruner import TABLES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from coterie.kernel.supervisor import FailingTask
    from coterie.ownership.admission import Definition
    from coterie.ownership.exclusion import Cause
    from coterie.ownership.seats import Occupant, Occupy, Tenure
    from coterie.settings import Settings
    from coterie.setup import Setup
    from coterie.storage.interface import RunnerRow, SeatRow

log = logging.getLogger("coterie")

_REBIRTH = Retry(attempts=20, base="100ms", max="5s")
"""Pauses between attempts to come back after an eviction; the last one repeats for as long as it takes."""


class Workplace(Protocol):
    """A package that works on seats (entities, singletons, crons, workflows): its definitions and its occupants."""

    @property
    def kind(self) -> str:
        """The kind of its seats: the first part of their names."""
        ...

    def definitions(self) -> Sequence[Definition]:
        """The seats, other than shards, that this program defines."""
        ...

    def occupants(self, runner: Runner, /) -> Occupy:
        """Returns the function that makes occupants for the seats of a runner."""
        ...


class Companion(Protocol):
    """What runs in the name of a runner without a seat: jobs, which prove the runner's own row."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    def begin(self, incarnation: str, /) -> None:
        """The runner begins a life under this incarnation."""
        ...

    def abandon(self) -> None:
        """The runner has given up all that it holds: its lease is not trusted, or its life is over."""
        ...

    async def settle(self) -> None:
        """Wait, for a bounded time, until what was abandoned has ended."""
        ...

    async def drain(self) -> None:
        """Begin nothing more in this life, and return when all has ended and was given back."""
        ...


class NoOccupant:
    """An occupant that does nothing."""

    async def drain(self) -> None:
        """Nothing runs."""

    def abandon(self) -> None:
        """Nothing runs."""


class Workplaces:
    """All occupants of one seat: the entities of a shard and its workflows, which may be added later."""

    def __init__(self, occupants: Sequence[Occupant]) -> None:
        self._occupants = list(occupants)
        self.is_closing = False

    def add(self, occupant: Occupant) -> None:
        """Add another occupant to the seat."""
        assert not self.is_closing, "the seat is on its way out"
        self._occupants.append(occupant)

    async def drain(self) -> None:
        """Drain all occupants at once; the seat is released when the last one is done."""
        self.is_closing = True
        await asyncio.gather(*(each.drain() for each in self._occupants))

    def abandon(self) -> None:
        """Abandon all occupants."""
        self.is_closing = True
        for each in self._occupants:
            each.abandon()


def name_of(settings: Settings) -> str:
    """The name of this process's runner."""
    return settings.runner_name or f"{socket.gethostname()}-{os.getpid()}"


def no_occupants(_: Runner) -> Occupy:
    """Holds seats without doing anything on them."""
    return lambda _: NoOccupant()


class RunnerLife(Service):
    """A runner from one registration to its end. It stops at once; `Membership.leave` comes before, if at all."""

    def __init__(self, transport: Transport, membership: Membership, settled: Callable[[], None]) -> None:
        super().__init__(what=f"a life of {membership.what}")
        self.transport = transport
        self.membership = membership
        self._settled = settled

    async def _start(self) -> None:
        await self.transport.start()
        await self.membership.start()
        self.tasks.spawn(self._settle(), name="settle")

    async def _stop(self) -> None:
        try:
            await self.membership.stop()
        finally:
            await self.transport.stop()

    async def _settle(self) -> None:
        await self.membership.ready()
        self._settled()


class Runner(Client):
    """A process that takes part in a cluster as a runner.

    Args:
        settings: Its settings.
        parts: Its access to the outside: clocks, storage, network.
        workplaces: The packages that define and occupy seats.
        definitions: Seats that no package defines.
        occupy: Makes the occupants of seats whose kind belongs to no package.
        setups: Opened before the first seat is taken, and closed in reverse order after the last is released.
        middleware: What runs around each attempt of the program's work.

    Promise:
        An eviction ends everything that ran under the old incarnation before anything runs under the new one.
    """

    _pruned_tables = TABLES

    def __init__(
        self,
        settings: Settings,
        parts: ClientParts,
        *,
        workplaces: Sequence[Workplace] = (),
        definitions: Sequence[Definition] = (),
        occupy: Callable[[Runner], Occupy] = no_occupants,
        setups: Sequence[Setup] = (),
        middleware: Middleware | None = None,
    ) -> None:
        super().__init__(settings, parts)
        self.name = name_of(settings)
        self.threads = parts.new_threads(settings)
        """Where plain functions of the program run."""
        self.processes = parts.new_processes(settings)
        """Where bodies of tasks run that have a process of their own."""
        self.middleware = middleware or Middleware()
        self.gone = asyncio.Event()
        """Set when it has stopped, for whatever reason."""
        self.left_behind: list[str] = []
        """The seats that it could not release when it stopped: other runners take them when its lease has expired."""
        self.failure = ""
        """Why it ended by itself; empty: it did not. A standing task kept failing, or the database file is gone."""
        self.lost: StorageReplaced | None = None
        """The database file is gone: nothing could be handed over, and all uses of the runner raise this error."""
        self._failed: Callable[[], object] = lambda: None
        self._last: list[Callable[[], Awaitable[None]]] = []
        self._companions: list[Companion] = []
        self._definitions = [*definitions, *(seat for each in workplaces for seat in each.definitions())]
        self._wakers: dict[str, list[Callable[[str, str], None]]] = {}
        self._occupiers: dict[str, list[Occupy]] = {}
        self._workplaces = list(workplaces)
        for each in workplaces:
            self._occupiers.setdefault(each.kind, []).append(each.occupants(self))
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._occupy_rest = occupy(self)
        self._setups = Setups(setups)
        self._tenures: dict[str, Tenure] = {}
        self._credentials = ""
        self._seated: dict[str, Workplaces] = {}
        self._life: RunnerLife | None = None
        self._ended_by: str | None = None
        """Why the last life ended, until the next one has begun."""
        self._settled = asyncio.Event()
        self._missing = "it is not started"
        self._began_ns = parts.clock.steady_ns()
        self._gauges = otlp.Gauges(self.facts, self.collector, loop=asyncio.get_running_loop(), tasks=self.tasks)

    @property
    def seats(self) -> list[str]:
        """The names of the seats that this runner occupies, in order."""
        return sorted(seat for seat, tenure in self._tenures.items() if not tenure.ended)

    @property
    def missing(self) -> str:
        """What it waits for before it is ready, or has waited for."""
        if self._life is None or self._missing:
            return self._missing
        return self._life.membership.missing

    def facts(self) -> LocalFacts:
        """What it knows of itself now. No I/O."""
        return facts_of(
            runner=self.incarnation,
            name=self.name,
            up_s=(self._parts.clock.steady_ns() - self._began_ns) / 1e9,
            missing="" if self._settled.is_set() else self.missing,
            is_draining=self.state in (State.STOPPING, State.STOPPED),
            seats=len(self.seats),
            host=self.calling.host,
            membership=None if self._life is None else self._life.membership,
            used=self._parts.usage(),
            failing=self.supervisor.failing(),
            threads=self.threads.use(),
            threads_most=self.settings.threads,
        )

    def tenure(self, seat: str) -> Tenure | None:
        """Our tenure of a seat; None if we do not hold it."""
        return None if self._life is None else self._life.membership.tenure(seat)

    def on_failure(self, failed: Callable[[], object]) -> None:
        """Call `failed` when the runner begins to end by itself; `failure` says why."""
        self._failed = failed

    def at_end(self, last: Callable[[], Awaitable[None]]) -> None:
        """Await `last` when the runner stops, after its last seat is released."""
        self._last.append(last)

    @property
    def is_trusted(self) -> bool:
        """Whether it may act in its own name now: its lease is trusted."""
        return self._life is not None and self._trusts()

    @property
    def is_leaving(self) -> bool:
        """Whether it releases all that it holds, because it stops or was asked to drain."""
        return self._life is not None and self._life.membership.is_leaving

    def beside(self, companion: Companion) -> None:
        """Start something with this runner that needs no seat: with its first life, or now if that has begun."""
        self._companions.append(companion)
        if self.state is State.RUNNING:
            self.tasks.spawn(self._join(companion), name="start a companion")

    async def _join(self, companion: Companion) -> None:
        await companion.start()
        companion.begin(self.incarnation)

    def on_wake(self, kind: str, wake: Callable[[str, str], None]) -> None:
        """Call `wake(seat, about)` when there is something new to do on a seat of this kind."""
        self._wakers.setdefault(kind, []).append(wake)

    def define(self, workplace: Workplace, definition: Definition | None) -> None:
        """Add a definition made after this runner. May be called from any thread.

        Args:
            workplace: The package that occupies its seats.
            definition: Its seat; None: it lives on shards.
        """
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:  # the caller is a thread without a loop, importing a module
            is_here = False
        if is_here:
            self._define(workplace, definition)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._define, workplace, definition)

    def _define(self, workplace: Workplace, definition: Definition | None) -> None:
        if self.state in (State.STOPPING, State.STOPPED):
            return
        if all(each is not workplace for each in self._workplaces):
            self._admit(workplace)
        if definition is not None:
            self._definitions.append(definition)
            if self._life is not None:
                log.info("runner %s may now hold %s, which was defined after its start", self.name, definition.seat)
                self._life.membership.define(definition)

    def _admit(self, workplace: Workplace) -> None:
        """Let a package occupy the seats of its kind, including those that are held already."""
        self._workplaces.append(workplace)
        occupy = workplace.occupants(self)
        self._occupiers.setdefault(workplace.kind, []).append(occupy)
        for seat, seated in self._seated.items():
            tenure = self._tenures[seat]
            if Seat.split(seat)[0] == workplace.kind and tenure.held and not seated.is_closing:
                seated.add(self._context.copy().run(occupy, tenure))

    async def resign(self, seat: str, *, cause: Cause = "resigned", error: str = "") -> None:
        """Release a seat now, to the next runner in order. This runner does not take it again for a while.

        Args:
            cause: `failed`: excluded even if no other runner may hold it. `refused`: not again in this life.
            error: What failed.
        """
        if self._life is not None:
            await self._life.membership.resign(seat, cause=cause, error=error)

    async def ask_to_resign(self, holder: RunnerRow, seat: SeatRow, *, within_s: float) -> None:
        """Ask a runner, perhaps this one, to release a seat. See `Client`."""
        if holder.id == self.incarnation:
            await self.resign(seat.name)
        else:
            await super().ask_to_resign(holder, seat, within_s=within_s)

    async def _ready(self) -> None:
        await self._settled.wait()
        self.require_running()

    def _trusts(self) -> bool:
        return self._life is None or self._life.membership.trust.holds

    # Lifecycle

    def _fail(self, failing: FailingTask) -> None:
        """End, because a standing task of this runner keeps failing: another process may do better."""
        self._end_by_itself(
            f"its standing task {failing} failed {failing.failures} times within a minute, {failing.error}"
        )

    def _lose(self, error: StorageReplaced) -> None:
        """End without handing over: what is written from now on is lost."""
        self.lost = error
        self._missing = str(error)
        self._settled.clear()
        self._end_by_itself(str(error))

    def _end_by_itself(self, why: str) -> None:
        self.failure = why
        log.critical("runner %s ends: %s", self.name, why)
        self._failed()
        self._lifecycle.spawn(self.stop(), name="fail", report=False)

    async def _start(self) -> None:
        self.supervisor.on_hopeless(self._fail)
        self._missing = "the database is not open yet"
        await self._open()
        self._credentials = credentials_of(self.settings, salt=await self.storage.secret()).encode()
        self._missing = "what cluster.setup opens is not open yet"
        await self._setups.open()
        await self.threads.start()
        for companion in self._companions:
            await companion.start()
        try:
            await self._live_first()
        except ConfigurationError:
            if self.has_new_key:
                await withdraw_key(self.storage)
            raise
        otlp.publish(self._gauges)
        self.tasks.supervise(self._live_again_and_again, name="live again", supervisor=self.supervisor)

    async def _stop(self) -> None:
        self._settled.set()  # wakes waiters of `ready`: it will not become ready
        async with AsyncExitStack() as last:
            last.callback(self.gone.set)
            last.callback(otlp.withdraw, self._gauges)
            last.push_async_callback(self._close)
            last.push_async_callback(self._setups.close)
            last.push_async_callback(self.threads.stop)
            last.push_async_callback(self.calling.stop)
            for companion in self._companions:
                last.push_async_callback(companion.stop)
            for each in self._last:
                last.push_async_callback(each)
            if self._life is not None:
                last.push_async_callback(self._life.stop)
                await self._leave(self._life)

    async def _leave(self, life: RunnerLife) -> None:
        """Hand over what this life holds. A life that was evicted is being stopped already, and holds nothing."""
        try:
            if life.state is life.membership.state is State.RUNNING and self.lost is None:
                await life.membership.leave([companion.drain for companion in self._companions])
        finally:
            self.left_behind = self.seats

    async def _live(self) -> None:
        """Begin a life under the current incarnation."""
        if self._life is None:  # otherwise `_missing` says why it has to come back
            self._missing = "it is not registered with the cluster yet"
        self._context = copy_context()
        routes = Routes()
        transport = self._transport = self._new_transport(routes, listens=True)
        self.calling.join(transport, routes)
        self.jobs.join(transport, routes)
        routes.register(Route.OBSERVE, FactsServer(self.facts))
        self._life = RunnerLife(transport, self._new_membership(transport, routes), self._has_settled)
        for companion in self._companions:
            companion.begin(self.incarnation)
        await self._life.start()
        self._missing = ""  # from here on the membership knows

    async def _live_first(self) -> None:
        """Begin the first life. If this runner waits for its database, it also waits for one that answers too late."""
        while True:
            try:
                return await self._live()
            except StorageReplaced:
                raise
            except PersistenceError as error:
                if self.storage.on_unreachable is None or error.outcome == "refused":
                    raise
                self.storage.on_unreachable(error)
            self._be_renamed()  # the registration may have been committed
            await asyncio.sleep(_REBIRTH.delay_s(1, self._parts.chance) or 0)

    def _gave_up(self) -> None:
        for companion in self._companions:
            companion.abandon()

    def _be_renamed(self) -> None:
        self.incarnation = new_incarnation(self._parts.chance)
        self.storage.rename(self.incarnation)

    def _has_settled(self) -> None:
        log.info("runner %s has joined and holds %d seats", self.name, len(self.seats))
        self._settled.set()

    async def _live_again_and_again(self) -> None:
        try:
            while True:
                await self._live_again()
        except StorageReplaced as error:
            self._lose(error)

    async def _live_again(self) -> None:
        """Wait for the end of one life and begin the next."""
        assert self._life is not None, "there is a first one"
        if self._ended_by is None:  # otherwise an error interrupted the way back, and no life has begun since
            self._ended_by = await self._life.membership.ended
        reason = self._ended_by
        log.warning("runner %s was evicted, %s: it registers again under a new incarnation", self.name, reason)
        self._settled.clear()
        self._missing = f"it was evicted ({reason}) and is not registered again yet"
        self.calling.part()
        self.jobs.part()
        await self._life.stop()
        await asyncio.gather(*(companion.settle() for companion in self._companions))
        await self._come_back(reason)
        self._ended_by = None
        log.warning("runner %s is registered again as %s", self.name, self.incarnation)

    async def _come_back(self, reason: str) -> None:
        attempt = 0
        while not await self._came_back(reason):
            attempt = min(attempt + 1, _REBIRTH.attempts - 1)
            await asyncio.sleep(_REBIRTH.delay_s(attempt, self._parts.chance) or 0)

    async def _came_back(self, reason: str) -> bool:
        self._be_renamed()
        try:
            await self._live()
        except StorageReplaced:
            raise
        except Exception as error:
            log.warning(
                "runner %s cannot register again yet: %s",
                self.name,
                error,
                exc_info=not isinstance(error, CoterieError | OSError),
            )
            self._missing = f"it was evicted ({reason}) and cannot register again: {error}"
            return False
        return True

    def _new_membership(self, transport: Transport, routes: Routes) -> Membership:
        return Membership(
            self.settings,
            incarnation=self.incarnation,
            name=self.name,
            storage=self.storage,
            transport=transport,
            routes=routes,
            aside=self._parts.new_aside(),
            clock=self._parts.clock,
            directory=self.directory,
            definitions=self._definitions,
            occupy=self._occupy,
            wake=self._woken,
            failed_over=self.ids.lease_again,
            gave_up=self._gave_up,
            host=self._parts.host,
            process=self._parts.process,
            credentials=self._credentials,
            supervisor=self.supervisor,
        )

    async def _wake(self, holder: RunnerRow, notice: str) -> None:
        if holder.id == self.incarnation:
            self._woken(notice)
        else:
            await super()._wake(holder, notice)

    def _woken(self, notice: str) -> None:
        seat, _, about = notice.partition("\n")
        kind, _ = Seat.split(seat)
        for wake in self._wakers.get(kind, ()):
            wake(seat, about)

    def _occupy(self, tenure: Tenure) -> Occupant:
        if not spans.on:
            return self._occupied(tenure)
        context = copy_context()
        context.run(spans.clear)  # otherwise all work of the occupant would belong to the span in which it was started
        return context.run(self._occupied, tenure)

    def _occupied(self, tenure: Tenure) -> Occupant:
        self._tenures[tenure.seat] = tenure
        kind, _ = Seat.split(tenure.seat)
        occupants = [occupy(tenure) for occupy in self._occupiers.get(kind, [self._occupy_rest])]
        seated = self._seated[tenure.seat] = Workplaces(occupants)
        return seated
