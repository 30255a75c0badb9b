"""Streams: an rpc that is an async generator, sent item by item as its reader keeps up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from coterie.work.limits import CLOSING_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

    from coterie.entities.work import Work


class SeatLost(Exception):
    """The shard was lost while a stream was sent."""


async def streamed(work: Work, items: AsyncIterator[Any]) -> None:
    """Send all items of a generator. It is closed before this ends, however this ends.

    Each item gives the stream its whole time again: the deadline of a stream is its longest silence.

    Raises:
        SeatLost: The runner does not hold the shard any more, so nothing more may be said.
    """
    loop, tenure = asyncio.get_running_loop(), work.resident.shard.tenure
    try:
        async for item in items:
            body = work.rpc.encode_result(item)
            if not tenure.held:
                raise SeatLost
            work.deadline_s = loop.time() + work.within_s
            if not await _sent(work, body):
                return
            work.deadline_s = loop.time() + work.within_s
    finally:
        if hasattr(items, "aclose"):  # behind a decorator it may be another iterator
            async with asyncio.timeout(CLOSING_S):
                await items.aclose()


async def _sent(work: Work, body: bytes) -> bool:
    """Whether there is still a reader."""
    try:
        await work.send(body)
    except Exception:  # noqa: BLE001 whatever it was, there is nobody left to tell
        work.is_open = False
    return work.is_open
