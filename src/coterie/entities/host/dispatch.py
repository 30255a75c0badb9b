"""Starts handlers with as few tasks as possible, each handler in its own context.

A handler that never suspends needs no task: a shared task runs its first step, which is all of it, and continues with
the next handler. The first handler that suspends keeps that task (`kernel/coroutines.py` runs its remaining steps), so
the task that `asyncio.timeout` or a task group saw stays the handler's task, and another task runs the rest.

`CallQueue`: queued calls.

ready ──▶ first step ──▶ ended: the next one, in the same task
              │
              └─▶ suspended: it keeps this task, and another one runs the rest

`ImmediateDispatch`: a call for an idle entity starts in the loop iteration that read it, without a task.

arrived ──▶ first step, as if in the spare task ──▶ ended: answered before the next frame is read
                                │
                                └─▶ suspended: it keeps the spare task (`SpareTask`), and another one is started
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from coterie.entities.host.work import Work, handling
from coterie.kernel.context import enter
from coterie.kernel.coroutines import enter_task, leave_task, remaining_steps
from coterie.kernel.service import Tasks
from coterie.work.limits import settled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from contextvars import Context

    from coterie.entities.calls.server import RemoteCall, RemoteStream
    from coterie.entities.host.activation import Hosted
    from coterie.entities.host.executor import HandlerExecutor
    from coterie.entities.host.host import Host
    from coterie.entities.persisted.inbox import StoredCall

    Suspended = tuple[Work, Context, Coroutine[Any, Any, Any], Any]


_handle = handling.set


def first_step(work: Work, coroutine: Coroutine[Any, Any, Any]) -> tuple[bool, Any]:
    """Run a coroutine, in the context of a new work, until it suspends or ends.

    Returns:
        Whether it has ended; then its result, else the future it waits for.
    """
    _handle(work)
    enter(work)
    try:
        return False, coroutine.send(None)
    except StopIteration as ended:
        return True, ended.value


_AWAITED = "_asyncio_future_blocking"
"""The attribute by which a future shows the task that steps a coroutine that it was awaited, not just yielded; the task
clears it. Code that steps a coroutine in place of a task must do the same."""


class SpareTask:
    """A pre-started task that adopts a handler when it first suspends. The first step runs as if in this task.

    Args:
        tasks: The group it belongs to.
        context: The context in which it waits.
        go_on: Runs an adopted handler to its end.

    Promise:
        An adopted handler is continued. A cancellation before it continues reaches the handler.
    """

    __slots__ = ("_given", "_go_on", "is_ready", "task", "wake")

    def __init__(self, tasks: Tasks, context: Context, go_on: Callable[..., Awaitable[None]]) -> None:
        self.is_ready = False
        """Whether it waits: before that, a cancellation would end it silently."""
        self._go_on = go_on
        self._given: Suspended | None = None
        self.wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """The future it waits for; done once it was given a handler, or was cancelled."""
        self.task: asyncio.Task[Any] = tasks.spawn(self._stand_by(), name="spare", context=context)

    def give(self, suspended: Suspended) -> None:
        """Let it continue a suspended handler, from the next loop iteration on."""
        self.is_ready = False
        self._given = suspended
        if hasattr(suspended[3], _AWAITED):
            setattr(suspended[3], _AWAITED, False)  # set again in the task: until then nothing else could await it
        if not self.wake.done():
            self.wake.set_result(None)

    async def _stand_by(self) -> None:
        self.is_ready, error = True, None
        try:
            await self.wake
        except asyncio.CancelledError as cancelled:
            if self._given is None:
                raise
            error = cancelled  # it was meant for the handler
        finally:
            self.is_ready = False
        assert self._given is not None, "that is what it was woken for"
        work, context, coroutine, waits_for = self._given
        self._given = None
        if hasattr(waits_for, _AWAITED):
            if error is not None and waits_for.cancel():
                error = None  # as in any task: the future it waits for passes the cancellation on
            setattr(waits_for, _AWAITED, True)
        await self._go_on(work, context, coroutine, waits_for, error)


_BATCH = 100
"""Handlers that one task runs before it yields to the loop: about a millisecond, if none of them blocks."""


class CallQueue:
    """A queue of calls, and the tasks that run them.

    Promise:
        Each call runs in its own copy of its shard's context: nothing that one handler sets there reaches another. Two
        suspended handlers never share a task.
    """

    def __init__(self, handlers: HandlerExecutor) -> None:
        self._handlers = handlers
        self._tasks = Tasks("entities")
        self.ready: deque[Work] = deque()
        self.spare: SpareTask | None = None
        """For calls that start outside a task: see `ImmediateDispatch`."""
        self.is_serving = False
        """Whether a task that takes ready calls is running or scheduled."""

    def push(self, work: Work) -> None:
        """Queue a call to run."""
        self.ready.append(work)
        if not self.is_serving:
            self.serve_on()

    # Calls that started outside the queue

    def prepare(self, context: Context) -> SpareTask:
        """Start a spare task; it is ready from the next loop iteration on."""
        self.spare = SpareTask(self._tasks, context.copy(), self._wait)
        return self.spare

    def suspend(self, work: Work, context: Context, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        """Give the spare task a handler that started as if in it and has suspended."""
        spare = self.spare
        assert spare is not None, "it was begun in it"
        self.spare = None
        work.task = spare.task
        spare.give((work, context, coroutine, waits_for))
        self._handlers.waits(work)

    def drop(self, spare: SpareTask) -> None:
        """Stop using a spare task."""
        if self.spare is spare:
            self.spare = None

    async def stop(self) -> None:
        """Cancel the spare task."""
        spare, self.spare = self.spare, None
        if spare is not None:
            spare.task.cancel()
            await settled([spare.task])

    # The queue

    def serve_on(self) -> None:
        """Start a task that takes ready calls."""
        self.is_serving = True
        self._tasks.spawn(self._serve(), name="handlers", context=self.ready[0].resident.shard.context.copy())

    async def _serve(self) -> None:
        try:
            suspended = self._run_ready(asyncio.current_task())
        finally:
            self.is_serving = False
            if self.ready:
                self.serve_on()
        if suspended is not None:
            await self._wait(*suspended)

    def _run_ready(self, task: asyncio.Task[Any] | None) -> Suspended | None:
        """Run handlers to their ends, up to the first one that suspends."""
        assert task is not None, "only a task runs this"
        ready, handlers = self.ready, self._handlers
        handlers.now_ns = 0
        for _ in range(_BATCH):
            if not ready or task.cancelling():  # cancelled by a handler that has ended: it must not reach the next one
                return None
            work = ready.popleft()
            coroutine = handlers.begin(work)
            if coroutine is None:
                continue
            context = work.resident.shard.context.copy()
            try:
                has_ended, value = context.run(first_step, work, coroutine)
            except BaseException as error:  # noqa: BLE001 a handler's errors are its own, SystemExit too
                handlers.raised(work, error)
                raise_if_meant_for_us(error)
                continue
            if has_ended:
                handlers.returned(work, value)
                continue
            work.task = task
            handlers.waits(work)
            return work, context, coroutine, value
        return None

    async def _wait(
        self,
        work: Work,
        context: Context,
        coroutine: Coroutine[Any, Any, Any],
        waits_for: Any,
        cancelled: BaseException | None = None,
    ) -> None:
        try:
            value = await remaining_steps(context, coroutine, waits_for, cancelled)
        except BaseException as error:  # noqa: BLE001 cancellations too: they are meant for the handler
            self._handlers.raised(work, error)
            raise_if_meant_for_us(error)
        else:
            self._handlers.returned(work, value)


def raise_if_meant_for_us(error: BaseException) -> None:
    """Re-raise a second Ctrl-C, which must end the process, and GeneratorExit, which must end the coroutine."""
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        raise error


_FEW = 32
"""The number of calls of one read that start at once before the clock is read …"""
_MOST_NS = 5_000_000
"""… and the time after which the rest of them is queued, so that the loop can run other callbacks."""


class ImmediateDispatch:
    """Starts calls at once, in the simple cases.

    Args:
        host: Hosts the entities.
        hosted: The entity types of the host.

    Promise:
        A call cannot tell the difference: it has its own task and context, and the checks are the same.
    """

    def __init__(self, host: Host, hosted: Mapping[str, Hosted]) -> None:
        self._counts, self._handlers = host.counts, host.handlers
        self._queue, self._make = host.handlers.queue, host.handlers.handler
        self._hosted = hosted
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._read_s = -1.0
        self._more = 0  # how many calls of that read may start before the clock is read
        self._timed_s = -1.0  # the last read for which the clock was read
        self._until_ns = 0  # when the rest of that read has to queue
        self._steady_ns = host.clock.steady_ns

    def serve(self, work: RemoteCall | RemoteStream | StoredCall, arrived_s: float) -> bool:
        """Run a call until it ends or suspends. Returns False, without effects, if it has to be delivered as usual.

        The hot path of all incoming calls: rare cases are left to the usual path.
        """
        try:
            hosted = self._hosted[work.entity_type]
            resident, rpc = hosted.entities[work.entity_id], hosted.rpcs[work.method]
        except KeyError:
            return False
        if resident.running or resident.entity is None or rpc.is_stream:
            return False
        shard, queue = resident.shard, self._queue
        spare = queue.spare or queue.prepare(shard.context)
        if arrived_s != self._read_s:
            self._read_s, self._more = arrived_s, _FEW
        elif not self._more and not self._has_time():
            return False
        now_ns, time, make = shard.tenure.may_start_at(), self._time, self._make
        if now_ns is None or not spare.is_ready or work.deadline_s <= time():
            return False
        if work.is_stored and not work.may_begin(now_ns):
            return False
        loop, task = self._loop, spare.task
        try:
            enter_task(loop, task)
        except RuntimeError:  # called from a task
            return False
        self._more -= 1
        self._counts.delivered += 1
        work.rpc, work.resident, resident.current = rpc, resident, work
        work.began_ns = now_ns
        resident.running = 1
        shard.busy += 1
        try:
            coroutine = make(work)
        except BaseException as error:  # noqa: BLE001 a decorator's own code
            self._raised(work, error, spare)
            return True
        context = shard.context.copy()
        try:
            has_ended, value = context.run(first_step, work, coroutine)
        except BaseException as error:  # noqa: BLE001 as in `CallQueue`
            self._raised(work, error, spare)
            return True
        leave_task(loop, task)
        if not has_ended:
            queue.suspend(work, context, coroutine, waits_for=value)
            return True
        if spare.wake.done():  # cancelled by the handler: it must not reach the next one
            queue.drop(spare)
        self._handlers.returned(work, value)
        return True

    def _has_time(self) -> bool:
        """Whether more calls of this read may start at once."""
        now_ns = self._steady_ns()
        if self._timed_s != self._read_s:
            self._timed_s, self._until_ns = self._read_s, now_ns + _MOST_NS
        self._more = _FEW if now_ns < self._until_ns else 0
        return self._more > 0

    def _raised(self, work: RemoteCall | RemoteStream | StoredCall, error: BaseException, spare: SpareTask) -> None:
        leave_task(self._loop, spare.task)
        if spare.wake.done():  # as above
            self._queue.drop(spare)
        self._handlers.raised(work, error)
        raise_if_meant_for_us(error)
