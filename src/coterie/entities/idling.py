"""Idling: who leaves when nobody calls. One timer for all entities of a runner, none for each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from coterie.entities.residents import Hosted, Resident


class Idling:
    """Entities without calls, by type, the longest idle first.

    Args:
        loop: Whose clock counts.
        types: All types that have entities here.
        evict: Lets one leave.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        types: Callable[[], Iterable[Hosted]],
        evict: Callable[[Resident], object],
    ) -> None:
        self._loop = loop
        self._types = types
        self._evict = evict
        self._next_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def rest(self, resident: Resident) -> None:
        """An entity has nothing to do from now on. Its next call takes it out again (`hosted.idle.pop`)."""
        hosted, now_s = resident.hosted, self._loop.time()
        hosted.idle[resident] = now_s
        if now_s + hosted.max_idle_s < self._next_s:
            self._arm(now_s + hosted.max_idle_s)

    def longest(self) -> Resident | None:
        """Who has been idle for the longest time, of all types."""
        heads = [next(iter(hosted.idle.items())) for hosted in self._types() if hosted.idle]
        return min(heads, key=lambda head: head[1])[0] if heads else None

    def stop(self) -> None:
        """Nobody is evicted any more."""
        self._next_s = -math.inf
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_s = at_s
        self._timer = self._loop.call_at(at_s, self._ring)

    def _ring(self) -> None:
        self._timer, self._next_s = None, math.inf
        now_s = self._loop.time()
        for hosted in self._types():
            for resident in _due(hosted, now_s):
                self._evict(resident)
        next_s = min((_first_s(hosted) for hosted in self._types() if hosted.idle), default=math.inf)
        if next_s < self._next_s:
            self._arm(next_s)


def _due(hosted: Hosted, now_s: float) -> list[Resident]:
    due = []
    for resident, since_s in hosted.idle.items():
        if since_s + hosted.max_idle_s > now_s:
            break
        due.append(resident)
    return due


def _first_s(hosted: Hosted) -> float:
    return next(iter(hosted.idle.values())) + hosted.max_idle_s
