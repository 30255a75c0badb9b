"""Idling: who leaves when nobody calls. One timer for all entities of a runner, none for each.

A call only notes when it ended (`Resident.rested_ns`). Each entity has one entry in a heap of its type, under a time at
which it rested; whether it was called since is looked at when that entry comes first, and then it gets another place.

The end of a life: `on_deactivate`, then the resources, within limits that nothing exceeds (incident 6).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
from typing import TYPE_CHECKING, Any

from coterie.kernel.coroutines import coroutine_of
from coterie.kernel.service import Tasks
from coterie.work.limits import CLOSING_S, STUBBORN_S, settled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from contextvars import Context

    from coterie.entities.host.activation import Hosted, Resident


_LATE_S = 0.001
"""Loops count in milliseconds: one that rings too early would find nobody, and ring again at once."""
_AT_ONCE = 1_000
"""Entries looked at before the loop gets its turn."""


class IdleEntities:
    """Entities by type, those that have been idle longest first.

    Args:
        loop: Whose timers ring.
        steady_ns: The clock that counts.
        types: All types that have entities here.
        evict: Lets one leave, by `Host.retire`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        steady_ns: Callable[[], int],
        types: Callable[[], Iterable[Hosted]],
        evict: Callable[[Resident], object],
    ) -> None:
        self._loop = loop
        self._steady_ns = steady_ns
        self._types = types
        self._evict = evict
        self._numbers = itertools.count()  # of entries: residents have no order
        self._next_ns = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def rest(self, resident: Resident) -> None:
        """An entity has nothing to do from now on."""
        now_ns, is_listed = self._steady_ns(), resident.rested_ns > 0
        resident.rested_ns = now_ns
        if not is_listed:
            self._list(resident, now_ns)
            if now_ns + resident.hosted.max_idle_ns < self._next_ns:
                self._arm(now_ns + resident.hosted.max_idle_ns)

    def forget(self, resident: Resident) -> None:
        """It leaves. Its entry goes when it comes first, or when every other one is of somebody who has left."""
        hosted = resident.hosted
        if resident.rested_ns:
            hosted.gone += 1
        if hosted.gone > len(hosted.idle) // 2:
            hosted.idle = [entry for entry in hosted.idle if not entry[2].is_leaving]
            heapq.heapify(hosted.idle)
            hosted.gone = 0

    def longest(self) -> Resident | None:
        """Who has been idle for the longest time, of all types; nearly, where very many were called since."""
        now_ns = self._steady_ns()
        heads = [self._first(hosted, now_ns) or _some(hosted, now_ns) for hosted in self._types()]
        return min((head for head in heads if head is not None), key=_rested_ns, default=None)

    def stop(self) -> None:
        """Nobody is evicted any more."""
        self._next_ns = -math.inf
        if self._timer is not None:
            self._timer.cancel()

    def _list(self, resident: Resident, at_ns: int) -> None:
        heapq.heappush(resident.hosted.idle, (at_ns, next(self._numbers), resident))

    def _first(self, hosted: Hosted, until_ns: int) -> Resident | None:
        """The one of a type that has been idle longest; None: nobody has since `until_ns`, or many come before it."""
        for _ in range(_AT_ONCE):
            if not hosted.idle or hosted.idle[0][0] > until_ns:
                return None
            since_ns, _, resident = hosted.idle[0]
            if _is_idle(resident) and resident.rested_ns <= since_ns:
                return resident
            heapq.heappop(hosted.idle)
            if resident.is_leaving:
                hosted.gone -= 1
            else:
                self._list(resident, resident.rested_ns if _is_idle(resident) else self._steady_ns() + 1)
        return None

    def _arm(self, at_ns: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_ns = at_ns
        self._timer = self._loop.call_later(max(0.0, (at_ns - self._steady_ns()) / 1e9) + _LATE_S, self._ring)

    def _ring(self) -> None:
        self._timer, self._next_ns = None, math.inf
        now_ns = self._steady_ns()
        try:
            for hosted in self._types():
                until_ns = now_ns - hosted.max_idle_ns
                for _ in range(_AT_ONCE):
                    resident = self._first(hosted, until_ns)
                    if resident is None:
                        break
                    self._evict(resident)
        finally:  # an error is told by the loop, and must not be the last time that it rings
            next_ns = min(
                (hosted.idle[0][0] + hosted.max_idle_ns for hosted in self._types() if hosted.idle), default=math.inf
            )
            if next_ns < self._next_ns:
                self._arm(next_ns)


def _some(hosted: Hosted, now_ns: int) -> Resident | None:
    """One of a type that has been idle for long, as far as some of them tell: too many come before the first one."""
    if not hosted.idle or hosted.idle[0][0] > now_ns:
        return None
    idle = (resident for _, _, resident in hosted.idle if _is_idle(resident))
    return min(itertools.islice(idle, _AT_ONCE), key=_rested_ns, default=None)


def _is_idle(resident: Resident) -> bool:
    return not (resident.running or resident.is_kept or resident.is_leaving)


def _rested_ns(resident: Resident) -> int:
    return resident.rested_ns


log = logging.getLogger("coterie.entities")


class Deactivations:
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
