"""The simulator's loop: virtual time, nodes and their failures, and asyncio as usual on top."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from coterie.testing import Deadlock, StepLimit, run_simulation
from coterie.testing.loop.clocks import LocalTime, SimClock
from coterie.testing.loop.loop import SimLoop
from coterie.testing.loop.nodes import current_node
from coterie.testing.run import current_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from coterie.kernel.clock import Clock

SEEDS = range(12)  # enough for each kind of schedule


async def ticking(ticks: list[float], *, every_s: float = 1.0) -> None:
    while True:
        await asyncio.sleep(every_s)
        ticks.append(asyncio.get_running_loop().time())


class TestTime:
    def test_an_hour_of_waiting_takes_no_time(self) -> None:
        async def main() -> float:
            await asyncio.sleep(3600)
            return asyncio.get_running_loop().time()

        assert run_simulation(main, seed=1) == 3600.0

    def test_timers_of_one_instant_run_in_the_order_in_which_they_were_set(self) -> None:
        async def main() -> list[int]:
            ran: list[int] = []
            loop = asyncio.get_running_loop()
            for number in (3, 1, 2):
                loop.call_at(5.0, ran.append, number)
            await asyncio.sleep(6)
            return ran

        assert run_simulation(main, seed=0) == [3, 1, 2]

    def test_waiting_for_the_rest_of_a_nanosecond_makes_progress(self) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + 0.1 + 0.2 + 1e-10
            while (left := deadline - loop.time()) > 0:
                await asyncio.sleep(left)

        run_simulation(main, seed=1)

    def test_a_cancelled_timer_never_runs_and_many_of_them_are_swept(self) -> None:
        async def main() -> int:
            loop = current_loop()
            for _ in range(10_000):
                async with asyncio.timeout(1000):
                    await asyncio.sleep(0.001)
            return len(loop._timers)

        assert run_simulation(main, seed=1) < 3_000

    def test_each_node_sees_its_own_clocks_and_timers_follow_them(self) -> None:
        async def main() -> tuple[float, float]:
            loop = current_loop()
            time = LocalTime(boot_ns=100_000_000_000, drift_ppm=250_000, wall_offset_ns=-7_000_000_000)
            fast = loop.nodes.add("fast", time=time)
            clock: Clock = SimClock(loop, fast)
            right = SimClock(loop, loop.test)
            ticks: list[float] = []
            loop.spawn(fast, ticking(ticks))
            await asyncio.sleep(4.0001)
            assert [round(tick, 6) for tick in ticks] == [101, 102, 103, 104, 105]
            assert clock.wall_ns() - right.wall_ns() == pytest.approx(-6e9, abs=1e5)
            return right.steady_ns() / 1e9, clock.steady_ns() / 1e9

        assert run_simulation(main, seed=0) == pytest.approx((4.0001, 105.000125))

    def test_a_changed_drift_does_not_step_the_steady_clock(self) -> None:
        time = LocalTime(drift_ppm=100)
        before = time.steady_ns(10_000_000_000)
        time.set_drift(-100_000, now_ns=10_000_000_000)
        assert time.steady_ns(10_000_000_000) == before
        assert time.steady_ns(20_000_000_000) == before + 9_000_000_000
        assert time.true_ns(before + 9_000_000_000) == 20_000_000_000

    def test_a_clock_that_would_stand_still_is_refused(self) -> None:
        with pytest.raises(ValueError, match="stop the clock"):
            LocalTime(drift_ppm=-1_000_000)


class TestCrash:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_nothing_of_a_crashed_node_runs_any_more_not_even_finally(self, seed: int) -> None:
        ran: list[str] = []

        @contextlib.contextmanager
        def managed() -> Iterator[None]:
            try:
                yield
            finally:
                ran.append("contextmanager")

        @contextlib.asynccontextmanager
        async def managed_async() -> AsyncIterator[None]:
            try:
                yield
            finally:
                ran.append("asynccontextmanager")

        async def generate() -> AsyncIterator[int]:
            try:
                yield 1
                await asyncio.sleep(3600)
            finally:
                ran.append("generator")

        async def doomed() -> None:
            try:
                try:
                    with managed():
                        async with managed_async(), contextlib.AsyncExitStack() as stack:
                            stack.enter_context(managed())
                            async for _ in generate():
                                ran.append("began")
                except BaseException:
                    ran.append("except")
                    raise
                finally:
                    ran.append("inner finally")
            finally:
                ran.append("outer finally")
                await asyncio.sleep(1)

        async def main() -> None:
            loop = current_loop()
            node = loop.nodes.add("doomed")
            task = loop.spawn(node, doomed())
            loop.spawn(node, ticking([]))
            await asyncio.sleep(1)
            loop.nodes.crash(node)
            task.cancel()
            await asyncio.sleep(10_000)
            assert not task.done()

        run_simulation(main, seed=seed)
        gc.collect()
        assert ran == ["began"]

    def test_what_others_resolve_for_a_crashed_node_is_ignored(self) -> None:
        async def main() -> None:
            loop = current_loop()
            node = loop.nodes.add("doomed")
            future: asyncio.Future[None] = loop.create_future()
            after: list[str] = []

            async def waiting() -> None:
                await future
                after.append("ran")

            loop.spawn(node, waiting())
            await asyncio.sleep(1)
            loop.nodes.crash(node)
            future.set_exception(OSError("nobody is there to see this"))
            await asyncio.sleep(1)
            assert after == []

        run_simulation(main, seed=1)

    def test_a_task_that_has_not_begun_when_its_node_crashes_leaves_no_warning(self) -> None:
        async def main() -> None:
            loop = current_loop()
            node = loop.nodes.add("doomed")
            loop.spawn(node, asyncio.sleep(1))
            loop.nodes.crash(node)

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run_simulation(main, seed=1)
            gc.collect()

    def test_a_name_lives_again_as_another_incarnation_on_the_same_machine(self) -> None:
        async def main() -> None:
            nodes = current_loop().nodes
            first = nodes.add("runner-1", time=LocalTime(drift_ppm=50))
            with pytest.raises(ValueError, match="runner-1 is alive"):
                nodes.add("runner-1")
            nodes.crash(first)
            second = nodes.add("runner-1")
            assert (second.incarnation, second.label, second.time) == (2, "runner-1.2", first.time)
            assert second.alive
            assert not first.alive

        run_simulation(main, seed=1)


class TestFreeze:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_what_falls_due_while_frozen_runs_at_thaw_in_order(self, seed: int) -> None:
        async def main() -> None:
            loop = current_loop()
            node = loop.nodes.add("sleepy")
            context = node.new_context()
            ran: list[tuple[str, int]] = []

            def run(what: str) -> None:
                ran.append((what, round(loop.time())))

            for after_s in (1, 3, 5):
                loop.call_later(after_s, run, f"timer {after_s}", context=context)
            await asyncio.sleep(2)
            loop.nodes.freeze(node)
            loop.call_soon(run, "soon", context=context)
            await asyncio.sleep(5)
            assert ran == [("timer 1", 1)]
            loop.nodes.thaw(node)
            await asyncio.sleep(1)
            assert ran == [("timer 1", 1), ("soon", 7), ("timer 3", 7), ("timer 5", 7)]

        run_simulation(main, seed=seed)

    def test_a_thread_goes_on_while_its_node_is_blocked_but_not_while_it_is_frozen(self) -> None:
        async def main() -> list[list[float]]:
            loop = current_loop()
            node = loop.nodes.add("runner-1")
            keeper = loop.nodes.add_thread(node, "keeper")
            ticks: list[list[float]] = [[], []]
            loop.spawn(node, ticking(ticks[0]))
            loop.spawn(keeper, ticking(ticks[1]))
            await asyncio.sleep(1.5)
            loop.nodes.block(node)
            await asyncio.sleep(1)
            loop.nodes.unblock(node)
            await asyncio.sleep(1)
            loop.nodes.freeze(node)
            await asyncio.sleep(10)
            loop.nodes.crash(node)
            assert not keeper.alive
            return ticks

        assert run_simulation(main, seed=0) == [[1.0, 2.5], [1.0, 2.0, 3.0]]


class TestStuck:
    def test_a_deadlock_is_reported_at_once_and_says_what_every_task_waits_for(self) -> None:
        async def waiting(event: asyncio.Event) -> None:
            await event.wait()

        async def main() -> None:
            loop = current_loop()
            node = loop.nodes.add("runner-1")
            loop.spawn(node, waiting(asyncio.Event()), name="patience")
            frozen = loop.nodes.add("runner-2")
            task = loop.spawn(frozen, asyncio.sleep(5), name="sleepy")
            await asyncio.sleep(1)
            loop.nodes.freeze(frozen)
            await task

        with pytest.raises(Deadlock) as caught:
            run_simulation(main, seed=1)
        text = str(caught.value)
        assert "nothing can ever run again at +5.0" in text
        assert "runner-1" in text
        assert "patience" in text
        assert "Event.wait" in text
        assert "runner-2 (frozen)" in text
        assert "for task sleepy" in text

    def test_timers_of_crashed_nodes_do_not_hide_a_deadlock(self) -> None:
        async def main() -> None:
            loop = current_loop()
            node = loop.nodes.add("runner-1")
            task = loop.spawn(node, asyncio.sleep(50))
            await asyncio.sleep(1)
            loop.nodes.crash(node)
            await task

        with pytest.raises(Deadlock, match=r"at \+1\.000000s"):
            run_simulation(main, seed=1)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_node_that_spins_does_not_starve_the_others(self, seed: int) -> None:
        async def main() -> None:
            loop = current_loop()
            done = False

            async def spinning() -> None:
                while not done:
                    await asyncio.sleep(0)

            task = loop.spawn(loop.nodes.add("spinner"), spinning())
            other = loop.spawn(loop.nodes.add("other"), asyncio.sleep(0))
            await other
            done = True
            await task

        run_simulation(main, seed=seed)

    def test_a_run_that_never_ends_is_stopped_by_the_step_limit(self) -> None:
        async def spinning() -> None:
            while True:
                await asyncio.sleep(1)

        loop = SimLoop(1, steps_most=1_000)
        with pytest.raises(StepLimit, match=r"1,001 steps.*\n.*spinning"):
            loop.run_until_complete(spinning())
        loop.dispose()


class TestAsyncio:
    """The primitives of asyncio behave on this loop as on any other."""

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_task_group_cancels_its_children_when_one_fails(self, seed: int) -> None:
        async def main() -> list[str]:
            cancelled: list[str] = []

            async def child(name: str) -> None:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    cancelled.append(name)
                    raise

            async def failing() -> None:
                await asyncio.sleep(1)
                raise OSError("no")

            async def family() -> None:
                async with asyncio.TaskGroup() as group:
                    for number in range(8):
                        group.create_task(child(str(number)))
                    group.create_task(failing())

            with pytest.raises(ExceptionGroup):
                await family()
            return cancelled

        # Not just all of them but in a repeatable order: a TaskGroup keeps its tasks in a set.
        assert run_simulation(main, seed=seed) == [str(number) for number in range(8)]

    def test_the_sets_of_asyncio_wait_have_an_order_that_repeats(self) -> None:
        async def main() -> list[str]:
            tasks = [asyncio.create_task(asyncio.sleep(1), name=f"t{number}") for number in range(20)]
            done, _ = await asyncio.wait(tasks)
            return [task.get_name() for task in done]

        assert run_simulation(main, seed=3) == run_simulation(main, seed=3)

    def test_timeouts_queues_events_gather_and_shield_work(self) -> None:
        async def main() -> list[Any]:
            queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
            event = asyncio.Event()

            async def produce() -> None:
                for number in range(3):
                    await queue.put(number)
                event.set()

            async def consume() -> list[int]:
                return [await queue.get() for _ in range(3)]

            _, got, _ = await asyncio.gather(produce(), consume(), event.wait())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2):
                    await asyncio.sleep(10)
            inner = asyncio.create_task(asyncio.sleep(5, result="kept"))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await asyncio.shield(inner)
            failures = await asyncio.gather(inner, asyncio.sleep(0), _failing(), return_exceptions=True)
            return [got, failures[0], type(failures[2]), asyncio.get_running_loop().time()]

        assert run_simulation(main, seed=4) == [[0, 1, 2], "kept", OSError, 7.0]

    def test_an_async_generator_that_is_dropped_half_way_is_closed_on_its_node(self) -> None:
        async def main() -> list[str]:
            closed: list[str] = []

            async def generate() -> AsyncIterator[int]:
                try:
                    yield 1
                    yield 2
                finally:
                    await asyncio.sleep(0)
                    closed.append(current_node.get().name)

            async def take_one() -> None:
                async for _ in generate():
                    break

            loop = current_loop()
            await loop.spawn(loop.nodes.add("runner-1"), take_one())
            await asyncio.sleep(1)
            return closed

        assert run_simulation(main, seed=1) == ["runner-1"]


async def _failing() -> None:
    raise OSError("no")


class TestErrors:
    def test_an_error_in_a_callback_fails_the_run_at_its_end(self) -> None:
        async def main() -> None:
            asyncio.get_running_loop().call_soon(int, "x")
            await asyncio.sleep(1)

        with pytest.raises(ExceptionGroup, match="nobody handled") as caught:
            run_simulation(main, seed=1)
        assert isinstance(caught.value.exceptions[0], ValueError)

    def test_an_error_of_a_task_that_nobody_awaits_fails_the_run_unless_its_node_crashed(self) -> None:
        async def main(*, crash: bool) -> None:
            loop = current_loop()
            node = loop.nodes.add("runner-1")
            tasks = [loop.spawn(node, _failing())]
            await asyncio.sleep(1)
            if crash:
                loop.nodes.crash(node)
            assert tasks[0].done()

        run_simulation(lambda: main(crash=True), seed=1)
        with pytest.raises(ExceptionGroup, match="nobody handled"):
            run_simulation(lambda: main(crash=False), seed=1)

    def test_what_still_waits_at_the_end_is_thrown_away_silently(self) -> None:
        ran: list[str] = []

        async def stubborn() -> None:
            while True:
                try:
                    await asyncio.sleep(60)
                finally:
                    ran.append("finally")
                    with contextlib.suppress(BaseException):
                        await asyncio.sleep(1)

        async def main() -> None:
            for _ in range(3):
                current_loop().create_task(stubborn())
            await asyncio.sleep(1)

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run_simulation(main, seed=1)
            gc.collect()
        assert ran == []
        assert gc.isenabled()

    def test_a_run_leaves_no_tasks_and_coroutines_in_memory(self) -> None:
        async def main() -> None:
            loop = current_loop()
            for number in range(50):
                loop.spawn(loop.nodes.add(f"node-{number}"), ticking([]))
            await asyncio.sleep(2)
            loop.nodes.crash(loop.nodes.newest["node-1"])

        def in_memory() -> dict[int, object]:  # held, so that no id is given twice
            gc.collect()
            return {id(each): each for each in gc.get_objects() if isinstance(each, SimLoop | asyncio.Task)}

        before = in_memory()  # other tests of this process may have left some, in what they raised
        run_simulation(main, seed=1)
        assert not in_memory().keys() - before.keys()

    def test_another_thread_cannot_call_in(self) -> None:
        loop = SimLoop(1)
        with pytest.raises(RuntimeError, match="another thread"):
            loop.call_soon_threadsafe(print)
        loop.dispose()
