"""Deleting messages that have ended, a batch at a time: interrupted, it leaves all others as they were."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from coterie.cli.mailing import walk
from coterie.cli.progress import Progress
from coterie.cli.showing import lasting

if TYPE_CHECKING:
    from typing import Literal

    from coterie.cli.asking import Asking
    from coterie.cli.filters import Filter

BATCH = 1_000
"""As many as `cluster.messages.purge` deletes at once."""
_COUNTED_MOST = 100_000
"""Beyond it nobody waits for a number."""


class Purge:
    """One purge.

    Args:
        asking: The command.
        chosen: Which messages; they are done or dead.
    """

    def __init__(self, asking: Asking, chosen: Filter) -> None:
        assert chosen.state in ("done", "dead"), "nothing else has ended"
        self._asking = asking
        self._chosen = chosen
        self._status: Literal["done", "dead"] = chosen.state
        self._ids: list[str] = []
        self._found = 0

    async def count(self) -> int:
        """How many there are, counted up to a bound."""
        if self._chosen.is_coarse:
            self._found = await self._asking.here.storage.messages.count(self._chosen.stored(), most=_COUNTED_MOST)
        else:
            self._ids = await self._matching()
            self._found = len(self._ids)
        return self._found

    @property
    def counted(self) -> str:
        """The same in words."""
        if self._found >= _COUNTED_MOST:
            return f"{self._found:,} messages or more match"
        return "1 message matches" if self._found == 1 else f"{self._found:,} messages match"

    async def run(self) -> tuple[int, str]:
        """Delete them; how many it were, and how long it took."""
        what = f"purging {self._status} messages"
        if self._chosen.older is not None:
            what += f" older than {self._chosen.older}"
        total = self._found if self._found < _COUNTED_MOST else None
        note = f"in batches of {BATCH:,}"
        with Progress(what, total=total, about=True, note=note, json=self._asking.as_json) as progress:
            try:
                gone = await (self._coarsely(progress) if self._chosen.is_coarse else self._one_by_one(progress))
            except asyncio.CancelledError:
                rest = f'coterie messages purge --filter "{self._chosen}"'
                progress.end(f"interrupted: at least {progress.done:,} messages are deleted; the others: {rest}")
                raise
        return gone, lasting(progress.took_s)

    async def _coarsely(self, progress: Progress) -> int:
        return await self._asking.cluster.messages.purge(
            status=self._status, entity=self._chosen.entity, older_than=self._chosen.older, progress=progress.at
        )

    async def _one_by_one(self, progress: Progress) -> int:
        gone = 0
        for begin in range(0, len(self._ids), BATCH):
            batch = self._ids[begin : begin + BATCH]
            gone += await self._asking.here.storage.messages.discard(batch, self._status)
            progress.at(gone)
        return gone

    async def _matching(self) -> list[str]:
        """The ids of those that storage cannot choose by itself."""
        now = await self._asking.here.storage.now()
        found: list[str] = []
        async for each in walk(self._asking, self._chosen, self._status):
            if self._chosen.takes(each, now=now, running=()):
                found.append(str(each.id))
                if len(found) == _COUNTED_MOST:
                    break
        return found
