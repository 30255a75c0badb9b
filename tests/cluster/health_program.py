"""A singleton that makes progress until it is told to hang, in a process that writes down how it sees the cluster.

Variables:
    WATCHED_FOLDER: Where each process leaves what it last saw, by its name; a file `hang` there makes the body hang.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie import Cluster, CoterieError, Leader
from coterie.kernel.service import Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NAME = "watched"
INTERVAL_S = 2.0
FOLDER = Path(os.environ.get("WATCHED_FOLDER", "."))
LOOK_S = 0.1


async def body(leader: Leader[None]) -> None:
    """Progress, until told otherwise; the loop turns all the same."""
    while not (FOLDER / "hang").exists():
        leader.heartbeat()
        await asyncio.sleep(LOOK_S)
    await asyncio.Event().wait()


async def watch(cluster: Cluster) -> None:
    """Write down what is seen from here, again and again."""
    await cluster.ready()
    runner = cluster._acting()
    path = FOLDER / f"{cluster.settings.runner_name}.json"
    while True:
        seen: dict[str, object] = {"pid": os.getpid()}
        try:
            health = await cluster.health()
            seen |= {"status": health.status, "whats": [reason.what for reason in health.reasons]}
        except CoterieError as error:
            seen["error"] = error.code
        seen["unready"] = [reason.what for reason in await runner.collector.readiness()]
        path.with_suffix(".new").write_text(json.dumps(seen))
        path.with_suffix(".new").replace(path)
        await asyncio.sleep(LOOK_S)


def main() -> None:
    cluster = Cluster()
    cluster.singleton(NAME, expected_interval=INTERVAL_S)(body)

    @cluster.setup
    @asynccontextmanager
    async def watching() -> AsyncIterator[None]:
        tasks = Tasks("watching")
        tasks.spawn(watch(cluster), name="watch")
        yield
        await tasks.stop()

    cluster.run()


if __name__ == "__main__":
    main()
