"""Turn: one change of a leader's state at a time."""

from __future__ import annotations

import asyncio
from typing import Any


class Turn:
    """Two changes that overlap would lose one of them. A task that would wait for itself is told."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[Any] | None = None
        self.in_transaction = False

    @property
    def in_transaction_here(self) -> bool:
        """Whether the task that asks is inside of a transaction's block."""
        return self.in_transaction and self._task is asyncio.current_task()

    async def take(self) -> None:
        """Wait for one's turn."""
        if self._task is not None and self._task is asyncio.current_task():
            where = "transaction()" if self.in_transaction else "update()"
            raise RuntimeError(f"singleton {self._name!r} is inside of {where} already: end that block first")
        await self._lock.acquire()
        self._task = asyncio.current_task()

    def hand_to(self, task: asyncio.Task[Any]) -> None:
        """It ends with a task: whoever took it, and was cancelled meanwhile, waits like everybody else."""
        self._task = task
        task.add_done_callback(self._left)

    def leave(self) -> None:
        """The next one may change something."""
        self._task = None
        self._lock.release()

    def _left(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # its caller's, if that still waits
        self.leave()
