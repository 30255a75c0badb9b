"""The threads of plain functions: bounded, each body to its end, none beside an earlier attempt of the same (T7)."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from coterie import ClusterContext, current, within_cluster
from coterie.errors import ShuttingDown
from coterie.interop.loop_thread import ThreadCall
from coterie.kernel.service import Tasks
from coterie.settings import Settings
from coterie.work.definition import is_async, is_plain
from coterie.work.threads import InlineThreads, ThreadPool, in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

FAR_S = 120.0

mood: ContextVar[str] = ContextVar("mood", default="none")


@asynccontextmanager
async def pool(most: int = 2) -> AsyncIterator[ThreadPool]:
    settings = Settings.load({"url": "sqlite://", "threads": most}, environ={})
    async with ThreadPool(settings) as threads, asyncio.timeout(FAR_S):
        yield threads


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(FAR_S):
        while not condition():
            await asyncio.sleep(0.002)


class Bodies:
    """Bodies that end when they are told to, and what they saw."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.told: list[str] = []
        self.at_once = 0
        self.most = 0
        self._lock = threading.Lock()
        self._ends: dict[str, threading.Event] = {}

    def body(self, name: str) -> Callable[[], str]:
        end = self._ends[name] = threading.Event()

        def run() -> str:
            with self._lock:
                self.begun.append(name)
                self.at_once += 1
                self.most = max(self.most, self.at_once)
            assert end.wait(FAR_S)
            with self._lock:
                self.at_once -= 1
            if current().cancelled:
                self.told.append(name)
            return name

        return run

    def end(self, *names: str) -> None:
        for name in names or list(self._ends):
            self._ends[name].set()


def start(threads: ThreadPool, bodies: Bodies, name: str, **options: Any) -> asyncio.Task[str]:
    async def run() -> str:
        with within_cluster(name=name):
            return await threads.run(bodies.body(name), what=name, **options)

    return asyncio.create_task(run())


# How many


async def test_no_more_run_at_once_than_the_setting_says_and_the_others_come_in_order() -> None:
    bodies = Bodies()
    async with pool(2) as threads:
        tasks = [start(threads, bodies, str(number)) for number in range(5)]
        await until(lambda: len(bodies.begun) == 2)
        await until(lambda: threads.use()[:2] == (2, 3))
        bodies.end()
        assert await asyncio.gather(*tasks) == ["0", "1", "2", "3", "4"]
        assert (bodies.most, sorted(bodies.begun[:2]), sorted(bodies.begun)) == (
            2,
            ["0", "1"],
            ["0", "1", "2", "3", "4"],
        )
        assert threads.use() == (0, 0, ())


async def test_the_loop_goes_on_while_bodies_block() -> None:
    async with pool() as threads:
        blocked = asyncio.create_task(threads.run(partial(time.sleep, 0.2), what="sleeper"))
        turns = 0
        while not blocked.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert turns > 10


async def test_bodies_that_call_each_other_do_not_wait_for_each_other_for_ever() -> None:
    """All threads wait in a call for a body that needs a thread: it gets one, and so do those below it."""
    async with pool(2) as threads:
        loop, tasks = asyncio.get_running_loop(), Tasks("calls")

        def deep(levels: int) -> int:
            if not levels:
                return 0
            below = partial(threads.run, partial(deep, levels - 1), what=f"level {levels}")
            return 1 + ThreadCall(below, loop, tasks).run()

        assert await asyncio.gather(*(threads.run(partial(deep, 5), what="top") for _ in range(4))) == [5] * 4
        await until(lambda: threads._lent == 0)
        assert threads._threads == 2, "the further ones have ended"


async def test_if_all_threads_wait_in_calls_and_nothing_moves_the_newest_body_gets_one() -> None:
    """What they wait for may be a persisted call, of which nobody can tell."""
    bodies = Bodies()
    async with pool(2) as threads:
        loop, tasks, over = asyncio.get_running_loop(), Tasks("calls"), asyncio.Event()

        def waits() -> None:
            ThreadCall(over.wait, loop, tasks).run()

        waiting = [asyncio.create_task(threads.run(waits, what="waits")) for _ in range(2)]
        await until(lambda: threads._lent == 2)
        old, new = (start(threads, bodies, name) for name in ("old", "new"))
        await until(lambda: bodies.begun)
        await asyncio.sleep(0.2)
        assert bodies.begun == ["new"], "which runs, so that nothing is stuck"
        bodies.end("new")
        await until(lambda: bodies.begun == ["new", "old"])
        over.set()
        bodies.end()
        assert list(await asyncio.gather(old, new)) == ["old", "new"]
        await asyncio.gather(*waiting)


async def test_a_thread_whose_calls_end_is_not_stuck() -> None:
    bodies = Bodies()
    async with pool(1) as threads:
        loop, tasks, over = asyncio.get_running_loop(), Tasks("calls"), threading.Event()

        def calls() -> None:
            while not over.is_set():
                ThreadCall(partial(asyncio.sleep, 0.001), loop, tasks).run()

        busy = asyncio.create_task(threads.run(calls, what="calls"))
        await until(lambda: threads._lent)
        waiting = start(threads, bodies, "waiting")
        await asyncio.sleep(0.4)
        assert bodies.begun == []
        over.set()
        bodies.end()
        assert await waiting == "waiting"
        await busy


async def test_an_interrupted_call_gives_its_place_back() -> None:
    """A body that ends while a call that it made goes on: no place is lent for ever."""
    async with pool(1) as threads:
        loop, tasks, never = asyncio.get_running_loop(), Tasks("calls"), asyncio.Event()

        def body() -> None:
            call: ThreadCall[Any] = ThreadCall(never.wait, loop, tasks)
            call._submit(call._begin)  # the thread does not wait for it

        await threads.run(body, what="impatient")
        await until(lambda: len(tasks) == 1)
        assert (threads._lent, threads.use().busy) == (0, 0)
        await tasks.stop()
        assert threads._lent == 0


# What a body sees, and what its caller gets


async def test_a_body_sees_the_context_variables_of_its_caller_and_changes_none_of_them() -> None:
    def body() -> str:
        seen = mood.get()
        mood.set("changed")
        return seen

    async with pool() as threads:
        mood.set("good")
        assert await threads.run(body, what="body") == "good"
        assert mood.get() == "good"


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()], ids=repr)
async def test_the_error_of_a_body_is_its_callers(error: BaseException) -> None:
    def body() -> None:
        raise error

    async with pool(1) as threads:
        with pytest.raises(type(error)) as raised:
            # Awaited by hand: asyncio lets some of them end the loop.
            await _contained(threads.run(body, what="body"))
        assert raised.value is error
        assert await threads.run(lambda: 1, what="the next one") == 1


async def _contained(work: Coroutine[Any, Any, Any]) -> Any:
    return await work


async def test_what_a_body_returns_is_awaited_on_the_loop_if_it_can_be() -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    async with pool() as threads:
        assert await in_thread(threads, lambda: double(4), what="double") == 8


async def test_inline_threads_run_a_body_at_once() -> None:
    thread = await InlineThreads().run(threading.get_ident, what="body")
    assert thread == threading.get_ident()
    assert not await InlineThreads().run(lambda: ClusterContext().cancelled, what="body")


# Cancellation


async def test_a_body_that_was_cancelled_before_it_began_never_runs() -> None:
    bodies = Bodies()
    async with pool(1) as threads:
        first, second = (start(threads, bodies, name) for name in ("first", "second"))
        await until(lambda: threads.use()[:2] == (1, 1))
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        bodies.end()
        assert await first == "first"
        assert bodies.begun == ["first"]


async def test_a_cancelled_body_is_told_and_waited_for_however_often_it_is_cancelled() -> None:
    bodies = Bodies()
    async with pool(1) as threads:
        task = start(threads, bodies, "body")
        await until(lambda: bodies.begun)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done(), "an attempt is over when its body is"
        bodies.end()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert bodies.told == ["body"]


async def test_a_context_made_before_the_body_began_shows_its_cancellation_too() -> None:
    bodies = Bodies()

    async def run(threads: ThreadPool) -> str:
        with within_cluster(name="early"):
            assert not current().cancelled
            return await threads.run(bodies.body("body"), what="body")

    async with pool(1) as threads:
        task = asyncio.create_task(run(threads))
        await until(lambda: bodies.begun)
        task.cancel()
        await asyncio.sleep(0)
        bodies.end()
        await asyncio.gather(task, return_exceptions=True)
        assert bodies.told == ["body"]


async def test_a_time_limit_is_over_when_the_body_is() -> None:
    bodies = Bodies()
    async with pool(1) as threads:

        async def limited() -> None:
            async with asyncio.timeout(0.01):
                await threads.run(bodies.body("body"), what="body")

        task = asyncio.create_task(limited())
        await until(lambda: threads.use().busy)
        await asyncio.sleep(0.1)
        assert not task.done()
        bodies.end()
        with pytest.raises(TimeoutError):
            await task


async def test_no_second_attempt_runs_beside_the_first() -> None:
    """A time-out of a thread retried beside it is the bug that this is about."""
    bodies = Bodies()
    async with pool(4) as threads:
        first = start(threads, bodies, "first", alone="a")
        await until(lambda: bodies.begun)
        first.cancel()
        second, given_up, third = (start(threads, bodies, name, alone="a") for name in ("second", "given up", "third"))
        other = start(threads, bodies, "other", alone="b")
        await until(lambda: "other" in bodies.begun)
        given_up.cancel()
        await asyncio.sleep(0.02)
        assert bodies.begun == ["first", "other"]
        bodies.end("first")
        await until(lambda: "second" in bodies.begun)
        assert "third" not in bodies.begun
        bodies.end()
        await asyncio.gather(first, given_up, return_exceptions=True)
        assert list(await asyncio.gather(second, third, other)) == ["second", "third", "other"]
        assert bodies.begun == ["first", "other", "second", "third"]
        assert threads._turns == {}


async def test_a_stubborn_body_is_reported_once_with_the_place_where_it_is(caplog: pytest.LogCaptureFixture) -> None:
    bodies = Bodies()
    async with pool(1) as threads:
        task = start(threads, bodies, "tick of cron 'x'")
        await until(lambda: bodies.begun)
        assert threads.use().stubborn == ()
        task.cancel()
        await until(lambda: caplog.records)
        (stubborn,) = threads.use().stubborn
        assert (stubborn.what, stubborn.for_s >= 1.0) == ("tick of cron 'x'", True)
        bodies.end()
        await asyncio.gather(task, return_exceptions=True)
        assert threads.use() == (0, 0, ())
    (record,) = caplog.records
    assert "tick of cron 'x' was cancelled 1s ago and still runs in its thread" in record.message
    assert "current().cancelled" in record.message
    assert "assert end.wait(FAR_S)" in record.message, "the innermost lines of its stack"


# The end


async def test_stop_does_not_wait_for_a_body_and_says_which_ones_are_left(caplog: pytest.LogCaptureFixture) -> None:
    bodies = Bodies()
    async with pool(2) as threads:
        tasks = [start(threads, bodies, name) for name in ("report", "mail")]
        await until(lambda: len(bodies.begun) == 2)
        waiting = start(threads, bodies, "waiting")
        await until(lambda: threads.use().waiting == 1)
    (record,) = caplog.records
    with pytest.raises(ShuttingDown):
        await waiting
    assert record.message == "2 plain functions did not end within 20s, and end with the process: report, mail"
    with pytest.raises(ShuttingDown):
        await threads.run(lambda: 1, what="late")
    for task in tasks:
        with pytest.raises(ShuttingDown):
            await task
    bodies.end()


async def test_a_system_without_threads_fails_the_attempt_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    async with pool() as threads:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start"):
                await threads.run(lambda: 1, what="body")
        assert await threads.run(lambda: 1, what="body") == 1


# What a plain function is


class Callables:
    async def coroutine(self) -> None: ...
    def plain(self) -> None: ...
    def generator(self) -> Any:
        yield 1

    async def stream(self) -> Any:
        yield 1


class AsyncCall:
    async def __call__(self) -> None: ...


class PlainCall:
    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (Callables().coroutine, "async"),
        (partial(Callables().coroutine), "async"),
        (AsyncCall(), "async"),
        (Callables().plain, "plain"),
        (partial(Callables().plain), "plain"),
        (PlainCall(), "plain"),
        (lambda: None, "plain"),
        (time.sleep, "plain"),
        (Callables().generator, "neither"),
        (Callables().stream, "neither"),
        (Callables, "neither"),
        (5, "neither"),
        (None, "neither"),
    ],
    ids=range(13),
)
def test_plain_functions_are_told_from_others(fn: Any, kind: str) -> None:
    assert (is_async(fn), is_plain(fn)) == (kind == "async", kind == "plain")
