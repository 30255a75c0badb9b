"""Messages on PostgreSQL: inserts, ends and setbacks go to the group writer, the rest to the pool."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import msgspec

from coterie.storage.contracts.messages import (
    STATUSES,
    Attempt,
    Backlog,
    Delivery,
    Due,
    LateReply,
    Loss,
    MessageRow,
    PendingMessages,
    Suspected,
)
from coterie.storage.group_commit import MessageWriter
from coterie.storage.postgres.batch.messages import receipt
from coterie.storage.postgres.store import PostgresStore
from coterie.storage.unreadable_rows import readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import asyncpg

    from coterie.storage.contracts.messages import (
        Mark,
        MessageFilter,
        Receipt,
        Status,
        Suspicion,
    )
    from coterie.storage.interface import Claim

_errors = msgspec.json.Decoder(tuple[Attempt, ...]).decode
_tags = msgspec.json.Decoder(dict[str, str]).decode


_PAST_ALL = "\U0010ffff"
"""Sorts after every id."""


class PostgresMessages(PostgresStore, MessageWriter):
    """The messages of one cluster. See `storage.contracts.messages.MessageStore`."""

    async def due(self, after: Mapping[str, Mark | None], *, ahead_s: float = 0.0, most: int) -> Due:
        """Of each of these seats the first `most` pending messages after a mark that are due within `ahead_s`."""
        seats = sorted(after)
        marks = [after[seat] or (None, None) for seat in seats]
        rows = await self._read("due", seats, [mark[0] for mark in marks], [mark[1] for mark in marks], ahead_s, most)
        # There is always one row, which carries the clock and what is paused.
        now, types, groups = rows[0][:3]
        found = tuple(PendingMessages(*row[3:]) for row in rows if row[3] is not None)
        return Due(now, found, tuple(types), tuple(groups))

    async def backlog(self, *, most: int, dead_most: int) -> Backlog:
        """Return the longest due message of each seat, and the number of dead messages."""
        rows = await self._read("backlog", most, dead_most)
        # There is always one row, as in `due`.
        return Backlog(rows[0][0], tuple(LateReply(*row[2:]) for row in rows if row[2] is not None), rows[0][1])

    async def fetch(self, ids: Sequence[str]) -> Sequence[Delivery]:
        """Return those of these messages that are pending, in no order."""
        return [Delivery(*row) for row in await self._read("fetch", ids)]

    async def suspect(self, claim: Claim, concurrency: Mapping[str, int], *, loss_limit: int) -> Suspected:
        """Examine what may have been running when the previous holder was lost [C5]."""
        types = (list(concurrency), list(concurrency.values()))
        # Idempotent, so it is repeated like a read when the answer was lost.
        rows = await self._read("suspect", claim.runner, claim.seat, claim.epoch, *types, loss_limit)
        # There is always one row, as in `due`.
        return Suspected(rows[0][0], tuple(Loss(*row[1:]) for row in rows if row[1] is not None))

    async def mark(self, claim: Claim, id: str, suspicion: Suspicion) -> bool:
        """Record how a suspect will run, before it runs."""
        return bool(await self._read("mark_suspect", claim.runner, claim.seat, claim.epoch, id, int(suspicion)))

    async def look(self, ids: Sequence[str]) -> Sequence[MessageRow]:
        """Return these messages."""
        return _rows(await self._read("look", ids))

    async def find(self, entity_type: str, entity_id: str, method: str, key: str) -> Receipt | None:
        """Return the message that has a key, or None."""
        rows = await self._read("find", entity_type, entity_id, method, key)
        return receipt(rows[0]) if rows else None

    async def cancel(self, id: str, claim: Claim | None, *, reply: bytes) -> bool:
        """End a pending message; with a claim only under the fence, else only if its seat is free."""
        if claim is None:
            return bool(await self._write("cancel", id, reply))
        return bool(await self._write("cancel_fenced", claim.runner, claim.seat, claim.epoch, id, reply))

    async def list(
        self, chosen: MessageFilter, *, after: str | None = None, most: int = 100, newest: bool = False
    ) -> Sequence[MessageRow]:
        """Return messages in order of their ids, or from the newest one back, after the id `after`."""
        given = after or (_PAST_ALL if newest else ""), most, *_asked(chosen)
        if chosen.tag is not None:
            return _rows(await self._read("list_tagged_newest" if newest else "list_tagged", *given, *chosen.tag))
        if chosen.status == "dead":
            return _rows(await self._read("list_dead", *given, newest))
        back = "list_newest_pending" if chosen.status == "pending" else "list_newest"
        return _rows(await self._read(back if newest else "list", *given))

    async def revive(self, *, id: str | None = None, entity_type: str = "", entity_id: str = "") -> int:
        """Make a dead message, or all dead ones of an entity, pending again."""
        if id is not None:
            return len(await self._write("revive", id))
        return cast("int", (await self._write("revive_all", entity_type, entity_id))[0][0])

    async def remove(self, chosen: MessageFilter, *, most: int) -> int:
        """Delete up to `most` messages that are done or dead."""
        name = "remove_dead" if chosen.status == "dead" else "remove_messages"
        return cast("int", (await self._write(name, most, *_asked(chosen)))[0][0])

    async def count(self, chosen: MessageFilter, *, most: int) -> int:
        """Count the messages, up to `most`."""
        name = "count_dead" if chosen.status == "dead" else "count_messages"
        return cast("int", (await self._read(name, most, *_asked(chosen)))[0][0])

    async def discard(self, ids: Sequence[str], status: Status) -> int:
        """Delete those of these messages that have this final status."""
        return len(await self._write("discard_messages", list(ids), STATUSES.index(status)))

    async def purge(self, *, after: str, retention_s: float, key_retention_s: float, most: int) -> tuple[int, str]:
        """Delete messages done longer ago than that, among the next `most` ids after `after` [m17]."""
        (row,) = await self._write("purge_messages", after, most, retention_s, key_retention_s)
        return row["gone"], row["last"] if row["seen"] == most and not row["young"] else ""


def _rows(rows: Sequence[asyncpg.Record]) -> list[MessageRow]:
    return readable(rows, _row, table="messages", key=itemgetter("id"))


def _row(row: asyncpg.Record) -> MessageRow:
    fields = {**row, "status": STATUSES[row["status"]], "errors": _errors(row["errors"])}
    return MessageRow(**{**fields, "tags": _tags(row["tags"] or "{}")})


def _asked(chosen: MessageFilter) -> tuple[Any, ...]:
    """The values of what is asked for, but for a tag."""
    status = None if chosen.status is None else STATUSES.index(chosen.status)
    return status, chosen.entity_type, chosen.entity_id, chosen.method, chosen.older_than_s
