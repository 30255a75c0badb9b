"""Waiting for values: no hint of one is lost, whatever the other branches of the unit do meanwhile."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from coterie import DeferredRejected, DeferredTimeout, StepDiverged
from coterie.storage.contracts.units import DeferredRow, StepRow
from tests.unit.durable.fake_storage import OpenUnit, pause, time

pytestmark = pytest.mark.simulated(seeds=1)

SOON_S = 0.5
"""What is found sooner than this was told, and not found by looking now and then."""


@pytest.mark.parametrize("beside", ["sleeps", "waits", "nobody"])
async def test_m11_a_hint_that_comes_while_somebody_looks_is_not_lost(beside: str) -> None:
    """Neither to the look, which does not see the value any more, nor to a branch that waits for something else."""
    ground = OpenUnit()
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
    ground = OpenUnit()
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
    ground = OpenUnit()
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
    ground = OpenUnit()
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
    ground = OpenUnit()
    longest = timedelta.max
    ground.tasks.spawn(ground.work.sleep(longest, name="nap"), name="nap")
    ground.tasks.spawn(ground.work.deferred("x", int).wait(timeout=longest), name="x")
    await pause()
    assert [write.due_s for write in ground.units.written] == [9e9, 9e9]
    await ground.tasks.stop()


async def test_a_sleep_that_is_over_is_stored_so_and_not_slept_again() -> None:
    ground = OpenUnit()
    began_s = time()
    await ground.work.sleep("60s", name="nap")
    assert time() - began_s >= 60
    assert [(write.kind, write.done) for write in ground.units.written] == [("sleep", False), ("sleep", True)]
    again = OpenUnit()
    again.units.steps = (StepRow(branch="", position=0, kind="sleep", name="nap", done=True),)
    began_s = time()
    await again.work.sleep("60s", name="nap")
    assert (time() - began_s < 1, again.units.written) == (True, [])


async def test_of_a_value_and_a_timeout_the_first_is_stored_and_stays() -> None:
    ground = OpenUnit()
    ground.units.give("x", 7)
    assert await ground.work.deferred("x", int).wait(timeout="10s") == 7
    assert ground.units.written[-1].done
    with pytest.raises(DeferredTimeout) as raised:
        await ground.work.deferred("y", int).wait(timeout="10s")
    assert raised.value.waited_s == 10
    error = ground.units.written[-1].error
    again = OpenUnit()
    again.units.steps = (StepRow(branch="", position=0, kind="deferred", name="y", done=True, error=error),)
    again.units.give("y", 7)
    with pytest.raises(DeferredTimeout):
        await again.work.deferred("y", int).wait(timeout="10s")


@pytest.mark.parametrize("timeout", [None, "10s"])
async def test_one_that_is_rejected_raises(timeout: str | None) -> None:
    ground = OpenUnit()
    ground.units.values.append(DeferredRow("x", None, "no"))
    with pytest.raises(DeferredRejected, match="no"):
        await ground.work.deferred("x", int).wait(timeout=timeout)
    assert ground.units.written[-1].done is (timeout is not None), "which of both it was must stay so"


async def test_a_value_that_does_not_fit_its_type_any_more_diverges() -> None:
    ground = OpenUnit()
    ground.units.values.append(DeferredRow("x", b"\xa1x", None))
    with pytest.raises(StepDiverged, match="whose value is another one now"):
        await ground.work.deferred("x", int).wait()
    assert isinstance(ground.work.halted, StepDiverged)


async def test_at_the_frontier_a_branch_stands_still_until_it_is_cancelled() -> None:
    ground, quiet = OpenUnit(), list[int]()
    ground.work.on_quiet = lambda: quiet.append(ground.work.parked)
    ground.work.stop_at_frontier = True
    task = ground.sleeps()
    await pause()
    assert (ground.work.parked, ground.work.is_quiet, quiet) == (1, True, [1])
    await ground.work.end_branches()
    assert (task.cancelled(), ground.work.parked, ground.units.written) == (True, 0, [])
    with pytest.raises(asyncio.CancelledError):
        await ground.work.may_go_on()
    assert ground.work.parked == 0


async def test_what_is_looked_for_now_and_then_is_stored_when_it_is_there() -> None:
    ground, answers = OpenUnit(), [None, None, b"found"]

    async def look() -> bytes | None:
        return answers.pop(0)

    place = ground.work.places.next_place("child", "c")
    assert await ground.work.poll(place, look) == b"found"
    assert [write.value for write in ground.units.written] == [b"found"]


@pytest.mark.parametrize("branched", [False, True])
async def test_an_error_waits_for_other_branches_if_there_are_any(branched: bool) -> None:
    ground, turns = OpenUnit(), []

    async def other() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    ground.work.places.is_branched = branched
    ground.tasks.spawn(other(), name="other")
    error = ValueError()
    assert await ground.work.after_others(error) is error
    assert (len(turns) > 1) is branched
    await ground.tasks.stop()
