"""Opens and closes what users define with `cluster.setup`: before the first seat, until after the last one."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from coterie.kernel.service import Tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    Setup = Callable[[], AbstractAsyncContextManager[object]]

log = logging.getLogger("coterie")

CLOSING_S = 2.0
"""How long closing may take, all together: the drain has had its own time, and the process must end."""


class Setups:
    """Context managers, held open by one task: some (anyio's, task groups) must exit in the task that entered them."""

    def __init__(self, setups: Sequence[Setup]) -> None:
        self._setups = setups
        self._tasks = Tasks("setup")
        self._holding: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    async def open(self) -> None:
        """Open all of them, in order. If one fails, those before it are closed and its error is raised."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._holding = self._tasks.spawn(self._hold(opened), name="hold", report=False)
        try:
            await opened
        except asyncio.CancelledError:
            self._holding.cancel()
            raise

    async def close(self) -> None:
        """Close them in reverse order, within the limit. Their errors are logged, not raised."""
        self._over.set()
        if self._holding is None:
            return
        try:
            async with asyncio.timeout(CLOSING_S):
                await asyncio.shield(asyncio.gather(self._holding, return_exceptions=True))
        except TimeoutError:
            log.warning("what cluster.setup opened did not close within %g s, and is cancelled", CLOSING_S)
        finally:
            await self._tasks.stop()
        if not self._holding.cancelled() and (error := self._holding.exception()) is not None:
            log.error("what cluster.setup opened could not be closed: %r", error, exc_info=error)

    async def _hold(self, opened: asyncio.Future[None]) -> None:
        try:
            async with AsyncExitStack() as stack:
                for setup in self._setups:
                    await stack.enter_async_context(setup())
                if not opened.cancelled():
                    opened.set_result(None)
                    await self._over.wait()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)
        finally:
            opened.cancel()  # if it has no result by now, it will not get one
