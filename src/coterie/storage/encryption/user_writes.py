"""Writes on users' connections, of encrypted messages, jobs and workflows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.storage.contracts.user_writes import JobsInserted, MessagesInserted, UnitStarted, UserWrite, UserWrites
from coterie.storage.encryption import places
from coterie.storage.encryption.jobs import decrypted_job_receipt
from coterie.storage.encryption.messages import decrypted_receipt, encrypted_job, encrypted_message
from coterie.storage.encryption.units import encrypted_start
from coterie.storage.encryption.values import EncryptedStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.contracts.jobs import NewJob
    from coterie.storage.contracts.messages import Message
    from coterie.storage.contracts.units import UnitStart


class EncryptedUserWrites(EncryptedStore[UserWrites]):
    """See `storage.contracts.user_writes.UserWrites`."""

    passes = frozenset({"ended"})

    async def insert(self, messages: Sequence[Message]) -> UserWrite[MessagesInserted]:
        """Store messages, except those whose key exists already."""
        return self._inserted(await self._inner.insert([encrypted_message(each, self._keyring) for each in messages]))

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> UserWrite[JobsInserted]:
        """Store jobs, except those whose key exists already."""
        return self._stored(await self._inner.insert_jobs([encrypted_job(each, self._keyring) for each in jobs]))

    async def start(self, unit: UnitStart) -> UserWrite[UnitStarted]:
        """Start a workflow without a parent, unless there is a run of its id."""
        return self._started(unit.unit, await self._inner.start(encrypted_start(unit, self._keyring)))

    def _inserted(self, write: UserWrite[MessagesInserted]) -> UserWrite[MessagesInserted]:
        told = yield from write
        return told._replace(receipts=[decrypted_receipt(each, self._keyring) for each in told.receipts])

    def _stored(self, write: UserWrite[JobsInserted]) -> UserWrite[JobsInserted]:
        told = yield from write
        return told._replace(receipts=[decrypted_job_receipt(each, self._keyring) for each in told.receipts])

    def _started(self, unit: str, write: UserWrite[UnitStarted]) -> UserWrite[UnitStarted]:
        told = yield from write
        return told._replace(digest=self._keyring.open(told.digest, places.unit(unit, "digest")))
