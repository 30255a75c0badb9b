"""Serving: calls whose turn has come are begun in as few tasks as their handlers need.

ready ──▶ first step ──▶ it has ended: on to the next one, in the same task
              │
              └─▶ it waits: this task is its own from here on, and another one serves the rest
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from coterie.entities.driving import first_step
from coterie.entities.spares import Spare
from coterie.kernel.coroutines import remaining_steps
from coterie.kernel.service import Tasks
from coterie.work.limits import settled

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from contextvars import Context

    from coterie.entities.work import Work

    Suspended = tuple[Work, Context, Coroutine[Any, Any, Any], Any]

_BATCH = 100
"""Handlers that one task runs before the loop gets its turn: a millisecond or so, if none of them blocks."""


class Handles(Protocol):
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


class Serving:
    """A queue of calls, and the tasks that run them.

    Promise:
        Each call runs in a context of its own, a copy of its shard's: nothing that one handler sets there reaches
        another one. Its task is that of no other handler that waits.
    """

    def __init__(self, handles: Handles) -> None:
        self._handles = handles
        self._tasks = Tasks("entities")
        self.ready: deque[Work] = deque()
        self.spare: Spare | None = None
        """For those who begin a call outside of any task: see `prompt`."""
        self.is_serving = False
        """Whether a task runs, or will, that takes what is ready."""

    def push(self, work: Work) -> None:
        """Let a call run, after those that were pushed before."""
        self.ready.append(work)
        if not self.is_serving:
            self.serve_on()

    # Calls that were begun elsewhere

    def prepare(self, context: Context) -> Spare:
        """Have a task stand by from the next turn of the loop on."""
        self.spare = Spare(self._tasks, context.copy(), self._wait)
        return self.spare

    def suspend(self, work: Work, context: Context, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        """A handler that was begun as if in the spare task waits: it is that task's from now on."""
        spare = self.spare
        assert spare is not None, "it was begun in it"
        self.spare = None
        work.task = spare.task
        spare.give((work, context, coroutine, waits_for))
        self._handles.waits(work)

    def drop(self, spare: Spare) -> None:
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
