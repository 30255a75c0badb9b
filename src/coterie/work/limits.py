"""Time limits for user code to end, and a wait that respects them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

CLOSING_S = 3.0
"""The limit of `on_deactivate`, of closing resources and of closing a stream, each: a moving shard waits for them."""
STUBBORN_S = 1.0
"""How long to wait for cancelled code to end before it is abandoned; a plain function in a thread is only reported."""


def is_cancelled() -> bool:
    """Whether the current task is cancelled. If not, a `CancelledError` comes from something that it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def set_within(event: asyncio.Event, limit_s: float | None) -> bool:
    """Wait until an event is set. Returns whether it is, within the limit."""
    try:
        async with asyncio.timeout(limit_s):
            return await event.wait()
    except TimeoutError:
        return False


async def settled(futures: Iterable[asyncio.Future[Any]], *, limit_s: float | None = None) -> None:
    """Wait until all futures are done, by result or error, or for the limit. Cancelling this cancels none."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await asyncio.shield(asyncio.gather(*futures, return_exceptions=True))
