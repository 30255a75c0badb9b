"""Deadlines of many calls with one timer: a wheel of coarse slots. A timer per call would cost as much as a task.

A call is put into the slot of the moment at which it expires, and takes itself out when it is done, which nearly all
do. The timer stands on the earliest slot in use. When it goes off, slots in which nothing is left are dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

TICK_S = 0.01

Slot = dict[int, None]


class Wheel:
    """Tells when numbers expire.

    Args:
        loop: Whose clock counts.
        expire: Called with each number that was not removed in time.

    Promise:
        Never early; late by a tick, or as long as the loop is blocked.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[int], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._slots: dict[int, Slot] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0
        self._last: tuple[float, float, Slot] = (0.0, 0.0, {})  # the slot of the last call, from when to when

    def add(self, number: int, within_s: float) -> Slot:
        """Let a number expire after a while. `del slot[number]` takes it out again."""
        at_s = self._loop.time() + within_s
        begin_s, end_s, slot = self._last
        if not begin_s <= at_s < end_s:  # calls come in bursts of one timeout: nearly always it is
            slot = self._slot(int(at_s / TICK_S) + 1)
        slot[number] = None
        return slot

    def stop(self) -> None:
        """Forget everything."""
        self._slots.clear()
        self._last = (0.0, 0.0, {})
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def _slot(self, tick: int) -> Slot:
        slot = self._slots.get(tick)
        if slot is None:
            slot = self._slots[tick] = {}
            if self._timer is None or tick < self._armed:
                self._arm(tick)
        self._last = ((tick - 1) * TICK_S, tick * TICK_S, slot)
        return slot

    def _arm(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = tick
        self._timer = self._loop.call_at(tick * TICK_S, self._turn)

    def _turn(self) -> None:
        self._timer = None
        self._last = (0.0, 0.0, {})  # its slot may be dropped below
        # What the timer was set for is due, even if the clock, in floating point, says a hair less.
        now = max(self._armed, int(self._loop.time() / TICK_S))
        due = [tick for tick in self._slots if tick <= now]
        numbers = [number for tick in sorted(due) for number in self._slots.pop(tick)]
        self._slots = {tick: slot for tick, slot in self._slots.items() if slot}
        if self._slots:
            self._arm(min(self._slots))
        for number in numbers:
            self._expire(number)
