"""The key-value store on PostgreSQL: writes go to the group writer, reads to the pool."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

from coterie.storage.interface import Entry, KvPut, KvRemove, KvSwap, require_held
from coterie.storage.postgres.writer import SQL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.kernel.fork_guard import ProcessOrigin
    from coterie.storage.group_commit import GroupWriter
    from coterie.storage.postgres.pool import Pool

CLEAR_STEP = 5000
"""Rows removed by one statement of `clear`: a large prefix must not hold locks for long."""


class PostgresKv:
    """Keys and values of one cluster on PostgreSQL."""

    def __init__(self, *, cluster: str, pool: Pool, writer: GroupWriter, origin: ProcessOrigin) -> None:
        self._cluster = cluster
        self._pool = pool
        self._writer = writer
        self._origin = origin

    async def get(self, key: str) -> Entry | None:
        """Return the entry, or None if it is absent or expired."""
        self._check()
        rows = await self._pool.read(SQL["get"], self._cluster, key)
        return Entry(*rows[0]) if rows else None

    async def put(self, write: KvPut) -> None:
        """Durable when it returns."""
        self._check()
        require_held(await self._writer.write(write), write.claim)

    async def swap(self, write: KvSwap) -> bool:
        """Durable when it returns; see `KvSwap`."""
        self._check()
        return cast("bool", require_held(await self._writer.write(write), write.claim))

    async def remove(self, write: KvRemove) -> bool:
        """Durable when it returns; see `KvRemove`."""
        self._check()
        return cast("bool", require_held(await self._writer.write(write), write.claim))

    async def count(self, prefix: str) -> int:
        """Count the keys that start with `prefix`."""
        self._check()
        low, high = span(prefix, after=None)
        sql, bounds = (SQL["count_from"], (low,)) if high is None else (SQL["count"], (low, high))
        rows = await self._pool.read(sql, self._cluster, *bounds)
        return cast("int", rows[0][0])

    async def page(self, prefix: str, *, after: str | None, most: int) -> Sequence[Entry]:
        """Return the next entries whose keys start with `prefix`, in order, after the key `after`."""
        self._check()
        low, high = span(prefix, after=after)
        sql, bounds = (SQL["page_from"], (low,)) if high is None else (SQL["page"], (low, high))
        rows = await self._pool.read(sql, self._cluster, most, *bounds)
        return [Entry(*row) for row in rows]

    async def clear(self, prefix: str) -> int:
        """Remove all keys that start with `prefix`. Returns the number removed, expired ones not counted.

        Not promised:
            Atomicity: it removes in steps, and a key set meanwhile may stay.
        """
        self._check()
        removed: int = 0
        after: str | None = None
        while True:
            low, high = span(prefix, after=after)
            sql, bounds = (SQL["clear_from"], (low,)) if high is None else (SQL["clear"], (low, high))
            rows = await self._pool.write(sql, self._cluster, CLEAR_STEP, *bounds)
            removed += rows[0]["removed"]
            if rows[0]["seen"] < CLEAR_STEP:
                return removed
            after = rows[0]["last"]

    async def purge(self, *, most: int) -> int:
        """Delete up to `most` expired entries for good. Returns the number deleted."""
        self._check()
        rows = await self._pool.write(SQL["purge"], self._cluster, most)
        return cast("int", rows[0][0])

    def _check(self) -> None:
        self._origin.require_same()
        self._writer.require_running()


def span(prefix: str, *, after: str | None) -> tuple[str, str | None]:
    """The range of keys that start with `prefix` and come after `after`: from the first, up to but without the second.

    Keys are ordered by code points. None as the second means no upper bound.
    """
    if after is not None and after >= prefix:
        return f"{after}\x01", _past(prefix)  # PostgreSQL has no U+0000 in texts, so this is the next key
    return prefix, _past(prefix)


def _past(prefix: str) -> str | None:
    """The smallest string after all that start with `prefix`."""
    stem = prefix.rstrip(chr(sys.maxunicode))
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    if 0xD800 <= following <= 0xDFFF:  # surrogates are not characters
        following = 0xE000
    return stem[:-1] + chr(following)
