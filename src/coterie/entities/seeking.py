"""Seeking: what storage knows about messages, asked for by many at once and read together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from coterie.errors import ShuttingDown
from coterie.kernel.service import Tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.contracts.messages import MessageRow
    from coterie.storage.interface import Storage

_TOGETHER = 500


class Seeking:
    """Looks messages up. Those who ask while a read is under way share the next one.

    Args:
        storage: Where they are.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._tasks = Tasks("messages/seek")
        self._wanted: dict[str, asyncio.Future[MessageRow | None]] = {}
        self._reading = False
        self._is_stopped = False

    async def find(self, message_id: str) -> MessageRow | None:
        """All that is known about a message; None: there is none of this id, or none any more.

        Raises:
            PersistenceError: Storage cannot be asked.
            ShuttingDown: This process looks no more.
        """
        if self._is_stopped:
            raise _stopped()
        found = self._wanted.get(message_id)
        if found is None:
            found = self._wanted[message_id] = asyncio.get_running_loop().create_future()
        if not self._reading:
            self._reading = True
            self._tasks.spawn(self._read(), name="read")
        return await asyncio.shield(found)

    async def stop(self) -> None:
        """Look no more. Nobody goes on waiting."""
        self._is_stopped = True
        await self._tasks.stop()
        waiting, self._wanted = self._wanted, {}
        for each in waiting.values():
            _fail(each, _stopped())

    async def _read(self) -> None:
        try:
            while self._wanted:
                ids = list(self._wanted)[:_TOGETHER]
                asked = {each: self._wanted.pop(each) for each in ids}
                await self._answer(ids, asked)
        finally:
            self._reading = False

    async def _answer(self, ids: Sequence[str], asked: dict[str, asyncio.Future[MessageRow | None]]) -> None:
        try:
            rows = {row.id: row for row in await self._storage.messages.look(ids)}
        except BaseException as error:
            for each in asked.values():
                _fail(each, error if isinstance(error, Exception) else _stopped())
            if not isinstance(error, Exception):
                raise
        else:
            for message_id, each in asked.items():
                if not each.done():
                    each.set_result(rows.get(message_id))


def _fail(asked: asyncio.Future[MessageRow | None], error: Exception) -> None:
    if not asked.done():
        asked.set_exception(error)
        asked.exception()  # whoever asked may have left


def _stopped() -> ShuttingDown:
    return ShuttingDown(what="the cluster")
