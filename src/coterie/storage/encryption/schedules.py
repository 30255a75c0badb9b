"""Schedules and timers whose arguments are encrypted: those of a message are encrypted anew, bound to the message."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from coterie.storage.contracts.schedules import DueSchedules, ScheduleStore
from coterie.storage.encryption import places
from coterie.storage.encryption.messages import encrypted_job, encrypted_message
from coterie.storage.encryption.values import EncryptedStore

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from coterie.storage.contracts.schedules import Fire, Fired, ScheduleMark, ScheduleRow

_KEY = attrgetter("key")


class EncryptedSchedules(EncryptedStore[ScheduleStore]):
    """See `storage.contracts.schedules.ScheduleStore`."""

    passes = frozenset({"pause", "purge"})
    table = "schedules"

    async def due(self, seats: Sequence[str], *, without: Collection[str] = (), most: int) -> DueSchedules:
        """Return the rows of these seats that are due. One that cannot be decrypted is named."""
        found = await self._inner.due(seats, without=without, most=most)
        rows = self._readable(found.rows, self._row, key=_KEY)
        read = {row.key for row in rows}
        unreadable = (*found.unreadable, *(row.key for row in found.rows if row.key not in read))
        return replace(found, rows=tuple(rows), unreadable=unreadable)

    async def fire(self, fires: Sequence[Fire]) -> Sequence[Fired]:
        """Fire rows under the fence."""
        keyring = self._keyring
        sealed = [
            replace(
                each,
                sends=tuple(encrypted_message(message, keyring) for message in each.sends),
                jobs=tuple(encrypted_job(job, keyring) for job in each.jobs),
            )
            for each in fires
        ]
        return await self._inner.fire(sealed)

    async def get(self, key: str) -> ScheduleRow | None:
        """Return one row, or None.

        Raises:
            UnreadablePayload: It cannot be decrypted.
        """
        found = await self._inner.get(key)
        return None if found is None else self._row(found)

    async def list(self, prefix: str, *, after: str = "", most: int) -> Sequence[ScheduleRow]:
        """Return the rows whose keys begin so. One that cannot be decrypted has no arguments here."""
        return [replace(row, payload=b"") for row in await self._inner.list(prefix, after=after, most=most)]

    async def swap(self, row: ScheduleRow, was: ScheduleMark | None) -> bool:
        """Write a row in place of the one that was read."""
        payload = self._keyring.seal(row.payload, places.scheduled(row.key, row.life))
        return await self._inner.swap(replace(row, payload=payload), was)

    async def remove(self, key: str) -> ScheduleRow | None:
        """Delete a row. Returns it without its arguments, or None."""
        found = await self._inner.remove(key)
        return None if found is None else replace(found, payload=b"")

    def _row(self, row: ScheduleRow) -> ScheduleRow:
        return replace(row, payload=self._keyring.open(row.payload, places.scheduled(row.key, row.life)))
