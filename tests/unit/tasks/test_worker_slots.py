"""The slots of a runner, as its jobs use them and as holders are told."""

from __future__ import annotations

import pytest

from coterie.tasks.frames import KnownTask, PoolSlots
from coterie.tasks.worker.slots import SlotTable

ONE, TWO = "queue:one", "queue:two"


def table(busy: int = 0) -> SlotTable:
    return SlotTable(jobs=3, threads=2, processes=1, busy_threads=lambda: busy)


def test_each_job_takes_one_slot_and_one_of_its_pool() -> None:
    slots = table()
    slots.take(ONE, "thread")
    slots.take(TWO, "process")
    assert (slots.has_room("loop"), slots.has_room("thread"), slots.has_room("process")) == (True, True, False)
    slots.take(ONE, "loop")
    assert not any(slots.has_room(pool) for pool in ("loop", "thread", "process"))
    assert slots.in_use == 3
    slots.release(TWO, "process")
    assert slots.has_room("process")


def test_a_holder_is_told_what_is_free_and_what_its_own_jobs_use() -> None:
    slots = table()
    slots.take(ONE, "thread")
    slots.take(TWO, "loop")
    told = slots.report(ONE, is_draining=False, tasks={"resize": KnownTask("f", "thread")})
    assert (told.jobs, told.threads, told.processes) == (PoolSlots(1, 1), PoolSlots(1, 1), PoolSlots(1, 0))
    assert told.tasks == {"resize": KnownTask("f", "thread")}
    assert slots.report(TWO, is_draining=True).jobs == PoolSlots(1, 1)
    assert slots.report(TWO, is_draining=True).is_draining


def test_threads_that_others_use_are_not_free() -> None:
    """Plain functions of rpcs and ticks run in the same pool."""
    slots = table(busy=2)
    slots.take(ONE, "thread")
    assert slots.report(ONE, is_draining=False).threads == PoolSlots(0, 1)


def test_what_was_never_taken_cannot_be_released() -> None:
    slots = table()
    slots.take(ONE, "loop")
    with pytest.raises(AssertionError):
        slots.release(TWO, "loop")
    slots.take(ONE, "loop")
    slots.take(ONE, "loop")
    with pytest.raises(AssertionError):
        slots.take(ONE, "loop")


def test_a_job_that_waits_for_another_one_lends_its_slots() -> None:
    slots = table()
    for _ in range(2):
        slots.take(ONE, "thread")
    slots.take(ONE, "loop")
    assert not slots.has_room("loop")
    slots.lend("thread", 1)
    assert slots.has_room("thread")
    told = slots.report(ONE, is_draining=False)
    assert (told.jobs, told.threads) == (PoolSlots(1, 3), PoolSlots(1, 2))
    slots.take(TWO, "thread")
    slots.lend("thread", -1)
    assert not slots.has_room("loop")
    told = slots.report(ONE, is_draining=False)
    assert (told.jobs.free, told.threads.free) == (0, 0)
    slots.release(ONE, "thread")
    assert not slots.has_room("loop")
    slots.release(ONE, "loop")
    assert slots.has_room("loop")


def test_what_is_lent_has_a_bound() -> None:
    slots = SlotTable(jobs=1, threads=1, processes=1, busy_threads=lambda: 0)
    number = 0
    while slots.has_room("loop"):
        slots.take(ONE, "loop")
        slots.lend("loop", 1)
        number += 1
    assert number == 9
