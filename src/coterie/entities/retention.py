"""Retention: messages that were done long enough ago are deleted, a few at a time, by every runner now and then."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from coterie.errors import PersistenceError
from coterie.kernel.tasks import Tasks

if TYPE_CHECKING:
    from coterie.kernel.chance import Chance
    from coterie.kernel.supervisor import Supervisor
    from coterie.settings import Settings
    from coterie.storage.messages import Messages

log = logging.getLogger("coterie.entities")

_EVERY_S = 60.0
_BATCH = 1_000
"""Rows that one statement looks at: some milliseconds, so that nobody waits for its locks."""
_PAUSE_S = 0.05


class Retention:
    """Deletes, for one runner, from `start` to `stop`.

    Args:
        messages: The storage.
        settings: `retention`, and `key_retention` for those with a key.
        chance: For the jitter that keeps runners from deleting in step.
        supervisor: The one of this process.
    """

    def __init__(self, messages: Messages, settings: Settings, *, chance: Chance, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._messages = messages
        self._retention_s = settings.retention.total_seconds()
        self._key_retention_s = settings.key_retention.total_seconds()
        self._chance = chance
        self._tasks = Tasks("entities/retention")
        self._task: asyncio.Task[Any] | None = None
        self.purged = 0

    def start(self) -> None:
        """Delete from now on; a second call does nothing."""
        if self._task is None:
            self._task = self._tasks.supervise(self._purge_on, name="purge messages", supervisor=self._supervisor)

    async def stop(self) -> None:
        """Delete no more."""
        await self._tasks.stop()

    async def _purge_on(self) -> None:
        while True:
            await asyncio.sleep(self._chance.between(_EVERY_S / 2, _EVERY_S * 1.5))
            try:
                await self.purge()
            except PersistenceError as error:
                log.warning("old messages cannot be deleted just now: %s", error)

    async def purge(self) -> int:
        """Delete all that is old enough now; how many it were."""
        count, after = 0, ""
        while True:
            deleted, after = await self._messages.purge(
                after=after, retention_s=self._retention_s, key_retention_s=self._key_retention_s, most=_BATCH
            )
            count += deleted
            self.purged += deleted
            if not after:
                return count
            await asyncio.sleep(_PAUSE_S)
