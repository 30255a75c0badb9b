"""The first steps of many handlers in one task, each in a context of its own. The rest of them: `kernel/coroutines.py`.

A handler that never waits needs no task: a shared one takes its first step, which is all of it, and goes on with the
next. The first handler that does wait keeps that task for itself, so what the handler took for its task
(`asyncio.timeout`, task groups) stays its task, and another one is begun for the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.entities.work import handling
from coterie.kernel.context import enter

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from coterie.entities.work import Work

_handle = handling.set


def first_step(work: Work, coroutine: Coroutine[Any, Any, Any]) -> tuple[bool, Any]:
    """Run a coroutine, in the context of a work that was just made, until it waits or ends.

    Returns:
        Whether it has ended; its result then, and else what it waits for.
    """
    _handle(work)
    enter(work)
    try:
        return False, coroutine.send(None)
    except StopIteration as ended:
        return True, ended.value
