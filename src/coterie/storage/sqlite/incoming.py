"""Incoming work in a SQLite file: none, since coterie alone writes the file [C2]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.storage.contracts.incoming import Move

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from coterie.storage.contracts.incoming import IncomingRow, MovedCall, MovedStart, Source, WaitingIncoming
    from coterie.storage.interface import Claim


class SqliteIncoming:
    """See `storage.contracts.incoming.IncomingStore`. There are no rows."""

    async def take(
        self, after: Mapping[Source, str], *, without: Collection[str] = (), most: int, most_bytes: int
    ) -> Sequence[IncomingRow]:
        """Nothing waits."""
        del after, without, most, most_bytes
        return ()

    async def move(self, claim: Claim, calls: Sequence[MovedCall]) -> Mapping[str, Move]:
        """Each row is gone."""
        del claim
        return {each.message.id: Move("left") for each in calls}

    async def start(self, claim: Claim, starts: Sequence[MovedStart]) -> Mapping[str, Move]:
        """Each row is gone."""
        del claim
        return {each.id: Move("left") for each in starts}

    async def find(self, id: str) -> None:
        """There is no such row."""
        del id

    async def cancel(self, id: str) -> bool:
        """There is no such row."""
        del id
        return False

    async def backlog(self, *, most: int) -> Sequence[WaitingIncoming]:
        """Nothing waits."""
        del most
        return ()

    async def purge(self, *, older_s: float, most: int) -> int:
        """Nothing is there."""
        del older_s, most
        return 0
