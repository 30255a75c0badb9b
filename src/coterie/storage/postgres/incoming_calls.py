"""Incoming work on PostgreSQL: what SQL has written, read and moved in batches."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from coterie.errors import LeadershipLost
from coterie.kernel.text import storable
from coterie.storage import statements
from coterie.storage.contracts.incoming_calls import COUNTED_MOST, Found, IncomingRow, Move, WaitingIncoming
from coterie.storage.postgres.batch.sends import message_columns
from coterie.storage.postgres.store import PostgresStore
from coterie.storage.unreadable_rows import readable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import asyncpg

    from coterie.storage.contracts.incoming_calls import MovedCall, MovedStart, Source
    from coterie.storage.interface import Claim

_START = ("unit", "name", "id", "seat", "payload", "digest", "version", "life")


class PostgresIncoming(PostgresStore):
    """See `storage.contracts.incoming_calls.IncomingStore`."""

    _sql = statements.load("coterie.storage.postgres.sql", "incoming.sql")

    async def take(
        self, after: Mapping[Source, str], *, without: Collection[str] = (), most: int, most_bytes: int
    ) -> Sequence[IncomingRow]:
        """Return rows that wait, by id."""
        sources = [kind for kind, _ in after], [name for _, name in after]
        rows = await self._read("take_incoming", *sources, list(after.values()), list(without), most, most_bytes)
        return readable(rows, lambda row: IncomingRow(**row), table="incoming", key=itemgetter("id"))

    async def move(self, claim: Claim, calls: Sequence[MovedCall]) -> Mapping[str, Move]:
        """Make messages of rows, under the fence."""
        columns = message_columns([each.message for each in calls])
        errors = [None if each.error is None else storable(each.error) for each in calls]
        return await self._moved("move_incoming", claim, *columns, errors, [each.known for each in calls])

    async def start(self, claim: Claim, starts: Sequence[MovedStart]) -> Mapping[str, Move]:
        """Make runs of rows, under the fence."""
        columns = [[getattr(each.start, name) for each in starts] for name in _START]
        known = [each.known for each in starts]
        return await self._moved("start_incoming", claim, [each.id for each in starts], *columns, known)

    async def _moved(self, name: str, claim: Claim, *columns: list[Any]) -> Mapping[str, Move]:
        rows: Sequence[asyncpg.Record] = await self._write(name, claim.runner, claim.seat, claim.epoch, *columns)
        if any(not row["held"] for row in rows):
            raise LeadershipLost(seat=claim.seat, epoch=claim.epoch)
        return {row["id"]: Move(row["told"], row["other"], row["digest"] or b"") for row in rows}

    async def find(self, id: str) -> Found | None:
        """Return the row of an id, or None."""
        rows = await self._read("find_incoming", id)
        return Found(*rows[0]) if rows else None

    async def cancel(self, id: str) -> bool:
        """Delete a row that waits."""
        return bool(await self._write("cancel_incoming", id))

    async def backlog(self, *, most: int) -> Sequence[WaitingIncoming]:
        """Return the longest waiting row of each source."""
        return [WaitingIncoming(*row) for row in await self._read("incoming_backlog", most, COUNTED_MOST)]

    async def purge(self, *, older_s: float, most: int) -> int:
        """Delete some old rows that are the same as a message. Returns the number."""
        return cast("int", (await self._write("purge_incoming", older_s, most))[0][0])
