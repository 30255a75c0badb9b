"""The place beside the runner's loop where the lease is kept: a thread with a small loop of its own.

A handler that blocks the runner's loop for some seconds, as plain Python does, must not cost the lease. Under
simulation a node of the same process stands in for the thread, so that the loop can be blocked without it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from coterie.kernel import coroutines
from coterie.kernel.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class Aside(Protocol):
    """Somewhere else to run coroutines, which goes on while the runner's loop is blocked."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work`, which runs over there. Cancelling this cancels it."""
        ...

    def tell(self, callback: Callable[..., object], *args: object) -> None:
        """From over there: have a callback run on the runner's loop as soon as it turns."""
        ...

    def stack(self) -> str:
        """From over there: what the runner's loop is busy with just now, as a traceback; empty if unknown."""
        ...


class ThreadAside(Service):
    """A daemon thread that runs an event loop."""

    def __init__(self) -> None:
        super().__init__(what="lease keeper's thread")
        self._there: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work`, which runs in the thread."""
        self.require_running()
        assert self._there is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._there))

    def tell(self, callback: Callable[..., object], *args: object) -> None:
        """Run a callback on the runner's loop; nothing if that is closed."""
        if not self._here.is_closed():
            self._here.call_soon_threadsafe(callback, *args)

    def stack(self) -> str:
        """What the thread of the runner's loop executes just now."""
        frame = sys._current_frames().get(self._here_id)  # noqa: SLF001 the documented way to another thread's stack
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    async def _start(self) -> None:
        coroutines.shorten()
        self._here = asyncio.get_running_loop()
        self._here_id = threading.get_ident()
        self._ended: asyncio.Future[None] = self._here.create_future()
        self._there = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, args=(self._there,), name=self.what, daemon=True)
        self._thread.start()

    async def _stop(self) -> None:
        if self._there is None or self._thread is None:
            return
        self._there.call_soon_threadsafe(self._there.stop)
        await self._ended
        self._thread.join()

    def _live(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            for task in asyncio.all_tasks(loop):  # whoever waits for one is told, also if the loop was broken
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
            self.tell(self._thread_ended)

    def _thread_ended(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
