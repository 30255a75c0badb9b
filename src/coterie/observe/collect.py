"""Asking runners what they know of themselves, and answering those who ask.

Gathering: the facts about a cluster, from the database and from each runner, and what they come to.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from coterie.errors import CoterieError
from coterie.kernel.ids import Seat
from coterie.kernel.service import Tasks
from coterie.observe.facts import ClusterFacts, LocalFacts, Overdue
from coterie.observe.health import BOUNDS, judge, readiness
from coterie.ownership.directory import peer_of
from coterie.transport.routes import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coterie.client import Client
    from coterie.cron.api import CronInfo
    from coterie.kernel.clock import Clock
    from coterie.observe.health import Bounds, Health, Reason
    from coterie.singletons.api import SingletonInfo
    from coterie.storage.contracts.messages import Backlog
    from coterie.storage.interface import ClusterSnapshot, RunnerRow
    from coterie.transport.interface import Request, Transport


WITHIN_S = 0.5
"""How long a runner has to answer: it has everything at hand. One that takes longer is busy with something else."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LocalFacts).decode


class FactsServer:
    """The handler of the route: it tells whoever asks. Needs nobody, so that it answers as long as the loop turns.

    Args:
        facts: What there is to tell.
    """

    def __init__(self, facts: Callable[[], LocalFacts]) -> None:
        self._facts = facts

    def on_request(self, request: Request) -> None:
        """Tell it."""
        request.reply(_encode(self._facts()))

    def on_cancel(self, request: Request) -> None:
        """It was answered at once."""

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None:
        """There are none on this route."""


async def ask(transport: Transport, runner: RunnerRow, *, within_s: float = WITHIN_S) -> LocalFacts | None:
    """What a runner says of itself; None: it did not answer in time, or not in words that are known here."""
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
"""How long a probe may take, and how old the facts may be that it need not look at anew."""
_OVERDUE_MOST = 1_000
_DEAD_MOST = 10_000
_ASKED_AT_ONCE = 50
"""Runners that are asked at the same time: connections of a client that has none yet."""


class Recent(NamedTuple):
    """What was last found out."""

    facts: ClusterFacts | None
    """None: nothing yet."""
    age_s: float


class Collector:
    """Gathers the facts for one process, and remembers the last ones.

    Args:
        here: The process: a client or a runner.
        clock: Its clock.
        bounds: From where on something is wrong.
    """

    def __init__(self, here: Client, clock: Clock, bounds: Bounds = BOUNDS) -> None:
        self._here = here
        self._clock = clock
        self._bounds = bounds
        self._free = Free(bounds.takeover_s)
        self._tasks = Tasks("facts")
        self._looking: asyncio.Task[ClusterFacts] | None = None
        self._last: ClusterFacts | None = None
        self._last_ns = 0

    async def health(self) -> Health:
        """How the cluster stands now.

        Raises:
            PersistenceError: The database could not be asked.
        """
        return judge(await self.look(), self._bounds)

    async def readiness(self, *, within_s: float = PROBE_S) -> tuple[Reason, ...]:
        """Why this runner is not to be relied upon now; empty: it is. Raises nothing, and never takes longer than
        that: it judges by the last facts that it could get, and by their age."""
        local = self._here.facts()
        assert local is not None, "it is a runner"
        if not local.is_ready or local.is_draining:
            return readiness(local, None, bounds=self._bounds)  # whatever the database says
        # Without a look that would be in vain.
        recent = Recent(self._last, self._age_s()) if local.storage_problem else await self.recent(within_s=within_s)
        return readiness(self._here.facts() or local, recent.facts, age_s=recent.age_s, bounds=self._bounds)

    async def recent(self, *, within_s: float = PROBE_S) -> Recent:
        """Facts that are not older than that if they can be had within that time; else the last ones."""
        if self._last is None or self._age_s() > within_s:
            try:
                async with asyncio.timeout(within_s):
                    await self.look()
            except (CoterieError, TimeoutError):
                pass  # their age says it
            except Exception:  # a probe is answered whatever is found
                log.exception("the cluster could not be looked at: what was known before is told, with its age")
        return Recent(self._last, self._age_s())

    async def look(self) -> ClusterFacts:
        """The facts as they are now; whoever asks meanwhile shares one look.

        Raises:
            PersistenceError: The database could not be asked.
        """
        if self._looking is None:
            self._looking = self._tasks.spawn(self._look(), name="look", report=False)
            # All who asked may have given up by the time it fails.
            self._looking.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._looking)

    async def stop(self) -> None:
        """Look no more."""
        await self._tasks.stop()

    def _age_s(self) -> float:
        return (self._clock.steady_ns() - self._last_ns) / 1e9

    async def _look(self) -> ClusterFacts:
        try:
            began_ns = self._clock.steady_ns()
            facts = await self._gather(began_ns)
            self._last, self._last_ns = facts, began_ns
            return facts
        finally:
            self._looking = None

    async def _gather(self, now_ns: int) -> ClusterFacts:
        storage = self._here.storage
        view = await storage.view()
        kinds = {Seat.split(seat.name)[0] for seat in view.seats}
        try:
            async with asyncio.TaskGroup() as group:
                runners = group.create_task(self._ask_all(view))
                backlog = group.create_task(storage.messages.backlog(most=_OVERDUE_MOST, dead_most=_DEAD_MOST))
                unpruned = group.create_task(self._unpruned())
                singletons = group.create_task(self._singletons(wanted="singleton" in kinds))
                crons = group.create_task(self._crons(wanted="cron" in kinds))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # one is enough to know that the database is away
        found = backlog.result()
        return ClusterFacts(
            now=found.now,
            view=view,
            runners=runners.result(),
            singletons=singletons.result(),
            crons=crons.result(),
            overdue=_overdue(found),
            unpruned=unpruned.result(),
            dead=found.dead,
            free_s=self._free.saw(view, now_ns / 1e9),
            staleness=self._here.settings.staleness,
        )

    async def _ask_all(self, view: ClusterSnapshot) -> dict[str, LocalFacts | None]:
        """What each runner says of itself; all of them are asked at once, or nearly."""
        local, transport, turn = self._here.facts(), self._here.transport, asyncio.Semaphore(_ASKED_AT_ONCE)
        told: dict[str, LocalFacts | None] = {row.id: None for row in view.runners}

        async def ask_one(row: RunnerRow) -> None:
            async with turn:
                told[row.id] = await ask(transport, row)

        async with asyncio.TaskGroup() as group:
            for row in view.runners:
                if local is not None and row.id == local.runner:
                    told[row.id] = local
                else:
                    group.create_task(ask_one(row))
        return told

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
    """Remembers since when seats have had no holder, as far as this process has looked.

    Args:
        takeover_s: How long that is nothing to speak of.
    """

    def __init__(self, takeover_s: float) -> None:
        self._takeover_s = takeover_s
        self._held: set[str] = set()
        self._since_s: dict[str, tuple[float, bool]] = {}  # and whether it was seen with a holder before

    def saw(self, view: ClusterSnapshot, now_s: float) -> Mapping[str, float | None]:
        """See the seats; for how long each free one is known to be free. None: it was never seen held, and may have
        been free for long, or for a moment."""
        free = [seat.name for seat in view.seats if seat.holder is None]
        self._since_s = {name: self._since_s.get(name, (now_s, name in self._held)) for name in free}
        self._held = {seat.name for seat in view.seats if seat.holder is not None}
        known = {name: (now_s - since_s, was_held) for name, (since_s, was_held) in self._since_s.items()}
        return {name: for_s if held or for_s > self._takeover_s else None for name, (for_s, held) in known.items()}


def _overdue(backlog: Backlog) -> tuple[Overdue, ...]:
    return tuple(
        Overdue(
            id=each.id,
            what=f"{each.entity_type}/{each.entity_id}.{each.method}",
            seat=each.seat,
            late_s=max((backlog.now - each.due_at).total_seconds(), 0.0),
        )
        for each in backlog.late
    )
