"""Messages whose arguments, replies and errors are encrypted."""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from coterie.errors import UnreadablePayload
from coterie.storage.contracts.messages import Commit, Insert, MessageStore, StateChange
from coterie.storage.encryption import places
from coterie.storage.encryption.values import EncryptedStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.contracts.jobs import NewJob
    from coterie.storage.contracts.messages import (
        Attempt,
        Committed,
        Delivery,
        Message,
        MessageFilter,
        MessageRow,
        Receipt,
        Setback,
        Suffered,
    )
    from coterie.storage.contracts.schedules import TimerChange
    from coterie.storage.encryption.cipher import Keyring
    from coterie.storage.group_commit import Waiter
    from coterie.storage.interface import Claim

_ID = attrgetter("id")


def encrypted_message(message: Message, keyring: Keyring) -> Message:
    """A message as it is stored."""
    payload = keyring.seal(message.payload, places.arguments(message))
    return replace(message, payload=payload, digest=keyring.seal(message.digest, places.digest_of_call(message.id)))


def encrypted_job(job: NewJob, keyring: Keyring) -> NewJob:
    """A job as it is stored."""
    payload = keyring.seal(job.payload, places.arguments_of_job(job))
    return replace(job, payload=payload, digest=keyring.seal(job.digest, places.job(job.id, "digest")))


def encrypted_timer(change: TimerChange, keyring: Keyring) -> TimerChange:
    """A timer that a handler sets or cancels, as it is stored."""
    timer = change.timer
    if timer is None:
        return change
    payload = keyring.seal(timer.payload, places.scheduled(timer.key, timer.life))
    return replace(change, timer=replace(timer, payload=payload))


def encrypted_commit(write: Commit, keyring: Keyring) -> Commit:
    """The writes of a handler as they are stored."""
    state = write.state
    if state is not None and state.value is not None:
        value = keyring.seal(state.value, places.state(state.key, state.version + 1))
        state = StateChange(state.key, value, state.version)
    reply = b"" if write.message is None else keyring.seal(write.reply, places.reply(write.message))
    sends = tuple(encrypted_message(message, keyring) for message in write.sends)
    jobs = tuple(encrypted_job(job, keyring) for job in write.jobs)
    timers = tuple(encrypted_timer(change, keyring) for change in write.timers)
    return Commit(write.claim, write.message, reply, state, sends, jobs, timers)


def decrypted_receipt(receipt: Receipt, keyring: Keyring) -> Receipt:
    """A receipt as its sender gets it."""
    if receipt.reply is None and not receipt.digest:
        return receipt
    digest = keyring.open(receipt.digest, places.digest_of_call(receipt.id))
    reply = None if receipt.reply is None else keyring.open(receipt.reply, places.reply(receipt.id))
    return replace(receipt, digest=digest, reply=reply)


class ReceiptWaiter:
    """Decrypts a receipt on its way to the sender."""

    __slots__ = ("_keyring", "_waiter")

    def __init__(self, waiter: Waiter, keyring: Keyring) -> None:
        self._waiter = waiter
        self._keyring = keyring

    def set_result(self, receipt: Receipt, /) -> None:
        """The message is stored, or was."""
        try:
            plain = decrypted_receipt(receipt, self._keyring)
        except UnreadablePayload as error:
            self._waiter.set_exception(error)
        else:
            self._waiter.set_result(plain)

    def set_exception(self, error: BaseException, /) -> None:
        """It is not, or that is unknown."""
        self._waiter.set_exception(error)


class EncryptedMessages(EncryptedStore[MessageStore]):
    """See `storage.contracts.messages.MessageStore`."""

    passes = frozenset({"due", "backlog", "suspect", "mark", "revive", "remove", "count", "discard", "purge"})
    table = "messages"

    def insert(self, message: Message) -> asyncio.Future[Receipt]:
        """Store a message."""
        done: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.save(Insert(message), done)
        return done

    def commit(self, write: Commit) -> asyncio.Future[Committed]:
        """Durable when it results in "written"."""
        return self._inner.commit(encrypted_commit(write, self._keyring))

    def save(self, write: Insert | Commit, waiter: Waiter) -> None:
        """Insert or commit; `waiter` receives the result."""
        if isinstance(write, Commit):
            self._inner.save(encrypted_commit(write, self._keyring), waiter)
        else:
            stored = Insert(encrypted_message(write.message, self._keyring))
            self._inner.save(stored, ReceiptWaiter(waiter, self._keyring))

    def setback(self, write: Setback) -> asyncio.Future[Suffered]:
        """Record a failed attempt, or one that is put off."""
        if write.error is None:
            return self._inner.setback(write)
        error = self._keyring.seal_text(write.error, places.error_of_call(write.message))
        return self._inner.setback(replace(write, error=error))

    async def fetch(self, ids: Sequence[str]) -> Sequence[Delivery]:
        """Return those of these messages that are pending, in no order. One that cannot be read is left out."""
        return self._readable(await self._inner.fetch(ids), self._delivery, key=_ID)

    async def look(self, ids: Sequence[str]) -> Sequence[MessageRow]:
        """Return these messages.

        Raises:
            UnreadablePayload: One of them cannot be decrypted.
        """
        return [self._row(row) for row in await self._inner.look(ids)]

    async def find(self, entity_type: str, entity_id: str, method: str, key: str) -> Receipt | None:
        """Return the message that has a key, or None."""
        found = await self._inner.find(entity_type, entity_id, method, key)
        return None if found is None else decrypted_receipt(found, self._keyring)

    async def cancel(self, id: str, claim: Claim | None, *, reply: bytes) -> bool:
        """End a pending message without running it."""
        return await self._inner.cancel(id, claim, reply=self._keyring.seal(reply, places.reply(id)))

    async def list(
        self, chosen: MessageFilter, *, after: str | None = None, most: int = 100, newest: bool = False
    ) -> Sequence[MessageRow]:
        """Return messages in order of their ids. One that cannot be read is left out."""
        rows = await self._inner.list(chosen, after=after, most=most, newest=newest)
        return self._readable(rows, self._row, key=_ID)

    def _delivery(self, row: Delivery) -> Delivery:
        return replace(row, payload=self._keyring.open(row.payload, places.arguments(row)))

    def _row(self, row: MessageRow) -> MessageRow:
        payload = self._keyring.open(row.payload, places.arguments(row))
        reply = self._open(row.reply, places.reply(row.id))
        return replace(row, payload=payload, reply=reply, errors=tuple(self._attempt(row.id, e) for e in row.errors))

    def _attempt(self, id: str, attempt: Attempt) -> Attempt:
        return replace(attempt, error=self._keyring.shown_text(attempt.error, places.error_of_call(id)))
