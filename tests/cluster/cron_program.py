"""Bells that ring by the clock, and note each time they do: `python cron_program.py` is a runner that may ring them.

Variables:
    HOLDER_JOURNAL: The folder of the journals, see `seat_program`.
    BELL_CATCH_UP: Which bells there are: one that catches up this way for each word.
    BELL_COUNT: How many of each.
    BELL_SCHEDULE: When they ring.
    BELL_TAKES_S: How long a ring takes.
    BELL_DIE: The moment at which to die by SIGKILL: "in body 3", or "during claim 2", see `kill_points`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal, cast

from coterie import Cluster, Tick
from coterie.kernel.service import Tasks
from tests.cluster import kill_points
from tests.cluster.seat_program import Journal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CATCH_UP = os.environ.get("BELL_CATCH_UP", "all").split()
COUNT = int(os.environ.get("BELL_COUNT", "1"))
SCHEDULE = os.environ.get("BELL_SCHEDULE", "* * * * * *")
TAKES_S = float(os.environ.get("BELL_TAKES_S", "0"))
DIE = os.environ.get("BELL_DIE", "")


class CronBodies:
    """Whoever rings in this process."""

    def __init__(self) -> None:
        self._journal = Journal()
        self._numbers = itertools.count(1)
        self._last = int(DIE.split()[2]) if DIE.startswith("in body") else 0

    async def ring(self, tick: Tick) -> None:
        """The body. What is noted as "rang" has begun, what is noted as "silent" has come to its end."""
        facts = {
            "key": tick.name,
            "epoch": tick.epoch,
            "tick_s": tick.scheduled_at.timestamp(),
            "attempt": tick.attempt,
        }
        self._note("rang", began_s=time.time(), **facts)
        if next(self._numbers) == self._last:
            kill_points.die()
        await asyncio.sleep(TAKES_S)
        self._note("silent", **facts)

    def _note(self, what: str, **fields: object) -> None:
        self._journal.note(what, pid=os.getpid(), **fields)

    @asynccontextmanager
    async def announced(self, cluster: Cluster) -> AsyncIterator[None]:
        """Note when this runner takes part; one that is to die may not come so far."""

        async def announce() -> None:
            if not DIE:
                await cluster.ready()
            self._note("up")

        announcing = Tasks("announce")
        announcing.spawn(announce(), name="announce")
        yield
        await announcing.stop()


def names(catch_up: str, count: int) -> list[str]:
    """What the bells are called that catch up in one way."""
    return [f"{catch_up}-{number}" for number in range(count)]


def main() -> None:
    if DIE and not DIE.startswith("in body"):
        kill_points.install(DIE)
    cluster, ringer = Cluster(), CronBodies()
    for way in CATCH_UP:
        for name in names(way, COUNT):
            define = cluster.cron(name, SCHEDULE, catch_up=cast("Literal['latest', 'all', 'none']", way))
            define(ringer.ring)
    cluster.setup(lambda: ringer.announced(cluster))
    cluster.run()


if __name__ == "__main__":
    main()
