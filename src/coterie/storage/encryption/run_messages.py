"""Messages to runs of workflows, and what these publish, encrypted.

A message moves to the step that receives it inside of the database, so it is bound to its run and its name alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from coterie.storage.contracts.run_messages import RunMessageStore
from coterie.storage.encryption import places
from coterie.storage.encryption.units import opened_step
from coterie.storage.encryption.values import EncryptedStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.contracts.run_messages import (
        Publish,
        PublishedRow,
        RaceEnd,
        Receive,
        RunMessage,
        RunMessageSent,
    )
    from coterie.storage.contracts.units import StepResult


class EncryptedRunMessages(EncryptedStore[RunMessageStore]):
    """See `storage.contracts.run_messages.RunMessageStore`."""

    passes = frozenset({"purge", "waiting"})

    async def send(self, message: RunMessage) -> RunMessageSent:
        """Store a message for a run that has not ended."""
        keyring, own = self._keyring, (message.unit, message.name)
        digest = keyring.seal(message.digest, places.run_message(*own, "digest"))
        value = keyring.seal(message.value, places.run_message(*own))
        told = await self._inner.send(replace(message, value=value, digest=digest))
        return replace(told, digest=keyring.open(told.digest, places.run_message(*own, "digest")))

    async def receive(self, write: Receive) -> StepResult:
        """Take the oldest message of a name into a step; or store its time-out; or that it waits."""
        error = places.step(write.unit, write.branch, write.position, "error")
        return self._result(
            write, await self._inner.receive(replace(write, late=self._keyring.seal(write.late, error)))
        )

    async def publish(self, write: Publish) -> StepResult:
        """Store a value and its step, unless the step is stored."""
        value = self._keyring.seal(write.value, places.published(write.unit, write.name))
        return self._result(write, await self._inner.publish(replace(write, value=value)))

    async def give_back(self, write: RaceEnd) -> StepResult:
        """Store a step, and let the messages of others wait again, unless the step is stored."""
        value = self._keyring.seal(write.value, places.step(write.unit, write.branch, write.position, "value"))
        return self._result(write, await self._inner.give_back(replace(write, value=value)))

    async def published(self, unit: str, name: str, *, after: int | None, most: int) -> Sequence[PublishedRow]:
        """Return the next values after a number, in order; None: the last one alone."""
        rows = await self._inner.published(unit, name, after=after, most=most)
        return [replace(row, value=self._keyring.open(row.value, places.published(unit, name))) for row in rows]

    async def published_names(self, unit: str, *, most: int) -> Sequence[tuple[str, PublishedRow]]:
        """Return the names under which a run has published, each with its last value, by name."""
        rows = await self._inner.published_names(unit, most=most)
        opened = self._keyring.open
        return [(name, replace(row, value=opened(row.value, places.published(unit, name)))) for name, row in rows]

    def _result(self, write: Receive | Publish | RaceEnd, told: StepResult) -> StepResult:
        return told if told.row is None else replace(told, row=opened_step(self._keyring, write.unit, told.row))
