"""Collects the facts about a cluster, from the database and from each runner over the wire."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from coterie.entities.persisted.pauses import group_of
from coterie.errors import CoterieError
from coterie.kernel.ids import Seat
from coterie.kernel.service import Tasks
from coterie.observe.facts import ClusterFacts, Incoming, LocalFacts, Overdue
from coterie.observe.health import BOUNDS, judge, readiness
from coterie.observe.jobs import queues
from coterie.ownership.directory import peer_of
from coterie.transport.interface import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coterie.client import Client
    from coterie.cron.api import CronInfo
    from coterie.kernel.clock import Clock
    from coterie.observe.health import Bounds, Health, Reason
    from coterie.singletons.api import SingletonInfo
    from coterie.storage.contracts.incoming_calls import WaitingIncoming
    from coterie.storage.contracts.messages import Backlog
    from coterie.storage.contracts.pauses import Pause
    from coterie.storage.interface import ClusterSnapshot, RunnerRow
    from coterie.transport.interface import Request, Transport


WITHIN_S = 0.5
"""Time limit for a runner's reply. It has its facts at hand; one that takes longer is busy with something else."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LocalFacts).decode


class FactsServer:
    """Handler of the facts route. It replies with this runner's facts and depends on nothing but a running event loop.

    Args:
        facts: Returns the facts to send.
    """

    def __init__(self, facts: Callable[[], LocalFacts]) -> None:
        self._facts = facts

    def on_request(self, request: Request) -> None:
        """Reply with the facts."""
        request.reply(_encode(self._facts()))

    def on_cancel(self, request: Request) -> None:
        """Do nothing: requests are answered at once."""

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Do nothing: this route has no notifications."""


async def ask(transport: Transport, runner: RunnerRow, *, within_s: float = WITHIN_S) -> LocalFacts | None:
    """Request the facts of a runner.

    Returns:
        None if it did not reply in time, or if the reply could not be decoded.
    """
    try:
        async with asyncio.timeout(within_s):
            target = f"the facts of {runner.name}"
            return _decode(
                await transport.request(peer_of(runner), Route.OBSERVE, b"", within_s=within_s, target=target)
            )
    except (CoterieError, TimeoutError, msgspec.DecodeError):  # a ValidationError is one
        return None


log = logging.getLogger("coterie")

PROBE_S = 1.0
"""Time limit of a probe, and the age up to which facts are reused instead of read again."""
_OVERDUE_MOST = 1_000
_DEAD_MOST = 10_000
_INCOMING_MOST = 100
_ASKED_AT_ONCE = 50
"""Runners that are queried at the same time, which bounds the connections that a client opens."""


class Recent(NamedTuple):
    """The last facts collected, and their age."""

    facts: ClusterFacts | None
    """None: nothing was collected yet."""
    age_s: float


class Collector:
    """Collects the facts for one process, and caches the last ones.

    Args:
        here: The process: a client or a runner.
        clock: Its clock.
        bounds: Thresholds beyond which something is wrong.
    """

    def __init__(self, here: Client, clock: Clock, bounds: Bounds = BOUNDS) -> None:
        self._here = here
        self._clock = clock
        self._bounds = bounds
        self._free = Free(bounds.takeover_s)
        self._tasks = Tasks("facts")
        self._reading: asyncio.Task[ClusterFacts] | None = None
        self._last: ClusterFacts | None = None
        self._last_ns = 0

    async def health(self) -> Health:
        """The health of the cluster now.

        Raises:
            PersistenceError: The database could not be read.
        """
        return judge(await self.collect(), self._bounds)

    async def readiness(self, *, within_s: float = PROBE_S) -> tuple[Reason, ...]:
        """The reasons why this runner is not ready; empty if it is. Raises nothing and never takes longer than
        `within_s`: it judges by the last facts available and by their age.
        """
        local = self._here.facts()
        assert local is not None, "it is a runner"
        if not local.is_ready or local.is_draining:
            return readiness(local, None, bounds=self._bounds)  # whatever the database says
        # Skip a read that would fail anyway.
        recent = Recent(self._last, self._age_s()) if local.storage_problem else await self.recent(within_s=within_s)
        return readiness(self._here.facts() or local, recent.facts, age_s=recent.age_s, bounds=self._bounds)

    async def recent(self, *, within_s: float = PROBE_S) -> Recent:
        """Facts that are at most `within_s` old if they can be read within that time; otherwise the last ones."""
        if self._last is None or self._age_s() > within_s:
            try:
                async with asyncio.timeout(within_s):
                    await self.collect()
            except (CoterieError, TimeoutError):
                pass  # the age of the facts shows it
            except Exception:  # a probe is answered whatever happens
                log.exception("facts of the cluster could not be read: the last ones are used, with their age")
        return Recent(self._last, self._age_s())

    async def collect(self) -> ClusterFacts:
        """Read the facts now; concurrent callers share one read.

        Raises:
            PersistenceError: The database could not be read.
        """
        if self._reading is None:
            self._reading = self._tasks.spawn(self._collect(), name="collect", report=False)
            # All callers may have given up by the time it fails.
            self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._reading)

    async def stop(self) -> None:
        """Cancel a read under way."""
        await self._tasks.stop()

    def _age_s(self) -> float:
        return (self._clock.steady_ns() - self._last_ns) / 1e9

    async def _collect(self) -> ClusterFacts:
        try:
            began_ns = self._clock.steady_ns()
            facts = await self._gather(began_ns)
            self._last, self._last_ns = facts, began_ns
            return facts
        finally:
            self._reading = None

    async def _gather(self, now_ns: int) -> ClusterFacts:
        storage = self._here.storage
        view = await storage.view()
        kinds = {Seat.split(seat.name)[0] for seat in view.seats}
        try:
            async with asyncio.TaskGroup() as group:
                runners = group.create_task(self._ask_all(view))
                backlog = group.create_task(storage.messages.backlog(most=_OVERDUE_MOST, dead_most=_DEAD_MOST))
                incoming = group.create_task(storage.incoming.backlog(most=_INCOMING_MOST))
                lines = group.create_task(queues.read(storage.jobs))
                pauses = group.create_task(storage.pauses.list())
                unpruned = group.create_task(self._unpruned())
                singletons = group.create_task(self._singletons(wanted="singleton" in kinds))
                crons = group.create_task(self._crons(wanted="cron" in kinds))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # one error is enough to know that the database cannot be reached
        found = backlog.result()
        return ClusterFacts(
            now=found.now,
            view=view,
            runners=runners.result(),
            singletons=singletons.result(),
            crons=crons.result(),
            overdue=_overdue(found, pauses.result()),
            pauses=tuple(pauses.result()),
            incoming=tuple(map(_incoming, incoming.result())),
            queues=lines.result(),
            unpruned=unpruned.result(),
            dead=found.dead,
            free_s=self._free.saw(view, now_ns / 1e9),
            staleness=self._here.settings.staleness,
        )

    async def _ask_all(self, view: ClusterSnapshot) -> dict[str, LocalFacts | None]:
        """Query the facts of all runners, concurrently up to a limit."""
        local, transport, turn = self._here.facts(), self._here.transport, asyncio.Semaphore(_ASKED_AT_ONCE)
        replies: dict[str, LocalFacts | None] = {row.id: None for row in view.runners}

        async def ask_one(row: RunnerRow) -> None:
            async with turn:
                replies[row.id] = await ask(transport, row)

        async with asyncio.TaskGroup() as group:
            for row in view.runners:
                if local is not None and row.id == local.runner:
                    replies[row.id] = local
                else:
                    group.create_task(ask_one(row))
        return replies

    async def _unpruned(self) -> Mapping[str, float]:
        settings = self._here.settings
        return await self._here.storage.overdue(
            retention_s=settings.retention.total_seconds(), key_retention_s=settings.key_retention.total_seconds()
        )

    async def _singletons(self, *, wanted: bool) -> tuple[SingletonInfo, ...]:
        from coterie.singletons.api import Singletons

        if not wanted:
            return ()
        heartbeat_s = self._here.settings.heartbeat.total_seconds()
        known = Singletons(lambda: self._here, {}, heartbeat_s=heartbeat_s, staleness=self._here.settings.staleness)
        return tuple(await known.list())

    async def _crons(self, *, wanted: bool) -> tuple[CronInfo, ...]:
        if not wanted:
            return ()
        from coterie.cron.api import Crons  # zones and calendars: only where there are crons

        return tuple(await Crons(lambda: self._here, dict).list())


class Free:
    """Remembers since when seats have had no holder, as far as this process has observed.

    Args:
        takeover_s: How long a seat may be free during an ordinary takeover.
    """

    def __init__(self, takeover_s: float) -> None:
        self._takeover_s = takeover_s
        self._held: set[str] = set()
        self._since_s: dict[str, tuple[float, bool]] = {}  # and whether it was held before

    def saw(self, view: ClusterSnapshot, now_s: float) -> Mapping[str, float | None]:
        """Record the seats.

        Returns:
            For how long each free seat is known to be free; None if it was never observed to be held, so that the time
            is unknown.
        """
        free = [seat.name for seat in view.seats if seat.holder is None]
        self._since_s = {name: self._since_s.get(name, (now_s, name in self._held)) for name in free}
        self._held = {seat.name for seat in view.seats if seat.holder is not None}
        known = {name: (now_s - since_s, was_held) for name, (since_s, was_held) in self._since_s.items()}
        return {name: for_s if held or for_s > self._takeover_s else None for name, (for_s, held) in known.items()}


def _overdue(backlog: Backlog, pauses: Sequence[Pause]) -> tuple[Overdue, ...]:
    """The messages that wait longest, without those that wait since something is paused."""
    paused = {(each.kind, each.name) for each in pauses}
    return tuple(
        Overdue(
            id=each.id,
            what=f"{each.entity_type}/{each.entity_id}.{each.method}",
            seat=each.seat,
            late_s=max((backlog.now - each.due_at).total_seconds(), 0.0),
        )
        for each in backlog.late
        if ("entity", each.entity_type) not in paused and ("group", group_of(each.seat)) not in paused
    )


def _incoming(each: WaitingIncoming) -> Incoming:
    kind = "entity" if each.kind == "call" else "workflow"
    return Incoming(id=each.id, what=f"{kind} {each.type}", waited_s=max(each.waited_s, 0.0), rows=each.rows)
