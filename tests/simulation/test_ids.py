"""Ids of processes that are killed and restarted, with wrong clocks, on a database that fails (S1, GAP-04, GAP-10)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import pytest

from coterie.errors import PersistenceError
from coterie.kernel.ids import MACHINES, Snowflake
from coterie.kernel.random import Random
from coterie.kernel.service import Tasks
from coterie.ownership.machine_id import IdGenerator
from coterie.settings import Settings
from coterie.storage.sqlite import SqliteStorage
from coterie.testing.database import SimulatedDatabase
from coterie.testing.loop.seeds import stream
from coterie.testing.run import current_loop

if TYPE_CHECKING:
    from coterie.kernel.clock import Clock
    from coterie.testing.database import Way
    from coterie.testing.loop.seeds import Stream


def machine_of(drawn: int) -> int:
    return Snowflake.parts(drawn).machine_id


class Drawn(NamedTuple):
    """An id, and which lease of a machine id it came from."""

    id: int
    lease: str


class WrongClock:
    """The clock of a machine whose wall is set wrong, again and again."""

    def __init__(self, true: Clock, *, off_s: float) -> None:
        self._true = true
        self.off_s = off_s

    def wall_ns(self) -> int:
        return self._true.wall_ns() + int(self.off_s * 1e9)

    def steady_ns(self) -> int:
        return self._true.steady_ns()


def opened(database: SimulatedDatabase, host: str, chance: Random) -> SqliteStorage:
    settings = Settings.load({"url": "sqlite://"}, environ={})
    executors = database.executors(host)
    return SqliteStorage(settings, incarnation=host, clock=database.clock, chance=chance, executors=executors)


async def live(database: SimulatedDatabase, host: str, random: Stream, drawn: list[Drawn]) -> None:
    """One process after the other on a host: some stop in good order, others are killed."""
    while True:
        storage = opened(database, host, Random(random.getrandbits(64)))
        clock = WrongClock(database.clock, off_s=random.choice([-3600, 0, 0, 3600]))
        ids = IdGenerator(storage.machines, holder=f"{random.getrandbits(128):032x}", clock=clock)
        with contextlib.suppress(PersistenceError):
            await storage.start()
            await ids.start()
            await draw_under_faults(ids, clock, random, drawn)
        if random.random() < 0.5:
            await ids.stop()
            await storage.stop()
        await asyncio.sleep(1)  # until somebody starts it again


async def draw_under_faults(ids: IdGenerator, clock: WrongClock, random: Stream, drawn: list[Drawn]) -> None:
    last, lease = -1, f"{random.getrandbits(64)}"
    for _ in range(random.randrange(40)):
        await asyncio.sleep(random.expovariate(0.3))
        if random.random() < 0.1:
            clock.off_s -= 5
        with contextlib.suppress(PersistenceError):
            for _ in range(random.randrange(4)):
                each = await ids.take()
                if machine_of(each) != last:
                    last, lease = machine_of(each), f"{lease}'"
                drawn.append(Drawn(each, lease))


async def disturb(database: SimulatedDatabase, random: Stream) -> None:
    while True:
        await asyncio.sleep(random.expovariate(0.1))
        host = f"host-{random.randrange(5)}"
        ways: list[Way] = ["requests", "replies"]
        database.cut(host, random.choice(ways), random.choice(ways))
        await asyncio.sleep(random.uniform(0, 15))
        database.heal(host)
        if random.random() < 0.2:
            database.restart(down_ns=random.randrange(5 * 10**9))


@pytest.mark.simulated(seeds=30)
async def test_s1_no_id_repeats_whatever_happens_to_processes_clocks_and_the_database() -> None:
    """S1, GAP-04, GAP-10, 0.6: five hosts with few machine ids left, lost replies, late requests, wrong clocks."""
    loop = current_loop()
    database = SimulatedDatabase(loop)
    storage = opened(database, "test", Random(1))
    await storage.start()
    for _ in range(MACHINES - 12):
        await storage.machines.lease("others", ttl_s=10**6, until_ms=0)
    database.weather.error_before = database.weather.error_after = 0.05
    drawn: list[Drawn] = []
    tasks = Tasks("ids")
    tasks.spawn(disturb(database, stream(loop.seed, "faults")), name="faults")
    for number in range(5):
        host = f"host-{number}"
        tasks.spawn(live(database, host, stream(loop.seed, host), drawn), name=host)
    await asyncio.sleep(1200)
    assert len({each.id for each in drawn}) == len(drawn) > 500
    assert shared(drawn) == []


def shared(drawn: list[Drawn]) -> list[str]:
    """Leases that drew from a stretch of time of which another lease of the same machine id drew too.

    Stricter than ids that repeat: for that, two must meet in one millisecond.
    """
    drawn.sort(key=lambda each: (machine_of(each.id), each.id))
    blocks = Counter(lease for lease, _ in groupby(each.lease for each in drawn))
    return [lease for lease, count in blocks.items() if count > 1]
