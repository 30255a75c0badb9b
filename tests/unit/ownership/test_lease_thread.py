"""The lease keeper's thread: it goes on while the runner's loop is blocked."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from coterie.errors import NotStarted
from coterie.ownership.lease_thread import ThreadSideLoop


async def test_work_runs_in_another_thread_and_its_result_or_error_comes_back() -> None:
    async def where() -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    async def fail() -> None:
        raise KeyError("x")

    async with ThreadSideLoop() as aside:
        assert await aside.run(where) != threading.get_ident()
        with pytest.raises(KeyError, match="x"):
            await aside.run(fail)


async def test_it_goes_on_while_the_loop_is_blocked_and_sees_where_the_loop_is_stuck() -> None:
    turns: list[str] = []

    async with ThreadSideLoop() as aside:

        async def look() -> str:
            for _ in range(5):
                await asyncio.sleep(0.01)
                turns.append("aside")
            return aside.stack()

        looking = asyncio.ensure_future(aside.run(look))
        await asyncio.sleep(0)
        deadline = time.monotonic() + 120
        while len(turns) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)  # the loop is blocked: only the other thread can make progress
        turns.append("loop")
        stack = await looking
    assert turns == ["aside"] * 5 + ["loop"]
    assert "test_it_goes_on_while_the_loop_is_blocked" in stack


async def test_a_saturated_loop_does_not_starve_it() -> None:
    """A loop that is never idle and never blocked: without short turns each hop of the other thread takes seconds."""
    async with ThreadSideLoop() as aside:

        async def hop() -> None:
            for _ in range(30):
                await asyncio.sleep(0.001)

        async def busy() -> None:
            while not hopping.done():
                sum(range(20_000))
                await asyncio.sleep(0)

        async with asyncio.timeout(120):
            hopping = asyncio.ensure_future(aside.run(hop))
            await busy()


async def test_what_is_told_runs_on_the_runners_loop() -> None:
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async with ThreadSideLoop() as aside:

        async def tell() -> None:
            aside.tell(lambda: told.set_result(threading.get_ident()))

        await aside.run(tell)
        assert await told == threading.get_ident()


async def test_cancelling_the_wait_cancels_the_work() -> None:
    cancelled = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with ThreadSideLoop() as aside:
        task = asyncio.ensure_future(aside.run(wait))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.get_running_loop().run_in_executor(None, cancelled.wait, 10)


async def test_it_must_be_started() -> None:
    with pytest.raises(NotStarted):
        await ThreadSideLoop().run(lambda: asyncio.sleep(0))


async def test_whoever_waits_for_work_is_told_when_the_thread_ends() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    aside = ThreadSideLoop()
    await aside.start()
    waiting = asyncio.ensure_future(aside.run(wait))
    await asyncio.sleep(0.01)
    await aside.stop()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_it_may_be_stopped_without_a_start() -> None:
    await ThreadSideLoop().stop()


async def test_what_is_told_to_a_loop_that_is_closed_is_dropped() -> None:
    there = asyncio.new_event_loop()
    there.close()
    aside = ThreadSideLoop()
    aside._here = there
    aside.tell(lambda: pytest.fail("nobody runs it"))


async def test_a_thread_that_is_not_there_any_more_has_no_stack() -> None:
    aside = ThreadSideLoop()
    aside._here_id = -1
    assert aside.stack() == ""


async def test_a_stop_that_is_cut_short_by_the_end_of_the_loop_is_no_error_when_the_thread_ends() -> None:
    """`asyncio.run` cancels all tasks at its end, also the one that waits for the thread."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    aside = ThreadSideLoop()
    await aside.start()
    aside._ended.cancel()
    with pytest.raises(asyncio.CancelledError):
        await aside.stop()
    assert aside._thread is not None
    await asyncio.to_thread(aside._thread.join)
    await asyncio.sleep(0)
    assert reported == []
