"""Puts the encryption in front of the stores and the transactions of a storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.settings.payload_keys import key_bytes
from coterie.storage.contracts.jobs import JobEnd
from coterie.storage.contracts.messages import Commit
from coterie.storage.encryption.cipher import Keyring
from coterie.storage.encryption.incoming_calls import EncryptedIncoming
from coterie.storage.encryption.jobs import EncryptedJobs, encrypted_end
from coterie.storage.encryption.messages import EncryptedMessages, encrypted_commit, encrypted_job, encrypted_message
from coterie.storage.encryption.reports import EncryptedActivity, EncryptedExecutions, EncryptedTicks
from coterie.storage.encryption.run_messages import EncryptedRunMessages
from coterie.storage.encryption.schedules import EncryptedSchedules
from coterie.storage.encryption.units import EncryptedUnits, encrypted_start
from coterie.storage.encryption.user_writes import EncryptedUserWrites
from coterie.storage.encryption.values import EncryptedKv, EncryptedStates, encrypted_save
from coterie.storage.user_transaction import OpenedTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coterie.kernel.random import Random
    from coterie.settings import Settings
    from coterie.storage.contracts.jobs import NewJob
    from coterie.storage.contracts.messages import Committed, Message
    from coterie.storage.contracts.units import UnitStart
    from coterie.storage.encryption.values import EncryptedStore
    from coterie.storage.interface import StateSave, Storage

STORES: dict[str, type[EncryptedStore[Any]]] = {
    "kv": EncryptedKv,
    "states": EncryptedStates,
    "executions": EncryptedExecutions,
    "ticks": EncryptedTicks,
    "units": EncryptedUnits,
    "messages": EncryptedMessages,
    "jobs": EncryptedJobs,
    "schedules": EncryptedSchedules,
    "run_messages": EncryptedRunMessages,
    "incoming": EncryptedIncoming,
    "user_writes": EncryptedUserWrites,
    "activity": EncryptedActivity,
}
"""The stores of a `Storage` with payloads. The others have none."""


def encrypt(storage: Storage, settings: Settings, chance: Random) -> None:
    """Encrypt what users' code gives to a storage that is not started yet."""
    keyring = Keyring(
        {key_id: key_bytes(key) for key_id, key in settings.payload_keys},
        current=settings.payload_current,
        reads_plain=settings.payload_plain,
        cluster=settings.name,
        chance=chance,
        compresses=settings.payload_compress,
    )
    for name, kind in STORES.items():
        setattr(storage, name, kind(getattr(storage, name), keyring))
    begin: Any = storage.transaction

    def transaction(*, limit_s: float) -> EncryptedTransaction:
        return EncryptedTransaction(begin(limit_s=limit_s), keyring)

    vars(storage)["transaction"] = transaction
    storage.keyring = keyring


class EncryptedTransaction(OpenedTransaction):
    """The user's own SQL as it is, with encrypted writes of coterie. See `contracts.messages.Transaction`."""

    def __init__(self, inner: OpenedTransaction, keyring: Keyring) -> None:
        self.tasks = inner.tasks
        self._inner = inner
        self._keyring = keyring
        self._sends: list[Message] = []
        self._jobs: list[NewJob] = []

    async def execute(self, sql: str, /, *params: Any) -> int:
        """Return the number of rows changed."""
        return await self._inner.execute(sql, *params)

    async def fetch(self, sql: str, /, *params: Any) -> Sequence[Mapping[str, Any]]:
        """Return the rows, by column name."""
        return await self._inner.fetch(sql, *params)

    def start(self, start: UnitStart, *, then: Callable[[], object]) -> None:
        """Start a workflow with the commit."""
        self._inner.start(encrypted_start(start, self._keyring), then=then)

    @property
    def sends(self) -> Sequence[Message]:
        """The messages that it sends so far, as they were given; raises if nothing can be added any more."""
        return self._sends if self._inner.sends else ()

    def send(self, message: Message, *, then: Callable[[], object]) -> None:
        """Send a message with the commit."""
        self._inner.send(encrypted_message(message, self._keyring), then=then)
        self._sends.append(message)

    @property
    def jobs(self) -> Sequence[NewJob]:
        """The jobs that it stores so far, as they were given; raises if nothing can be added any more."""
        return self._jobs if self._inner.jobs else ()

    def add_job(self, job: NewJob, *, then: Callable[[], object]) -> None:
        """Store a job with the commit."""
        self._inner.add_job(encrypted_job(job, self._keyring), then=then)
        self._jobs.append(job)

    async def commit(self, write: Commit | JobEnd | StateSave | None) -> Committed:
        """Commit with the writes of a handler, job or leader, if there are any."""
        stored: Any = write
        if isinstance(write, Commit):
            stored = encrypted_commit(write, self._keyring)
        elif isinstance(write, JobEnd):
            stored = encrypted_end(write, self._keyring)
        elif write is not None:
            stored = encrypted_save(write, self._keyring)
        return await self._inner.commit(stored)

    async def rollback(self) -> None:
        """Roll back. Never raises."""
        await self._inner.rollback()
