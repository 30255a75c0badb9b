"""What is said of a database that does not do what durable work asks for."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from coterie import LeadershipLost
from coterie.errors import PersistenceError
from tests.unit.durable.fake_storage import OpenUnit, pause


def away() -> PersistenceError:
    return PersistenceError(doing="write", problem="it is away", outcome="unreachable")


async def seven() -> int:
    return 7


@pytest.mark.simulated(seeds=1)
async def test_a_step_is_stored_once_the_database_is_back() -> None:
    ground = OpenUnit()
    ground.units.troubles = [away(), away()]
    assert await ground.work.step("s", seven, (), {}) == 7
    assert len(ground.units.written) == 1


@pytest.mark.simulated(seeds=1)
@pytest.mark.parametrize("told", ["over", "fenced"])
async def test_what_is_refused_by_the_fence_ends_the_work(told: Literal["over", "fenced"]) -> None:
    ground = OpenUnit()
    ground.units.tells = told
    with pytest.raises(LeadershipLost):
        await ground.work.step("s", seven, (), {})
    assert isinstance(ground.work.halted, LeadershipLost)


@pytest.mark.simulated(seeds=1)
async def test_whoever_lost_the_seat_while_the_database_was_away_asks_no_more() -> None:
    ground = OpenUnit()
    await ground.work.opened()
    ground.units.troubles = [away() for _ in range(1000)]
    task = ground.tasks.spawn(ground.work.step("s", seven, (), {}), name="test")
    await pause()
    ground.trust.end()
    with pytest.raises(LeadershipLost):
        await task
    assert len(ground.units.troubles) > 900


@pytest.mark.simulated(seeds=1)
async def test_a_unit_is_opened_once_the_database_is_back_and_once_for_all() -> None:
    ground = OpenUnit()
    assert not ground.work.is_open
    ground.units.is_away = True
    tasks = [ground.tasks.spawn(ground.work.opened(), name="test") for _ in range(2)]
    await pause()
    assert (ground.work.is_open, ground.units.looks) == (True, 1)
    ground.units.is_away = False
    first, second = [await task for task in tasks]
    assert first is second


@pytest.mark.simulated(seeds=1)
async def test_a_unit_that_is_gone_while_it_waits_ends_the_work() -> None:
    ground = OpenUnit()
    found = ground.waits("x")
    await pause()
    ground.units.is_gone = True
    ground.work.hint()
    with pytest.raises(LeadershipLost):
        await found


@pytest.mark.simulated(seeds=1)
@pytest.mark.parametrize("held", [True, False])
async def test_the_end_of_a_unit_is_retried_while_the_seat_is_held(held: bool) -> None:
    ground, tries = OpenUnit(), []

    async def write() -> None:
        tries.append(1)
        if len(tries) < 3:
            if not held:
                ground.trust.end()
            raise away()

    await ground.work.retry_write(write)
    assert len(tries) == (3 if held else 1)


@pytest.mark.simulated(seeds=1)
async def test_a_reason_to_halt_is_told_and_the_first_error_stays() -> None:
    ground, told = OpenUnit(), []
    ground.work.on_halt = lambda: told.append(1)
    stopped, first, second = asyncio.CancelledError(), ValueError("1"), ValueError("2")
    for error in (stopped, first, second):
        assert ground.work.halt(error) is error
    assert (ground.work.halted, len(told)) == (first, 3), "that a branch was stopped is no reason, beside one"
