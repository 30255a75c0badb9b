"""Plain functions in a simulation: each has a thread, and while that runs the simulation stands still.

    loop ──▶ thread: the body, until it waits in a call of `cluster.sync()`, sleeps or ends ──▶ loop ──▶ thread …

Exactly one of them runs at any time, and the loop decides when: so the order is the seed's, and a body takes no virtual
time but that of its calls and sleeps. There is no bound: the setting `threads` does not apply.
"""

from __future__ import annotations

import _thread
import asyncio
import threading
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.kernel.context import Cancellation, enter_thread
from coterie.testing.loop import guards
from coterie.work.limits import settled
from coterie.work.threads import ThreadUse, await_here

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable
    from contextvars import Context

    from coterie.tasks.definition import TaskType
    from coterie.tasks.worker.attempt import JobAttempt
    from coterie.testing.loop.loop import SimLoop

T = TypeVar("T")

_END_S = 10.0
"""How long, in real time, a body of a run that is over may take to leave its blocks."""


class SteppedThreads:
    """Where the plain functions of one simulated runner run (`work.threads.Threads`).

    Args:
        loop: The loop of the simulation.
    """

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    async def start(self) -> None:
        """There is nothing to start."""

    async def stop(self) -> None:
        """There is nothing to stop: a body that still runs ends with the run."""

    async def run(self, body: Callable[[], T], /, *, what: str, alone: Hashable = None, is_nested: bool = False) -> T:
        """See `Threads.run`."""
        del what, alone, is_nested
        stepped = SteppedBody(body)
        self._loop.at_end.append(stepped.leave)
        try:
            result: T = await stepped.run()
        finally:
            self._loop.at_end.remove(stepped.leave)
        return result

    def use(self) -> ThreadUse:
        """See `Threads.use`."""
        return ThreadUse()


class SteppedProcesses:
    """Where bodies of tasks run that have processes of their own (`tasks.worker.processes.BodyProcesses`): in threads.

    Args:
        threads: Those of the same runner.
    """

    def __init__(self, threads: SteppedThreads) -> None:
        self._threads = threads

    async def run(self, task: TaskType, payload: bytes, attempt: JobAttempt, /) -> Any:
        """See `BodyProcesses.run`."""
        args, kwargs = task.decode(payload)
        return await self._threads.run(partial(task.fn, *args, **kwargs), what=attempt.target)

    async def stop(self) -> None:
        """There is nothing to stop."""


class _RunIsOver(BaseException):
    """Raised in a body whose run is over, to end its thread."""


class SteppedBody:
    """One body, and the two locks by which its thread and the loop take turns."""

    def __init__(self, body: Callable[[], Any]) -> None:
        self._body = body
        self._cancellation = Cancellation()
        self._thread_turn, self._loop_turn = threading.Lock(), threading.Lock()
        self._thread_turn.acquire()
        self._loop_turn.acquire()
        self._wanted: Callable[[], Coroutine[Any, Any, Any]] | None = None
        """What the thread waits for; None: it has ended, or runs."""
        self._result: Any = None
        """Of the body; while it waits, of what it waits for."""
        self._error: BaseException | None = None
        self._is_over = False

    async def run(self) -> Any:
        """Run it to its end. A cancellation is raised then."""
        context, cancelled = copy_context(), None
        context.run(enter_thread, self._cancellation)
        context.run(await_here.set, self._wait_for)
        _thread.start_new_thread(self._live, (context.copy(),))  # threading.Thread is refused to users here
        self._loop_turn.acquire()
        while (wanted := self._wanted) is not None:
            outside = context.copy()
            outside.run(await_here.set, None)
            call = asyncio.get_running_loop().create_task(wanted(), context=outside)
            while not call.done():
                try:
                    await settled([call])
                except asyncio.CancelledError as error:
                    cancelled, self._cancellation.is_set = cancelled or error, True
            self._error = asyncio.CancelledError() if call.cancelled() else call.exception()
            self._result = call.result() if self._error is None else None
            self._let_go_on()
        if cancelled is not None:
            raise cancelled
        if self._error is not None:
            raise self._error
        return self._result

    def leave(self) -> None:
        """The run is over: end the thread, whose loop will not let it go on."""
        self._is_over = True
        self._thread_turn.release()
        self._loop_turn.acquire(timeout=_END_S)

    def _let_go_on(self) -> None:
        self._wanted = None
        self._thread_turn.release()
        self._loop_turn.acquire()

    # In the thread

    def _live(self, context: Context) -> None:
        guards.inside.add(threading.get_ident())
        try:
            self._result = context.run(self._body)
            self._error = None
        except BaseException as error:  # noqa: BLE001 it is the error of the attempt
            self._result, self._error = None, error
        finally:
            self._wanted = None
            guards.inside.discard(threading.get_ident())
            self._loop_turn.release()

    def _wait_for(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Let the loop await something, and return its result."""
        if self._is_over:
            raise _RunIsOver
        self._wanted = make
        self._loop_turn.release()
        self._thread_turn.acquire()
        if self._is_over:
            raise _RunIsOver
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._result
