"""The simulator's loop: asyncio in virtual time, in one thread, in an order that the seed chooses.

    call_soon ──▶ node.ready ──┐                             ┌─▶ a callback runs: a step, which takes no time
                      ▲        ├─▶ the schedule picks a node ┤
    call_at ──▶ timers, when due                             └─▶ nothing is ready: time jumps to the next timer

Time is whole nanoseconds. It stands still while anything is ready and then jumps, so an hour of waiting costs
nothing. Everything that runs belongs to a node (see `nodes`), and nodes can fail:

    crash     nothing of it ever runs again, not even `finally`: like SIGKILL
    freeze    nothing of it runs until `thaw`; timers that fall due meanwhile run then: like SIGSTOP
    block     the same for its event loop only; its threads (the lease keeper) go on: like a long computation

Read `nodes`, `handles`, `scheduling`, `queueing`, then this, then `disposal`.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import sys
import threading  # noqa: TID251 only to know which thread this is
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.testing.disposal import discard
from coterie.testing.guards import SealedLoop
from coterie.testing.handles import SimFuture, SimHandle, SimTask, SimTimer, label_of
from coterie.testing.nodes import LocalTime, Node, current_node
from coterie.testing.queueing import Queues
from coterie.testing.scheduling import schedule_of
from coterie.testing.seeds import stream
from coterie.testing.stuck import StepLimit, deadlock, waits
from coterie.testing.trace import Trace, moment

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context

    from coterie.testing.handles import AnyHandle

T = TypeVar("T")

STEPS_MOST = 50_000_000
INSTANT_STEPS_MOST = 1_000_000  # at one instant; more is a loop that never waits
_SWEEP_LEAST = 1_024
_START_WALL_NS = 1_767_225_600_000_000_000  # 2026-01-01 in UTC


class SimLoop(SealedLoop):
    """An event loop in virtual time.

    Args:
        seed: Decides every choice of the run.
        steps_most: How many callbacks may run before the run is taken to spin.

    Promise:
        The same seed and the same code give the same run: the same callbacks at the same instants in the same
        order, and so the same `trace.digest()`.

    Not promised:
        That a node which crashes itself stops before its next `await`: Python code cannot be left half-way. What
        does I/O for a node asks `node.alive` first, and `over` when the run may have ended.
    """

    def __init__(self, seed: int, *, steps_most: int = STEPS_MOST) -> None:
        super().__init__()
        self.seed = seed
        self.now_ns = 0
        self.steps = 0
        self.over = False
        self.errors: list[BaseException] = []
        self.test = Node("test")
        self.trace = Trace(test=self.test)
        self.queues = Queues(self.test, schedule_of(seed, stream(seed, "schedule"), self._hold))
        self.wall_start_ns = _START_WALL_NS
        self._timers: list[tuple[int, int, SimTimer]] = []
        self._cancelled_timers = 0
        self._serials = itertools.count(1)
        self._tasks: list[SimTask[Any]] = []
        self._sweep_at = _SWEEP_LEAST
        self._steps_most = steps_most
        self._steps_until = 0
        self._stop_now = False

    # Nodes and their failures

    def add_node(self, name: str, *, time: LocalTime | None = None) -> Node:
        """A new node, or the next incarnation of one that has crashed, by default on the same machine."""
        return self.queues.add(name, time=time)

    def add_thread(self, node: Node, name: str) -> Node:
        """A thread of a node: fails and freezes with it, has its clock, but goes on while the node is blocked."""
        return self.queues.add_thread(node, name)

    def spawn(self, node: Node, work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Run `work` on a node."""
        return self.create_task(work, name=name, context=node.new_context())

    def crash(self, node: Node) -> None:
        """Let nothing of a node ever run again, not even `finally`: like SIGKILL."""
        self.trace.note("crash", of=node.label)
        self.queues.crash(node)

    def freeze(self, node: Node) -> None:
        """Let nothing of a node run until `thaw`: like SIGSTOP."""
        self.trace.note("freeze", of=node.label)
        self.queues.freeze(node)

    def thaw(self, node: Node) -> None:
        """Let a frozen node go on: first with what fell due meanwhile, in order."""
        self.trace.note("thaw", of=node.label)
        self.queues.freeze(node, on=False)

    def block(self, node: Node, *, on: bool = True) -> None:
        """Stop a node's event loop but not its threads, or let it go on."""
        self.trace.note("block" if on else "unblock", of=node.label)
        self.queues.block(node, on=on)

    def _hold(self, node: Node, for_ns: int) -> None:
        if node is not self.test and not node.held:
            self.queues.hold(node)
            self.call_at_ns(self.now_ns + for_ns, self.queues.hold, node, on=False)

    # Time

    def time(self) -> float:
        """Seconds on the steady clock of the running node."""
        return current_node.get(self.test).time.steady_ns(self.now_ns) / 1e9

    # Scheduling

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> SimHandle:  # type: ignore[override]
        if context is None:
            context = contextvars.copy_context()
        handle = SimHandle(callback, args, self, context, context.get(current_node, self.test))
        if not self.over:
            self.queues.push(handle)
        return handle
