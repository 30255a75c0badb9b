"""A runner that takes in what SQL has sent: `python sql_program.py`. It may die there.

An entity keeps the numbers of all calls that it has seen, in its state: what was done twice is there twice.

Variables:
    HOLDER_JOURNAL: The folder of the journals, see `seat_program`.
    SQL_DIE: The moment at which to die by SIGKILL, see `kill_points`.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from coterie import Cluster, Entity, Workflow, rpc
from coterie.kernel.service import Tasks
from tests.cluster import kill_points
from tests.cluster.seat_program import Journal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SHARDS = 4


@dataclass
class Seen:
    """The numbers of the calls."""

    numbers: list[int] = field(default_factory=list)


class Ledger(Entity[Seen]):
    """What is sent to."""

    @rpc(persisted=True)
    async def add(self, number: int) -> int:
        """Keep it."""
        self.state.numbers.append(number)
        return number

    @rpc
    async def numbers(self) -> list[int]:
        """All that were kept, in order."""
        return self.state.numbers


async def follow(workflow: Workflow, number: int) -> int:
    """One step."""
    return await workflow.step("give back", give, number)


async def give(number: int) -> int:
    """Note that it ran."""
    journal().note("ran", key=str(number))
    return number


def program(cluster: Cluster) -> Cluster:
    """Define what SQL can send to."""
    cluster.entity(Ledger)
    cluster.workflow(follow)
    return cluster


@cache
def journal() -> Journal:
    """Of this process."""
    return Journal()


@asynccontextmanager
async def noted(cluster: Cluster) -> AsyncIterator[None]:
    """Note when this runner takes part."""

    async def note() -> None:
        await cluster.ready()
        journal().note("up", pid=os.getpid())

    noting = Tasks("note")
    noting.spawn(note(), name="note")
    yield
    await noting.stop()


def main() -> None:
    if moment := os.environ.get("SQL_DIE"):
        kill_points.install(moment)
    cluster = program(Cluster())
    cluster.setup(lambda: noted(cluster))
    cluster.run()


if __name__ == "__main__":
    main()
