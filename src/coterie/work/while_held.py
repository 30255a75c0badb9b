"""Retries an operation for as long as the database is away and the seat is held."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar

from coterie.errors import PersistenceError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

AWAY_S = 0.2
"""Pause between two attempts while the database is away."""


async def while_held(
    require_held: Callable[[], object], attempt: Callable[[], Awaitable[T]], *, what: object, log: logging.Logger
) -> T:
    """Attempt an operation until the database answers, or the seat is lost.

    Args:
        require_held: Called before each attempt; raises once the seat is lost.
        attempt: The operation. It runs again after each `PersistenceError`, a refusal included: the seat stays ours.
        what: Names the operation in the log: once per wait, as a warning if the database refused it, which may last.
        log: The logger.

    Returns:
        The result of the attempt that the database answered.
    """
    logged = logging.DEBUG
    while True:
        require_held()
        try:
            return await attempt()
        except PersistenceError as error:
            level = logging.WARNING if error.outcome == "refused" else logging.INFO
            log.log(level if level > logged else logging.DEBUG, "%s waits for the database: %s", what, error)
            logged = max(level, logged)
        await asyncio.sleep(AWAY_S)
