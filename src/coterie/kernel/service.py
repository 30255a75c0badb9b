"""The one lifecycle of everything that starts and stops, and groups of tasks that belong to an owner.

    new ──start()──▶ starting ──▶ running ──stop()──▶ stopping ──▶ stopped
     │                  │                                             ▲
     └────stop()────────┴──── stop() or an error ─────────────────────┘

A service lives once. `start` returns when it works, `stop` when it has stopped. `stop` may be called repeatedly,
concurrently from several tasks, and before or during `start`.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from typing import TYPE_CHECKING, Any, Self

from coterie.errors import NotStarted, ShuttingDown
from coterie.kernel.supervisor import StandingTask

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from contextvars import Context

    from coterie.kernel.supervisor import MakeWork, Seated, Supervisor


log = logging.getLogger("coterie")


class Tasks:
    """A group of tasks that outlives each of them: they are named, kept alive, and gone when the group stops.

    asyncio keeps only weak references to tasks and drops the errors of those never awaited; this keeps both.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: dict[asyncio.Task[Any], None] = {}  # a dict, since the order of a set is not repeatable

    def spawn(
        self, work: Coroutine[Any, Any, Any], *, name: str, report: bool = True, context: Context | None = None
    ) -> asyncio.Task[Any]:
        """Run `work` as a task of this group; an error that ends it is logged unless the task is awaited."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}/{name}", context=context)
        self._tasks[task] = None
        task.add_done_callback(self._ended if report else self._forget)
        return task

    def supervise(
        self,
        make: MakeWork,
        *,
        name: str,
        supervisor: Supervisor,
        seated: Seated | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[None]:
        """Run a standing task: a loop that an unexpected error must not end.

        An error is logged and counted, and the task restarts after a pause that grows. If it fails seven times within a
        minute it is given up: a task with `seated` releases its seat and ends; for any other one the runner ends, and
        its process with exit code 1. When the work returns, or is cancelled, the task ends.

        Args:
            make: Makes the work for each restart, so that it starts from the attributes of its object.
            name: What it does, unique among the standing tasks: a label of `coterie_task_failures_total`.
            supervisor: The supervisor of this process.
            seated: The seat that it works for; None: the task is the runner's own.
            context: The context that it inherits.
        """
        standing = StandingTask(make, name=name, supervisor=supervisor, seated=seated)
        return self.spawn(standing.run(), name=name if seated is None else f"{name} {seated.seat}", context=context)

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    async def stop(self) -> None:
        """Cancel all running tasks and wait until they, and the tasks they start while ending, have ended.

        It waits without a deadline: to continue while a task still runs would break the promise that it is gone.
        Callers that run user code here must bound that code. If this is cancelled itself, it does not cancel the tasks
        a second time, which would cut short their cleanup.
        """
        assert asyncio.current_task() not in self._tasks, f"a task of {self._owner} cannot wait for itself"
        while running := list(self._tasks):
            for task in running:
                task.cancel()
            await asyncio.shield(asyncio.gather(*running, return_exceptions=True))
            await asyncio.sleep(0)  # since 3.12 gathering done tasks takes no turn, and they are forgotten in one

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._forget(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s ended by %r", task.get_name(), error, exc_info=error)


class State(enum.Enum):
    """The states of a service's one life."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Service:
    """Something that starts and stops. Subclasses implement `_start` and `_stop`.

    Promise:
        `_stop` runs exactly once if `_start` was entered, whether `_start` succeeded, failed or was cancelled
        (so it must cope with a half-started service); else it does not run. It begins after `_start` and the
        service's tasks have ended, and is not cut short by the cancellation of a caller. No task of the
        service is left when `stop` returns.
    """

    def __init__(self, *, what: str) -> None:
        self.what = what
        self.tasks = Tasks(what)
        self.state = State.NEW
        """The current state. Only the service itself changes it."""
        self._starting: asyncio.Task[None] | None = None
        self._start_entered = False
        self._ending: asyncio.Task[None] | None = None
        self._lifecycle = Tasks(what)

    def require_running(self) -> None:
        """Raise unless the service is running: `NotStarted` before, `ShuttingDown` after."""
        if self.state is State.RUNNING:
            return
        if self.state in (State.NEW, State.STARTING):
            raise NotStarted(what=self.what)
        raise ShuttingDown(what=self.what)

    async def start(self) -> None:
        """Return when the service works; raise what kept it from doing so (it is then stopped).

        Raises:
            ShuttingDown: It was stopped before it worked.
            RuntimeError: It was started before.
        """
        if self._starting is not None:
            raise RuntimeError(f"{self.what} was started before: a service lives once")
        if self.state is not State.NEW:
            raise ShuttingDown(what=self.what)
        self.state = State.STARTING
        self._starting = self._lifecycle.spawn(self._begin(), name="start", report=False)
        await self._started(self._starting)

    async def stop(self) -> None:
        """Return when the service has stopped; raise what `_stop` raised to all waiting callers.

        A task of the service itself may call this too: it is cancelled here, like all of them.
        """
        if self.state is State.NEW:
            self.state = State.STOPPED
        if self.state is State.STOPPED:
            return
        if self._ending is None:
            self.state = State.STOPPING
            # Reported in any case: all waiting callers may be cancelled before it fails.
            self._ending = self._lifecycle.spawn(self._end(), name="stop")
        if not self._is_waited_for(asyncio.current_task()):
            await asyncio.shield(self._ending)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def _start(self) -> None:
        """Begin. Runs once."""

    async def _stop(self) -> None:
        """End, in whatever state `_start` left things. Runs at most once, after the service's tasks ended."""

    async def _started(self, starting: asyncio.Task[None]) -> None:
        cancels = _cancels()
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await self._stop_for_another_reason()
            if _cancels() > cancels:  # the caller of start() was cancelled
                _report(starting)
                raise
            raise ShuttingDown(what=self.what) from None  # stopped by another task while starting
        except BaseException:
            await self._stop_for_another_reason()
            raise
        if self.state is not State.RUNNING:  # stopped between the last step of _start and here
            await self._stop_for_another_reason()
            raise ShuttingDown(what=self.what)

    async def _stop_for_another_reason(self) -> None:
        """Stop, without letting an error in `_stop`, which is logged, hide the reason."""
        with contextlib.suppress(Exception):
            await self.stop()

    async def _begin(self) -> None:
        self._start_entered = True
        await self._start()
        if self.state is State.STARTING:
            self.state = State.RUNNING

    async def _end(self) -> None:
        try:
            if self._starting is not None and not self._starting.done():
                self._starting.cancel()
                await asyncio.gather(self._starting, return_exceptions=True)
            await self.tasks.stop()
            if self._start_entered:
                await self._stop()
        finally:
            try:
                await self.tasks.stop()  # tasks that _stop started
            finally:
                self.state = State.STOPPED

    def _is_waited_for(self, task: asyncio.Task[object] | None) -> bool:
        """Whether `stop` waits for this task, which then must not wait for `stop`.

        Until it is cancelled it may wait, since `stop` cancels it first.
        """
        if task is None or task is self._ending:
            return True
        return (task is self._starting or task in self.tasks) and task.cancelling() > 0


def _cancels() -> int:
    """How often the running task has been cancelled: more than before means from outside."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def _report(starting: asyncio.Task[None]) -> None:
    """Log an error of `_start` that its cancelled caller will never see."""
    if starting.done() and not starting.cancelled() and (error := starting.exception()) is not None:
        log.error("task %s ended by %r", starting.get_name(), error, exc_info=error)
