"""One tick, from its claim to its outcome, over storage that fails, forgets and refuses (C2, C6, M9, INV-C1)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from coterie import LeadershipLost, Retry, current
from tests.unit.cron.fake_storage import HeldCron, cron, noon, row, unknown, unreachable

if TYPE_CHECKING:
    from coterie import Tick

pytestmark = pytest.mark.simulated(seeds=1)


async def failing(tick: Tick) -> None:
    raise ValueError(f"no luck in attempt {tick.attempt}")


def firsts(errors: tuple[str, ...] | None) -> list[str]:
    """Of each error its first line: the rest is where it came from."""
    return [error.splitlines()[0] for error in errors or ()]


async def test_a_run_that_ends_well_is_one_write() -> None:
    seen: list[Any] = []

    async def body(tick: Tick) -> None:
        seen.append((tick.name, tick.scheduled_at, tick.attempt, tick.manual, tick.epoch, current().seat))
        await asyncio.sleep(2)

    stage = HeldCron(cron(body=body))
    await asyncio.sleep(1.25)
    assert await stage.running(row(noon(1))).run() == "ran"
    assert seen == [("x", noon(1), 1, False, 7, "cron:x")]
    (note,) = stage.ticks.notes
    assert (note.outcome, note.attempt, note.again, note.errors) == ("ran", 1, False, ())
    assert note.late_s == pytest.approx(0.25)
    assert note.took_s == 2


async def test_lateness_of_a_triggered_one_counts_from_when_it_was_asked_for_and_with_jitter_from_when_it_is_due() -> (
    None
):
    stage = HeldCron(cron())
    await asyncio.sleep(3)
    await stage.running(row(noon(-86_400), kind="manual", seq=1, claimed_at=noon(2.5))).run()
    assert stage.ticks.notes[0].late_s == pytest.approx(0.5)
    jittery = HeldCron(cron(jitter="2s"), believes=noon(3))
    await jittery.running(row(noon(0))).run()
    delay_s = jittery.cron.policy.delay.total_seconds()
    assert delay_s > 0
    assert jittery.ticks.notes[0].late_s == pytest.approx(3 - delay_s)


async def test_c6_what_raises_is_tried_as_often_as_its_policy_says_and_each_error_is_written_at_once() -> None:
    at: list[float] = []

    async def body(tick: Tick) -> None:
        at.append(asyncio.get_running_loop().time())
        await failing(tick)

    stage = HeldCron(cron(body=body, retry=Retry(attempts=3, base="1s", jitter=0)))
    assert await stage.running(row()).run() == "failed"
    assert [(note.attempt, note.again, note.outcome, len(note.errors or ())) for note in stage.ticks.notes] == [
        (1, False, None, 1),
        (1, True, None, 1),
        (2, False, None, 2),
        (2, True, None, 2),
        (3, False, "failed", 3),
    ]
    assert firsts(stage.ticks.notes[-1].errors) == [
        f"attempt {number}: ValueError: no luck in attempt {number}" for number in (1, 2, 3)
    ]
    assert [later - earlier for earlier, later in pairwise(at)] == [1, 2]


async def test_c6_with_another_attempt_the_body_sees_its_number() -> None:
    numbers: list[int | None] = []

    async def body(tick: Tick) -> None:
        numbers.append(current().attempt)
        if tick.attempt < 3:
            await failing(tick)

    stage = HeldCron(cron(body=body, retry=Retry(attempts=5)))
    assert await stage.running(row()).run() == "ran"
    assert numbers == [1, 2, 3]
    assert stage.ticks.outcomes() == [(0, "ran", 3)]


async def test_m9_what_a_lost_runner_has_begun_goes_on_with_its_number_and_its_errors() -> None:
    stage = HeldCron(cron(body=failing, retry=Retry(attempts=3)))
    found = row(attempt=2, errors=("attempt 1: it was",), late_s=0.5)
    stage.ticks.rows["scheduled", noon(0), 0] = found
    await asyncio.sleep(9)
    assert await stage.running(found).run() == "failed"
    last = stage.ticks.notes[-1]
    assert firsts(last.errors)[0] == "attempt 1: it was"
    assert [error[:9] for error in last.errors or ()] == ["attempt 1", "attempt 2", "attempt 3"]
    assert last.late_s == 0.5, "how late the first one was"


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_tick_that_is_lost_again_and_again_is_given_up(attempts: int) -> None:
    """Four times more than its policy allows: it may be what kills the process."""
    began: list[int] = []

    async def body(tick: Tick) -> None:
        began.append(tick.attempt)

    stage = HeldCron(cron(body=body, retry=Retry(attempts=attempts)))
    for attempt in (attempts + 4, attempts + 5):
        found = row(noon(attempt), attempt=attempt)
        stage.ticks.rows["scheduled", noon(attempt), 0] = found
        await stage.running(found).run()
    assert began == [attempts + 4]
    assert [note.outcome for note in stage.ticks.notes] == ["ran", "failed"]
    lost = attempts + 4
    assert stage.ticks.notes[-1].errors == (f"attempt {lost + 1}: its runner was lost in each of {lost} attempts",)


async def test_of_very_many_errors_the_first_and_the_last_are_kept() -> None:
    stage = HeldCron(cron(body=failing, retry=Retry(attempts=30, base="1ms", max="1ms")))
    assert await stage.running(row()).run() == "failed"
    kept = stage.ticks.notes[-1].errors or ()
    assert [int(error.split()[1].rstrip(":")) for error in kept] == [1, *range(12, 31)]


async def test_a_long_or_hostile_error_is_cut_and_stored(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="coterie.cron")  # the log has it whole, and reports of tests must be text

    async def body(tick: Tick) -> None:
        raise ValueError("\0\ud800" + "x" * 100_000)

    stage = HeldCron(cron(body=body))
    await stage.running(row()).run()
    ((error,),) = [note.errors or () for note in stage.ticks.notes]
    assert len(error) < 5_000
    assert "\0" not in error
    error.encode()


async def test_where_an_error_came_from_begins_in_the_user_s_code() -> None:
    stage = HeldCron(cron(body=failing))
    await stage.running(row()).run()
    (error,) = stage.ticks.notes[-1].errors or ()
    assert error.splitlines()[1].startswith(f'  File "{__file__}"')


# Timeouts


async def test_c6_a_body_that_takes_too_long_is_cancelled_and_may_clean_up() -> None:
    cleaned: list[float] = []

    async def body(tick: Tick) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(1)
            cleaned.append(asyncio.get_running_loop().time())

    stage = HeldCron(cron(body=body, timeout="5s"))
    assert await stage.running(row()).run() == "failed"
    assert cleaned == [6]
    assert stage.ticks.notes[-1].errors == ("attempt 1: TimeoutError: it did not end within 5s",)


async def test_c6_a_body_that_ignores_its_cancellation_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    over = asyncio.Event()

    async def body(tick: Tick) -> None:
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    stage = HeldCron(cron(body=body, timeout="5s"))
    assert await stage.running(row()).run() == "failed"
    assert asyncio.get_running_loop().time() == 8, "the limit, and the time to end"
    assert "ignored its cancellation for 3s and is abandoned" in caplog.text
    over.set()
    await asyncio.sleep(1)
    assert [note.outcome for note in stage.ticks.notes] == ["failed"]


async def test_a_body_within_its_timeout_has_the_context_of_its_tick() -> None:
    seen: list[Any] = []

    async def body(tick: Tick) -> None:
        seen.append((current().seat, current().attempt))

    assert await HeldCron(cron(body=body, timeout="5s")).running(row()).run() == "ran"
    assert seen == [("cron:x", 1)]


@pytest.mark.parametrize("timeout", [None, "1m"])
async def test_a_run_that_is_cancelled_from_outside_writes_nothing(timeout: str | None) -> None:
    """The seat is lost, or the drain is over: the next holder makes another attempt."""
    ended: list[str] = []

    async def body(tick: Tick) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
            ended.append("cleaned up")
            raise

    stage = HeldCron(cron(body=body, timeout=timeout))
    task = asyncio.create_task(stage.running(row()).run())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cleaned up"]
    assert not stage.ticks.notes


@pytest.mark.parametrize("timeout", [None, "1m"])
async def test_a_body_that_cancels_itself_has_failed(timeout: str | None) -> None:
    async def body(tick: Tick) -> None:
        raise asyncio.CancelledError

    stage = HeldCron(cron(body=body, timeout=timeout))
    assert await stage.running(row()).run() == "failed"
    assert stage.ticks.notes[-1].errors == ("attempt 1: its body was cancelled, by itself",)


# What is written


async def test_an_outcome_waits_for_the_database() -> None:
    stage = HeldCron(cron())
    stage.ticks.failing["note"] = [unreachable, unknown, unreachable]
    assert await stage.running(row()).run() == "ran"
    assert stage.ticks.asked["note"] == 4
    assert [note.outcome for note in stage.ticks.notes] == ["ran"]


async def test_an_outcome_whose_answer_was_lost_is_written_once(caplog: pytest.LogCaptureFixture) -> None:
    """The second time it is in conflict with itself."""
    stage = HeldCron(cron())
    stage.ticks.losing["note"] = [unknown]
    assert await stage.running(row()).run() == "ran"
    assert [note.outcome for note in stage.ticks.notes] == ["ran"]
    assert "changed by hand" not in caplog.text


async def test_another_attempt_whose_answer_was_lost_has_its_number_all_the_same() -> None:
    numbers: list[int] = []

    async def body(tick: Tick) -> None:
        numbers.append(tick.attempt)
        if tick.attempt < 3:
            stage.ticks.losing["note"] = [unknown, unknown]
            await failing(tick)

    stage = HeldCron(cron(body=body, retry=Retry(attempts=3)))
    assert await stage.running(row()).run() == "ran"
    assert numbers == [1, 2, 3]
    assert stage.ticks.outcomes() == [(0, "ran", 3)]


async def test_m9_a_tick_that_is_over_though_nobody_here_has_ended_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    stage = HeldCron(cron())
    stage.ticks.rows["scheduled", noon(0), 0] = row(outcome="failed")
    await stage.running(row()).run()
    assert not stage.ticks.notes
    assert "was its row changed by hand?" in caplog.text


async def test_c2_without_its_seat_it_is_left_to_another_runner() -> None:
    for fenced in (True, False):
        stage = HeldCron(cron())
        if fenced:
            stage.ticks.held = False
        else:
            stage.tenure.ended = True
        assert await stage.running(row()).run() is None
        assert not stage.ticks.notes


async def test_c2_it_stops_waiting_for_the_database_when_its_seat_is_gone() -> None:
    stage = HeldCron(cron())
    stage.ticks.failing["note"] = [unreachable] * 1000
    task = asyncio.create_task(stage.running(row()).run())
    await asyncio.sleep(2)
    assert not task.done()
    stage.tenure.ended = True
    assert await task is None


async def test_a_body_that_learns_that_its_seat_is_lost_has_not_failed() -> None:
    """`verify`, a transaction or a fenced write told it."""

    async def body(tick: Tick) -> None:
        raise LeadershipLost(seat="cron:x", epoch=7)

    stage = HeldCron(cron(body=body))
    assert await stage.running(row()).run() is None
    assert not stage.ticks.notes


async def test_a_body_that_learns_that_another_seat_is_lost_has_failed() -> None:
    """It called a leader that has just moved."""

    async def body(tick: Tick) -> None:
        raise LeadershipLost(seat="singleton:other", epoch=2)

    stage = HeldCron(cron(body=body))
    assert await stage.running(row()).run() == "failed"
    (note,) = stage.ticks.notes
    assert "LeadershipLost" in (note.errors or ("",))[0]


# What was cut off


@pytest.mark.parametrize(
    ("age_s", "has_steps", "outcome", "asked"),
    [(30, False, "ran", 0), (90, False, "skipped", 1), (90, True, "ran", 1)],
    ids=["young", "old", "old-with-steps"],
)
async def test_what_was_cut_off_and_is_too_old_is_skipped_unless_a_step_of_it_is_stored(
    age_s: int, has_steps: bool, outcome: str, asked: int
) -> None:
    began: list[int] = []

    async def body(tick: Tick) -> None:
        began.append(tick.attempt)

    stage = HeldCron(cron(body=body, skip_if_older_than="60s"))
    stage.units.stored = (object(),) if has_steps else ()
    found = row(noon(0), attempt=2)
    stage.ticks.rows["scheduled", noon(0), 0] = found
    await asyncio.sleep(age_s)
    assert await stage.running(found, cut_off=True).run() == outcome
    (note,) = stage.ticks.notes
    assert (note.outcome, note.reason) == (outcome, "cut off and too old" if outcome == "skipped" else "")
    assert began == ([2] if outcome == "ran" else [])
    assert len(stage.units.asked) == asked, "storage is asked only if it matters"
    assert len(stage.units.ended) == 1, "a former attempt may have begun its unit"


async def test_one_that_was_not_cut_off_runs_however_old_it_is() -> None:
    """When it was claimed it was young enough."""
    stage = HeldCron(cron(skip_if_older_than="60s"))
    await asyncio.sleep(90)
    assert await stage.running(row(noon(0))).run() == "ran"
    assert (stage.units.asked, stage.units.ended) == ([], [])


@pytest.mark.parametrize("is_held", [True, False])
async def test_whether_a_step_is_stored_is_asked_until_the_database_answers_or_the_seat_is_gone(is_held: bool) -> None:
    stage = HeldCron(cron(skip_if_older_than="60s"))
    stage.units.failing = [unreachable] * (3 if is_held else 1000)
    found = row(noon(0), attempt=2)
    stage.ticks.rows["scheduled", noon(0), 0] = found
    await asyncio.sleep(90)
    task = asyncio.create_task(stage.running(found, cut_off=True).run())
    await asyncio.sleep(0.01)
    stage.tenure.ended = not is_held
    assert await task == ("skipped" if is_held else None)
    assert len(stage.ticks.notes) == is_held


async def test_a_hint_before_the_body_has_begun_is_for_nobody() -> None:
    stage = HeldCron(cron())
    running = stage.running(row(noon(0)))
    running.hint()
    assert await running.run() == "ran"


# Heartbeats


async def test_heartbeats_are_written_soon_and_seldom_and_the_last_one_stays() -> None:
    async def body(tick: Tick) -> None:
        for done in range(50):
            tick.heartbeat("pages", done=done, total=50)
            await asyncio.sleep(0.1)
        tick.heartbeat("all", done=50, total=50)

    stage = HeldCron(cron(body=body))
    assert await stage.running(row()).run() == "ran"
    beats, end = stage.ticks.notes[:-1], stage.ticks.notes[-1]
    assert [((note.done or 0) + 1) // 10 for note in beats] == [0, 1, 2, 3, 4], "one a second"
    assert {note.outcome for note in beats} == {None}
    assert (end.outcome, end.note, end.done, end.total) == ("ran", "all", 50, 50)


async def test_of_several_heartbeats_at_once_the_last_is_written_within_a_second() -> None:
    async def body(tick: Tick) -> None:
        tick.heartbeat("first")
        await asyncio.sleep(0.1)
        tick.heartbeat("second")
        tick.heartbeat("third")
        await asyncio.sleep(10)

    stage = HeldCron(cron(body=body))
    task = asyncio.create_task(stage.running(row()).run())
    await asyncio.sleep(1.05)
    assert [note.note for note in stage.ticks.notes] == ["first", "third"]
    await asyncio.sleep(7)
    assert len(stage.ticks.notes) == 2, "nothing new is not written"
    await task


async def test_a_heartbeat_that_cannot_be_written_disturbs_nobody() -> None:
    async def body(tick: Tick) -> None:
        tick.heartbeat("a\0" + "b" * 9_000)
        await asyncio.sleep(5)

    stage = HeldCron(cron(body=body))
    stage.ticks.failing["note"] = [unreachable]
    assert await stage.running(row()).run() == "ran"
    assert len(stage.ticks.notes[-1].note) <= 2_000
    assert "\0" not in stage.ticks.notes[-1].note


async def test_of_heartbeats_after_the_end_nothing_is_written() -> None:
    kept: list[Tick] = []

    async def body(tick: Tick) -> None:
        kept.append(tick)
        tick.heartbeat("in it")

    stage = HeldCron(cron(body=body))
    await stage.running(row()).run()
    kept[0].heartbeat("after it")
    await asyncio.sleep(3)
    assert stage.ticks.rows["scheduled", noon(0), 0].note == "in it"


async def test_a_heartbeat_of_an_attempt_that_failed_stays_for_the_next() -> None:
    async def body(tick: Tick) -> None:
        if tick.attempt == 1:
            tick.heartbeat("so far", done=3)
            await failing(tick)

    stage = HeldCron(cron(body=body, retry=Retry(attempts=2)))
    assert await stage.running(row()).run() == "ran"
    assert (stage.ticks.notes[-1].note, stage.ticks.notes[-1].done) == ("so far", 3)
