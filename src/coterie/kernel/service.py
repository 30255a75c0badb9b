"""The one lifecycle that everything with a beginning and an end follows.

    new ──start()──▶ starting ──▶ running ──stop()──▶ stopping ──▶ stopped
     │                  │                                             ▲
     └────stop()────────┴──── stop() or an error ─────────────────────┘

A service lives once. `start` returns when it works, `stop` when it has stopped. `stop` may be called twice,
at once from several tasks, and before or during `start`.
"""

from __future__ import annotations

import asyncio
import enum
from typing import Self

from coterie.errors import NotStarted, ShuttingDown
from coterie.kernel.tasks import Tasks


class State(enum.Enum):
    """Where a service is in its one life."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Service:
    """Something that starts and stops. Subclasses fill in `_start` and `_stop`.

    Promise:
        `_stop` runs exactly once if `_start` was entered, whether `_start` succeeded, failed or was cancelled,
        so it must cope with a half-started service. It is not cut short by the cancellation of a caller.
    """

    def __init__(self, *, what: str) -> None:
        self.what = what
        self.tasks = Tasks(what)
        self._state = State.NEW
        self._starting: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._lifecycle = Tasks(what)

    @property
    def state(self) -> State:
        """Where this service is in its life."""
        return self._state

    def require_running(self) -> None:
        """Raise unless the service runs: `NotStarted` before, `ShuttingDown` after."""
        if self._state is State.RUNNING:
            return
        if self._state in (State.NEW, State.STARTING):
            raise NotStarted(what=self.what)
        raise ShuttingDown(what=self.what)

    async def start(self) -> None:
        """Return when the service works; raise what kept it from doing so (it is then stopped)."""
        if self._state is not State.NEW:
            raise RuntimeError(f"{self.what} was started before: a service lives once")
        self._state = State.STARTING
        self._starting = self._lifecycle.spawn(self._begin(), name="start", report=False)
        try:
            await asyncio.shield(self._starting)
        except asyncio.CancelledError:
            await self.stop()
            if self._starting.cancelled() and not _cancelled_from_outside():
                raise ShuttingDown(what=self.what) from None  # stopped by somebody else while starting
            raise
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Return when the service has stopped."""
        if self._state is State.NEW:
            self._state = State.STOPPED
        if self._state is State.STOPPED:
            return
        if self._ending is None:
            self._state = State.STOPPING
            self._ending = self._lifecycle.spawn(self._end(), name="stop", report=False)
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

    async def _begin(self) -> None:
        await self._start()
        if self._state is State.STARTING:
            self._state = State.RUNNING

    async def _end(self) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        try:
            await self.tasks.stop()
            await self._stop()
        finally:
            self._state = State.STOPPED


def _cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


