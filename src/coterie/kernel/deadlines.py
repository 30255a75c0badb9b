"""Deadlines of many calls with one timer, and next to no cost for each: a timer per call would cost as much as a task.

A call only compares its deadline with the time of the next sweep, which is no later than the earliest deadline. A sweep
examines all waiting calls. Nearly all calls are done long before, so sweeps are as rare as timeouts are long; and with
many waiting calls sweeps are spaced out, so that they take a twentieth of the time at most.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

TICK_S = 0.01
_AGAIN_S = 0.1
"""Pause after a sweep that failed."""
_REST_S = 1e-6  # per waiting call: some twenty times what it costs to examine it


class Deadlines:
    """Triggers a sweep when the first deadline has passed.

    Args:
        loop: Its clock counts.
        sweep: Given the time, ends all calls whose deadline has passed; returns the earliest one left and their number.

    Promise:
        Never early; late by a tick and a microsecond for each waiting call, or as long as the loop is blocked.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sweep: Callable[[float], tuple[float, int]]) -> None:
        self.next_s = math.inf
        self._loop = loop
        self._sweep = sweep
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, until_s: float) -> None:
        """Sweep at this time, which is before `next_s`."""
        assert until_s < self.next_s, "a later deadline needs no earlier sweep"
        if self._timer is not None:
            self._timer.cancel()
        # On the grid, so that nearby deadlines share a sweep; never before the deadline.
        self.next_s = until_s
        self._timer = self._loop.call_at(math.ceil(until_s / TICK_S) * TICK_S, self._ring)

    def stop(self) -> None:
        """Stop sweeping."""
        self.next_s = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer, self.next_s = None, math.inf
        now_s = self._loop.time()
        try:
            least_s, waiting = self._sweep(now_s)
        except Exception:
            self.arm(now_s + _AGAIN_S)  # the loop logs the error; the others have deadlines, too
            raise
        least_s = max(least_s, now_s + TICK_S / 2 + waiting * _REST_S)
        if least_s < self.next_s:
            self.arm(least_s)
