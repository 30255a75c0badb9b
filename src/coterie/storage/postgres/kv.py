"""The key-value store on PostgreSQL: writes go to the group writer, reads to the pool."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

from coterie.storage.interface import Entry, KvPut, KvRemove, KvSwap, require_held
from coterie.storage.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Sequence


CLEAR_STEP = 5000
"""Rows removed by one statement of `clear`: a large prefix must not hold locks for long."""


class PostgresKv(PostgresStore):
    """Keys and values of one cluster on PostgreSQL."""

    async def get(self, key: str) -> Entry | None:
        """Return the entry, or None if it is absent or expired."""
        rows = await self._read("get", key)
        return Entry(*rows[0]) if rows else None

    async def put(self, write: KvPut) -> None:
        """Durable when it returns."""
        require_held(await self._commit(write), write.claim)

    async def swap(self, write: KvSwap) -> bool:
        """Durable when it returns; see `KvSwap`."""
        return cast("bool", require_held(await self._commit(write), write.claim))

    async def remove(self, write: KvRemove) -> bool:
        """Durable when it returns; see `KvRemove`."""
        return cast("bool", require_held(await self._commit(write), write.claim))

    async def count(self, prefix: str) -> int:
        """Count the keys that start with `prefix`."""
        name, bounds = _span("count", prefix, after=None)
        return cast("int", (await self._read(name, *bounds))[0][0])

    async def page(self, prefix: str, *, after: str | None, most: int) -> Sequence[Entry]:
        """Return the next entries whose keys start with `prefix`, in order, after the key `after`."""
        name, bounds = _span("page", prefix, after=after)
        return [Entry(*row) for row in await self._read(name, most, *bounds)]

    async def clear(self, prefix: str) -> int:
        """Remove all keys that start with `prefix`. Returns the number removed, expired ones not counted.

        Not promised:
            Atomicity: it removes in steps, and a key set meanwhile may stay.
        """
        removed: int = 0
        after: str | None = None
        while True:
            name, bounds = _span("clear", prefix, after=after)
            rows = await self._write(name, CLEAR_STEP, *bounds)
            removed += rows[0]["removed"]
            if rows[0]["seen"] < CLEAR_STEP:
                return removed
            after = rows[0]["last"]

    async def purge(self, *, most: int) -> int:
        """Delete up to `most` expired entries for good. Returns the number deleted."""
        return cast("int", (await self._write("purge", most))[0][0])


def _span(name: str, prefix: str, *, after: str | None) -> tuple[str, tuple[str, ...]]:
    """The statement for such a range, with or without an upper bound, and its bounds."""
    low, high = span(prefix, after=after)
    return (f"{name}_from", (low,)) if high is None else (name, (low, high))


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
