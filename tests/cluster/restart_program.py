"""A runner that notes when it is registered, when it is ready, and when an entity on each shard has answered it.

Variables:
    HOLDER_JOURNAL: The folder of the journals.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

from coterie import Cluster, CoterieError, Entity, rpc
from coterie.kernel.clock import SystemClock
from coterie.kernel.ids import Seat, ShardId, shard_number

now_ns = SystemClock().steady_ns


class Echo(Entity):
    """Answers."""

    @rpc
    async def say(self, word: str) -> str:
        """What was said."""
        return word


def one_on_each(shards: int) -> list[str]:
    """The ids of entities, one on each shard."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < shards:
        found.setdefault(shard_number("Echo", str(number), shards), str(number))
        number += 1
    return list(found.values())


def note(what: str, **fields: object) -> None:
    """Write a line to the journal of this process."""
    path = Path(os.environ["HOLDER_JOURNAL"]) / f"{os.environ['COTERIE_RUNNER_NAME']}.{os.getpid()}.jsonl"
    with path.open("a") as journal:
        journal.write(json.dumps({"what": what, "at_ns": now_ns(), **fields}) + "\n")


async def main() -> None:
    """Run until killed."""
    cluster = Cluster()
    cluster.entity(Echo)

    async def insist(id: str) -> None:
        while True:
            try:
                assert await cluster.ref(Echo, id).say(id) == id
            except CoterieError:
                await asyncio.sleep(0.01)
            else:
                return

    async with cluster:
        runner = cluster._acting()
        note("up", incarnation=runner.incarnation)
        await cluster.ready()
        seats = [Seat.shard(ShardId("default", number)) for number in range(cluster.settings.shards)]
        holders = [runner.directory.holder(seat) for seat in seats]
        note("ready", holders=sorted({"" if holder is None else holder.id for holder in holders}))
        await asyncio.gather(*map(insist, one_on_each(cluster.settings.shards)))
        note("answered", cpu_s=time.process_time())
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
