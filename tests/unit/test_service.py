"""One suite for the one lifecycle: everything in `service_cases` must survive all of this."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import NotStarted, ShuttingDown
from coterie.kernel.service import Service, State
from coterie.ownership.lease_thread import ThreadSideLoop
from coterie.storage.sqlite.database import open_memory
from coterie.storage.sqlite.executor import ThreadExecutor
from tests.unit.service_cases import CASES, ServiceCase, Watched

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

DEADLINE_S = 120


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> ServiceCase:
    assert isinstance(request.param, ServiceCase)
    return request.param


@pytest.fixture
def watch(case: ServiceCase, tmp_path: Path) -> Callable[..., Watched]:
    return lambda **how: Watched(case.make(tmp_path), **how)


@pytest.fixture(autouse=True)
def no_error_is_dropped(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """asyncio tells of an error that nobody looked at when its task is collected."""
    yield
    gc.collect()
    told = [*caplog.get_records("call"), *caplog.records]
    assert not [record.getMessage() for record in told if record.name == "asyncio"]


async def soon(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(DEADLINE_S):
        return await awaitable


async def test_start_returns_when_it_works_and_stop_when_it_has_stopped(
    watch: Callable[..., Watched],
) -> None:
    watched = watch()
    service = watched.service
    with pytest.raises(NotStarted):
        service.require_running()
    await soon(service.start())
    assert service.state is State.RUNNING
    service.require_running()
    await soon(service.stop())
    with pytest.raises(ShuttingDown):
        service.require_running()
    watched.assert_over()


async def test_it_is_a_context_manager(watch: Callable[..., Watched]) -> None:
    watched = watch()
    async with watched.service as service:
        assert service.state is State.RUNNING
    watched.assert_over()


async def test_it_may_be_stopped_twice(watch: Callable[..., Watched]) -> None:
    watched = watch()
    await soon(watched.service.start())
    await soon(watched.service.stop())
    await soon(watched.service.stop())
    watched.assert_over()


async def test_it_may_be_stopped_before_it_started_and_then_does_not_start(
    watch: Callable[..., Watched],
) -> None:
    watched = watch()
    await soon(watched.service.stop())
    with pytest.raises(ShuttingDown):
        await soon(watched.service.start())
    watched.assert_over()
    assert watched.starts == 0


async def test_it_lives_once(watch: Callable[..., Watched]) -> None:
    watched = watch()
    await soon(watched.service.start())
    with pytest.raises(RuntimeError, match="lives once"):
        await soon(watched.service.start())
    await soon(watched.service.stop())
    with pytest.raises(RuntimeError, match="lives once"):
        await soon(watched.service.start())
    watched.assert_over()


async def test_concurrent_stops_all_wait_for_the_one_end(watch: Callable[..., Watched]) -> None:
    watched = watch()
    await soon(watched.service.start())
    watched.stop_release.clear()
    stops = [asyncio.create_task(watched.service.stop()) for _ in range(5)]
    await soon(watched.stop_entered.wait())
    assert watched.service.state is State.STOPPING
    assert not any(stop.done() for stop in stops)
    watched.stop_release.set()
    await soon(asyncio.gather(*stops))
    watched.assert_over()


async def test_stopped_during_start_it_ends_and_start_says_so(watch: Callable[..., Watched]) -> None:
    watched = watch()
    watched.release.clear()
    starting = asyncio.create_task(watched.service.start())
    await soon(watched.entered.wait())
    await soon(watched.service.stop())
    with pytest.raises(ShuttingDown):
        await soon(starting)
    watched.assert_over()
    assert watched.starts == 1


async def test_stopped_in_the_instant_of_starting_it_ends_as_often_as_it_began(
    watch: Callable[..., Watched],
) -> None:
    watched = watch()
    starting = asyncio.create_task(watched.service.start())
    await asyncio.sleep(0)
    assert watched.service.state is State.STARTING
    await soon(watched.service.stop())
    with pytest.raises(ShuttingDown):
        await soon(starting)
    watched.assert_over()


async def test_a_start_that_fails_raises_its_error_and_is_cleaned_up(watch: Callable[..., Watched]) -> None:
    watched = watch(start_fails=True)
    with pytest.raises(ZeroDivisionError):
        await soon(watched.service.start())
    watched.assert_over()
    assert watched.stops == 1


async def test_a_stop_that_fails_raises_to_all_who_wait_and_leaves_it_stopped(
    watch: Callable[..., Watched], caplog: pytest.LogCaptureFixture
) -> None:
    watched = watch(stop_fails=True)
    await soon(watched.service.start())
    results = await soon(asyncio.gather(*(watched.service.stop() for _ in range(3)), return_exceptions=True))
    assert [type(result) for result in results] == [OSError] * 3
    await soon(watched.service.stop())
    watched.assert_over()
    assert "/stop ended by OSError" in caplog.text


async def test_when_start_and_then_stop_fail_the_error_of_start_is_raised_and_the_other_logged(
    watch: Callable[..., Watched], caplog: pytest.LogCaptureFixture
) -> None:
    watched = watch(start_fails=True, stop_fails=True)
    with pytest.raises(ZeroDivisionError):
        await soon(watched.service.start())
    watched.assert_over()
    assert "/stop ended by OSError" in caplog.text


@pytest.mark.parametrize("stop_fails", [False, True])
async def test_a_cancelled_start_ends_it_and_stays_cancelled(watch: Callable[..., Watched], stop_fails: bool) -> None:
    watched = watch(stop_fails=stop_fails)
    watched.release.clear()
    starting = asyncio.create_task(watched.service.start())
    await soon(watched.entered.wait())
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(starting)
    watched.assert_over()


async def test_a_start_cancelled_before_its_first_step_has_nothing_to_end(
    watch: Callable[..., Watched],
) -> None:
    watched = watch()
    starting = asyncio.create_task(watched.service.start())
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:  # as asyncio.run does when the program ends
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(starting)
    watched.assert_over()
    assert watched.stops == 0


async def test_a_start_cancelled_twice_still_cleans_up_in_peace(watch: Callable[..., Watched]) -> None:
    watched = watch()
    cleaning, release, cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def start_with_slow_cleaning() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cleaning.set()
            await release.wait()
            cleaned.set()

    watched._inner = (start_with_slow_cleaning, watched._inner[1])
    starting = asyncio.create_task(watched.service.start())
    await soon(watched.entered.wait())
    for _ in range(2):
        starting.cancel()
        await soon(cleaning.wait())
    with pytest.raises(asyncio.CancelledError):
        await soon(starting)
    release.set()
    await soon(watched.service.stop())
    assert cleaned.is_set()
    watched.assert_over()


async def test_a_start_that_times_out_ends_it_and_says_timeout(watch: Callable[..., Watched]) -> None:
    watched = watch()
    watched.release.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await watched.service.start()
    watched.assert_over()


async def test_a_task_cancelled_earlier_is_told_the_truth_when_another_stops_its_service(
    watch: Callable[..., Watched],
) -> None:
    watched = watch()
    watched.release.clear()

    async def start_while_cleaning_up() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await watched.service.start()

    starting = asyncio.create_task(start_while_cleaning_up())
    await asyncio.sleep(0)
    starting.cancel()
    await soon(watched.entered.wait())
    await soon(watched.service.stop())
    with pytest.raises(ShuttingDown):
        await soon(starting)
    watched.assert_over()


async def test_a_cancelled_stop_does_not_cut_the_end_short(watch: Callable[..., Watched]) -> None:
    watched = watch()
    await soon(watched.service.start())
    watched.stop_release.clear()
    stopping = asyncio.create_task(watched.service.stop())
    await soon(watched.stop_entered.wait())
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(stopping)
    assert watched.service.state is State.STOPPING
    watched.stop_release.set()
    await soon(watched.service.stop())
    watched.assert_over()


async def test_stop_called_from_within_start_or_stop_does_not_wait_for_itself(
    case: ServiceCase, tmp_path: Path
) -> None:
    watched = Watched(case.make(tmp_path))
    service, inner_start, inner_stop = watched.service, watched._inner[0], watched._inner[1]

    async def start_and_stop() -> None:
        await inner_start()
        await service.stop()

    async def stop_and_stop() -> None:
        await service.stop()
        await inner_stop()

    watched._inner = (start_and_stop, stop_and_stop)
    with pytest.raises(ShuttingDown):
        await soon(service.start())
    watched.assert_over()


def test_random_histories_of_several_tasks_end_well(case: ServiceCase, tmp_path: Path) -> None:
    for seed in range(case.histories):
        try:
            asyncio.run(history(case.make, tmp_path, random.Random(seed)))
        except BaseException as error:
            error.add_note(f"{case.name}, seed {seed}")
            raise


async def history(make: Callable[[Path], Service], tmp_path: Path, chance: random.Random) -> None:
    """Three to six tasks start, stop and cancel each other in an order that the seed decides."""
    watched = Watched(
        make(tmp_path),
        steps=chance.randrange(4),
        start_fails=chance.random() < 0.2,
        stop_fails=chance.random() < 0.2,
    )
    actors: list[asyncio.Task[None]] = []
    plans = [
        [
            (chance.randrange(8), chance.choice(["start", "stop", "stop", "cancel"]))
            for _ in range(chance.randrange(1, 4))
        ]
        for _ in range(chance.randrange(3, 7))
    ]
    plans[0].insert(0, (chance.randrange(3), "start"))
    async with asyncio.timeout(DEADLINE_S):
        actors += [asyncio.create_task(act(watched, plan, actors, chance)) for plan in plans]
        results = await asyncio.gather(*actors, return_exceptions=True)
        await asyncio.gather(watched.service.stop(), return_exceptions=True)
    unexpected = [error for error in results if error and not isinstance(error, asyncio.CancelledError)]
    assert not unexpected, unexpected
    watched.assert_over()


async def act(
    watched: Watched, plan: list[tuple[int, str]], actors: list[asyncio.Task[None]], chance: random.Random
) -> None:
    for pause, action in plan:
        for _ in range(pause):
            await asyncio.sleep(0)
        if action == "cancel":
            chance.choice(actors).cancel()
        elif action == "start":
            await act_start(watched)
        else:
            await act_stop(watched)


async def act_start(watched: Watched) -> None:
    try:
        await watched.service.start()
    except (ShuttingDown, ZeroDivisionError):
        assert watched.service.state is State.STOPPED
    except RuntimeError:
        assert watched.service.state is not State.NEW  # started by another
    else:
        assert watched.service.state is State.RUNNING
        assert not watched._start_fails


async def act_stop(watched: Watched) -> None:
    try:
        await watched.service.stop()
    except OSError:
        assert watched._stop_fails
    assert watched.service.state is State.STOPPED
    assert watched.stopped == watched.starts


@pytest.mark.parametrize(
    "make", [ThreadSideLoop, lambda: ThreadExecutor(open_memory, what="executor")], ids=["lease keeper", "executor"]
)
async def test_a_thread_that_the_system_has_no_room_for_fails_the_start(
    make: Callable[[], Service], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    service = make()
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(RuntimeError, match="can't start"):
            await service.start()
    assert service.state is State.STOPPED
    assert caplog.records == [], "its stop has nothing to wait for"
