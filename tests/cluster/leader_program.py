"""A singleton that counts, and notes each number that was saved: `python leader_program.py` is a runner.

A leadership that was lost is not over here: whoever led goes on past all courtesy, with its old epoch and the version
that the state has now, until it is refused. So it is the fence that is tried.

Variables:
    HOLDER_JOURNAL: The folder of the journals, see `seat_program`.
    LEADING_EVERY_S: The pause between two saves.
    LEADING_BLOCK_S: How long SIGUSR1 blocks the event loop, unless there is a file `unblock` sooner.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coterie import Cluster, CoterieError, Leader
from coterie.kernel.service import Tasks
from coterie.singletons.definition import PREFIX
from coterie.singletons.state import HISTORY
from coterie.storage.interface import StateSave
from tests.cluster.seat_program import Journal, now_ns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NAME = "tally"
KEY = PREFIX + NAME
LATE = "late"
EVERY_S = float(os.environ.get("LEADING_EVERY_S", "0.02"))
BLOCK_S = float(os.environ.get("LEADING_BLOCK_S", "4"))
UNBLOCK = Path("unblock")


@dataclass
class Tally:
    """The state: each save has a number of its own, which follows the last one."""

    number: int = 0


class Counter:
    """Whoever leads in this process, and whoever has led."""

    def __init__(self) -> None:
        self._journal = Journal()
        self._late = Tasks("late")
        self.note("opened")

    async def become(self, leader: Leader[Tally]) -> None:
        """The hook: what was found is noted before anything is written."""
        self._of(leader, "loaded", version=leader.state.number)
        self._of(leader, "granted")

    async def count(self, leader: Leader[Tally]) -> None:
        """The body."""
        while True:
            sent_ns = now_ns()
            async with leader.update() as tally:
                tally.number += 1
            self._of(leader, "written", key=leader._tenure.seat, version=tally.number, sent_ns=sent_ns)
            await asyncio.sleep(EVERY_S)

    async def lose(self, leader: Leader[Tally]) -> None:
        """The hook: a leader that drains may still write, one that was replaced must not."""
        if leader.is_leader:
            self._of(leader, "drained")
        else:
            self._of(leader, "lost")
            self._late.spawn(self._insist(leader), name="insist")

    async def _insist(self, leader: Leader[Tally]) -> None:
        states, claim, told = leader._storage.states, leader._tenure.claim, ""
        while told != "fenced":
            sent_ns = now_ns()
            try:
                row = await states.peek(KEY)
                assert row is not None, "the state is gone"
                told = await states.save(StateSave(claim, KEY, row.value, row.version, None, HISTORY))
            except CoterieError:
                told = "unknown"
            if told == "written":  # the seat was given up here, and is nobody else's yet: or the fence has a hole
                self._of(leader, "written", key=LATE, sent_ns=sent_ns)
            await asyncio.sleep(0.01)
        self._of(leader, "refused")

    def _of(self, leader: Leader[Tally], what: str, **fields: object) -> None:
        claim = leader._tenure.claim
        self.note(what, seat=claim.seat, epoch=claim.epoch, incarnation=claim.runner, **fields)

    def note(self, what: str, **fields: object) -> None:
        """Note something in the journal of this process."""
        self._journal.note(what, pid=os.getpid(), **fields)

    def block(self) -> None:
        """Block the loop."""
        self.note("blocked")
        over_s = time.monotonic() + BLOCK_S
        while time.monotonic() < over_s and not UNBLOCK.exists():
            time.sleep(0.05)

    @asynccontextmanager
    async def announced(self, cluster: Cluster) -> AsyncIterator[None]:
        """Note when this runner takes part."""

        async def announce() -> None:
            await cluster.ready()
            self.note("up")

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.block)
        announcing = Tasks("announce")
        announcing.spawn(announce(), name="announce")
        yield
        await announcing.stop()
        await self._late.stop()


def main() -> None:
    cluster, counter = Cluster(), Counter()
    lead = cluster.singleton(NAME, state=Tally, on_become_leader=counter.become, on_lose_leadership=counter.lose)
    lead(counter.count)
    cluster.setup(lambda: counter.announced(cluster))
    cluster.run()


if __name__ == "__main__":
    main()
