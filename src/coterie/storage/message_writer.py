"""Writes of messages that share transactions, alike on both engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.storage.contracts.messages import Insert

if TYPE_CHECKING:
    from asyncio import Future
    from typing import Any

    from coterie.kernel.fork_guard import ProcessOrigin
    from coterie.storage.contracts.messages import Commit, Committed, Message, Receipt, Setback, Suffered
    from coterie.storage.group_commit import GroupWriter, Waiter


class MessageWriter:
    """The part of a `storage.contracts.messages.MessageStore` that writes through the group writer."""

    _writer: GroupWriter
    _origin: ProcessOrigin

    def insert(self, message: Message) -> Future[Receipt]:
        """Store a message."""
        return self._submit(Insert(message))

    def commit(self, write: Commit) -> Future[Committed]:
        """Durable when it results in "written"."""
        return self._submit(write)

    def setback(self, write: Setback) -> Future[Suffered]:
        """Record a failed attempt."""
        return self._submit(write)

    def save(self, write: Insert | Commit, waiter: Waiter) -> None:
        """Insert or commit; `waiter` receives the result."""
        self._origin.require_same()
        self._writer.post(write, waiter)

    def _submit(self, write: Insert | Commit | Setback) -> Future[Any]:
        self._origin.require_same()
        return self._writer.submit(write)
