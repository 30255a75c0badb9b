"""Driving coroutines by hand: what was begun in one place is gone on with in another, in a context of its own."""

from __future__ import annotations

import asyncio
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Generator
    from contextvars import Context

enter_task = asyncio.tasks._enter_task  # noqa: SLF001 documented, for those who write tasks of their own
leave_task = asyncio.tasks._leave_task  # noqa: SLF001


@types.coroutine
def remaining_steps(
    context: Context,
    coroutine: Coroutine[Any, Any, Any],
    waits_for: Any,
    cancelled: BaseException | None = None,
) -> Generator[Any, Any, Any]:
    """Await the rest of a coroutine that was begun elsewhere, in its own context; its result.

    Args:
        context: Its context.
        coroutine: What was begun.
        waits_for: What its first step gave.
        cancelled: Thrown into it before anything else.
    """
    step: Any
    while True:
        try:
            if cancelled is not None:
                error, cancelled = cancelled, None
                raise error
            given = yield waits_for
        except GeneratorExit:
            context.run(coroutine.close)
            raise
        except BaseException as error:  # noqa: BLE001 a cancellation: the coroutine's to deal with
            step, given = coroutine.throw, error
        else:
            step = coroutine.send
        try:
            waits_for = context.run(step, given)
        except StopIteration as ended:
            return ended.value


async def within(context: Context, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a coroutine in another context than one's own."""
    try:
        waits_for = context.run(coroutine.send, None)
    except StopIteration as ended:
        return ended.value
    return await remaining_steps(context, coroutine, waits_for)


def coroutine_of(awaitable: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    """What can be stepped: a method behind a decorator may give another awaitable."""
    return awaitable if isinstance(awaitable, types.CoroutineType) else _awaiting(awaitable)


async def _awaiting(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
