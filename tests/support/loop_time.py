"""How long something takes on the event loop, without the time in which the machine does not run this process."""

from __future__ import annotations

import asyncio
from typing import Self

TICK_S = 0.01


class LoopTime:
    """Counts ticks of a timer in its block: a process that is starved counts fewer, so an upper limit can be asserted.

    async with LoopTime() as taken:
        await call()
    assert taken.seconds < 2
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._counting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._counting = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._counting is not None
        self._counting.cancel()
        await asyncio.gather(self._counting, return_exceptions=True)

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.seconds += TICK_S
