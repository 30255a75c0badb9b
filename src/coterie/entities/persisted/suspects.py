"""Suspects: persisted messages that may have killed the runner that held their shard before [C5].

    suspected ──▶ its turn: "started alone" is stored ──▶ runs ──▶ ended: no longer a suspect
                                                           │
                                                           ├─▶ 5 s, or it waits for a call: the next one starts too
                                                           └─▶ the runner is lost: its successor counts a loss

They run one at a time: if this runner is lost too, it is known which one had started, and no loss is counted for the
others. Suspects that started before without an end, or that have losses, run last.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from typing import TYPE_CHECKING, Any

from coterie.errors import PersistenceError
from coterie.kernel.service import Tasks
from coterie.storage.contracts.messages import Delivery, MessageStore, Suspicion

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.entities.persisted.inbox import Inbox, StoredCall
    from coterie.entities.persisted.receiver import Handover

log = logging.getLogger("coterie.entities")

_ALONE_S = 5.0
"""How long the next suspect waits for the current one: a message that kills its process usually does so sooner."""


class Suspects:
    """The suspects of one runner, started one at a time.

    Args:
        inbox: The messages in memory; a sweep finds again what it drops.
        messages: Stores how each was started.
        begin: Delivers a work to the host.
    """

    def __init__(self, inbox: Inbox, messages: MessageStore, begin: Callable[[StoredCall], None]) -> None:
        self.current: StoredCall | None = None
        """The suspect that was started last."""
        self._inbox, self._messages, self._begin = inbox, messages, begin
        self._waiting: list[tuple[bool, int, int, StoredCall]] = []
        self._numbers = itertools.count()
        self._loop = asyncio.get_running_loop()
        self._alone_until_s = 0.0
        self._is_cleared = False
        self._changed = asyncio.Event()
        self._tasks = Tasks("entities/suspects")
        self._task: asyncio.Task[Any] | None = None

    def add(self, work: StoredCall, delivery: Delivery | Handover) -> None:
        """Queue a work until its turn."""
        place = (delivery.suspicion == Suspicion.BESIDE, delivery.losses, next(self._numbers))
        heapq.heappush(self._waiting, (*place, work))
        self._changed.set()
        if self._task is None:
            self._task = self._tasks.spawn(self._run(), name="run")

    def ended(self) -> None:
        """The current suspect has left memory."""
        self._changed.set()

    def clear(self, work: StoredCall) -> None:
        """Clear a work that this program cannot run: refusing it did not kill the runner."""
        if self.current is work:
            self._is_cleared = True

    def acquit(self, work: StoredCall) -> None:
        """Let the next suspect start beside this one, which may be waiting for it."""
        if self.current is work:
            self._alone_until_s = 0.0
            self._changed.set()

    async def stop(self) -> None:
        """Start no more suspects."""
        await self._tasks.stop()

    async def _run(self) -> None:
        try:
            while self.current is not None or self._waiting:
                await self._step()
        finally:
            self._task = self.current = None
            while self._waiting:
                self._inbox.dropped(heapq.heappop(self._waiting)[-1])

    async def _step(self) -> None:
        self._changed.clear()
        current = self.current
        if current is not None and not self._inbox.has(current):
            self.current = None
            await self._settle(current)
        elif self._waiting and (current is None or self._loop.time() >= self._alone_until_s):
            await self._take_turn(heapq.heappop(self._waiting)[-1])
        else:
            await self._wait()

    async def _take_turn(self, work: StoredCall) -> None:
        if not self._inbox.has(work):
            return
        if self.current is not None:
            await self._mark(self.current, Suspicion.BESIDE)
        self.current, self._is_cleared = work, False
        if not await self._mark(work, Suspicion.ALONE):
            self._inbox.dropped(work)
        elif self._inbox.has(work):
            self._alone_until_s = self._loop.time() + _ALONE_S
            self._begin(work)

    async def _settle(self, work: StoredCall) -> None:
        """The current suspect is no longer in memory; unless its end is stored, it must not stay marked as started."""
        if not self._inbox.has_ended(work.message_id):
            is_cleared = work.has_begun or self._is_cleared
            await self._mark(work, Suspicion.NONE if is_cleared else Suspicion.SUSPECT)

    async def _wait(self) -> None:
        """Wait until the current suspect leaves memory, another is added, or the next one may start."""
        try:
            async with asyncio.timeout_at(self._alone_until_s if self._waiting else None):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _mark(self, work: StoredCall, suspicion: Suspicion) -> bool:
        try:
            return await self._messages.mark(work.shard_inbox.tenure.claim, work.message_id, suspicion)
        except PersistenceError as error:
            log.warning("%s stays in storage: that it starts could not be recorded: %s", work.target, error)
            return False
