"""The end of a life: `on_deactivate`, then the resources, within limits that nothing exceeds (incident 6)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from coterie.kernel.coroutines import coroutine_of
from coterie.kernel.service import Tasks
from coterie.work.limits import CLOSING_S, STUBBORN_S, settled

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from contextvars import Context

    from coterie.entities.residents import Resident

log = logging.getLogger("coterie.entities")


class Farewells:
    """Lets lives end.

    Promise:
        Every farewell is over after `CLOSING_S` for each of its two parts and `STUBBORN_S` more, also if user code
        hangs or ignores its cancellation: then it is left behind, and the log says so.
    """

    def __init__(self) -> None:
        self._tasks = Tasks("entities/farewell")
        self._theirs = Tasks("entities/closing")  # code of users, which may never end
        self._pending: dict[asyncio.Future[Any], None] = {}

    def begin(self, resident: Resident) -> asyncio.Future[Any] | None:
        """Let a life without running calls end; None if there was nothing to do for it."""
        entity, resident.entity = resident.entity, None
        if entity is None or not (resident.hosted.says_goodbye or resident.resources):
            return None
        context = resident.shard.context.copy()
        task = self._tasks.spawn(self._say(resident, entity), name=resident.address, context=context)
        resident.hosted.leaving[resident.id] = task
        self._pending[task] = resident.shard.leaving[task] = None
        task.add_done_callback(lambda _: self._said(resident, task))
        return task

    async def within_limit(self, work: Coroutine[Any, Any, Any], *, what: str, context: Context | None = None) -> None:
        """Run code of users to its end, or to the limit. What it raises is logged."""
        task = self._theirs.spawn(work, name=what, context=context)
        try:
            await settled([task], limit_s=CLOSING_S)
        finally:
            if not task.done():
                task.cancel()
        if not task.done():
            log.warning("%s took longer than %g s and is cancelled", what, CLOSING_S)
            await settled([task], limit_s=STUBBORN_S)
        if not task.done():
            log.error("%s ignores its cancellation and is left behind", what)

    async def stop(self) -> None:
        """Wait for all that have begun: they have limits of their own."""
        await settled(self._pending)

    async def _say(self, resident: Resident, entity: Any) -> None:
        if resident.hosted.says_goodbye:
            until_s = asyncio.get_running_loop().time() + CLOSING_S
            await self.within_limit(
                coroutine_of(entity.on_deactivate()),
                what=f"on_deactivate of {resident.address}",
                context=resident.new_context(until_s=until_s),
            )
        if resident.resources is not None:  # on_deactivate may have opened some too
            await self.within_limit(resident.resources.close(), what=f"the resources of {resident.address}")

    def _said(self, resident: Resident, task: asyncio.Future[Any]) -> None:
        del self._pending[task], resident.shard.leaving[task]
        if resident.hosted.leaving.get(resident.id) is task:
            del resident.hosted.leaving[resident.id]
