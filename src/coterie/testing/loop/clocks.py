"""Simulated clocks: each machine has its own, and none of them needs to be right."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.testing.loop.loop import SimLoop
    from coterie.testing.loop.nodes import Node

_MILLION = 1_000_000


class SimClock:
    """The clocks that a node sees. Implements `kernel.clock.Clock`."""

    def __init__(self, loop: SimLoop, node: Node) -> None:
        self._loop = loop
        self._node = node

    def wall_ns(self) -> int:
        now_ns = self._loop.now_ns
        return self._loop.wall_start_ns + now_ns + self._node.time.wall_error_ns(now_ns)

    def steady_ns(self) -> int:
        return self._node.time.steady_ns(self._loop.now_ns)


class LocalTime:
    """The clocks of one machine: a steady clock that may run fast or slow, and a wall clock that may be wrong.

    Args:
        boot_ns: The value of its steady clock at the start of the run.
        drift_ppm: How much too fast it runs, in millionths; negative is too slow.
        wall_offset_ns: How much its wall clock is ahead of the true time.
    """

    def __init__(self, *, boot_ns: int = 0, drift_ppm: int = 0, wall_offset_ns: int = 0) -> None:
        _check_drift(drift_ppm)
        self.drift_ppm = drift_ppm
        self.wall_offset_ns = wall_offset_ns
        self._true_base_ns = 0
        self._steady_base_ns = boot_ns
        self._boot_ns = boot_ns

    def steady_ns(self, now_ns: int) -> int:
        """The value of the steady clock at the true instant `now_ns`."""
        passed_ns = now_ns - self._true_base_ns
        if self.drift_ppm:
            passed_ns = passed_ns * (_MILLION + self.drift_ppm) // _MILLION
        return self._steady_base_ns + passed_ns

    def true_ns(self, steady_ns: int) -> int:
        """The first true instant at which the steady clock shows `steady_ns`."""
        passed_ns = steady_ns - self._steady_base_ns
        if self.drift_ppm:
            passed_ns = -(-passed_ns * _MILLION // (_MILLION + self.drift_ppm))
        return self._true_base_ns + passed_ns

    def wall_error_ns(self, now_ns: int) -> int:
        """How much the wall clock is ahead of the true time at `now_ns`."""
        return self.wall_offset_ns + self.steady_ns(now_ns) - self._boot_ns - now_ns

    def step(self, by_ns: int) -> None:
        """Shift both clocks from now on. Only for a machine on which nothing measures durations."""
        self._steady_base_ns += by_ns

    def set_drift(self, drift_ppm: int, *, now_ns: int) -> None:
        """Run at another rate from now on. Timers that are already set keep their instant."""
        _check_drift(drift_ppm)
        self._steady_base_ns = self.steady_ns(now_ns)
        self._true_base_ns = now_ns
        self.drift_ppm = drift_ppm


def _check_drift(drift_ppm: int) -> None:
    if drift_ppm <= -_MILLION:
        raise ValueError(f"a drift of {drift_ppm} ppm would stop the clock or turn it back")
