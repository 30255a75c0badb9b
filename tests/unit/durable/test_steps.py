"""Running steps: what is stored of them, and what is not."""

from __future__ import annotations

import asyncio
import inspect
import re
from datetime import timedelta
from typing import Any

import pytest

from coterie import LeadershipLost, Retry
from coterie.durable.position import Place
from coterie.durable.steps import StepCall
from coterie.durable.unit import Steps
from coterie.errors import MalformedMessage, PersistenceError, RunnerUnavailable, StepDiverged
from coterie.storage.contracts.units import StepRow
from tests.unit.durable.fake_storage import OpenUnit, pause

pytestmark = pytest.mark.simulated(seeds=1)


@pytest.mark.parametrize("why", ["stop_at_frontier", "closed"])
async def test_a_patch_is_not_stored_where_nothing_new_is_begun(why: str) -> None:
    ground = OpenUnit()
    setattr(ground.work, why, True)
    assert ground.work.patch("p")
    await pause()
    assert ground.units.written == []
    await ground.tasks.stop()


async def test_w2_a_patch_that_is_being_stored_is_not_when_another_branch_diverges() -> None:
    """Which is found out before anything was sent."""
    ground = OpenUnit()
    assert ground.work.patch("p")
    ground.work.halt(StepDiverged(unit="u", found="a", stored="b"))
    with pytest.raises(StepDiverged):
        ground.work.patch("q")
    await pause()
    assert ground.units.written == []
    await ground.tasks.stop()


async def test_a_result_that_is_too_large_is_an_error_that_says_what_to_do_and_stays_one() -> None:
    ground = OpenUnit()

    async def give(size: int) -> bytes:
        return bytes(size)

    assert await ground.work.step("small", give, (65_500,), {}) == bytes(65_500)
    with pytest.raises(
        MalformedMessage, match=r"'large' of u: 65,541 bytes, more than the 65,536 .*put large data else"
    ):
        await ground.work.step("large", give, (64 * 2**10,), {})
    assert [(write.name, write.value is None, write.error is None) for write in ground.units.written] == [
        ("small", False, True),
        ("large", True, False),
    ]
    await ground.tasks.stop()


class Work:
    """A step that raises what it is told, one after the other, and then gives 7."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.runs = 0

    async def __call__(self) -> int:
        self.runs += 1
        if self.errors:
            raise self.errors.pop(0)
        return 7


def unreachable() -> PersistenceError:
    return PersistenceError(doing="test", problem="test", outcome="unreachable")


async def test_an_error_is_stored_and_raised_again_without_running_again() -> None:
    ground, work = OpenUnit(), Work(ValueError("x"))
    with pytest.raises(ValueError, match="x"):
        await ground.work.step("s", work, (), {})
    (write,) = ground.units.written
    assert (write.done, write.value) == (True, None)
    again = OpenUnit()
    again.units.steps = (StepRow(branch="", position=0, kind="step", name="s", done=True, error=write.error),)
    with pytest.raises(ValueError, match="x"):
        await again.work.step("s", work, (), {})
    assert (work.runs, again.units.written) == (1, [])


async def test_a_result_that_is_stored_is_given_without_running() -> None:
    ground, work = OpenUnit(), Work()
    await ground.work.step("s", work, (), {})
    again = OpenUnit()
    value = ground.units.written[0].value
    again.units.steps = (StepRow(branch="", position=0, kind="step", name="s", done=True, value=value),)
    assert await again.work.step("s", work, (), {}) == 7
    assert work.runs == 1


async def test_a_stored_result_that_the_code_reads_otherwise_now_diverges_for_good() -> None:
    ground = OpenUnit()
    ground.units.steps = (StepRow(branch="", position=0, kind="step", name="s", done=True, value=b"\xa1x"),)
    with pytest.raises(StepDiverged, match="whose result is another one now"):
        await ground.work.step("s", Work(), (), {})
    assert isinstance(ground.work.halted, StepDiverged)
    with pytest.raises(StepDiverged):
        await ground.work.step("t", Work(), (), {})


async def test_a_step_is_stored_with_its_beginning_its_attempts_and_its_runner() -> None:
    """By the database's clock, before its first attempt; what could not reach its receiver counts as an attempt."""
    ground, work = OpenUnit(), Work(ValueError("x"), unreachable())
    began_at = ground.units.now()
    await ground.work.step("s", work, (), {}, retry=Retry(attempts=3, base="1s", jitter=0.0))
    with pytest.raises(ValueError, match="y"):
        await ground.work.step("t", Work(ValueError("y")), (), {})
    first, second = ground.units.written
    assert (first.began_at, first.attempts, first.runner) == (began_at, 3, "r1")
    assert ground.units.now() - began_at >= timedelta(seconds=1)
    assert (second.began_at, second.attempts) == (ground.units.now(), 1)
    await ground.work.sleep("1s", name="nap")
    assert [(each.began_at, each.attempts) for each in ground.units.written[2:]] == [(None, None), (None, None)]
    await ground.tasks.stop()


async def test_what_fails_is_tried_again_as_often_as_its_retry_says() -> None:
    ground, work = OpenUnit(), Work(ValueError("1"), ValueError("2"))
    ground.work.retry = Retry(attempts=3, base="1s")
    began_s = asyncio.get_running_loop().time()
    assert await ground.work.step("s", work, (), {}) == 7
    assert work.runs == 3
    assert asyncio.get_running_loop().time() > began_s, "with pauses"
    work = Work(*[ValueError(str(number)) for number in range(5)])
    with pytest.raises(ValueError, match="2"):
        await ground.work.step("t", work, (), {})
    assert work.runs == 3


@pytest.mark.parametrize("error", [unreachable(), RunnerUnavailable(runner="r", problem="p", sent=False, target="t")])
async def test_somebody_who_cannot_be_reached_costs_no_attempt(error: Exception) -> None:
    ground, work = OpenUnit(), Work(*[error] * 20)
    ground.work.retry = Retry(attempts=1)
    assert await ground.work.step("s", work, (), {}) == 7
    assert work.runs == 21


async def test_a_step_that_cancels_itself_has_failed() -> None:
    ground = OpenUnit()
    with pytest.raises(RuntimeError, match="cancelled, by itself"):
        await ground.work.step("s", Work(asyncio.CancelledError()), (), {})
    assert ground.units.written[0].error is not None


async def test_a_step_that_is_cancelled_from_outside_is_not_stored() -> None:
    ground = OpenUnit()

    async def wait() -> None:
        await asyncio.Event().wait()

    task = ground.tasks.spawn(ground.work.step("s", wait, (), {}), name="test")
    await pause()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert ground.units.written == []


async def test_a_step_that_takes_too_long_has_failed() -> None:
    ground = OpenUnit()

    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await ground.work.run(StepCall(Place("", 0, "step", "s"), wait, (), {}, timeout_s=2.0))
    assert ground.units.written[0].error is not None


@pytest.mark.parametrize("error", [LeadershipLost(seat="s", epoch=1), StepDiverged(unit="u", found="a", stored="b")])
async def test_who_must_not_go_on_stores_nothing(error: Exception) -> None:
    ground, work = OpenUnit(), Work(error)
    ground.work.retry = Retry(attempts=3)
    with pytest.raises(type(error)):
        await ground.work.step("s", work, (), {})
    assert (work.runs, ground.units.written, ground.work.halted) == (1, [], error)


async def test_whoever_lost_the_seat_while_a_step_failed_does_not_run_it_again() -> None:
    ground = OpenUnit()
    ground.work.retry = Retry(attempts=3, base="1s")

    async def lose() -> None:
        ground.trust.end()
        raise ValueError

    with pytest.raises(LeadershipLost):
        await ground.work.step("s", lose, (), {})
    assert ground.units.written == []


async def test_whoever_lost_the_seat_during_the_pause_does_not_run_it_again() -> None:
    """A process that was frozen there: its successor has run the step."""
    ground, work = OpenUnit(), Work(ValueError("1"), ValueError("2"))
    ground.work.retry = Retry(attempts=3, base="10s")
    task = ground.tasks.spawn(ground.work.step("s", work, (), {}), name="test")
    await pause()
    ground.trust.end()
    with pytest.raises(LeadershipLost):
        await task
    assert work.runs == 1


async def test_what_nobody_asks_for_again_is_not_read_and_goes_on_at_the_frontier() -> None:
    """So does what undoes something: the run ends, and must be undone."""
    ground = OpenUnit()
    ground.work.stop_at_frontier = True
    place = Place("undo", 0, "compensation", "s")
    assert await ground.work.run(StepCall(place, Work(), (), {}, keep=False)) is None
    (write,) = ground.units.written
    assert (write.value, write.error) == (None, None)


async def fetch(url: str) -> str:
    return url


def numbers() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("s", 5), "step 's' got '5', expected a function"),
        (("s", int), "step 's' got 'int', expected a function"),
        (("s", numbers), "step 's' got 'numbers', expected a function"),
        (("s", None), "step 's' got 'None', expected a function"),
        ((fetch, "url"), 'step(fetch, …) has no name: write step("fetch", fetch, …)'),
    ],
)
async def test_what_is_no_function_is_refused_before_anything_is_stored(given: Any, said: str) -> None:
    unit = OpenUnit()
    with pytest.raises(TypeError, match=re.escape(said)):
        await Steps(unit.work).step(*given)
    assert await Steps(unit.work).step("s", fetch, "there") == "there"
    assert [(each.name, each.position) for each in unit.units.written] == [("s", 0)]


async def test_a_coroutine_is_refused_and_closed() -> None:
    unit, made = OpenUnit(), fetch("there")
    with pytest.raises(TypeError, match=re.escape('give the function and its arguments, step("s", fetch, …)')):
        await Steps(unit.work).step("s", made)  # type: ignore[call-overload]
    assert inspect.getcoroutinestate(made) == inspect.CORO_CLOSED
    assert not unit.units.written


async def test_a_lambda_is_a_function_like_any() -> None:
    unit = OpenUnit()
    assert await Steps(unit.work).step("s", lambda: 5) == 5
    assert await Steps(unit.work).step("t", lambda: fetch("there")) == "there"


async def test_a_sleep_without_a_name_is_told_to_have_one() -> None:
    unit = OpenUnit()
    with pytest.raises(TypeError, match=re.escape("""sleep('2s') has no name: write sleep('2s', name="…")""")):
        await Steps(unit.work).sleep("2s")  # type: ignore[call-arg]
    assert not unit.units.written
