"""Tasks of a group: kept alive, their failures told, all gone when the group has stopped."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from coterie.kernel.service import Tasks

if TYPE_CHECKING:
    from collections.abc import Coroutine

DEADLINE_S = 120


async def soon(work: Coroutine[object, object, object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await work


async def fail() -> None:
    raise ZeroDivisionError("by the test")


async def test_a_task_has_the_owner_in_its_name_and_leaves_the_group_when_it_ends() -> None:
    tasks = Tasks("keeper")
    task = tasks.spawn(asyncio.sleep(0, "done"), name="renew")
    assert task.get_name() == "keeper/renew"
    assert task in tasks
    assert await task == "done"
    await asyncio.sleep(0)
    assert len(tasks) == 0
    assert task not in tasks


async def test_a_task_is_kept_alive_by_its_group_alone() -> None:
    tasks = Tasks("keeper")

    async def wait_for_a_future_that_nobody_else_holds() -> None:
        await asyncio.get_running_loop().create_future()

    alive = weakref.ref(tasks.spawn(wait_for_a_future_that_nobody_else_holds(), name="wait"))
    await asyncio.sleep(0)
    gc.collect()
    assert alive() is not None
    await soon(tasks.stop())


async def test_the_error_that_ends_a_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks("keeper")
    task = tasks.spawn(fail(), name="renew")
    await asyncio.gather(task, return_exceptions=True)
    assert "task keeper/renew ended by ZeroDivisionError" in caplog.text
    assert "Traceback" in caplog.text


async def test_an_error_that_somebody_awaits_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks("keeper")
    with pytest.raises(ZeroDivisionError):
        await tasks.spawn(fail(), name="start", report=False)
    assert caplog.text == ""


async def test_a_cancelled_task_is_not_an_error(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks("keeper")
    tasks.spawn(asyncio.sleep(3600), name="wait")
    await soon(tasks.stop())
    assert caplog.text == ""


async def test_stop_returns_when_all_have_cleaned_up() -> None:
    tasks, cleaned = Tasks("keeper"), []

    async def work(number: int) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            for _ in range(number):
                await asyncio.sleep(0)
            cleaned.append(number)

    for number in range(5):
        tasks.spawn(work(number), name=f"work-{number}")
    await asyncio.sleep(0)
    await soon(tasks.stop())
    assert sorted(cleaned) == [0, 1, 2, 3, 4]
    assert len(tasks) == 0


async def test_what_a_task_begins_while_it_ends_is_ended_too() -> None:
    tasks = Tasks("keeper")

    async def work(generation: int) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            if generation:
                tasks.spawn(work(generation - 1), name="child")
                await asyncio.sleep(0)

    tasks.spawn(work(3), name="parent")
    await asyncio.sleep(0)
    await soon(tasks.stop())
    assert len(tasks) == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_cancelled_stop_does_not_cut_the_cleaning_up_short() -> None:
    tasks, release, cleaning, cleaned = Tasks("keeper"), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cleaning.set()
            await release.wait()
            cleaned.set()

    tasks.spawn(work(), name="work")
    await asyncio.sleep(0)
    stopping = asyncio.create_task(tasks.stop())
    await soon(cleaning.wait())
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    release.set()
    await soon(cleaned.wait())


async def test_a_group_may_be_stopped_empty_and_twice() -> None:
    tasks = Tasks("keeper")
    await soon(tasks.stop())
    tasks.spawn(asyncio.sleep(3600), name="wait")
    await soon(tasks.stop())
    await soon(tasks.stop())
    assert len(tasks) == 0


async def test_a_task_that_stops_its_own_group_is_told_instead_of_waiting_for_itself() -> None:
    tasks = Tasks("keeper")
    with pytest.raises(AssertionError, match="a task of keeper cannot wait for itself"):
        await tasks.spawn(tasks.stop(), name="stop", report=False)
