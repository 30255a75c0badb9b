"""Passing on what became of a write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from coterie.storage.group_commit import Waiter


def pass_on(waiter: Waiter, done: asyncio.Future[Any]) -> None:
    """Tell a waiter what a future was told."""
    error = done.exception()
    if error is None:
        waiter.set_result(done.result())
    else:
        waiter.set_exception(error)
