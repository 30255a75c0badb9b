"""The simulator's event loop: asyncio in virtual time, in one thread, in an order that the seed chooses.

    call_soon ──▶ node.ready ──┐                             ┌─▶ a callback runs: a step, which takes no time
                      ▲        ├─▶ the schedule picks a node ┤
    call_at ──▶ timers, when due                             └─▶ nothing is ready: time jumps to the next timer

Time is whole nanoseconds. It stops while anything is ready and then jumps, so an hour of waiting costs nothing.
Everything that runs belongs to a node (see `nodes`), and nodes can fail (see `queues`).

In which order to read: `nodes`, `tasks`, `scheduler`, `queues`, then this, then `disposal`.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.testing.loop import guards
from coterie.testing.loop.deadlock import StepLimit, deadlock, waits
from coterie.testing.loop.disposal import discard
from coterie.testing.loop.guards import SealedLoop
from coterie.testing.loop.nodes import Node, current_node
from coterie.testing.loop.queues import Nodes
from coterie.testing.loop.scheduler import schedule_of
from coterie.testing.loop.seeds import stream
from coterie.testing.loop.tasks import SimFuture, SimHandle, SimTask, SimTimer, label_of
from coterie.testing.loop.trace import Trace, moment

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context


T = TypeVar("T")

STEPS_MOST = 50_000_000
INSTANT_STEPS_MOST = 1_000_000  # at one instant; more is a loop that never waits
_SWEEP_LEAST = 1_024
_START_WALL_NS = 1_767_225_600_000_000_000  # 2026-01-01 in UTC


class SimLoop(SealedLoop):
    """An event loop in virtual time.

    Args:
        seed: Decides every choice of the run.
        steps_most: How many callbacks may run before the run is assumed to spin.

    Promise:
        The same seed and the same code give the same run: the same callbacks at the same instants in the same order,
        and so the same `trace.digest()`.

    Not promised:
        That a node which crashes itself stops before its next `await`: Python code cannot be interrupted half-way. Code
        that does I/O for a node checks `node.alive` first, and `over` where the run may have ended.
    """

    def __init__(self, seed: int, *, steps_most: int = STEPS_MOST) -> None:
        super().__init__()
        self.seed = seed
        self.now_ns = 0
        self.steps = 0
        self.over = False
        self.wall_start_ns = _START_WALL_NS
        self.at_end: list[Callable[[], object]] = []
        """Called when the run is over, to release resources."""
        self.faults: list[str] = []
        """The names of the faults that simulations on this loop use."""
        self.strikes: Counter[str] = Counter()
        """How often each of them has struck."""
        self.skip: Callable[[list[tuple[int, int, SimTimer]]], None] | None = None
        """Called before time advances; may skip idle time."""
        self.simulations = 0
        self.is_simulating = False
        self.test = Node("test")
        self.trace = Trace(seed, test=self.test)
        self.nodes = Nodes(self.test, schedule_of(seed, stream(seed, "schedule"), self._hold), self.trace)
        self._errors: list[BaseException] = []
        self._timers: list[tuple[int, int, SimTimer]] = []
        self._cancelled_timers = 0
        self._serials = itertools.count(1)
        self._tasks: list[SimTask[Any]] = []
        self._sweep_at = _SWEEP_LEAST
        self._steps_most = steps_most
        self._steps_until = INSTANT_STEPS_MOST
        self._stopped = False

    def spawn(self, node: Node, work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Run `work` as a task of a node."""
        return self.create_task(work, name=name, context=node.new_context())

    # Callbacks

    def call_soon(  # type: ignore[override] # typeshed has type variables for the arguments
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        if context is None:
            context = contextvars.copy_context()
        handle = SimHandle(callback, args, self, context, context.get(current_node, self.test))
        if not self.over:
            self.nodes.push(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override] # as above
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        if threading.get_ident() != self._thread_id and threading.get_ident() not in guards.inside:
            raise RuntimeError("another thread calls into a simulation, at a moment that no seed repeats")
        return self.call_soon(callback, *args, context=context)

    def time(self) -> float:
        """Seconds on the steady clock of the running node."""
        return current_node.get(self.test).time.steady_ns(self.now_ns) / 1e9

    def call_later(  # type: ignore[override] # as above
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimTimer:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override] # as above
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimTimer:
        time = current_node.get(self.test).time
        at_ns = time.true_ns(round(when * 1e9))
        if at_ns <= self.now_ns and when > time.steady_ns(self.now_ns) / 1e9:
            at_ns = self.now_ns + 1  # at least 1 ns later, or code that waits for a fraction of a nanosecond spins
        return self.call_at_ns(at_ns, callback, *args, context=context, when=when)

    def call_at_ns(
        self,
        at_ns: int,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
        when: float = 0.0,
    ) -> SimTimer:
        """Run a callback at a true virtual instant, whatever the clocks of nodes say."""
        if context is None:
            context = contextvars.copy_context()
        timer = SimTimer(when, callback, args, self, context, context.get(current_node, self.test))
        if not self.over:
            heapq.heappush(self._timers, (max(at_ns, self.now_ns), next(self._serials), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if not handle._scheduled:  # type: ignore[attr-defined] # typeshed leaves it out
            return
        self._cancelled_timers += 1
        if self._cancelled_timers > _SWEEP_LEAST and self._cancelled_timers > len(self._timers) // 2:
            self._timers = [entry for entry in self._timers if not entry[2]._cancelled]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def create_task(
        self,
        coro: Any,
        *,
        name: object = None,
        context: Context | None = None,
        eager_start: bool | None = None,  # noqa: ARG002 of 3.13; what runs now is the schedule's choice
    ) -> SimTask[Any]:
        if self.over:
            coro.close()
            raise RuntimeError("the simulation is over")
        node = current_node.get(self.test) if context is None else context.get(current_node, self.test)
        task = SimTask(coro, loop=self, serial=next(self._serials), node=node, name=name, context=context)
        self._tasks.append(task)
        if len(self._tasks) >= self._sweep_at:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._sweep_at = max(_SWEEP_LEAST, 2 * len(self._tasks))
        return task

    def create_future(self) -> SimFuture[Any]:
        return SimFuture(loop=self, serial=next(self._serials))

    # Running

    def run_forever(self) -> None:
        """Run until `stop()`."""
        if self.over or self.is_running():
            raise RuntimeError("the simulation is over" if self.over else "the loop is running already")
        hooks = sys.get_asyncgen_hooks()
        self._thread_id = threading.get_ident()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._generator_dropped)
        asyncio._set_running_loop(self)
        try:
            self._run()
        finally:
            self._stopped = False
            self._thread_id = None  # type: ignore[assignment] # asyncio's own way to say: not running
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def stop(self) -> None:
        self._stopped = True

    def _run(self) -> None:
        pick, step = self.nodes.schedule.pick, self.trace.step
        while not self._stopped:
            node = pick()
            if node is None:
                self._jump()
                continue
            handle = node.ready.popleft()
            if handle._cancelled:
                continue
            self.steps += 1
            if self.steps > self._steps_until:
                raise self._spins()
            step(node, label_of(handle._callback))
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt, MemoryError):
                raise  # without memory the rest of the run proves nothing
            except BaseException as error:  # noqa: BLE001 as asyncio: one callback must not end the loop
                self.call_exception_handler({"message": f"callback {label_of(handle._callback)}", "exception": error})

    def _jump(self) -> None:
        """Advance time to the next timer, and make ready what is due then."""
        timers = self._timers
        while timers and (timers[0][2]._cancelled or not timers[0][2].node.alive):
            self._due(heapq.heappop(timers)[2])
        if not timers:
            raise deadlock(self._tasks, now_ns=self.now_ns)
        if self.skip is not None:
            self.skip(timers)
        self.now_ns = self.trace.now_ns = max(self.now_ns, timers[0][0])
        self._steps_until = min(self._steps_most, self.steps + INSTANT_STEPS_MOST)
        while timers and timers[0][0] <= self.now_ns:
            self._due(heapq.heappop(timers)[2])

    def _due(self, timer: SimTimer) -> None:
        timer._scheduled = False
        if timer._cancelled:
            self._cancelled_timers -= 1
        else:
            self.nodes.push(timer)

    def _spins(self) -> StepLimit:
        return StepLimit(
            f"{self.steps:,} steps, and the run is not finished at {moment(self.now_ns)}: does something spin?\n"
            f"{self.waits()}"
        )

    def _hold(self, node: Node, for_ns: int) -> None:
        if node is not self.test and not node.held:
            self.nodes.hold(node, True)
            context = self.test.new_context()
            self.call_at_ns(self.now_ns + for_ns, self.nodes.hold, node, False, context=context)

    def waits(self) -> str:
        """What every unfinished task waits for, one per line."""
        return waits(self._tasks)

    def _generator_dropped(self, generator: Any) -> None:
        if not self.over:
            self.create_task(generator.aclose(), name=f"close {generator.__qualname__}")

    # The end

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep an unhandled error: it fails the run at its end."""
        owner = context.get("task") or context.get("future")
        if self.over or (isinstance(owner, SimTask) and not owner.node.alive):
            return
        error = context.get("exception") or RuntimeError(context["message"])
        error.add_note(f"nobody handled this: {context['message']}, at {moment(self.now_ns)}")
        self.trace.note("error", type=type(error).__name__)
        self._errors.append(error)

    def unhandled(self) -> list[BaseException]:
        """Unhandled errors of callbacks and of tasks that were never awaited, except those of crashed nodes."""
        for task in self._tasks:
            if task.done() and task._log_traceback:
                self.default_exception_handler(
                    {"message": f"task {task.get_name()}", "exception": task.exception(), "task": task}
                )
        return self._errors

    def dispose(self) -> None:
        """End the run: discard what is still pending, silently and without running any of it."""
        self.over = True
        tasks, self._tasks = self._tasks, []
        waiting = [task for task in tasks if not task.done()]
        for task in waiting:
            task._log_destroy_pending = False  # type: ignore[attr-defined] # typeshed leaves it out
        discard([task.get_coro() for task in waiting])
        self._timers.clear()
        self.nodes.clear()
        for let_go in self.at_end:
            let_go()
        self.close()
