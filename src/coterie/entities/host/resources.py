"""Resources that an activation of an entity opens once (a socket, a file, a client), closed at deactivation [K5]."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.work.limits import is_cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

R = TypeVar("R")

log = logging.getLogger("coterie.entities")


class Resource:
    """One context manager, entered and exited by its own task: some (task groups, anyio) cannot change tasks."""

    def __init__(
        self,
        factory: Callable[[], AbstractAsyncContextManager[Any]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self.opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.given_up = False
        self._over = asyncio.Event()
        self._task = spawn(self._hold(factory))

    async def open(self) -> Any:
        """Wait for the value. If cancelled before it is there, the resource is not opened."""
        try:
            return await asyncio.shield(self.opened)
        except asyncio.CancelledError:
            if not self.opened.done():
                self.given_up = True
                self._task.cancel()
            raise

    async def close(self) -> None:
        """Exit the context manager."""
        self._over.set()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _hold(self, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        try:
            async with factory() as value:
                if not self.opened.done():
                    self.opened.set_result(value)
                await self._over.wait()
        except Exception as error:
            if self.opened.done():
                raise
            self.opened.set_exception(error)
            self.opened.exception()  # mark it as retrieved: the caller may be gone
        finally:
            self.opened.cancel()  # without a result by now there will be none


class Resources:
    """The resources of one activation, by name.

    Args:
        spawn: Starts a task that belongs to the runner.
        what: The entity, for the log.

    Promise:
        Each name is opened once, also by concurrent requests. After a failure the next request tries again. Resources
        are closed in reverse order.
    """

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]], *, what: str) -> None:
        self._spawn = spawn
        self._what = what
        self._held: dict[str, Resource] = {}

    async def get(self, name: str, factory: Callable[[], AbstractAsyncContextManager[R]]) -> R:
        """The value that `factory` opens under this name."""
        while True:
            resource = self._held.get(name)
            if resource is None:
                resource = self._held[name] = Resource(factory, self._spawn)
            try:
                value: R = await resource.open()
            except BaseException:
                if resource.opened.done() and self._held.get(name) is resource:
                    del self._held[name]
                if resource.given_up and not is_cancelled():
                    continue  # another task that waited for it was cancelled, not this one
                raise
            return value

    async def close(self) -> None:
        """Close all, the last one first. Their errors are logged."""
        while self._held:
            name, resource = self._held.popitem()
            try:
                await resource.close()
            except asyncio.CancelledError:
                log.warning("resource %s of %s did not close in time", name, self._what)
                raise
