"""A cron on its seat, over storage that fails, forgets, refuses and knows better (C2, C5, M8, M9)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Breaker, LeadershipLost
from coterie.cron.run import TickRun
from coterie.storage.contracts.ticks import PauseRow
from tests.unit.cron.fake_storage import HeldCron, cron, noon, row, unknown, unreachable

if TYPE_CHECKING:
    from coterie import Tick
    from coterie.cron.seat import CronSeat

pytestmark = pytest.mark.simulated(seeds=1)


class Book:
    """What a body wrote down; gated, its runs end when the gate opens."""

    def __init__(self, *, gated: bool = False) -> None:
        self.lines: list[tuple[float, int, float]] = []
        self.cancelled = 0
        self.gate = asyncio.Event()
        if not gated:
            self.gate.set()

    async def body(self, tick: Tick) -> None:
        now_s = asyncio.get_running_loop().time()
        self.lines.append(((tick.scheduled_at - noon(0)).total_seconds(), tick.attempt, now_s))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    @property
    def seconds(self) -> list[float]:
        return [second for second, _, _ in self.lines]


async def over(holding: CronSeat) -> None:
    holding.abandon()
    await holding.end()


def staged(book: Book, schedule: str = "@every 1s", **options: Any) -> HeldCron:
    return HeldCron(cron("x", schedule, book.body, **options))


async def test_each_tick_is_claimed_and_run_when_it_is_due() -> None:
    book = Book()
    stage = staged(book)
    holding = stage.holding()
    await asyncio.sleep(4.5)
    assert [(second, began) for second, _, began in book.lines] == [(s, s) for s in (0, 1, 2, 3, 4)]
    assert stage.ticks.outcomes() == [(s, "ran", 1) for s in (0, 1, 2, 3, 4)]
    assert stage.ticks.asked["take"] == 1, "one look at the tables, then it knows"
    await over(holding)


async def test_a_wrong_clock_of_this_machine_matters_only_until_the_first_answer() -> None:
    for off_s in (-600, 600):
        book = Book()
        stage = HeldCron(cron("x", "@every 1s", book.body), believes=noon(off_s))
        stage.ticks.effective_from = stage.ticks.now
        before = stage.ticks.now
        holding = stage.holding()
        await asyncio.sleep(3.5)
        assert len(book.lines) in (3, 4)
        assert all(began == second for second, _, began in book.lines)
        assert all(noon(second) >= before for second in book.seconds)
        await over(holding)


async def test_a_tick_far_away_is_on_time() -> None:
    """Though it looks every hour at least: timers drift."""
    book = Book()
    stage = staged(book, "30 14 * * *")
    holding = stage.holding()
    await asyncio.sleep(9001)
    assert [(second, began) for second, _, began in book.lines] == [(9000, 9000)]
    await over(holding)


async def test_the_database_s_clock_set_back_is_believed_when_it_says_early() -> None:
    book = Book()
    stage = staged(book)
    holding = stage.holding()
    await asyncio.sleep(2.5)
    stage.ticks.ahead_s = -5
    await asyncio.sleep(7)
    assert book.seconds == [0, 1, 2, 3, 4]
    assert [round(began, 1) for _, _, began in book.lines] == [0, 1, 2, 8, 9]
    assert stage.ticks.asked["claim"] < 12, "it does not ask again and again"
    await over(holding)


# What is known


async def test_m9_what_was_not_over_is_taken_over_and_begins_at_once() -> None:
    book = Book()
    stage = staged(book, "0 18 * * *")
    stage.ticks.rows["scheduled", noon(-60), 0] = row(noon(-60), epoch=3)
    stage.ticks.trigger(noon(-30))
    holding = stage.holding()
    await asyncio.sleep(0.5)
    assert book.lines == [(-60, 2, 0), (-30, 1, 0)]
    assert stage.ticks.outcomes() == [(-60, "ran", 2), (-30, "ran", 1)]
    await over(holding)


async def test_m9_a_trigger_is_found_when_it_is_told_and_when_a_sweep_finds_it() -> None:
    book = Book()
    stage = staged(book, "0 18 * * *")
    holding = stage.holding()
    await asyncio.sleep(1)
    stage.ticks.trigger()
    await asyncio.sleep(1)
    assert not book.lines, "nobody told"
    holding.wake()
    await asyncio.sleep(1)
    assert book.seconds == [1]
    stage.ticks.trigger()
    wish = holding.begin_poll()
    assert wish is not None
    number, take = wish
    holding.end_poll(number, (await stage.ticks.take([take])).get("x"))
    await asyncio.sleep(0.1)
    assert book.seconds == [1, 3]
    await over(holding)


async def test_a_sweep_s_answer_that_is_older_than_what_is_known_changes_nothing() -> None:
    """It was on its way while a tick was claimed, run and ended: it would run again."""
    book = Book()
    stage = staged(book)
    holding = stage.holding()
    await asyncio.sleep(0.5)
    gate = stage.ticks.hold("take")
    wish = holding.begin_poll()
    assert wish is not None
    number, take = wish
    sweep = asyncio.create_task(stage.ticks.take([take]))
    await asyncio.sleep(2)
    assert book.seconds == [0, 1, 2]
    gate.set()
    holding.end_poll(number, (await sweep)["x"])
    await asyncio.sleep(1)
    assert book.seconds == [0, 1, 2, 3]
    assert stage.ticks.asked["claim"] == 4, "nor does it claim by it"
    await over(holding)


async def test_a_sweep_that_saw_a_run_open_which_ends_before_it_answers_does_not_begin_it_again() -> None:
    book = Book(gated=True)
    stage = staged(book, "0 18 * * *")
    stage.ticks.trigger()
    holding = stage.holding()
    await asyncio.sleep(0.5)
    gate = stage.ticks.hold("take")
    wish = holding.begin_poll()
    assert wish is not None
    number, take = wish
    sweep = asyncio.create_task(stage.ticks.take([take]))
    await asyncio.sleep(0.1)
    book.gate.set()
    await asyncio.sleep(0.1)
    assert stage.ticks.outcomes() == [(0, "ran", 1)]
    gate.set()
    found = (await sweep)["x"]
    assert len(found.open) == 1, "it was read before"
    holding.end_poll(number, found)
    await asyncio.sleep(1)
    assert len(book.lines) == 1
    await over(holding)


async def test_a_sweep_asks_for_nothing_while_it_looks_by_itself_or_has_no_seat() -> None:
    stage = staged(Book(), "0 18 * * *")
    holding = stage.holding()
    assert holding.begin_poll() is None, "it has not looked yet"
    await asyncio.sleep(0.1)
    assert holding.begin_poll() is not None
    stage.tenure.ended = True
    assert holding.begin_poll() is None
    await over(holding)


async def test_a_sweep_that_finds_the_seat_lost_makes_it_look_and_stop() -> None:
    book = Book()
    stage = staged(book)
    holding = stage.holding()
    await asyncio.sleep(1.5)
    stage.ticks.held = False
    holding.end_poll(99, None)
    await asyncio.sleep(5)
    assert book.seconds == [0, 1]
    await over(holding)


# The database is away, answers are lost


async def test_it_waits_for_a_database_that_is_away() -> None:
    book = Book()
    stage = staged(book, catch_up="all")
    stage.ticks.failing["take"] = [unreachable] * 5
    holding = stage.holding()
    await asyncio.sleep(3.5)
    assert book.seconds == [0, 1, 2, 3]
    await over(holding)


async def test_c2_a_claim_whose_answer_was_lost_is_looked_up_and_its_tick_runs_once() -> None:
    book = Book()
    stage = staged(book, catch_up="all")
    holding = stage.holding()
    await asyncio.sleep(0.5)
    stage.ticks.losing["claim"] = [unknown]
    stage.ticks.failing["take"] = [unreachable]
    await asyncio.sleep(3)
    assert book.seconds == [0, 1, 2, 3]
    assert {attempt for _, attempt, _ in book.lines} == {1}
    assert stage.ticks.outcomes() == [(s, "ran", 1) for s in (0, 1, 2, 3)]
    await over(holding)


async def test_c2_a_claim_that_did_not_arrive_is_made_again() -> None:
    book = Book()
    stage = staged(book, catch_up="all")
    stage.ticks.failing["claim"] = [unreachable, unknown]
    holding = stage.holding()
    await asyncio.sleep(2.5)
    assert book.seconds == [0, 1, 2]
    await over(holding)


async def test_c2_without_the_seat_nothing_is_claimed() -> None:
    book = Book()
    stage = staged(book)
    holding = stage.holding()
    await asyncio.sleep(1.5)
    stage.ticks.held = False
    await asyncio.sleep(5)
    assert book.seconds == [0, 1]
    assert stage.ticks.asked["claim"] == 3, "one was refused, and that was the last"
    await over(holding)


async def test_m2_without_its_session_it_begins_nothing_and_goes_on_when_it_is_back() -> None:
    book = Book()
    stage = staged(book, catch_up="all")
    holding = stage.holding()
    await asyncio.sleep(1.5)
    stage.trust.connected = False
    await asyncio.sleep(2)
    assert book.seconds == [0, 1]
    stage.trust.connected = True
    await asyncio.sleep(0.2)
    assert book.seconds == [0, 1, 2, 3]
    await over(holding)


async def test_c2_a_seat_that_is_lost_while_its_session_is_away_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="coterie.cron")
    book = Book()
    stage = staged(book)
    holding = stage.holding()
    await asyncio.sleep(0.5)
    stage.trust.connected = False
    await asyncio.sleep(1)
    assert "stopped on this runner" not in caplog.text, "it waits for its session"
    stage.tenure.ended = True
    await asyncio.sleep(0.1)
    assert "cron 'x' stopped on this runner" in caplog.text
    stage.tenure.ended, stage.trust.connected = False, True
    await asyncio.sleep(3)
    assert book.seconds == [0], "what has stopped does not begin again"
    await over(holding)


async def test_a_tick_that_its_body_leaves_to_the_next_holder_is_begun_again_a_second_later() -> None:
    """Not at once: each attempt may end so."""
    began: list[float] = []
    lost = LeadershipLost(seat="cron:x", epoch=7)

    async def body(tick: Tick) -> None:
        began.append(asyncio.get_running_loop().time())
        if len(began) < 3:
            raise lost

    stage = HeldCron(cron("x", "@every 1h", body))
    holding = stage.holding()
    await asyncio.sleep(5)
    assert began == [0, 1, 2]
    assert stage.ticks.outcomes() == [(0, "ran", 1)]
    await over(holding)


async def test_a_value_for_a_unit_is_a_hint_for_what_runs_and_other_news_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hinted: list[TickRun] = []
    monkeypatch.setattr(TickRun, "hint", lambda self: hinted.append(self))
    stage = staged(Book(gated=True))
    holding = stage.holding()
    await asyncio.sleep(1.5)
    holding.wake()
    await asyncio.sleep(0.1)
    assert (hinted, stage.ticks.asked["take"]) == ([], 2)
    holding.wake("cron:x/scheduled")
    await asyncio.sleep(0.1)
    assert (len(set(hinted)), stage.ticks.asked["take"]) == (2, 3)
    await over(holding)


# What others have done


async def test_m8_a_schedule_that_was_replaced_ends_with_the_instant_from_which_the_new_one_counts() -> None:
    """What was due before is ours, nothing after."""
    book = Book()
    stage = staged(book, catch_up="all")
    holding = stage.holding()
    await asyncio.sleep(1.5)
    stage.ticks.fingerprint, stage.ticks.effective_from = "other:options", noon(3.5)
    await asyncio.sleep(6)
    assert book.seconds == [0, 1, 2, 3]
    assert stage.ticks.last == noon(3)
    assert stage.ticks.asked["claim"] < 8, "it does not ask again and again"
    await over(holding)


async def test_m8_another_option_leaves_ticks_what_they_are() -> None:
    book = Book()
    stage = staged(book)
    stage.ticks.fingerprint = stage.ticks.fingerprint.partition(":")[0] + ":other"
    holding = stage.holding()
    await asyncio.sleep(1.5)
    assert book.seconds == [0, 1]
    await over(holding)


async def test_a_claim_that_meets_a_pause_of_which_nobody_told_is_taken_back() -> None:
    book = Book()
    stage = staged(book)
    holding = stage.holding()
    await asyncio.sleep(1.5)
    stage.ticks.pauses = [PauseRow(noon(1.5), None)]
    await asyncio.sleep(3)
    assert book.seconds == [0, 1]
    stage.ticks.pauses = [PauseRow(noon(1.5), noon(4.5))]
    holding.wake()
    await asyncio.sleep(1)
    assert book.seconds == [0, 1, 5]
    assert stage.ticks.skipped == [(noon(2), noon(4), 3, "paused")]
    await over(holding)


async def test_somebody_else_s_verdict_is_looked_up() -> None:
    """Rows were changed by hand, say."""
    book = Book()
    stage = staged(book)
    holding = stage.holding()
    await asyncio.sleep(1.5)
    stage.ticks.last = noon(4)
    await asyncio.sleep(4)
    assert book.seconds == [0, 1, 5]
    await over(holding)


async def test_c6_failures_in_a_row_are_asked_for_where_there_is_a_breaker() -> None:
    book = Book()

    async def body(tick: Tick) -> None:
        await book.body(tick)
        raise ValueError("no luck")

    stage = HeldCron(cron("x", "@every 1s", body, breaker=Breaker(failures=2, reset="3500ms")))
    holding = stage.holding()
    await asyncio.sleep(10.5)
    assert book.seconds == [0, 1, 5, 9]
    assert {reason for _, _, _, reason in stage.ticks.skipped} == {"breaker"}
    await over(holding)


# Overlap


async def test_c5_where_one_runs_at_a_time_what_is_taken_over_comes_first() -> None:
    book = Book(gated=True)
    stage = staged(book, overlap="queue", catch_up="all")
    for second in (-2, -1):
        stage.ticks.rows["scheduled", noon(second), 0] = row(noon(second), epoch=3)
    stage.ticks.last = noon(-1)
    holding = stage.holding()
    await asyncio.sleep(2.5)
    assert book.seconds == [-2]
    book.gate.set()
    await asyncio.sleep(0.1)
    assert book.seconds == [-2, -1, 0, 1, 2]
    await over(holding)


# The end


async def test_a_drain_lets_runs_end_and_begins_none() -> None:
    book = Book(gated=True)
    stage = staged(book)
    holding = stage.holding()
    await asyncio.sleep(0.5)
    drain = asyncio.create_task(holding.drain())
    await asyncio.sleep(2)
    assert not drain.done()
    book.gate.set()
    await drain
    assert stage.ticks.outcomes() == [(0, "ran", 1)]


async def test_a_drain_cuts_off_what_does_not_end() -> None:
    book = Book(gated=True)
    stage = staged(book)
    holding = stage.holding()
    await asyncio.sleep(0.5)
    await holding.drain()
    assert asyncio.get_running_loop().time() == pytest.approx(3.5, abs=0.01)
    assert book.cancelled == 1
    assert not stage.ticks.notes, "it is the next holder's"


async def test_a_drain_knows_what_is_claimed_while_it_begins() -> None:
    """The claim was on its way: its tick is ours, and runs to its end or is left to the next holder; never both."""
    book = Book()
    stage = staged(book)
    gate = stage.ticks.hold("claim")
    holding = stage.holding()
    await asyncio.sleep(0.5)
    drain = asyncio.create_task(holding.drain())
    await asyncio.sleep(0.5)
    gate.set()
    await drain
    before = stage.ticks.outcomes()
    await asyncio.sleep(5)
    assert stage.ticks.outcomes() == before
    assert len(stage.ticks.claims) == 1


async def test_once_abandoned_nothing_is_written() -> None:
    book = Book(gated=True)
    stage = staged(book)
    holding = stage.holding()
    await asyncio.sleep(1.5)
    holding.abandon()
    await holding.end()
    asked = dict(stage.ticks.asked)
    book.gate.set()
    await asyncio.sleep(5)
    assert dict(stage.ticks.asked) == asked
    assert book.cancelled == 2


async def test_a_run_that_ignores_its_cancellation_keeps_nobody(caplog: pytest.LogCaptureFixture) -> None:
    free = asyncio.Event()

    async def body(tick: Tick) -> None:
        while not free.is_set():
            with suppress(asyncio.CancelledError):
                await free.wait()

    stage = HeldCron(cron("x", "@every 1h", body), drain="1s")
    holding = stage.holding()
    await asyncio.sleep(0.5)
    await holding.drain()
    assert asyncio.get_running_loop().time() == pytest.approx(4.5, abs=0.01)
    assert "tick 2026-03-01T12:00:00Z of cron 'x' ignored its cancellation for 3s" in caplog.text
    stage.tenure.ended = True
    free.set()
    await asyncio.sleep(1)
    assert not stage.ticks.notes


async def test_an_hour_without_news_costs_one_look() -> None:
    stage = staged(Book(), "0 18 * * *")
    holding = stage.holding()
    await asyncio.sleep(timedelta(hours=5).total_seconds())
    assert (stage.ticks.asked["take"], stage.ticks.asked["claim"]) == (1, 0)
    await over(holding)
