"""Limits: how long code of users may take to end, and waiting that keeps to them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

CLOSING_S = 3.0
"""What `on_deactivate`, closing resources and closing a stream may take, each: a shard waits for them to move."""
STUBBORN_S = 1.0
"""How long what was cancelled may take to end, before nobody waits for it any more."""


async def settled(futures: Iterable[asyncio.Future[Any]], *, limit_s: float | None = None) -> None:
    """Wait until all have ended, well or not, or for the limit. They are not cancelled with whoever waits."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await asyncio.shield(asyncio.gather(*futures, return_exceptions=True))
