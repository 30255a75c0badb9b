"""Spares: a task that stands by, so that a handler can begin without one and still finds one when it has to wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextvars import Context

    from coterie.entities.serving import Suspended
    from coterie.kernel.service import Tasks


_AWAITED = "_asyncio_future_blocking"
"""By this a future tells the task that steps a coroutine that it was awaited, and not just yielded; the task clears
it. So does whoever steps a coroutine in a task's stead."""


class Spare:
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
