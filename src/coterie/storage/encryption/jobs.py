"""Jobs whose arguments, replies, errors and notes are encrypted."""

from __future__ import annotations

import asyncio
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from coterie.storage.contracts.jobs import JobInsert, JobStore
from coterie.storage.encryption import places
from coterie.storage.encryption.messages import encrypted_job, encrypted_message
from coterie.storage.encryption.values import EncryptedStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coterie.storage.contracts.jobs import (
        JobCancelled,
        JobClaim,
        JobDelivery,
        JobEnd,
        JobEnded,
        JobFilter,
        JobProgress,
        JobReceipt,
        JobRow,
        JobsClaimed,
        JobSetback,
        RunningJob,
    )
    from coterie.storage.contracts.messages import Attempt
    from coterie.storage.encryption.cipher import Keyring

_ID = attrgetter("id")


def encrypted_end(write: JobEnd, keyring: Keyring) -> JobEnd:
    """The end of a job, and what it sends, as it is stored."""
    place = places.job(write.job, "reply")
    return replace(
        write,
        reply=keyring.seal(write.reply, place),
        cancelled_reply=keyring.seal(write.cancelled_reply, place),
        sends=tuple(encrypted_message(message, keyring) for message in write.sends),
        jobs=tuple(encrypted_job(job, keyring) for job in write.jobs),
    )


def decrypted_job_receipt(receipt: JobReceipt, keyring: Keyring) -> JobReceipt:
    """A receipt as its sender gets it."""
    if receipt.reply is None and not receipt.digest:
        return receipt
    digest = keyring.open(receipt.digest, places.job(receipt.id, "digest"))
    reply = None if receipt.reply is None else keyring.open(receipt.reply, places.job(receipt.id, "reply"))
    return replace(receipt, digest=digest, reply=reply)


class EncryptedJobs(EncryptedStore[JobStore]):
    """See `storage.contracts.jobs.JobStore`."""

    passes = frozenset(
        {"define_queue", "queue", "sweep", "refill", "mature", "running", "take_back", "park", "unpark", "parked"}
        | {"claimed", "give_back"}
        | {"queues", "set_limits", "pause", "backlog", "count", "revive", "remove", "purge"}
    )
    table = "jobs"

    def insert(self, write: JobInsert) -> asyncio.Future[tuple[JobReceipt, ...]]:
        """Store jobs, all or none."""
        done: asyncio.Future[tuple[JobReceipt, ...]] = asyncio.get_running_loop().create_future()
        stored = JobInsert(tuple(encrypted_job(job, self._keyring) for job in write.jobs))
        self._inner.insert(stored).add_done_callback(partial(self._tell, done))
        return done

    def _tell(
        self, done: asyncio.Future[tuple[JobReceipt, ...]], stored: asyncio.Future[tuple[JobReceipt, ...]]
    ) -> None:
        if done.done():  # the caller no longer waits
            return
        try:
            done.set_result(tuple(decrypted_job_receipt(each, self._keyring) for each in stored.result()))
        except Exception as error:  # noqa: BLE001 the sender's, whatever it is
            done.set_exception(error)

    async def find(self, task: str, key: str) -> JobReceipt | None:
        """Return the job that has a key, or None."""
        found = await self._inner.find(task, key)
        return None if found is None else decrypted_job_receipt(found, self._keyring)

    async def look(self, ids: Sequence[str]) -> Sequence[JobRow]:
        """Return these jobs.

        Raises:
            UnreadablePayload: One of them cannot be decrypted.
        """
        return [self._row(row) for row in await self._inner.look(ids)]

    async def cancel(self, id: str, *, reply: bytes) -> tuple[JobCancelled, RunningJob | None]:
        """End a job that waits, or store that nothing of it may commit."""
        return await self._inner.cancel(id, reply=self._keyring.seal(reply, places.job(id, "reply")))

    async def claim(self, write: JobClaim) -> JobsClaimed:
        """Claim jobs for runners. One that cannot be read is claimed, and left out."""
        told = await self._inner.claim(write)
        return replace(told, jobs=tuple(self._readable(told.jobs, self._delivery, key=_ID)))

    async def fetch(self, claims: Mapping[str, int]) -> Sequence[JobDelivery]:
        """Return those of these jobs whose claim is still this one. One that cannot be read is left out."""
        return self._readable(await self._inner.fetch(claims), self._delivery, key=_ID)

    def end(self, write: JobEnd) -> asyncio.Future[JobEnded]:
        """End a job, with what it sends."""
        return self._inner.end(encrypted_end(write, self._keyring))

    def setback(self, write: JobSetback) -> asyncio.Future[JobEnded]:
        """Record a failed attempt, or one that is put off."""
        error = None if write.error is None else self._keyring.seal_text(write.error, places.job(write.job, "errors"))
        reply = self._keyring.seal(write.cancelled_reply, places.job(write.job, "reply"))
        return self._inner.setback(replace(write, error=error, cancelled_reply=reply))

    async def progress(self, runner: str, job: str, claim: int, progress: JobProgress) -> bool:
        """Store how far a job is."""
        note = None if progress.note is None else self._keyring.seal_text(progress.note, places.note_of_job(job))
        return await self._inner.progress(runner, job, claim, replace(progress, note=note))

    async def list(
        self, chosen: JobFilter, *, after: str | None = None, most: int = 100, newest: bool = False
    ) -> Sequence[JobRow]:
        """Return jobs in order of their ids. One that cannot be read is left out."""
        rows = await self._inner.list(chosen, after=after, most=most, newest=newest)
        return self._readable(rows, self._row, key=_ID)

    def _delivery(self, row: JobDelivery) -> JobDelivery:
        return replace(row, payload=self._keyring.open(row.payload, places.arguments_of_job(row)))

    def _row(self, row: JobRow) -> JobRow:
        payload = self._keyring.open(row.payload, places.arguments_of_job(row))
        reply = self._open(row.reply, places.job(row.id, "reply"))
        errors = tuple(self._attempt(row.id, each) for each in row.errors)
        return replace(row, payload=payload, reply=reply, errors=errors, progress=self._progress(row))

    def _attempt(self, id: str, attempt: Attempt) -> Attempt:
        return replace(attempt, error=self._keyring.shown_text(attempt.error, places.job(id, "errors")))

    def _progress(self, row: JobRow) -> JobProgress | None:
        if row.progress is None or row.progress.note is None:
            return row.progress
        return replace(row.progress, note=self._keyring.shown_text(row.progress.note, places.note_of_job(row.id)))
