"""Crons and their ticks on PostgreSQL: claims and notes go to the group writer, the rest to the pool."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import msgspec

from coterie.kernel.ids import Seat
from coterie.storage.contracts.ticks import CronBook, CronRow, PauseRow, TickRow
from coterie.storage.postgres.batch.single import LONGEST_S
from coterie.storage.postgres.store import PostgresStore
from coterie.storage.unreadable_rows import readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    import asyncpg

    from coterie.storage.contracts.ticks import ClaimResult, CronTakeover, Kind, TickClaim, TickNote
    from coterie.storage.interface import Written

_errors = msgspec.json.Decoder(tuple[str, ...]).decode

_CRON = ("definition", "effective_from", "last", "runs", "ran_at", "error", "error_at", "failures", "failed_at")


class PostgresTicks(PostgresStore):
    """The crons of one cluster. See `storage.contracts.ticks.TickStore`."""

    async def take(self, takes: Sequence[CronTakeover]) -> Mapping[str, CronBook]:
        """Take over crons. Returns the book of each, by name; a cron whose seat is not held is left out."""
        books: dict[str, CronBook] = {}
        for runner in dict.fromkeys(take.claim.runner for take in takes):
            books |= await self._take(runner, {take.name: take for take in takes if take.claim.runner == runner})
        return books

    async def _take(self, runner: str, takes: Mapping[str, CronTakeover]) -> dict[str, CronBook]:
        """Read, and write only if there is something new: most polls find nothing.

        The read needs no fence: all writes of former holders were committed before the seat was granted. A tick
        triggered between the write and the second read is not in the book, and found by the next poll.
        """
        books, fresh = await self._look(runner, list(takes.values()))
        if fresh:
            news = [takes[name] for name in fresh]
            # Idempotent, so it is repeated like a read after a lost answer.
            await self._read("take_crons", runner, *_columns(news))
            for name in fresh:
                del books[name]
            books |= (await self._look(runner, news))[0]
        return books

    async def _look(self, runner: str, takes: Sequence[CronTakeover]) -> tuple[dict[str, CronBook], list[str]]:
        """Return the books of the crons that are held, and the names of those that need a write."""
        rows = await self._read("look_at_crons", runner, *_columns(takes))
        found = {name: list(of_one) for name, of_one in groupby(rows, key=lambda row: cast("str", row["cron"]))}
        fresh = [name for name, of_one in found.items() if any(row["fresh"] for row in of_one)]
        return {name: _book(of_one) for name, of_one in found.items()}, fresh

    async def claim(self, write: TickClaim) -> ClaimResult:
        """Durable when it returns "written"."""
        assert write.verdicts, "a claim is about one tick at least"
        return cast("ClaimResult", await self._commit(write))

    async def note(self, write: TickNote) -> Written:
        """Durable when it returns "written"."""
        return cast("Written", await self._commit(write))

    async def trigger(self, name: str, *, at: datetime | None = None) -> TickRow | None:
        """Trigger a run for an instant (None: now). Returns None if there is no such cron."""
        rows = await self._write("trigger_tick", Seat.cron(name), name, at)
        return _tick(rows[0]) if rows else None

    async def pause(self, name: str) -> bool | None:
        """Let no tick begin from now on. Returns False if it was paused already, None if there is no such cron."""
        rows = await self._write("pause_cron", Seat.cron(name), name)
        return cast("bool", rows[0]["told"]) if rows else None

    async def resume(self, name: str) -> bool | None:
        """End the pause. Returns False if it was not paused, None if there is no such cron."""
        rows = await self._write("resume_cron", Seat.cron(name), name)
        return cast("bool", rows[0]["told"]) if rows else None

    async def get(self, name: str, kind: Kind, at: datetime, seq: int) -> TickRow | None:
        """Return one tick."""
        rows = await self._read("get_tick", name, kind, at, seq)
        return _tick(rows[0]) if rows else None

    async def history(self, name: str, *, most: int, before: datetime | None = None) -> Sequence[TickRow]:
        """Return the last ticks, also those that have not ended, the latest instant first."""
        return _ticks(await self._read("tick_history", name, most, before))

    async def histories(
        self, names: Sequence[str], *, most: int, since: datetime, before: datetime
    ) -> Mapping[str, Sequence[TickRow]]:
        """Return the last ticks of these crons since an instant, the latest first."""
        rows = _ticks(await self._read("tick_histories", list(names), most, before, since))
        rows.sort(key=lambda row: row.kind)  # stable: those of a kind stay in order
        rows.sort(key=lambda row: row.at, reverse=True)
        rows.sort(key=lambda row: row.name)
        return {name: list(some)[:most] for name, some in groupby(rows, key=lambda row: row.name)}

    async def list(self) -> Sequence[CronRow]:
        """Return all crons that the cluster knows, by name."""
        return readable(await self._read("list_crons"), _cron, table="crons", key=itemgetter("cron"))

    async def purge(self, *, older_s: float, most: int) -> int:
        """Delete up to `most` ticks that ended longer ago than that, and such pauses. Returns the number of ticks."""
        return cast("int", (await self._write("purge_ticks", min(older_s, LONGEST_S), most))[0][0])


def _columns(takes: Sequence[CronTakeover]) -> list[list[Any]]:
    return [
        [take.claim.seat for take in takes],
        [take.claim.epoch for take in takes],
        [take.name for take in takes],
        [take.definition for take in takes],
    ]


def _book(rows: Sequence[asyncpg.Record]) -> CronBook:
    row = rows[0]
    pauses = [PauseRow(*pause) for pause in zip(row["since"] or (), row["until"] or (), strict=True)]
    if row["paused_at"] is not None:
        pauses.append(PauseRow(row["paused_at"], None))
    return CronBook(
        fingerprint=row["fingerprint"],
        effective_from=row["effective_from"],
        last=row["last_at"],
        failures=row["failures"] or 0,
        failed_at=row["failed_at"],
        pauses=tuple(pauses),
        open=tuple(_ticks([each for each in rows if each["epoch"] == each["mine"]])),
        now=row["now"],
    )


def _cron(row: asyncpg.Record) -> CronRow:
    return CronRow(
        name=row["cron"],
        paused_at=row["paused_at"],
        open=row["open"],
        beat_at=row["beat_at"],
        latest=next(iter(_ticks([] if row["name"] is None else [row])), None),
        now=row["now"],
        **{name: row[name] for name in _CRON},
    )


def _ticks(rows: Sequence[asyncpg.Record]) -> list[TickRow]:
    return readable(rows, _tick, table="ticks", key=lambda row: f"{row['name']} {row['kind']} {row['at']} {row['seq']}")


def _tick(row: asyncpg.Record) -> TickRow:
    same = {name: row[name] for name in TickRow.__struct_fields__ if name not in ("until", "errors")}
    return TickRow(until=row["until_at"], errors=_errors(row["errors"]), **same)
