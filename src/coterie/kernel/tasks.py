"""Tasks that belong to somebody: named, kept alive, failures reported, all gone when the group stops."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from coterie.kernel.supervisor import StandingTask

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from contextvars import Context

    from coterie.kernel.supervisor import MakeWork, Seated, Supervisor

log = logging.getLogger("coterie")


class Tasks:
    """A group of tasks that outlives each of them.

    asyncio keeps only weak references to tasks and drops the errors of those nobody awaits; this keeps both.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: dict[asyncio.Task[Any], None] = {}  # a dict, since the order of a set is not repeatable

    def spawn(
        self, work: Coroutine[Any, Any, Any], *, name: str, report: bool = True, context: Context | None = None
    ) -> asyncio.Task[Any]:
        """Run `work` as a task of this group; an error that ends it is logged unless somebody awaits it."""
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

        An error is logged and counted, and the task begins again after a pause that grows. If it fails seven times
        within a minute it is given up: a task with `seated` gives up its seat and ends; for any other one the runner
        ends, and its process with exit code 1. When the work returns, or is cancelled, the task ends.

        Args:
            make: Makes the work anew for each beginning, so that it begins with what is in its object's attributes.
            name: What it does, unique among the standing tasks: a label of `coterie_task_failures_total`.
            supervisor: The one of this process.
            seated: The seat that it works for; None: the task is the runner's own.
            context: What it inherits.
        """
        standing = StandingTask(make, name=name, supervisor=supervisor, seated=seated)
        return self.spawn(standing.run(), name=name if seated is None else f"{name} {seated.seat}", context=context)

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    async def stop(self) -> None:
        """Cancel what still runs and wait until it has ended, and what it began while ending, too.

        It waits without a deadline: to go on while a task still runs would break the promise that it is gone.
        Whoever runs code of users here bounds that code. Cancelled itself, it does not cancel the tasks a
        second time, which would cut short their cleaning up.
        """
        assert asyncio.current_task() not in self._tasks, f"a task of {self._owner} cannot wait for itself"
        while running := list(self._tasks):
            for task in running:
                task.cancel()
            await asyncio.shield(asyncio.gather(*running, return_exceptions=True))
            await asyncio.sleep(0)  # from 3.12 on gathering the done takes no turn, and they are forgotten in one

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._forget(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s ended by %r", task.get_name(), error, exc_info=error)
