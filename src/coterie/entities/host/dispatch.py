"""The first steps of many handlers in one task, each in a context of its own. The rest of them: `kernel/coroutines.py`.

A handler that never waits needs no task: a shared one takes its first step, which is all of it, and goes on with the
next. The first handler that does wait keeps that task for itself, so what the handler took for its task
(`asyncio.timeout`, task groups) stays its task, and another one is begun for the rest.

Spares: a task that stands by, so that a handler can begin without one and still finds one when it has to wait.

Serving: calls whose turn has come are begun in as few tasks as their handlers need.

ready ──▶ first step ──▶ it has ended: on to the next one, in the same task
              │
              └─▶ it waits: this task is its own from here on, and another one serves the rest

Prompt: a call that arrives for an idle entity begins in the very turn of the loop that read it, without a task.

arrived ──▶ first step, as if in the spare task ──▶ it has ended: answered before the next frame is looked at
                                │
                                └─▶ it waits: the spare task is its own from here on, and another one stands by
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from coterie.entities.host.work import handling
from coterie.kernel.context import enter
from coterie.kernel.coroutines import enter_task, leave_task, remaining_steps
from coterie.kernel.service import Tasks
from coterie.work.limits import settled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from contextvars import Context

    from coterie.entities.host.work import Work

    Suspended = tuple[Work, Context, Coroutine[Any, Any, Any], Any]
    from collections.abc import Mapping

    from coterie.entities.calls.server import RemoteCall, RemoteStream
    from coterie.entities.host.activation import Hosted
    from coterie.entities.host.host import Host
    from coterie.entities.persisted.inbox import StoredCall


_handle = handling.set


def first_step(work: Work, coroutine: Coroutine[Any, Any, Any]) -> tuple[bool, Any]:
    """Run a coroutine, in the context of a work that was just made, until it waits or ends.

    Returns:
        Whether it has ended; its result then, and else what it waits for.
    """
    _handle(work)
    enter(work)
    try:
        return False, coroutine.send(None)
    except StopIteration as ended:
        return True, ended.value


_AWAITED = "_asyncio_future_blocking"
"""By this a future tells the task that steps a coroutine that it was awaited, and not just yielded; the task clears
it. So does whoever steps a coroutine in a task's stead."""


class SpareTask:
    """A task without work. Whoever steps a handler outside of any task pretends to be in this one meanwhile.

    Args:
        tasks: Where it belongs.
        context: In which it waits.
        go_on: Runs what it is given to its end.

    Promise:
        What is given is carried on. A cancellation that strikes before that begins reaches the handler.
    """

    __slots__ = ("_given", "_go_on", "is_ready", "task", "wake")

    def __init__(self, tasks: Tasks, context: Context, go_on: Callable[..., Awaitable[None]]) -> None:
        self.is_ready = False
        """Whether it waits: before that, a cancellation would end it without a word."""
        self._go_on = go_on
        self._given: Suspended | None = None
        self.wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """What it waits for; done once it was given something, or was cancelled."""
        self.task: asyncio.Task[Any] = tasks.spawn(self._stand_by(), name="spare", context=context)

    def give(self, suspended: Suspended) -> None:
        """Have it carry on a handler that waits, from the next turn of the loop on."""
        self.is_ready = False
        self._given = suspended
        if hasattr(suspended[3], _AWAITED):
            setattr(suspended[3], _AWAITED, False)  # until the task is there to see it: nobody else could await it
        if not self.wake.done():
            self.wake.set_result(None)

    async def _stand_by(self) -> None:
        self.is_ready, error = True, None
        try:
            await self.wake
        except asyncio.CancelledError as cancelled:
            if self._given is None:
                raise
            error = cancelled  # it is the handler that was meant
        finally:
            self.is_ready = False
        assert self._given is not None, "that is what it was woken for"
        work, context, coroutine, waits_for = self._given
        self._given = None
        if hasattr(waits_for, _AWAITED):
            if error is not None and waits_for.cancel():
                error = None  # as in any task: the handler hears of it from what it waits for
            setattr(waits_for, _AWAITED, True)
        await self._go_on(work, context, coroutine, waits_for, error)


_BATCH = 100
"""Handlers that one task runs before the loop gets its turn: a millisecond or so, if none of them blocks."""


class CallHandler(Protocol):
    """Whoever knows what to do for a call."""

    now_ns: int
    """The clock, if it was read a moment ago: each handler's end is the beginning of the next one."""

    def begin(self, work: Work) -> Coroutine[Any, Any, Any] | None:
        """What to run for it; None if there is nothing to run any more."""
        ...

    def waits(self, work: Work) -> None:
        """It does not end at once: it has a task now, by which it can be cancelled."""
        ...

    def returned(self, work: Work, value: Any) -> None: ...
    def raised(self, work: Work, error: BaseException) -> None: ...


class CallQueue:
    """A queue of calls, and the tasks that run them.

    Promise:
        Each call runs in a context of its own, a copy of its shard's: nothing that one handler sets there reaches
        another one. Its task is that of no other handler that waits.
    """

    def __init__(self, handles: CallHandler) -> None:
        self._handles = handles
        self._tasks = Tasks("entities")
        self.ready: deque[Work] = deque()
        self.spare: SpareTask | None = None
        """For those who begin a call outside of any task: see `prompt`."""
        self.is_serving = False
        """Whether a task runs, or will, that takes what is ready."""

    def push(self, work: Work) -> None:
        """Let a call run, after those that were pushed before."""
        self.ready.append(work)
        if not self.is_serving:
            self.serve_on()

    # Calls that were begun elsewhere

    def prepare(self, context: Context) -> SpareTask:
        """Have a task stand by from the next turn of the loop on."""
        self.spare = SpareTask(self._tasks, context.copy(), self._wait)
        return self.spare

    def suspend(self, work: Work, context: Context, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        """A handler that was begun as if in the spare task waits: it is that task's from now on."""
        spare = self.spare
        assert spare is not None, "it was begun in it"
        self.spare = None
        work.task = spare.task
        spare.give((work, context, coroutine, waits_for))
        self._handles.waits(work)

    def drop(self, spare: SpareTask) -> None:
        """Use a spare no more."""
        if self.spare is spare:
            self.spare = None

    async def stop(self) -> None:
        """Let nobody stand by."""
        spare, self.spare = self.spare, None
        if spare is not None:
            spare.task.cancel()
            await settled([spare.task])

    # The queue

    def serve_on(self) -> None:
        """Have a task take what is ready."""
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
        """Run handlers to their ends, up to the first one that waits."""
        assert task is not None, "only a task runs this"
        ready, handles = self.ready, self._handles
        handles.now_ns = 0
        for _ in range(_BATCH):
            if not ready or task.cancelling():  # by a handler that has ended: it must not reach the next one
                return None
            work = ready.popleft()
            coroutine = handles.begin(work)
            if coroutine is None:
                continue
            context = work.resident.shard.context.copy()
            try:
                has_ended, value = context.run(first_step, work, coroutine)
            except BaseException as error:  # noqa: BLE001 what a handler raises is its own, SystemExit too
                handles.raised(work, error)
                raise_if_meant_for_us(error)
                continue
            if has_ended:
                handles.returned(work, value)
                continue
            work.task = task
            handles.waits(work)
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
        except BaseException as error:  # noqa: BLE001 a cancellation too: whoever cancels a call means its handler
            self._handles.raised(work, error)
            raise_if_meant_for_us(error)
        else:
            self._handles.returned(work, value)


def raise_if_meant_for_us(error: BaseException) -> None:
    """A second Ctrl-C ends the process, wherever it strikes; a closed coroutine has to end."""
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        raise error


_FEW = 32
"""So many calls of one read begin at once; then somebody looks at the clock …"""
_MOST_NS = 5_000_000
"""… and as much later the rest is queued, so that the loop gets its turn."""


class ImmediateDispatch:
    """Begins calls at once, where that is simple.

    Args:
        host: Whose entities they are for.
        hosted: Its types.

    Promise:
        A call cannot tell the difference: its task and its context are its own, and all is checked that is otherwise.
    """

    def __init__(self, host: Host, hosted: Mapping[str, Hosted]) -> None:
        self._counts, self._handlers = host.counts, host.handlers
        self._serving, self._make = host.handlers.serving, host.handlers.handler
        self._hosted = hosted
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._read_s = -1.0
        self._more = 0  # so many of that read may begin before somebody looks at the clock
        self._timed_s = -1.0  # the last read for which somebody has
        self._until_ns = 0  # when the others of that one have to queue
        self._steady_ns = host.clock.steady_ns

    def serve(self, work: RemoteCall | RemoteStream | StoredCall, arrived_s: float) -> bool:
        """Run a call to its end or to its first wait; false if it has to be delivered as usual, untouched.

        This is the hot path of all calls that arrive: whatever is rare is left to others.
        """
        try:
            hosted = self._hosted[work.entity_type]
            resident, rpc = hosted.entities[work.entity_id], hosted.rpcs[work.method]
        except KeyError:
            return False
        if resident.running or resident.entity is None or rpc.is_stream:
            return False
        shard, serving = resident.shard, self._serving
        spare = serving.spare or serving.prepare(shard.context)
        if arrived_s != self._read_s:
            self._read_s, self._more = arrived_s, _FEW
        elif not self._more and not self._has_time():
            return False
        now_ns, time, make = shard.tenure.may_start_at(), self._time, self._make
        if now_ns is None or not spare.is_ready or work.deadline_s <= time():
            return False
        loop, task = self._loop, spare.task
        try:
            enter_task(loop, task)
        except RuntimeError:  # called by a task
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
            serving.suspend(work, context, coroutine, waits_for=value)
            return True
        if spare.wake.done():  # cancelled by the handler: it must not reach the next one
            serving.drop(spare)
        self._handlers.returned(work, value)
        return True

    def _has_time(self) -> bool:
        """Whether some more calls of this read may begin at once."""
        now_ns = self._steady_ns()
        if self._timed_s != self._read_s:
            self._timed_s, self._until_ns = self._read_s, now_ns + _MOST_NS
        self._more = _FEW if now_ns < self._until_ns else 0
        return self._more > 0

    def _raised(self, work: RemoteCall | RemoteStream | StoredCall, error: BaseException, spare: SpareTask) -> None:
        leave_task(self._loop, spare.task)
        if spare.wake.done():  # as above
            self._serving.drop(spare)
        self._handlers.raised(work, error)
        raise_if_meant_for_us(error)
