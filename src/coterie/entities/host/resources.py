"""Resources: what one life of an entity opens once and keeps (a socket, a file, a client), closed with it [K5]."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

R = TypeVar("R")

log = logging.getLogger("coterie.entities")


class Resource:
    """One context manager, entered and left by a task of its own: some (task groups, anyio) cannot change tasks."""

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
        """What it opened. Cancelled before, it is not opened at all."""
        try:
            return await asyncio.shield(self.opened)
        except asyncio.CancelledError:
            if not self.opened.done():
                self.given_up = True
                self._task.cancel()
            raise

    async def close(self) -> None:
        """Leave it."""
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
            self.opened.exception()  # whoever asked may have left
        finally:
            self.opened.cancel()  # if nothing has come of it by now, nothing will


class Resources:
    """The resources of one life, by name.

    Args:
        spawn: Begins a task that belongs to the runner.
        what: The entity, for the log.

    Promise:
        One name is opened once, whoever asks at the same time. What could not be opened is tried again by whoever
        asks next. They are closed in the opposite order.
    """

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]], *, what: str) -> None:
        self._spawn = spawn
        self._what = what
        self._held: dict[str, Resource] = {}

    async def get(self, name: str, factory: Callable[[], AbstractAsyncContextManager[R]]) -> R:
        """What `factory` opens under this name."""
        while True:
            resource = self._held.get(name)
            if resource is None:
                resource = self._held[name] = Resource(factory, self._spawn)
            try:
                value: R = await resource.open()
            except BaseException:
                if resource.opened.done() and self._held.get(name) is resource:
                    del self._held[name]
                if resource.given_up and not _is_cancelled():
                    continue  # another one that waited for it was cancelled, not we
                raise
            return value

    async def close(self) -> None:
        """Close them all, the last one first. What they raise is logged."""
        while self._held:
            name, resource = self._held.popitem()
            try:
                await resource.close()
            except asyncio.CancelledError:
                log.warning("resource %s of %s did not close in time", name, self._what)
                raise


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
