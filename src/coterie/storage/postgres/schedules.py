"""Schedules and timers on PostgreSQL. Handlers set timers through the group writer; the rest goes to the pool."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from coterie.storage import statements
from coterie.storage.contracts.schedules import DueSchedules, ScheduleRow, end_of
from coterie.storage.postgres.batch.sends import job_columns, message_columns
from coterie.storage.postgres.store import PostgresStore
from coterie.storage.unreadable_rows import readable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import asyncpg

    from coterie.storage.contracts.schedules import Fire, Fired, ScheduleMark

_FIRE = ("due_at", "next_at", "last_at", "last_id", "outcomes", "is_over", "asks")
WRITTEN = (
    "seat", "life", "definition", "target", "entity_type", "entity_id", "method", "payload", "since_at", "next_at",
    "last_at", "last_id", "paused_at", "outcomes",
)  # fmt: skip
_READ = (
    "key", "seat", "life", "definition", "target", "entity_type", "entity_id", "method", "payload", "since_at",
    "next_at", "stamp", "last_at", "last_id", "paused_at", "outcomes",
)  # fmt: skip


class PostgresSchedules(PostgresStore):
    """See `storage.contracts.schedules.ScheduleStore`."""

    _sql = statements.load("coterie.storage.postgres.sql", "schedules.sql")

    async def due(self, seats: Sequence[str], *, without: Collection[str] = (), most: int) -> DueSchedules:
        """Return the rows of these seats that are due."""
        rows = await self._read("due_schedules", list(seats), list(without), most)
        # There is one row for each seat at least, as asked for one seat at least.
        found = [row for row in rows if row["key"] is not None]
        read = _readable(found)
        known = {row.key for row in read}
        unreadable = tuple(row["key"] for row in found if row["key"] not in known)
        later = {row["of_seat"]: row["later_at"] for row in rows if row["later_at"] is not None}
        return DueSchedules(rows[0]["now"], tuple(read), later, unreadable)

    async def fire(self, fires: Sequence[Fire]) -> Sequence[Fired]:
        """Fire rows under the fence."""
        claims = [each.claim for each in fires]
        (runner,) = {claim.runner for claim in claims}
        columns: list[list[Any]] = [
            [claim.seat for claim in claims],
            [claim.epoch for claim in claims],
            [each.key for each in fires],
            [each.mark[0] for each in fires],
            [each.mark[1] for each in fires],
            *([getattr(each, name) for each in fires] for name in _FIRE),
        ]
        sends = [(number, message) for number, each in enumerate(fires, 1) for message in each.sends]
        columns += [[number for number, _ in sends], *message_columns([message for _, message in sends])]
        jobs = [(number, job) for number, each in enumerate(fires, 1) for job in each.jobs]
        columns += [[number for number, _ in jobs], *job_columns([job for _, job in jobs])]
        told: dict[int, Fired] = dict(cast("Any", await self._write("fire_schedules", runner, *columns)))
        return [told[number] for number in range(1, len(fires) + 1)]

    async def get(self, key: str) -> ScheduleRow | None:
        """Return one row, or None."""
        rows = await self._read("get_schedule", key)
        return _row(rows[0]) if rows else None

    async def list(self, prefix: str, *, after: str = "", most: int) -> Sequence[ScheduleRow]:
        """Return the rows whose keys begin so."""
        return _readable(await self._read("list_schedules", prefix, end_of(prefix), after, most))

    async def swap(self, row: ScheduleRow, was: ScheduleMark | None) -> bool:
        """Write a row in place of the one that was read."""
        values = [getattr(row, name) for name in WRITTEN]
        if was is None:
            return bool(await self._write("add_schedule", row.key, *values))
        return bool(await self._write("swap_schedule", row.key, *values, *was))

    async def pause(self, key: str) -> bool | None:
        """Pause a row. Returns False if it is paused already, None if there is none."""
        (row,) = await self._write("pause_schedule", key)
        return cast("bool", row["changed"]) if row["there"] else None

    async def remove(self, key: str) -> ScheduleRow | None:
        """Delete a row. Returns it, or None."""
        rows = await self._write("remove_schedule", key)
        return _row(rows[0]) if rows else None

    async def purge(self, *, older_s: float, most: int) -> int:
        """Delete rows that have been over for so long. Returns the number."""
        return cast("int", (await self._write("purge_schedules", older_s, most))[0][0])


def _readable(rows: Sequence[asyncpg.Record]) -> list[ScheduleRow]:
    return readable(rows, _row, table="schedules", key=itemgetter("key"))


def _row(row: asyncpg.Record) -> ScheduleRow:
    return ScheduleRow(**{name: row[name] for name in _READ}, is_busy=row.get("is_busy", False))
