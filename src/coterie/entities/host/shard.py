"""ShardOccupant: the entities of one shard on this runner, from the day the seat is taken to the day it is given up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from coterie.work.limits import STUBBORN_S, settled

if TYPE_CHECKING:
    from contextvars import Context

    from coterie.cluster import Cluster
    from coterie.entities.host.activation import HostCounts, Resident
    from coterie.entities.host.deactivation import Deactivations
    from coterie.entities.host.host import Host
    from coterie.entities.host.work import Work
    from coterie.kernel.clock import Clock
    from coterie.kernel.ids import ShardId
    from coterie.kernel.service import Tasks
    from coterie.ownership.seats import Tenure
    from coterie.storage.interface import Storage

log = logging.getLogger("coterie.entities")


class ShardOccupant:
    """An `ownership.Occupant` for a shard.

    Args:
        host: Whose shard it is.
        tenure: By which right.
        id: Which shard.
        context: What handlers inherit.
        former: Who sat here before, if handlers of it still end.

    Promise:
        Once `drain` has returned or `abandon` was called, no handler of it answers any more and none begins.
    """

    def __init__(
        self, host: Host, tenure: Tenure, id: ShardId, context: Context, former: ShardOccupant | None = None
    ) -> None:
        self.tenure = tenure
        self.id = id
        self.context = context
        self.is_open = True
        self.residents: dict[Resident, None] = {}
        self.leaving: dict[asyncio.Future[Any], None] = {}
        """Farewells that still run."""
        self.busy = 0
        """Calls that run, or are about to."""
        self.former = former
        self._host = host
        self._quiet = asyncio.Event()

    @property
    def cluster(self) -> Cluster | None:
        """What entities have as `self.cluster`."""
        return self._host.cluster

    @property
    def storage(self) -> Storage | None:
        """Where states and messages are kept; None for a probe."""
        return self._host.storage

    @property
    def transaction_limit_s(self) -> float:
        """How long a transaction of a handler may take."""
        return self._host.settings.transaction_limit.total_seconds()

    @property
    def clock(self) -> Clock:
        """The runner's."""
        return self._host.clock

    @property
    def counts(self) -> HostCounts:
        """The runner's."""
        return self._host.counts

    @property
    def farewells(self) -> Deactivations:
        """The runner's."""
        return self._host.farewells

    @property
    def tasks(self) -> Tasks:
        """For what entities hold open."""
        return self._host.tasks

    def rest(self, resident: Resident) -> None:
        """One of its entities has nothing to do."""
        self._host.idling.rest(resident)

    def quieten(self) -> None:
        """A call has ended after it was closed."""
        if not self.busy:
            self._quiet.set()
            self._host.quiet(self)

    async def wait_quiet(self, limit_s: float) -> None:
        """Wait until none of its calls runs any more, or for the limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._quiet.wait()

    async def drain(self) -> None:
        """Start nothing more, let what runs end within the setting `drain`, then stop it; let all entities leave.

        Calls that wait, or whose entity is still being activated, have not run: they are sent elsewhere at once.
        """
        self._close()
        self._dismiss_unbegun()
        limit_s = self._host.settings.drain.total_seconds()
        await self.wait_quiet(limit_s)
        for work in self._begun():
            self._host.answers.cut_short(work, f"it gave up the shard, and the handler did not end within {limit_s:g}s")
            self._host.handlers.stop(work)
        await self.wait_quiet(STUBBORN_S)
        if self.busy:
            log.error("shard %s is given up while %d handlers ignore their cancellation", self.id, self.busy)
        await settled(self.leaving)

    def abandon(self) -> None:
        """The seat is lost: stop all handlers, say nothing more in their name. Farewells are attempted all the same."""
        self._close()
        self._dismiss_unbegun()
        for work in self._begun():
            self._host.answers.cut_short(work, "it lost the shard while the call ran")
            self._host.handlers.stop(work)

    def _close(self) -> None:
        """Out of the routes; what is idle leaves now, what is busy when it has ended."""
        if not self.is_open:
            return
        self.is_open = False
        self._host.closed(self)
        for resident in list(self.residents):
            for work in self._host.retire(resident):
                self._host.answers.not_mine(work)
        self.quieten()

    def _dismiss_unbegun(self) -> None:
        for work in self._mine():
            if not work.has_begun:
                self._host.answers.not_mine(work)
                self._host.handlers.stop(work)

    def _begun(self) -> list[Work]:
        return [work for work in self._mine() if work.has_begun]

    def _mine(self) -> list[Work]:
        return [work for work in self._host.handlers.waiting if work.resident.shard is self]
