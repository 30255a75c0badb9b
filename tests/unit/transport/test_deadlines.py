"""Deadlines: never early, late by a tick and a little for each that waits, one timer for all."""

from __future__ import annotations

import asyncio
import math
import random

import pytest

from coterie.kernel.deadlines import TICK_S, Deadlines
from coterie.testing.run import current_loop


class Table:
    """Numbers that expire."""

    def __init__(self) -> None:
        self.loop = current_loop()
        self.until_s: dict[int, float] = {}
        self.expired: dict[int, float] = {}
        self.sweeps = 0
        self.deadlines = Deadlines(self.loop, self.sweep)

    def add(self, number: int, within_s: float) -> None:
        self.until_s[number] = until_s = self.loop.time() + within_s
        if until_s < self.deadlines.next_s:
            self.deadlines.arm(until_s)

    def sweep(self, now_s: float) -> tuple[float, int]:
        self.sweeps += 1
        for number in [number for number, until_s in self.until_s.items() if until_s <= now_s]:
            self.expired[number] = now_s - self.until_s.pop(number)
        return min(self.until_s.values(), default=math.inf), len(self.until_s)


@pytest.mark.simulated(seeds=10)
async def test_each_expires_once_never_early_and_late_by_a_tick() -> None:
    table = Table()
    chance = random.Random(table.loop.seed)
    done = set()
    for number in range(500):
        table.add(number, chance.choice([0.0, 0.001, 0.01, 0.25, 30.0, chance.random() * 5]))
        if chance.random() < 0.5:
            del table.until_s[number]
            done.add(number)
        if chance.random() < 0.2:
            await asyncio.sleep(chance.random() * 0.2)
    await asyncio.sleep(31)
    assert table.expired.keys() == set(range(500)) - done
    assert all(0 <= late_s <= 2 * TICK_S for late_s in table.expired.values())
    assert table.deadlines.next_s == math.inf
    assert table.deadlines._timer is None, "an idle connection costs nothing"


@pytest.mark.simulated(seeds=1)
async def test_an_earlier_deadline_is_not_held_up_by_a_later_one() -> None:
    table = Table()
    table.add(1, 60.0)
    table.add(2, 0.1)
    await asyncio.sleep(0.2)
    assert list(table.expired) == [2]
    await asyncio.sleep(61.0)
    assert list(table.expired) == [2, 1]


@pytest.mark.simulated(seeds=1)
async def test_calls_that_are_done_in_time_cost_no_sweeps() -> None:
    table = Table()
    for number in range(10_000):
        table.add(number, 30.0)
        if number >= 10:
            del table.until_s[number - 10]
        await asyncio.sleep(0.01)
    assert table.sweeps <= 100 / 30 + 2


@pytest.mark.simulated(seeds=1)
async def test_sweeps_of_many_are_kept_apart() -> None:
    table = Table()
    for number in range(20_000):
        table.add(number, 60.0 + number / 20_000)
    await asyncio.sleep(62)
    assert len(table.expired) == 20_000
    assert table.sweeps < 150
    assert max(table.expired.values()) <= 2 * TICK_S + 0.02


@pytest.mark.simulated(seeds=1)
async def test_stop_ends_the_sweeps() -> None:
    table = Table()
    table.add(1, 0.1)
    table.deadlines.stop()
    await asyncio.sleep(1.0)
    assert table.sweeps == 0
    table.add(2, 0.1)
    await asyncio.sleep(1.0)
    assert table.expired.keys() == {1, 2}, "and it can be used again"
