"""The occupants of one kind of seat on one runner: made when a seat is granted, woken, polled and stopped here.

granted ─▶ occupy ─▶ an occupant ◀── wake: a hint that there is news
                        ▲
                        └── poll, about every five seconds, for hints that were lost [M9]
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import copy_context
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from coterie.errors import PersistenceError
from coterie.kernel.clock import Dial
from coterie.kernel.service import Tasks
from coterie.ownership.seats import Occupant, Tenure
from coterie.work.limits import settled
from coterie.work.services import Services

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextvars import Context

    from coterie.cluster import Cluster
    from coterie.kernel.supervisor import MakeWork
    from coterie.ownership.exclusion import Cause
    from coterie.runner import Runner

log = logging.getLogger("coterie.work")

GRACE_S = 3.0
"""How long cancelled code of the program may take to end before it is abandoned."""
_POLL_S = 5.0


class WakeableOccupant(Occupant, Protocol):
    """An occupant that hints can wake."""

    def wake(self, unit: str, /) -> None:
        """There may be news: about a unit, or, if that is empty, about the seat."""
        ...

    async def end(self) -> None:
        """Cancel what is left, and wait until it has ended or was abandoned."""
        ...


OccupantT = TypeVar("OccupantT", bound=WakeableOccupant)


class Occupants(Generic[OccupantT]):
    """The occupants of one kind.

    Args:
        kind: What they are, in the plural: names their tasks.
        runner: The runner that holds the seats.
        cluster: Passed to bodies.
    """

    def __init__(self, kind: str, runner: Runner, cluster: Cluster) -> None:
        self.latest: dict[str, OccupantT] = {}
        """The last occupant of each seat that was ever held."""
        self._kind = kind
        self._own = Tasks(f"{kind}/own")
        clock = runner.calling.clock
        self.services = Services(
            cluster=cluster,
            settings=runner.settings,
            storage=runner.storage,
            clock=clock,
            chance=runner.calling.chance,
            dial=Dial(lambda: clock.steady_ns() / 1e9, clock.wall_ns() / 1e9),
            runner=runner.name,
            tasks=Tasks(kind),
            supervisor=runner.supervisor,
            resign=self._resign,
            tokens_of=lambda: runner.tokens,
            threads=runner.threads,
            middleware=runner.middleware,
        )
        self._runner = runner
        runner.at_end(self.stop)

    def _make(self, tenure: Tenure, context: Context) -> OccupantT:
        """Make the occupant of a seat; bodies inherit the context."""
        raise NotImplementedError

    def _begin(self) -> None:
        """The first seat is about to be occupied."""

    async def _poll(self) -> None:
        """Find news whose hints were lost."""

    def occupy(self, tenure: Tenure) -> OccupantT:
        """Occupy a seat (`ownership.Occupy`). Bodies inherit the context of this call."""
        if not self.latest:
            self._begin()
        occupant = self.latest[tenure.seat] = self._make(tenure, copy_context())
        return occupant

    def wake(self, seat: str, about: str = "") -> None:
        """There is news about a seat, or about a unit on it."""
        if seat in self.latest:
            self.latest[seat].wake(about)

    async def stop(self) -> None:
        """Wait for occupants that are ending; none takes long. Bodies that ignore their cancellation are abandoned."""
        await asyncio.gather(*(each.end() for each in self.latest.values()), return_exceptions=True)
        await self._own.stop()

    def _supervise(self, make: MakeWork, name: str) -> None:
        self._own.supervise(make, name=name, supervisor=self._runner.supervisor)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self.services.chance.between(_POLL_S / 2, _POLL_S))
            try:
                await self._poll()
            except PersistenceError as error:
                log.info("%s were not polled, the next poll is in %gs: %s", self._kind, _POLL_S, error)

    def _resign(self, seat: str, /, *, cause: Cause, error: str) -> None:
        self._own.spawn(self._runner.resign(seat, cause=cause, error=error), name=f"resign {seat}")


class LoopOccupant:
    """An occupant that is a loop with the tasks that it has started: the ticks of a cron, the workflows of a shard.

    Subclasses set `_loop`, the task of the loop.

    Promise:
        Once `drain` has returned, or `abandon` was called, nothing more is written under its tenure. What runs gets the
        time of the setting `drain`, then it is cancelled, and the next holder of the seat continues it.
    """

    _grace_s = GRACE_S

    def __init__(self, tenure: Tenure, services: Services, context: Context) -> None:
        self.tenure = tenure
        self._services = services
        self._context = context
        self._news = asyncio.Event()
        self._closing = False
        self._loop: asyncio.Task[None]

    def _running(self) -> Iterable[asyncio.Task[object]]:
        """The tasks of what runs."""
        raise NotImplementedError

    def _release(self) -> None:
        """Let what runs end soon."""

    async def drain(self) -> None:
        """Start nothing new, let what runs end, and cancel what does not."""
        self._close()
        await settled([self._loop], limit_s=GRACE_S)  # not cancelled: a write in flight must be followed up
        self._release()
        await settled(self._running(), limit_s=self._services.settings.drain.total_seconds())
        await self.end()

    def abandon(self) -> None:
        """The seat is lost: stop everything. Further writes would be refused."""
        self._close()
        self._cancel()

    async def end(self) -> None:
        """Cancel what is left, and wait until it has ended or was abandoned."""
        self._close()
        await settled(self._cancel(), limit_s=self._grace_s)

    def _cancel(self) -> list[asyncio.Task[object]]:
        tasks = [self._loop, *self._running()]
        for task in tasks:
            task.cancel()
        return tasks

    def _close(self) -> None:
        self._closing = True
        self._news.set()
