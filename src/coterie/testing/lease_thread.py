"""The lease thread of a simulated runner: a thread of its node, which goes on while the node is blocked."""

from __future__ import annotations

import asyncio
import contextvars
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.kernel.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from coterie.testing.loop.loop import SimLoop
    from coterie.testing.loop.nodes import Node

T = TypeVar("T")


class SimSideLoop(Service):
    """Runs coroutines on a thread of a node. Implements `ownership.lease_thread.SideLoop`."""

    def __init__(self, loop: SimLoop, node: Node) -> None:
        super().__init__(what="lease keeper's thread")
        self._loop = loop
        self._thread = node.threads[0] if node.threads else loop.nodes.add_thread(node, "aside")
        self._works: dict[asyncio.Task[Any], None] = {}

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work`. As between real threads, a cancelled caller does not wait for its end."""
        self.require_running()
        done: asyncio.Future[T] = self._loop.create_future()
        task = self._loop.spawn(self._thread, work(), name=f"{self._thread.name}/work")
        self._works[task] = None
        task.add_done_callback(partial(self._hand_over, done))  # in the caller's context, and so on its node
        done.add_done_callback(partial(_cancel_too, task))
        return await done

    def tell(self, callback: Callable[..., object], *args: object) -> None:
        """Run a callback on the node that started this, once it is not blocked."""
        self._loop.call_soon(callback, *args, context=self._here)

    def stack(self) -> str:
        """Unknown: no step takes virtual time."""
        return ""

    async def _start(self) -> None:
        self._here = contextvars.copy_context()

    async def _stop(self) -> None:
        works = list(self._works)
        for task in works:
            task.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    def _hand_over(self, done: asyncio.Future[T], task: asyncio.Task[T]) -> None:
        del self._works[task]
        error = None if task.cancelled() else task.exception()
        if done.done():
            return
        if task.cancelled():
            done.cancel()
        elif error is not None:
            done.set_exception(error)
        else:
            done.set_result(task.result())


def _cancel_too(task: asyncio.Task[Any], done: asyncio.Future[Any]) -> None:
    if done.cancelled():
        task.cancel()
