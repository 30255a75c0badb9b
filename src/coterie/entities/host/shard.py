"""ShardOccupant: the entities of one shard on this runner, from taking its seat until releasing it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from coterie.work.limits import STUBBORN_S, set_within, settled

if TYPE_CHECKING:
    from contextvars import Context

    from coterie.entities.host.activation import Resident
    from coterie.entities.host.host import Host
    from coterie.entities.host.work import Work
    from coterie.kernel.ids import ShardId
    from coterie.ownership.seats import Tenure

log = logging.getLogger("coterie.entities")


class ShardOccupant:
    """An `ownership.Occupant` for a shard.

    Args:
        host: The host of the shard.
        tenure: The tenure of its seat.
        id: The shard.
        context: The context that handlers inherit.
        former: The previous occupant, if handlers of it still run.

    Promise:
        Once `drain` has returned or `abandon` was called, its handlers send no answers and none starts.
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
        """Deactivations in progress."""
        self.busy = 0
        """Calls that run, or are about to."""
        self.former = former
        self.host = host
        self._quiet = asyncio.Event()

    def quieten(self) -> None:
        """Mark the shard as quiet if no call runs any more."""
        if not self.busy:
            self._quiet.set()
            self.host.quiet(self)

    async def wait_quiet(self, limit_s: float) -> None:
        """Wait until none of its calls runs any more, at most for the limit."""
        await set_within(self._quiet, limit_s)

    async def drain(self) -> None:
        """Start no more calls, let running ones end within the setting `drain`, cancel the rest; deactivate all.

        Calls that wait, or whose entity is still being activated, have not run: they are sent elsewhere at once.
        """
        self._close()
        self._dismiss_unbegun()
        limit_s = self.host.settings.drain.total_seconds()
        await self.wait_quiet(limit_s)
        for work in self._begun():
            self.host.responder.cut_short(
                work, f"it gave up the shard, and the handler did not end within {limit_s:g}s"
            )
            self.host.handlers.stop(work)
        await self.wait_quiet(STUBBORN_S)
        if self.busy:
            log.error("shard %s is released while %d handlers ignore their cancellation", self.id, self.busy)
        await settled(self.leaving)

    def abandon(self) -> None:
        """The seat is lost: cancel all handlers and send no more results of them. Entities are still deactivated."""
        self._close()
        self._dismiss_unbegun()
        for work in self._begun():
            self.host.responder.cut_short(work, "it lost the shard while the call ran")
            self.host.handlers.stop(work)

    def _close(self) -> None:
        """Accept no more calls; deactivate idle entities now, busy ones when their calls have ended."""
        if not self.is_open:
            return
        self.is_open = False
        self.host.closed(self)
        for resident in list(self.residents):
            for work in self.host.retire(resident):
                self.host.responder.not_mine(work)
        self.quieten()

    def _dismiss_unbegun(self) -> None:
        for work in self._mine():
            if not work.has_begun:
                self.host.responder.not_mine(work)
                self.host.handlers.stop(work)

    def _begun(self) -> list[Work]:
        return [work for work in self._mine() if work.has_begun]

    def _mine(self) -> list[Work]:
        return [work for work in self.host.handlers.waiting if work.resident.shard is self]
