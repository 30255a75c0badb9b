"""Jobs that raise, hang or never succeed: attempts, timeouts, breakers, and what is shown of it (C6, S3)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from coterie import Breaker, Retry
from tests.scenario.cron.cron_cluster import (
    Logbook,
    accounted,
    define,
    history,
    holder,
    new_cluster,
    noon,
    simulated,
    told,
    until,
)

if TYPE_CHECKING:
    from coterie import Cluster, Tick


@pytest.mark.simulated(seeds=2)
async def test_a_job_that_always_fails_is_tried_at_each_tick_and_never_between() -> None:
    """CRON-01, S3: it neither blocks nor repeats its schedule."""
    cluster, book = new_cluster(), Logbook()

    @cluster.cron("x", "@every 1s")
    async def body(tick: Tick) -> None:
        book.begin(tick)
        raise ValueError(f"no luck with {tick.scheduled_at:%S}")

    async with simulated(cluster) as sim:
        await until(sim, noon(10.5))
        assert book.attempts() == [(second, 1) for second in range(1, 11)]
        ticks = await history(cluster)
        assert told(ticks) == [f"{second} failed" for second in range(1, 11)]
        assert ticks[6].errors[0].startswith("attempt 1: ValueError: no luck with 07\n")
        assert "test_failures.py" in ticks[6].errors[0], "where it came from"
        assert "run.py" not in ticks[6].errors[0], "without our own lines"
        info = await cluster.crons.get("x")
        assert (info.run_count, info.failures, info.running) == (10, 10, 0)
        assert info.last_error is not None
        assert info.last_error.startswith("attempt 1: ValueError: no luck with 10")
        assert info.last_run_at is not None
        assert info.last_error_at is not None
        assert noon(10) <= info.last_run_at <= info.last_error_at < noon(10.1)
        assert info.latest == ticks[-1]


@pytest.mark.simulated(seeds=1)
async def test_s3_what_is_known_of_runs_survives_their_runners() -> None:
    cluster, book = new_cluster(), Logbook()

    @cluster.cron("x", "@every 1s")
    async def body(tick: Tick) -> None:
        book.begin(tick)
        if tick.scheduled_at == noon(2):
            raise ValueError("once")

    async with simulated(cluster) as sim:
        assert (await cluster.crons.get("x")).last_run_at is None
        await until(sim, noon(3.5))
        await holder(sim).stop()
        await until(sim, noon(6.5))
        (info,) = await cluster.crons.list()
        assert (info.run_count, info.failures, info.next_at) == (6, 0, noon(7))
        assert info.last_error is not None
        assert info.last_error.startswith("attempt 1: ValueError: once"), "the last one of all, however long ago"
        assert info.last_error_at is not None
        assert noon(2) <= info.last_error_at < noon(2.1)
        assert info.last_run_at is not None
        assert noon(6) <= info.last_run_at < noon(6.1)


# Attempts


@pytest.mark.simulated(seeds=2)
async def test_c6_a_run_that_raises_is_tried_again_with_growing_pauses_and_each_error_is_kept() -> None:
    cluster, book = new_cluster(), Logbook()

    @cluster.cron("x", "5 0 12 * * *", retry=Retry(attempts=4, base="1s", jitter=0))
    async def body(tick: Tick) -> None:
        book.begin(tick)
        if tick.attempt < 4:
            raise ValueError(f"not in attempt {tick.attempt}")

    async with simulated(cluster) as sim:
        await sim.wait_until(lambda: len(book.lines) == 2)
        (tick,) = await history(cluster)
        assert (tick.outcome, tick.attempt) == (None, 2)
        assert tick.errors[0].startswith("attempt 1: "), "it is known while it goes on"
        info = await cluster.crons.get("x")
        assert (info.running, info.failures) == (1, 0), "the tick has not failed"
        assert info.last_error is not None
        await sim.wait_until(lambda: len(book.lines) == 4)
        await sim.advance(0.1)
        (tick,) = await history(cluster)
        assert (tick.outcome, tick.attempt) == ("ran", 4)
        assert [error.splitlines()[0] for error in tick.errors] == [
            f"attempt {number}: ValueError: not in attempt {number}" for number in (1, 2, 3)
        ]
        pauses = [after.began_s - before.began_s for before, after in pairwise(book.lines)]
        assert pauses == pytest.approx([1, 2, 4], abs=0.05)
        assert tick.late is not None
        assert tick.late < timedelta(milliseconds=50), "how late the first one was"


@pytest.mark.simulated(seeds=1)
async def test_c6_with_overlap_allow_the_attempts_of_one_tick_hold_up_no_other() -> None:
    cluster, book = new_cluster(), Logbook()

    @cluster.cron("x", "@every 1s", retry=Retry(attempts=3, base="1500ms", jitter=0, factor=1))
    async def body(tick: Tick) -> None:
        book.begin(tick)
        raise ValueError("no")

    async with simulated(cluster) as sim:
        await until(sim, noon(6.5))
        assert [second for second, attempt in book.attempts() if attempt == 1] == [1, 2, 3, 4, 5, 6]
        assert told(await history(cluster))[:3] == ["1 failed/3", "2 failed/3", "3 failed/3"]


@pytest.mark.simulated(seeds=2)
async def test_c6_attempts_go_on_where_they_were_when_their_runner_is_lost() -> None:
    """Also in the pause before the next one. The errors of the lost runner are there."""
    cluster, book = new_cluster(), Logbook()

    @cluster.cron("x", "5 0 12 * * *", retry=Retry(attempts=3, base="2s", jitter=0))
    async def body(tick: Tick) -> None:
        book.begin(tick)
        raise ValueError(f"not in attempt {tick.attempt}")

    async with simulated(cluster) as sim:
        await sim.wait_until(lambda: book.lines)
        await sim.advance(0.5)
        holder(sim).kill()
        await sim.advance(20)
        (tick,) = await history(cluster)
        assert (tick.outcome, tick.attempt) == ("failed", 3)
        assert [line.attempt for line in book.lines] == [1, 2, 3]
        assert [error.splitlines()[0] for error in tick.errors] == [
            f"attempt {number}: ValueError: not in attempt {number}" for number in (1, 2, 3)
        ]


# Timeouts


@pytest.mark.simulated(seeds=2)
async def test_c6_a_run_that_takes_too_long_is_cancelled_and_has_failed() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, gated=True, schedule="5 0 12 * * *", timeout="2s")
    async with simulated(cluster) as sim:
        await until(sim, noon(7.5))
        (tick,) = await history(cluster)
        assert (tick.outcome, len(book.cancelled)) == ("failed", 1)
        assert tick.errors == ("attempt 1: TimeoutError: it did not end within 2s",)
        assert tick.took is not None
        assert timedelta(seconds=2) <= tick.took < timedelta(seconds=2.1)


@pytest.mark.simulated(seeds=1)
async def test_c6_without_a_timeout_a_run_takes_as_long_as_it_likes() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, gated=True, schedule="5 0 12 * * *")
    async with simulated(cluster, runners=1) as sim:
        await until(sim, noon(600))
        book.gates["x"].set()
        await sim.advance(0.1)
        (tick,) = await history(cluster)
        assert (tick.outcome, tick.attempt) == ("ran", 1)
        assert tick.took is not None
        assert tick.took > timedelta(seconds=594)


@pytest.mark.simulated(seeds=2)
async def test_c6_a_run_that_ignores_its_cancellation_is_left_behind_and_holds_up_nothing() -> None:
    cluster, book = new_cluster(), Logbook()

    @cluster.cron("x", "@every 5s", timeout="1s", overlap="queue")
    async def body(tick: Tick) -> None:
        book.begin(tick)
        while not book.gates["x"].is_set():
            with suppress(asyncio.CancelledError):
                await book.gates["x"].wait()

    async with simulated(cluster) as sim:
        await until(sim, noon(15.5))
        assert book.attempts() == [(5, 1), (10, 1), (15, 1)]
        ticks = await history(cluster)
        assert told(ticks)[:2] == ["5 failed", "10 failed"]
        assert ticks[0].errors == ("attempt 1: TimeoutError: it did not end within 1s",)
        book.gates["x"].set()
        await sim.advance(0.5)
        assert told(await history(cluster)) == ["5 failed", "10 failed", "15 ran"], "its late end changes nothing"


@pytest.mark.simulated(seeds=1)
async def test_c6_a_timeout_is_of_each_attempt_and_other_timeouts_are_errors_like_any() -> None:
    cluster, book = new_cluster(), Logbook()

    @cluster.cron("x", "5 0 12 * * *", timeout="3s", retry=Retry(attempts=3, base="1s"))
    async def body(tick: Tick) -> None:
        book.begin(tick)
        if tick.attempt == 1:
            await asyncio.sleep(2)
            raise TimeoutError("mine")
        await asyncio.sleep(5 if tick.attempt == 2 else 2.5)

    async with simulated(cluster) as sim:
        await until(sim, noon(20))
        (tick,) = await history(cluster)
        assert (tick.outcome, tick.attempt) == ("ran", 3)
        assert [error.splitlines()[0] for error in tick.errors] == [
            "attempt 1: TimeoutError: mine",
            "attempt 2: TimeoutError: it did not end within 3s",
        ]


@pytest.mark.simulated(seeds=1)
async def test_a_body_that_cancels_itself_has_failed() -> None:
    cluster, book = new_cluster(), Logbook()

    @cluster.cron("x", "@every 1s")
    async def body(tick: Tick) -> None:
        book.begin(tick)
        raise asyncio.CancelledError

    async with simulated(cluster) as sim:
        await until(sim, noon(2.5))
        ticks = await history(cluster)
        assert told(ticks) == ["1 failed", "2 failed"]
        assert ticks[0].errors == ("attempt 1: its body was cancelled, by itself",)


# Breakers


def define_failing(cluster: Cluster, book: Logbook, failing: list[bool], *, takes_s: float = 0.0) -> None:
    """A cron with a breaker, which fails for as long as the list is not empty."""

    @cluster.cron("x", "@every 1s", breaker=Breaker(failures=3, reset="5s"))
    async def body(tick: Tick) -> None:
        book.begin(tick)
        await asyncio.sleep(takes_s)
        if failing:
            raise ValueError("no luck")


@pytest.mark.simulated(seeds=2)
async def test_c6_a_breaker_opens_after_so_many_failures_skips_and_lets_one_through() -> None:
    cluster, book, failing = new_cluster(), Logbook(), [True]
    define_failing(cluster, book, failing)
    async with simulated(cluster) as sim:
        await until(sim, noon(14.5))
        assert book.seconds() == [1, 2, 3, 9], "the third failure at 3, so the next try is after 8"
        ticks = await history(cluster)
        assert {tick.reason for tick in ticks if tick.outcome == "skipped"} == {"breaker"}
        assert accounted(ticks) == list(range(1, 15))
        failing.clear()
        await until(sim, noon(18.5))
        assert book.seconds() == [1, 2, 3, 9, 15, 16, 17, 18], "one that succeeds closes it"
        assert (await cluster.crons.get("x")).failures == 0
        accounted(await history(cluster))


@pytest.mark.simulated(seeds=1)
async def test_c6_what_a_breaker_lets_through_is_one_however_long_it_takes() -> None:
    """Runs may overlap, but not here: whatever is down would be tried at each tick until the first one has failed."""
    cluster, book, failing = new_cluster(), Logbook(), [True]
    define_failing(cluster, book, failing, takes_s=3.4)
    async with simulated(cluster) as sim:
        await until(sim, noon(30.5))
        tries = [line.began_s for line in book.lines if line.began_s > 12]
        assert len(tries) in (2, 3)
        assert all(after - before > 8.4 for before, after in pairwise(tries)), "its length, and the time of the breaker"
        accounted(await history(cluster))


@pytest.mark.simulated(seeds=2)
async def test_c6_a_breaker_stays_open_across_a_takeover() -> None:
    cluster, book, failing = new_cluster(), Logbook(), [True]
    define_failing(cluster, book, failing)
    async with simulated(cluster) as sim:
        await until(sim, noon(3.5))
        first = holder(sim)
        await first.stop()
        await until(sim, noon(9.5))
        assert book.seconds() == [1, 2, 3, 9]
        assert book.lines[-1].runner != first.name
        accounted(await history(cluster))


@pytest.mark.simulated(seeds=1)
async def test_c6_a_trigger_passes_an_open_breaker_and_closes_it() -> None:
    """Whoever has mended something wants to see it run."""
    cluster, book, failing = new_cluster(), Logbook(), [True]
    define_failing(cluster, book, failing)
    async with simulated(cluster) as sim:
        await until(sim, noon(4.5))
        failing.clear()
        made = await cluster.crons.wait(await cluster.crons.trigger("x"), timeout="5s")
        assert made.outcome == "ran"
        await until(sim, noon(6.5))
        assert [line.manual for line in book.lines] == [False, False, False, True, False, False]


# Heartbeats


@pytest.mark.simulated(seeds=2)
async def test_s3_a_heartbeat_is_seen_while_the_run_goes_on_and_stays() -> None:
    cluster = new_cluster()

    @cluster.cron("x", "5 0 12 * * *")
    async def body(tick: Tick) -> None:
        for done in range(100):
            tick.heartbeat("invoices", done=done, total=100)
            await asyncio.sleep(0.1)
        tick.heartbeat("all of them", done=100, total=100)

    async with simulated(cluster) as sim:
        await until(sim, noon(8.5))
        before = sim.database.commits
        (tick,) = await history(cluster)
        assert (tick.outcome, tick.note, tick.total) == (None, "invoices", 100)
        assert tick.done is not None
        assert 24 <= tick.done <= 35
        await until(sim, noon(9.5))
        (later,) = await history(cluster)
        assert (later.done or 0) > tick.done
        assert sim.database.commits - before < 40, "not one for each"
        await until(sim, noon(16))
        (tick,) = await history(cluster)
        assert (tick.outcome, tick.note, tick.done, tick.total) == ("ran", "all of them", 100, 100)
