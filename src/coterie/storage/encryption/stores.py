"""Puts the encryption in front of the stores and the transactions of a storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.settings.payload_keys import key_bytes
from coterie.storage.contracts.messages import Commit
from coterie.storage.encryption.cipher import Keyring
from coterie.storage.encryption.incoming_calls import EncryptedIncoming
from coterie.storage.encryption.messages import EncryptedMessages, encrypted_commit
from coterie.storage.encryption.reports import EncryptedActivity, EncryptedExecutions, EncryptedTicks
from coterie.storage.encryption.units import EncryptedUnits, encrypted_start
from coterie.storage.encryption.values import EncryptedKv, EncryptedStates, encrypted_save

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coterie.kernel.random import Random
    from coterie.settings import Settings
    from coterie.storage.contracts.messages import Committed, Transaction
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
    "incoming": EncryptedIncoming,
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
    )
    for name, kind in STORES.items():
        setattr(storage, name, kind(getattr(storage, name), keyring))
    begin: Any = storage.transaction

    def transaction(*, limit_s: float) -> Transaction:
        return EncryptedTransaction(begin(limit_s=limit_s), keyring)

    vars(storage)["transaction"] = transaction
    storage.keyring = keyring


class EncryptedTransaction:
    """The user's own SQL as it is, with encrypted writes of coterie. See `contracts.messages.Transaction`."""

    def __init__(self, inner: Transaction, keyring: Keyring) -> None:
        self._inner = inner
        self._keyring = keyring

    async def execute(self, sql: str, /, *params: Any) -> int:
        """Return the number of rows changed."""
        return await self._inner.execute(sql, *params)

    async def fetch(self, sql: str, /, *params: Any) -> Sequence[Mapping[str, Any]]:
        """Return the rows, by column name."""
        return await self._inner.fetch(sql, *params)

    def start(self, start: UnitStart, *, then: Callable[[], object]) -> None:
        """Start a workflow with the commit."""
        self._inner.start(encrypted_start(start, self._keyring), then=then)

    async def commit(self, write: Commit | StateSave) -> Committed:
        """Commit with the handler's, or the leader's, own writes."""
        stored: Any = (
            encrypted_commit(write, self._keyring)
            if isinstance(write, Commit)
            else encrypted_save(write, self._keyring)
        )
        return await self._inner.commit(stored)

    async def rollback(self) -> None:
        """Roll back. Never raises."""
        await self._inner.rollback()
