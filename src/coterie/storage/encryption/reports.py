"""What work says of itself (errors, notes) and the record of acts, encrypted. Texts of coterie beside are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from coterie.storage.contracts.activity import Activity
from coterie.storage.contracts.executions import Executions
from coterie.storage.contracts.ticks import TickStore
from coterie.storage.encryption import places
from coterie.storage.encryption.values import EncryptedStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from coterie.storage.contracts.activity import Act, ActRow
    from coterie.storage.contracts.executions import ExecutionRecord, Stamp, Stamped
    from coterie.storage.contracts.ticks import CronBook, CronRow, CronTakeover, Kind, TickNote, TickRow
    from coterie.storage.interface import Claim, Written


class EncryptedExecutions(EncryptedStore[Executions]):
    """See `storage.contracts.executions.Executions`."""

    async def begin(self, claim: Claim, *, leader: str, expected_s: float | None) -> ExecutionRecord | None:
        """Record a new holder. Returns the row, or None if the seat is not held."""
        found = await self._inner.begin(claim, leader=leader, expected_s=expected_s)
        return found and self._record(found)

    async def stamp(self, write: Stamp) -> Stamped:
        """Durable when it returns "written"."""
        seat, seal = write.claim.seat, self._keyring.seal_text
        error = write.error and seal(write.error, places.execution(seat, "error"))
        note = seal(write.note, places.execution(seat, "note"))
        return await self._inner.stamp(replace(write, error=error, note=note))

    async def list(self, prefix: str) -> Sequence[ExecutionRecord]:
        """The records of all seats whose names begin with `prefix`."""
        return [self._record(row) for row in await self._inner.list(prefix)]

    def _record(self, row: ExecutionRecord) -> ExecutionRecord:
        shown = self._keyring.shown_text
        error = row.error and shown(row.error, places.execution(row.seat, "error"))
        return replace(row, error=error, note=shown(row.note, places.execution(row.seat, "note")))


class EncryptedTicks(EncryptedStore[TickStore]):
    """See `storage.contracts.ticks.TickStore`."""

    passes = frozenset({"claim", "pause", "resume", "purge"})

    async def take(self, takes: Sequence[CronTakeover]) -> Mapping[str, CronBook]:
        """Take over crons. Returns the book of each, by name."""
        books = await self._inner.take(takes)
        return {name: replace(book, open=self._ticks(book.open)) for name, book in books.items()}

    async def note(self, write: TickNote) -> Written:
        """Durable when it returns "written"."""
        place, seal = places.error_of_cron(write.name), self._keyring.seal_text
        errors = None if write.errors is None else tuple(seal(error, place) for error in write.errors)
        note = seal(write.note, places.note_of_tick(write.name))
        return await self._inner.note(replace(write, errors=errors, note=note))

    async def trigger(self, name: str, *, at: datetime | None = None) -> TickRow | None:
        """Trigger a run for an instant (None: now)."""
        return self._maybe(await self._inner.trigger(name, at=at))

    async def get(self, name: str, kind: Kind, at: datetime, seq: int) -> TickRow | None:
        """Return one tick."""
        return self._maybe(await self._inner.get(name, kind, at, seq))

    async def history(self, name: str, *, most: int, before: datetime | None = None) -> Sequence[TickRow]:
        """Return the last ticks, the latest instant first."""
        return self._ticks(await self._inner.history(name, most=most, before=before))

    async def histories(
        self, names: Sequence[str], *, most: int, since: datetime, before: datetime
    ) -> Mapping[str, Sequence[TickRow]]:
        """Return the last ticks of these crons."""
        found = await self._inner.histories(names, most=most, since=since, before=before)
        return {name: self._ticks(rows) for name, rows in found.items()}

    async def list(self) -> Sequence[CronRow]:
        """Return all crons, by name."""
        return [self._cron(row) for row in await self._inner.list()]

    def _cron(self, row: CronRow) -> CronRow:
        error = row.error and self._keyring.shown_text(row.error, places.error_of_cron(row.name))
        return replace(row, error=error, latest=self._maybe(row.latest))

    def _maybe(self, row: TickRow | None) -> TickRow | None:
        return None if row is None else self._tick(row)

    def _ticks(self, rows: Any) -> tuple[TickRow, ...]:
        return tuple(self._tick(row) for row in rows)

    def _tick(self, row: TickRow) -> TickRow:
        shown = self._keyring.shown_text
        errors = tuple(shown(error, places.error_of_cron(row.name)) for error in row.errors)
        return replace(row, errors=errors, note=shown(row.note, places.note_of_tick(row.name)))


class EncryptedActivity(EncryptedStore[Activity]):
    """See `storage.contracts.activity.Activity`. Why an act was refused may quote what users' code said."""

    passes = frozenset({"purge"})

    async def add(self, act: Act) -> None:
        """Durable when it returns."""
        sealed = self._keyring.seal_text(act.result, places.result_of_act(act.act, act.what))
        await self._inner.add(replace(act, result=sealed))

    async def list(self, *, before: int | None = None, most: int = 100) -> Sequence[ActRow]:
        """Return acts, the newest first."""
        return [self._row(row) for row in await self._inner.list(before=before, most=most)]

    def _row(self, row: ActRow) -> ActRow:
        return replace(row, result=self._keyring.shown_text(row.result, places.result_of_act(row.act, row.what)))
