"""Supervision of standing tasks: begun again after any error, given up after too many, each decision by itself."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import PersistenceError
from coterie.kernel import metrics
from coterie.kernel.random import Random
from coterie.kernel.service import Tasks
from coterie.kernel.supervisor import (
    MOST,
    PAUSES,
    WELL_S,
    WITHIN_S,
    FailingTask,
    Seated,
    Supervisor,
    is_hopeless,
    is_outage,
    keeps_failing,
    recent,
)
from coterie.testing import run_simulation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

UNREACHABLE = PersistenceError(doing="read", problem="it is away", outcome="unreachable")
REFUSED = PersistenceError(doing="read", problem="no such table", outcome="refused")
ERRORS = [REFUSED, OSError("gone"), ValueError("odd"), KeyError("missing"), AssertionError("no")]


class Loop:
    """A standing task that raises what it is given, one error for each beginning, then runs."""

    def __init__(self, *errors: BaseException, after_s: float = 0.0) -> None:
        self.errors = list(errors)
        self.begun_s: list[float] = []
        self.runs = asyncio.Event()
        self._after_s = after_s

    async def live(self) -> None:
        self.begun_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self._after_s)
        if self.errors:
            raise self.errors.pop(0)
        self.runs.set()
        await asyncio.Event().wait()


def in_virtual_time(test: Callable[[], Awaitable[None]]) -> Any:
    """Run a test on the simulator's loop, so that pauses cost nothing and are exact."""

    def wrapped(**fixtures: Any) -> None:
        async def main() -> None:
            await test(**fixtures)

        run_simulation(main, seed=1)

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


# Decisions


def test_failures_count_for_a_minute() -> None:
    assert recent([0.0, 10.0, 60.0], 60.0 + WITHIN_S - 1) == [60.0]
    assert recent([0.0], WITHIN_S) == []
    assert recent([0.0], WITHIN_S - 0.001) == [0.0]


@pytest.mark.parametrize(
    ("failures", "expected"), [(0, False), (1, False), (MOST - 1, False), (MOST, True), (99, True)]
)
def test_a_task_is_hopeless_after_so_many_failures(failures: int, expected: bool) -> None:
    assert is_hopeless(failures) is expected


@pytest.mark.parametrize(
    ("failures", "ran_s", "expected"),
    [(1, None, False), (1, 0.0, False), (2, None, True), (2, WELL_S - 0.1, True), (2, WELL_S, False), (6, 60.0, False)],
)
def test_a_task_keeps_failing_until_it_has_run_well(failures: int, ran_s: float | None, expected: bool) -> None:
    assert keeps_failing(failures, ran_s=ran_s) is expected


@pytest.mark.parametrize(("outcome", "expected"), [("unreachable", True), ("unknown", True), ("refused", False)])
def test_an_outage_is_a_database_that_cannot_be_reached(outcome: Any, expected: bool) -> None:
    assert is_outage(PersistenceError(doing="read", problem="x", outcome=outcome)) is expected
    assert not is_outage(OSError())


def test_the_pauses_grow_and_leave_probes_the_time_to_tell() -> None:
    chance = Random(1)
    pauses = [PAUSES.delay_s(number, chance) or 0.0 for number in range(1, MOST)]
    assert all(0 < before < after for before, after in pairwise(pauses))
    assert 10.0 < sum(pauses) < WITHIN_S / 2


def test_a_failing_task_is_named_with_its_seat() -> None:
    assert str(FailingTask(name="settle seats")) == "'settle seats'"
    assert str(FailingTask(name="hold cron", seat="cron/x")) == "'hold cron' of cron/x"


# A task


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_one_error_of_any_kind_does_not_end_a_standing_task(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    loop, tasks, supervisor, counted = Loop(error), Tasks("test"), Supervisor(Random(1)), failures_of("sweep")
    tasks.supervise(loop.live, name="sweep", supervisor=supervisor)
    await soon(loop.runs.wait())
    assert len(loop.begun_s) == 2
    assert failures_of("sweep") == counted + 1
    assert "'sweep' failed and starts again" in caplog.text
    assert "in live" in caplog.text  # its place
    failing = supervisor.failing()
    assert [(each.name, each.failures, each.keeps_failing) for each in failing] == [("sweep", 1, False)]
    await tasks.stop()
    assert supervisor.failing() == ()


async def test_a_cancellation_ends_it_and_is_no_failure() -> None:
    loop, tasks, supervisor = Loop(), Tasks("test"), Supervisor(Random(1))
    task = tasks.supervise(loop.live, name="sweep", supervisor=supervisor)
    await soon(loop.runs.wait())
    task.cancel()
    await soon(tasks.stop())
    assert task.cancelled()
    assert supervisor.failing() == ()


async def test_something_else_that_was_cancelled_is_an_error_like_any() -> None:
    loop, tasks, supervisor = Loop(asyncio.CancelledError()), Tasks("test"), Supervisor(Random(1))
    tasks.supervise(loop.live, name="sweep", supervisor=supervisor)
    await soon(loop.runs.wait())
    assert [each.failures for each in supervisor.failing()] == [1]
    await tasks.stop()


async def test_a_task_that_cannot_even_be_made_is_made_again() -> None:
    tasks, supervisor, made = Tasks("test"), Supervisor(Random(1)), []

    async def live() -> None:
        made.append("alive")

    def make() -> Coroutine[Any, Any, None]:
        if not made:
            made.append("failed")
            raise KeyError("not yet")
        return live()

    await soon(tasks.supervise(make, name="sweep", supervisor=supervisor))
    assert made == ["failed", "alive"]


async def test_work_that_returns_has_ended() -> None:
    tasks, supervisor = Tasks("test"), Supervisor(Random(1))

    async def work() -> None:
        return None

    await soon(tasks.supervise(work, name="sweep", supervisor=supervisor))
    assert supervisor.failing() == ()


@in_virtual_time
async def test_a_task_of_a_seat_that_keeps_failing_gives_up_its_seat_and_ends() -> None:
    loop, tasks, supervisor = Loop(*(ValueError(n) for n in range(99))), Tasks("test"), Supervisor(Random(1))
    given_up: list[str] = []
    ended: list[FailingTask] = []
    supervisor.on_hopeless(ended.append)
    seated = Seated("cron/x", lambda: given_up.append("cron/x"))
    await tasks.supervise(loop.live, name="hold cron", supervisor=supervisor, seated=seated)
    assert given_up == ["cron/x"]
    assert len(loop.begun_s) == MOST
    assert not ended  # the runner lives on
    assert supervisor.failing() == ()
    pauses = [after - before for before, after in pairwise(loop.begun_s)]
    assert pauses == sorted(pauses)


@in_virtual_time
async def test_a_task_of_the_runner_that_keeps_failing_ends_the_runner_once_and_is_named_before() -> None:
    loop, tasks, supervisor = Loop(*(ValueError(n) for n in range(99))), Tasks("test"), Supervisor(Random(1))
    ended: list[FailingTask] = []
    supervisor.on_hopeless(ended.append)
    tasks.supervise(loop.live, name="settle seats", supervisor=supervisor)
    while len(loop.begun_s) < MOST - 1:
        await asyncio.sleep(0.1)
    [failing] = supervisor.failing()
    assert (failing.name, failing.keeps_failing, failing.error[:10]) == ("settle seats", True, "ValueError")
    assert not ended
    while len(loop.begun_s) < MOST + 3:
        await asyncio.sleep(0.1)
    assert [each.failures for each in ended] == [MOST]
    await tasks.stop()


@in_virtual_time
async def test_failures_that_are_more_than_a_minute_apart_give_nothing_up() -> None:
    errors = [ValueError(n) for n in range(3 * MOST)]
    loop, tasks, supervisor = Loop(*errors, after_s=WITHIN_S / 2), Tasks("test"), Supervisor(Random(1))
    ended: list[FailingTask] = []
    supervisor.on_hopeless(ended.append)
    tasks.supervise(loop.live, name="settle seats", supervisor=supervisor)
    await loop.runs.wait()
    assert len(loop.begun_s) == 3 * MOST + 1
    assert not ended
    await asyncio.sleep(WITHIN_S)
    assert supervisor.failing() == ()  # all is forgotten
    await tasks.stop()


@in_virtual_time
async def test_an_outage_gives_nothing_up_and_is_no_failing_task_however_long_it_lasts() -> None:
    loop, tasks, supervisor = Loop(*[UNREACHABLE] * 5 * MOST), Tasks("test"), Supervisor(Random(1))
    ended: list[FailingTask] = []
    supervisor.on_hopeless(ended.append)
    tasks.supervise(loop.live, name="settle seats", supervisor=supervisor)
    while not loop.runs.is_set():
        await asyncio.sleep(1)
        assert supervisor.failing() == ()
    assert not ended
    pauses = [after - before for before, after in pairwise(loop.begun_s)]
    assert pauses[0] < 1 < pauses[-1]
    await tasks.stop()


@in_virtual_time
async def test_without_a_runner_a_hopeless_task_goes_on_at_the_longest_pause() -> None:
    loop, tasks = Loop(*(ValueError(n) for n in range(2 * MOST))), Tasks("test")
    tasks.supervise(loop.live, name="commit groups", supervisor=Supervisor(Random(1)))
    await loop.runs.wait()
    assert len(loop.begun_s) == 2 * MOST + 1
    await tasks.stop()


def failures_of(task: str) -> float:
    return metrics.TASK_FAILURES.of(task).value


async def soon(work: Awaitable[object]) -> None:
    async with asyncio.timeout(120):
        await work


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="coterie")
