"""Deactivates entities: evicts idle ones (`IdleEntities`), and runs their `on_deactivate` hook (`Deactivations`).

One timer serves all entities of a runner. A call only notes when it ended (`Resident.rested_ns`). Each entity has one
entry in a heap of its type, under a time at which it became idle; whether it was called since is checked when the entry
comes first, and then it is moved.

A deactivation runs `on_deactivate`, then closes the resources, within limits that nothing exceeds (incident 6).
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
"""Loops count in milliseconds: a timer that fires too early would find no idle entity, and fire again at once."""
_AT_ONCE = 1_000
"""Entries that are checked before the loop can run other callbacks."""


class IdleEntities:
    """Idle entities by type, the longest idle first.

    Args:
        loop: Runs the timer.
        steady_ns: The clock.
        types: All types that have entities here.
        evict: Deactivates one, by `Host.retire`.
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
        self._numbers = itertools.count()  # tie-breakers of entries: residents have no order
        self._next_ns = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, resident: Resident) -> None:
        """An entity becomes idle."""
        now_ns, is_listed = self._steady_ns(), resident.rested_ns > 0
        resident.rested_ns = now_ns
        if not is_listed:
            self._list(resident, now_ns)
            if now_ns + resident.hosted.max_idle_ns < self._next_ns:
                self._arm(now_ns + resident.hosted.max_idle_ns)

    def forget(self, resident: Resident) -> None:
        """Forget a deactivated entity. Its entry is removed when it comes first, or when half of them are obsolete."""
        hosted = resident.hosted
        if resident.rested_ns:
            hosted.gone += 1
        if hosted.gone > len(hosted.idle) // 2:
            hosted.idle = [entry for entry in hosted.idle if not entry[2].is_leaving]
            heapq.heapify(hosted.idle)
            hosted.gone = 0

    def longest(self) -> Resident | None:
        """The longest idle entity of all types; an approximation where very many were called since."""
        now_ns = self._steady_ns()
        heads = [self._first(hosted, now_ns) or _some(hosted, now_ns) for hosted in self._types()]
        return min((head for head in heads if head is not None), key=_rested_ns, default=None)

    def stop(self) -> None:
        """Stop evicting."""
        self._next_ns = -math.inf
        if self._timer is not None:
            self._timer.cancel()

    def _list(self, resident: Resident, at_ns: int) -> None:
        heapq.heappush(resident.hosted.idle, (at_ns, next(self._numbers), resident))

    def _first(self, hosted: Hosted, until_ns: int) -> Resident | None:
        """The longest idle entity of a type; None if none has been idle since `until_ns`, or too many come first."""
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
        self._timer = self._loop.call_later(max(0.0, (at_ns - self._steady_ns()) / 1e9) + _LATE_S, self._on_timer)

    def _on_timer(self) -> None:
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
        finally:  # the loop reports an error; the timer must be set again all the same
            next_ns = min(
                (hosted.idle[0][0] + hosted.max_idle_ns for hosted in self._types() if hosted.idle), default=math.inf
            )
            if next_ns < self._next_ns:
                self._arm(next_ns)


def _some(hosted: Hosted, now_ns: int) -> Resident | None:
    """The longest idle of a sample of a type, used when too many busy entities come first in the heap."""
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
    """Deactivates entities.

    Promise:
        Every deactivation ends after `CLOSING_S` for each of its two parts plus `STUBBORN_S`, even if user code hangs
        or ignores its cancellation: then that code is abandoned, and the log says so.
    """

    def __init__(self) -> None:
        self._tasks = Tasks("entities/deactivate")
        self._theirs = Tasks("entities/closing")  # user code, which may never end
        self._pending: dict[asyncio.Future[Any], None] = {}

    def begin(self, resident: Resident) -> asyncio.Future[Any] | None:
        """Start the deactivation of an entity without running calls. Returns None if there was nothing to do."""
        entity, resident.entity = resident.entity, None
        if entity is None or not (resident.hosted.says_goodbye or resident.resources):
            return None
        context = resident.shard.context.copy()
        task = self._tasks.spawn(self._deactivate(resident, entity), name=resident.address, context=context)
        resident.hosted.leaving[resident.id] = task
        self._pending[task] = resident.shard.leaving[task] = None
        task.add_done_callback(lambda _: self._deactivated(resident, task))
        return task

    async def within_limit(self, work: Coroutine[Any, Any, Any], *, what: str, context: Context | None = None) -> None:
        """Run user code to its end, or to the limit. Its errors are logged."""
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
            log.error("%s ignores its cancellation and is abandoned", what)

    async def stop(self) -> None:
        """Wait for all deactivations in progress: they have their own limits."""
        await settled(self._pending)

    async def _deactivate(self, resident: Resident, entity: Any) -> None:
        if resident.hosted.says_goodbye:
            until_s = asyncio.get_running_loop().time() + CLOSING_S
            await self.within_limit(
                coroutine_of(entity.on_deactivate()),
                what=f"on_deactivate of {resident.address}",
                context=resident.new_context(until_s=until_s),
            )
        if resident.resources is not None:  # `on_deactivate` may have opened some too
            await self.within_limit(resident.resources.close(), what=f"the resources of {resident.address}")

    def _deactivated(self, resident: Resident, task: asyncio.Future[Any]) -> None:
        del self._pending[task], resident.shard.leaving[task]
        if resident.hosted.leaving.get(resident.id) is task:
            del resident.hosted.leaving[resident.id]
