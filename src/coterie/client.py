"""A process that takes part in a cluster as a client, which sends but owns nothing; and its access to the outside."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from coterie.durable.token import Tokens
from coterie.entities.calls.client import CallClient
from coterie.entities.persisted.commit_watcher import CommitWatcher
from coterie.errors import CoterieError, NotReady, PersistenceError, RunnerUnavailable, SendTimeout, ShuttingDown
from coterie.kernel import spans
from coterie.kernel.clock import Clock, SystemClock
from coterie.kernel.fork_guard import ProcessOrigin
from coterie.kernel.ids import Seat, ShardId, new_incarnation
from coterie.kernel.random import Random
from coterie.kernel.service import Service
from coterie.kernel.supervisor import Supervisor
from coterie.kernel.text import storable
from coterie.kv.changes import KeyValues
from coterie.observe.collect import Collector
from coterie.observe.facts import LocalFacts, Usage, usage
from coterie.ownership import peer_notices
from coterie.ownership.directory import Directory, peer_of
from coterie.ownership.lease_thread import SideLoop, ThreadSideLoop
from coterie.ownership.machine_id import IdGenerator
from coterie.storage.contracts.activity import Act
from coterie.storage.engines import is_in_memory, open_storage, require_keys
from coterie.tasks.exchange import JobExchange
from coterie.tasks.sender import JobSender
from coterie.tasks.worker.processes import ProcessPool
from coterie.transport.identity import Identity, host_id, process_id, shared_secrets
from coterie.transport.interface import Route, Transport, TransportLimits, Wire
from coterie.transport.peers import Peers
from coterie.transport.requests import Routes
from coterie.transport.tcp import TcpWire
from coterie.work.pruner import Pruner, Table
from coterie.work.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from coterie.entities.persisted.commit_watcher import News
    from coterie.settings import Settings
    from coterie.storage.interface import RunnerRow, SeatRow, Storage
    from coterie.tasks.worker.processes import BodyProcesses
    from coterie.work.threads import Threads

log = logging.getLogger("coterie")

_RECORDED_S = 30.0
"""How long the record of an act may take."""
_TEXT_MOST = 500
"""Characters of a text in it."""
_HINT_S = 1.0
"""How long a hint may take: the sender does not wait longer, since the news is found without the hint, too."""


@dataclass(frozen=True, kw_only=True)
class ClientParts:
    """A process's access to the outside; the simulator has its own of each.

    Args:
        clock: Its clocks.
        chance: Its randomness.
        open_storage: Makes the storage of an incarnation, not started yet.
        new_wire: Makes the wire to other processes, for one life.
        new_aside: Makes the thread that keeps the lease, for one life.
        host: Identifies the host that loopback leads to.
        process: Identifies this process, so that others can end it when it froze as a writer [C3]; empty: they cannot.
        usage: Measures what the process uses of its machine.
        supervisor: Knows the standing tasks of the process that fail.
        new_threads: Makes the threads in which plain functions of a runner run.
        new_processes: Makes the processes in which bodies of its tasks run.
    """

    clock: Clock
    chance: Random
    open_storage: Callable[[str], Storage]
    new_wire: Callable[[], Wire]
    new_aside: Callable[[], SideLoop]
    host: str
    process: str = ""
    usage: Callable[[], Usage] = Usage
    supervisor: Supervisor = field(default_factory=Supervisor)
    new_threads: Callable[[Settings], Threads] = ThreadPool
    new_processes: Callable[[Settings], BodyProcesses] = ProcessPool


def system_parts(settings: Settings) -> ClientParts:
    """The parts of a real process."""
    clock, chance = SystemClock(), Random()
    supervisor = Supervisor(chance)
    return ClientParts(
        clock=clock,
        chance=chance,
        open_storage=lambda incarnation: open_storage(
            settings, incarnation=incarnation, clock=clock, chance=chance, supervisor=supervisor
        ),
        new_wire=lambda: TcpWire(settings, supervisor=supervisor),
        new_aside=ThreadSideLoop,
        host=host_id(),
        process=process_id(),
        usage=usage,
        supervisor=supervisor,
    )


class Client(Service):
    """A process that takes part in a cluster as a client: storage, what is built on it, and connections to runners."""

    _pruned_tables: Sequence[Table] = ("kv",)
    """A cluster may consist of clients only, which store nothing but keys."""

    def __init__(self, settings: Settings, parts: ClientParts) -> None:
        super().__init__(what=f"cluster {settings.name!r}")
        self.settings = settings
        self.supervisor = parts.supervisor
        self.incarnation = new_incarnation(parts.chance)
        self.storage = parts.open_storage(self.incarnation)
        self.values = KeyValues(self.storage.kv, chance=parts.chance)
        self.ids = IdGenerator(self.storage.machines, holder=self.incarnation, clock=parts.clock, trust=self._trusts)
        self.pruner = Pruner(
            self.storage, settings, chance=parts.chance, supervisor=parts.supervisor, tables=self._pruned_tables
        )
        self.directory = Directory(self.storage.view, parts.clock)
        self.calling: CallClient = CallClient(self, clock=parts.clock, chance=parts.chance, storage=self.storage)
        self.jobs: JobExchange = JobExchange(self)
        self.job_sender = JobSender(self.calling, self.storage, self.jobs)
        self.commits = CommitWatcher(self.storage.user_writes, wake=self._wake_holders, supervisor=parts.supervisor)
        self.collector = Collector(self, parts.clock)
        self.tokens: Tokens
        self._parts = parts
        self.origin = ProcessOrigin(self.what)
        """The process that has started it: in a forked child it is refused [P13]."""
        self.has_new_key = False
        """Whether this process is the first one that encrypts with its key."""
        self._transport: Transport | None = None

    @property
    def transport(self) -> Transport:
        """The current transport to the runners: after an eviction there is another one."""
        self.require_running()
        assert self._transport is not None, "it runs"
        return self._transport

    @property
    def missing(self) -> str:
        """What `ready` waits for."""
        return "it is still starting"

    def facts(self) -> LocalFacts | None:
        """What it knows of itself; None: it is not a runner."""
        return None

    async def ready(self, *, within_s: float | None = None) -> None:
        """Return when it is ready to work.

        Raises:
            NotReady: It took longer than `within_s`; the error says what is missing.
        """
        try:
            async with asyncio.timeout(within_s):
                await self._ready()
        except TimeoutError:
            raise NotReady(what=self.what, waited_s=within_s or 0.0, problem=self.missing) from None

    async def runners(self) -> Sequence[RunnerRow]:
        """All runners that are registered just now."""
        return (await self.storage.view()).runners

    async def shards(self) -> Mapping[ShardId, str | None]:
        """All shards, each with the name of the runner that holds it just now, or None."""
        view = await self.storage.view()
        names: dict[str | None, str] = {row.id: row.name for row in view.runners}
        split = ((Seat.split(seat.name), seat.holder) for seat in view.seats)
        return {ShardId.parse(name): names.get(holder) for (kind, name), holder in split if kind == "shard"}

    async def drain(self, runner: str) -> None:
        """Ask a runner, by its id or name, to release all its seats and take no new ones. Does not wait for that.

        Raises:
            RunnerUnavailable: No runner, or more than one, has this id or name.
        """
        found = _id_of(await self.runners(), runner)
        # A session of its own for one statement: the session of a runner, ours too, belongs to its lease keeper.
        async with self.storage.ownership(new_incarnation(self._parts.chance)) as session:
            if not await session.leaving(found):
                raise _not_drained(runner, "it has just left")

    async def ask_to_resign(self, holder: RunnerRow, seat: SeatRow, *, within_s: float) -> None:
        """Ask a runner to release a seat, to the next runner in order. Returns when that has begun.

        Raises:
            RunnerUnavailable: The runner cannot be reached.
        """
        wanted, target = peer_notices.encode("resign", [(seat.name, seat.epoch)]), f"a resignation from {seat.name}"
        try:
            await self.transport.request(peer_of(holder), Route.OWNERSHIP, wanted, within_s=within_s, target=target)
        except RunnerUnavailable as error:
            hint = "a runner that is gone is replaced by itself, within 10s"
            raise RunnerUnavailable(
                runner=holder.name, target=target, problem=error.problem, sent=error.sent, hint=hint
            ) from error

    async def wake(self, seat: str, *, about: str = "", fresh: bool = False) -> None:
        """Hint to the holder of a seat that there is something new to do. If the hint is lost, polling finds the news.

        Args:
            seat: The name of the seat.
            about: What is new, for the package that occupies the seat.
            fresh: Whether to read the holder from storage first: for rare events.
        """
        with contextlib.suppress(TimeoutError, RunnerUnavailable, SendTimeout, ShuttingDown, PersistenceError):
            async with asyncio.timeout(_HINT_S):
                if fresh or self.directory.holder(seat) is None:
                    await self.directory.refresh()
                holder = self.directory.holder(seat)
                if holder is not None:
                    await self._wake(holder, f"{seat}\n{about}" if about else seat)

    async def record(self, act: Act) -> None:
        """Record what somebody did. It is done: that it cannot be recorded is logged, and nothing is raised."""
        short = {name: _short(value) for name, value in msgspec.structs.asdict(act).items()}
        try:
            async with asyncio.timeout(_RECORDED_S):
                await self.storage.activity.add(Act(**short))
        except (CoterieError, TimeoutError) as error:
            log.error("the act %s is in this log only, it could not be recorded: %s", act.act, error)

    async def _wake_holders(self, news: Collection[News]) -> None:
        """Wake the holders of seats on which a user's transaction has stored something, now that it has committed."""
        for seat in sorted({seat for seat, _ in news if Seat.is_queue(seat)}):
            self.job_sender.hint_seat(seat)
        messages = {seat for seat, unit in news if not unit and not Seat.is_queue(seat)}
        await asyncio.gather(
            self.calling.persisted.ask_to_poll(messages), *(self.wake(seat, about=unit) for seat, unit in news if unit)
        )

    async def _wake(self, holder: RunnerRow, notice: str) -> None:
        peer = peer_of(holder)
        await self.transport.connect(peer)
        self.transport.notify(peer, Route.OWNERSHIP, peer_notices.encode("wake", [(notice, 0)]))

    async def _ready(self) -> None:
        self.require_running()

    def _trusts(self) -> bool:
        """Whether ids may be drawn."""
        return True

    async def _start(self) -> None:
        await self._open()
        self._transport = self._new_transport(Routes(), listens=False)
        await self._transport.start()
        self.calling.join(self._transport)
        self.jobs.join(self._transport)
        self.tasks.supervise(self.calling.watch, name="watch calls", supervisor=self.supervisor)

    async def _stop(self) -> None:
        await self.calling.stop()
        if self._transport is not None:
            await self._transport.stop()
        await self._close()

    async def _open(self) -> None:
        self.origin.set()
        spans.look()
        await self.storage.start()
        if self.settings.payload_keys or not is_in_memory(self.settings):
            self.has_new_key = await require_keys(self.storage)
        self.tokens = Tokens(await self.storage.secret())
        await self.values.start()
        await self.ids.start()
        self.pruner.start()

    async def _close(self) -> None:
        async with AsyncExitStack() as last:
            last.push_async_callback(self.storage.stop)
            last.push_async_callback(self.values.stop)
            last.push_async_callback(self.ids.stop)
            last.push_async_callback(self.directory.stop)
            last.push_async_callback(self.pruner.stop)
            last.push_async_callback(self.commits.stop)
            last.push_async_callback(self.jobs.stop)
            last.push_async_callback(self.job_sender.stop)
            await self.collector.stop()

    def _new_transport(self, routes: Routes, *, listens: bool) -> Transport:
        return Peers(
            me=Identity(self.settings.name, self.incarnation),
            wire=self._parts.new_wire(),
            handler=routes,
            secrets=lambda: shared_secrets(self.settings, self.storage),
            chance=self._parts.chance,
            limits=TransportLimits(body_most_bytes=self.settings.frame_limit),
            listens=listens,
        )


class Runners:
    """`cluster.runners`: the registered runners."""

    def __init__(self, acting: Callable[[], Client], writing: Callable[[str], Client]) -> None:
        self._acting = acting
        self._writing = writing

    async def list(self) -> Sequence[RunnerRow]:
        """All runners that are registered just now."""
        return await self._acting().runners()

    async def drain(self, runner: str) -> None:
        """Make a runner, by its id or name, release all its seats and take no new ones. It keeps running.

        Raises:
            RunnerUnavailable: No runner, or more than one, has this id or name.
        """
        await self._writing("cluster.runners.drain").drain(runner)


def _short(text: str) -> str:
    text = storable(text)
    return text if len(text) <= _TEXT_MOST else f"{text[: _TEXT_MOST - 1]}…"


def _id_of(runners: Sequence[RunnerRow], wanted: str) -> str:
    found = [runner.id for runner in runners if wanted in (runner.id, runner.name)]
    if not found:
        names = ", ".join(sorted(runner.name for runner in runners)) or "none at all"
        raise _not_drained(wanted, f"no runner has this name or id; there are: {names}")
    if len(found) > 1:
        raise _not_drained(wanted, f"several have this name: give one of the ids {', '.join(sorted(found))}")
    return found[0]


def _not_drained(runner: str, problem: str) -> RunnerUnavailable:
    return RunnerUnavailable(
        runner=runner,
        target="a drain",
        problem=problem,
        sent=False,
        hint="coterie runners list shows all of them",
    )
