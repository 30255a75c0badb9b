"""Nodes: what can crash, freeze or have a wrong clock of its own under simulation.

A node is wider than a runner: each incarnation of a runner is one, and so are its lease keeper's thread, a client,
and the test itself. A context variable says to which node running code belongs; every callback of asyncio carries
its context, and so its node.
"""

from __future__ import annotations

import contextvars
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.testing.handles import AnyHandle

_MILLION = 1_000_000

current_node: contextvars.ContextVar[Node] = contextvars.ContextVar("coterie_simulated_node")


class LocalTime:
    """The clocks of one machine: a quartz that may run fast or slow, and a wall clock set wrong.

    Args:
        boot_ns: What its steady clock says at the beginning of the run.
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
        """What the steady clock shows at the true instant `now_ns`."""
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

    def set_drift(self, drift_ppm: int, *, now_ns: int) -> None:
        """Run at another rate from now on. Timers that are set already keep their instant."""
        _check_drift(drift_ppm)
        self._steady_base_ns = self.steady_ns(now_ns)
        self._true_base_ns = now_ns
        self.drift_ppm = drift_ppm


class Node:
    """One incarnation of something that fails as a whole. Made by `SimLoop.add_node`."""

    def __init__(self, name: str, *, incarnation: int = 1, time: LocalTime | None = None) -> None:
        self.name = name
        self.incarnation = incarnation
        self.label = name if incarnation == 1 else f"{name}.{incarnation}"
        self.time = time or LocalTime()
        self.process: Node = self
        self.threads: list[Node] = []
        self.alive = True
        self.frozen = False
        self.blocked = False
        self.held = False
        self.ready: deque[AnyHandle] = deque()
        self.runnable = True

    def new_context(self) -> contextvars.Context:
        """A context for code that belongs to this node, and that knows nothing of the test's context."""
        context = contextvars.Context()
        context.run(current_node.set, self)
        return context

    def update(self) -> bool:
        """Recompute whether anything of this node may run, and return it."""
        self.runnable = self.alive and not (self.frozen or self.blocked or self.held)
        return self.runnable

    @property
    def state(self) -> str:
        """In a word: what keeps this node from running, or "runs"."""
        if not self.alive:
            return "crashed"
        return "frozen" if self.frozen else "blocked" if self.blocked else "runs"

    def __repr__(self) -> str:
        return f"<Node {self.label} {self.state}>"


def _check_drift(drift_ppm: int) -> None:
    if drift_ppm <= -_MILLION:
        raise ValueError(f"a drift of {drift_ppm} ppm would stop the clock or turn it back")
