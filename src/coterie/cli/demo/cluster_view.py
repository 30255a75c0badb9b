"""What the demo sees of its cluster, as any client would: the leader and its progress, the holders of shards."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from coterie.cli.demo.program import Progress
from coterie.errors import PersistenceError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from coterie.cluster import Cluster
    from coterie.kernel.ids import ShardId

T = TypeVar("T")

IMPORTER = "importer"
_LOOK_S = 0.02


class Lead(NamedTuple):
    """The leader of the importer, and where it resumed."""

    runner: str
    epoch: int
    after: int
    """The last row of the previous leader."""


class DemoView:
    """Reads a cluster through a client.

    Args:
        cluster: The client.
        patience_s: How long to wait for what is promised within ten seconds, on however busy a machine.
    """

    def __init__(self, cluster: Cluster, *, patience_s: float = 120.0) -> None:
        self._cluster = cluster
        self._patience_s = patience_s

    async def rows(self) -> int:
        """The number of rows that the importer has imported."""
        state = await self._cluster.singletons.state(IMPORTER, Progress)
        return 0 if state is None else state.last_id

    async def lead(self, *, after_epoch: int = 0) -> Lead:
        """Wait until a runner leads the importer at a later epoch, and has saved something; returns the leader."""

        async def read() -> Lead | None:
            found = {each.name: each for each in await self._cluster.singletons.list()}.get(IMPORTER)
            if found is None or found.leader is None or found.epoch <= after_epoch:
                return None
            saved = await self._cluster.singletons.history(IMPORTER)
            if not any(each.epoch == found.epoch for each in saved):
                return None
            before = [each.value["last_id"] for each in saved if each.epoch < found.epoch and not each.set_aside]
            return Lead(found.leader, found.epoch, max(before, default=0))

        return await self._until(read, "a runner leads the importer")

    async def shards(self) -> Mapping[ShardId, str | None]:
        """The holder of each shard."""
        return await self._cluster.shards()

    async def settled(self, names: Collection[str]) -> Mapping[ShardId, str | None]:
        """Wait until exactly these runners hold all shards in even shares; returns the holders."""

        async def read() -> Mapping[ShardId, str | None] | None:
            held = await self._cluster.shards()
            share = Counter(held.values())
            even = held and share.keys() == set(names) and max(share.values()) - min(share.values()) <= 1
            return held if even else None

        return await self._until(read, f"{', '.join(sorted(names))} share all shards")

    async def _until(self, read: Callable[[], Awaitable[T | None]], what: str) -> T:
        try:
            async with asyncio.timeout(self._patience_s):
                while True:
                    try:
                        found = await read()
                    except PersistenceError:  # a runner that froze inside a commit locks the file for a while
                        found = None
                    if found is not None:
                        return found
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise DemoFailed(f"after {self._patience_s:.0f}s it is still not so that {what}") from None


class DemoFailed(Exception):
    """The demo cannot continue: something that is promised did not happen."""


def moved(before: Mapping[ShardId, str | None], after: Mapping[ShardId, str | None]) -> tuple[int, list[str]]:
    """The number of shards with other holders now, and these holders."""
    to = [str(holder) for shard, holder in after.items() if before.get(shard) != holder]
    return len(to), sorted(set(to))
