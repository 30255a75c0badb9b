"""Waiting for values: no hint of one is lost, whatever the other branches of the unit do meanwhile."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.unit.steps.grounds import Ground, pause, time

pytestmark = pytest.mark.simulated(seeds=1)

SOON_S = 0.5
"""What is found sooner than this was told, and not found by looking now and then."""


@pytest.mark.parametrize("beside", ["sleeps", "waits", "nobody"])
async def test_m11_a_hint_that_comes_while_somebody_looks_is_not_lost(beside: str) -> None:
    """Neither to the look, which does not see the value any more, nor to a branch that waits for something else."""
    ground = Ground()
    found = ground.waits("x")
    if beside == "sleeps":
        ground.sleeps()
    elif beside == "waits":
        ground.waits("y")
    await pause()
    ground.units.answers.clear()
    ground.work.hint()  # of another value
    await pause()
    looks = ground.units.looks
    ground.units.give("x", 7)
    ground.work.hint()
    await pause()
    assert ground.units.looks == looks, "the look is under way"
    began_s = time()
    ground.units.answers.set()
    assert await found == 7
    assert time() - began_s < SOON_S
    await ground.tasks.stop()


async def test_m11_a_hint_that_comes_before_somebody_waits_is_not_lost() -> None:
    """One branch sleeps already, and has no use for it."""
    ground = Ground()
    ground.sleeps()
    await pause()
    ground.units.give("x", 7)
    ground.work.hint()
    await pause()
    began_s = time()
    assert await ground.waits("x") == 7
    assert time() - began_s < SOON_S
    await ground.tasks.stop()


async def test_m11_a_hint_is_not_lost_when_the_look_fails() -> None:
    ground = Ground()
    found = ground.waits("x")
    await pause()
    ground.units.is_away = True
    ground.units.give("x", 7)
    ground.work.hint()
    await asyncio.sleep(3)
    assert ground.units.looks < 20, "it is asked now and then"
    ground.units.is_away = False
    began_s = time()
    assert await found == 7
    assert time() - began_s < SOON_S
    await ground.tasks.stop()


async def test_without_a_hint_it_is_looked_now_and_then() -> None:
    """Also by those who have had one: nobody looks more often for that."""
    ground = Ground()
    found = ground.waits("x")
    ground.sleeps()
    await pause()
    ground.work.hint()
    await pause()
    looks = ground.units.looks
    await asyncio.sleep(29)
    assert looks + 4 <= ground.units.looks <= looks + 6
    ground.units.give("x", 7)
    assert await found == 7
    await ground.tasks.stop()


async def test_what_is_due_later_than_any_day_of_a_database_is_due_on_one_of_the_last() -> None:
    ground = Ground()
    longest = timedelta.max
    ground.tasks.spawn(ground.work.sleep(longest, name="nap"), name="nap")
    ground.tasks.spawn(ground.work.deferred("x", int).wait(timeout=longest), name="x")
    await pause()
    assert [write.due_s for write in ground.units.written] == [9e9, 9e9]
    await ground.tasks.stop()
