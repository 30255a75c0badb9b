"""The life of ticks on every engine: how they go, by hand, pauses, history, and their end.

C2, C3; REVIEW C1, M9.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie.kernel.text import storable
from coterie.storage.contracts.ticks import PauseRow, Verdict
from tests.contract.test_states import A, B
from tests.contract.ticks import (
    CRON_A,
    CRON_B,
    INSTANT,
    at,
    claim_result,
    foreign_claims,
    grant,
    history,
    joined,
    new_note,
    reread,
    run_verdict,
    runner_a,
    runner_b,
    skip_verdict,
    snapshot,
    start_tick,
    stored_cron,
    stored_tick,
    take_cron,
    write_note,
)

if TYPE_CHECKING:
    from coterie.storage.contracts.ticks import TickRow
    from coterie.storage.interface import Ownership, Storage
    from tests.contract.conftest import Passing

__all__ = ["runner_a", "runner_b"]  # fixtures


class TestNote:
    async def test_a_note_says_how_it_is_getting_on_and_leaves_the_rest(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim = await grant(runner_a, A)
        row = await start_tick(storage, claim)
        assert (
            await write_note(storage, claim, row, note="pages", done=3, total=10, late_s=0.5, errors=("e",))
            == "written"
        )
        said = await reread(storage, row)
        assert (said.note, said.done, said.total, said.late_s, said.errors) == ("pages", 3, 10, 0.5, ("e",))
        assert (said.attempt, said.outcome, said.ended_at) == (1, None, None)
        assert await write_note(storage, claim, row) == "written"
        said = await reread(storage, row)
        assert (said.note, said.done, said.total) == ("", None, None)
        assert (said.late_s, said.errors, said.took_s) == (0.5, ("e",), None)
        assert (said.at, said.until, said.count, said.epoch) == (row.at, row.until, row.count, row.epoch)
        assert (said.runner, said.claimed_at) == (row.runner, row.claimed_at)
        known = await stored_cron(storage)
        assert (known.failures, known.failed_at, known.error, known.error_at) == (0, None, None, None)

    async def test_an_attempt_that_failed_is_followed_by_the_next(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A)
        row = await start_tick(storage, claim)
        assert await write_note(storage, claim, row, again=True, errors=("one",), took_s=0.125) == "written"
        assert await write_note(storage, claim, row, again=True, errors=("one",), took_s=0.125) == "conflict", (
            "0.6: asked again"
        )
        second = await reread(storage, row)
        assert (second.attempt, second.errors, second.took_s, second.outcome) == (2, ("one",), 0.125, None)
        first_error = await stored_cron(storage)
        assert (first_error.error, first_error.failures, first_error.failed_at) == ("one", 0, None)
        assert first_error.error_at is not None
        assert await write_note(storage, claim, second, again=True, errors=("one", "two")) == "written"
        third = await reread(storage, second)
        assert (third.attempt, third.errors) == (3, ("one", "two"))
        assert await write_note(storage, claim, third, outcome="failed", errors=("one", "two", "three")) == "written"
        ended = await reread(storage, third)
        assert (ended.attempt, ended.outcome, ended.errors) == (3, "failed", ("one", "two", "three"))
        known = await stored_cron(storage)
        assert (known.error, known.failures, known.runs, known.open) == ("three", 1, 1, 0)
        assert known.error_at is not None
        assert known.error_at >= first_error.error_at

    async def test_failures_in_a_row_are_counted_and_one_that_ran_ends_them(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim = await grant(runner_a, A)
        outcomes: list[Any] = ["ran", "failed", "failed", "skipped", "failed", "ran", "failed"]
        counts: list[int] = []
        failed_at: list[Any] = []
        last = None
        for minute, outcome in enumerate(outcomes):
            row = await start_tick(storage, claim, minute, last=last)
            last = row.at
            assert await write_note(storage, claim, row, outcome=outcome, took_s=2.0) == "written"
            ended = await reread(storage, row)
            assert (ended.outcome, ended.took_s) == (outcome, 2.0)
            assert ended.ended_at is not None
            assert ended.ended_at >= ended.claimed_at
            known, book = await stored_cron(storage), await take_cron(storage, claim)
            assert (known.failures, known.failed_at) == (book.failures, book.failed_at)
            counts.append(known.failures)
            failed_at.append(known.failed_at)
            if outcome != "skipped":
                assert known.latest == ended
        assert counts == [0, 1, 2, 2, 3, 0, 1]
        assert failed_at[0] is None
        assert failed_at[2] == failed_at[3], "a skipped one does not count"
        assert failed_at[4] == failed_at[5], "it stays when the row of them has ended"
        assert failed_at[1] <= failed_at[2] <= failed_at[4] <= failed_at[6]
        assert (await stored_cron(storage)).error is None, "nobody said which"

    async def test_only_a_new_error_is_the_last_one(self, storage: Storage, runner_a: Ownership) -> None:
        """Those of former attempts, told once more with the outcome, are not."""
        claim = await grant(runner_a, A)
        row = await start_tick(storage, claim)
        assert await write_note(storage, claim, row, errors=("progress",)) == "written"
        assert (await stored_cron(storage)).error is None
        assert await write_note(storage, claim, row, again=True, errors=("first",)) == "written"
        before = await stored_cron(storage)
        row = await reread(storage, row)
        assert await write_note(storage, claim, row, outcome="ran", errors=("first",)) == "written"
        after = await stored_cron(storage)
        assert (after.error, after.error_at) == ("first", before.error_at)
        row = await start_tick(storage, claim, 1, last=at(0))
        assert await write_note(storage, claim, row, outcome="failed", errors=()) == "written"
        after = await stored_cron(storage)
        assert (after.error, after.error_at, after.failures) == ("first", before.error_at, 1)
        assert (await reread(storage, row)).errors == ()

    @pytest.mark.parametrize("outcome", ["ran", "failed", "skipped"])
    async def test_what_has_ended_is_over(self, storage: Storage, runner_a: Ownership, outcome: Any) -> None:
        """0.6: also for the very note that ended it, asked again."""
        claim = await grant(runner_a, A)
        row = await start_tick(storage, claim)
        end = new_note(claim, row, outcome=outcome, errors=("e",), note="n")
        assert await storage.ticks.note(end) == "written"
        before = await snapshot(storage)
        assert await storage.ticks.note(end) == "conflict"
        for options in ({}, {"again": True}, {"outcome": "ran"}, {"outcome": "failed", "errors": ("late",)}):
            assert await write_note(storage, claim, row, **options) == "conflict"
        assert await snapshot(storage) == before
        assert (await take_cron(storage, claim)).open == ()

    async def test_a_note_is_about_one_tick_at_one_attempt(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A)
        row = await start_tick(storage, claim)
        assert await claim_result(storage, claim, at(0), skip_verdict(1, 2)) == "written"
        triggered = await storage.ticks.trigger(CRON_A, at=at(0))
        assert triggered is not None
        before = await snapshot(storage)
        others: list[dict[str, Any]] = [
            {"attempt": 0},
            {"attempt": 2},
            {"seq": 1},
            {"at": at(9)},
            {"at": row.at + INSTANT},
            {"kind": "manual"},
            {"kind": "manual", "seq": 1, "attempt": 0},  # nobody has taken it
            {"at": at(1), "attempt": 0},  # skipped
            {"name": CRON_B},
        ]
        for other in others:
            assert (
                await write_note(storage, claim, row, **{"outcome": "failed", "errors": ("e",), **other}) == "conflict"
            )
        assert await snapshot(storage) == before
        for other_claim in foreign_claims(claim):
            assert await write_note(storage, other_claim, row, outcome="failed", errors=("e",)) == "fenced"
        assert await snapshot(storage) == before

    @pytest.mark.parametrize(
        "text", ["", "'; drop table ticks; --", '"\\%_', "\N{SNOWMAN} é 漢", "a\nb\tc\x01", "x" * 70_000]
    )
    async def test_texts_may_say_anything(self, storage: Storage, runner_a: Ownership, text: str) -> None:
        claim = await grant(runner_a, A)
        row = await start_tick(storage, claim)
        assert await write_note(storage, claim, row, outcome="failed", errors=(text, text), note=text) == "written"
        said = await reread(storage, row)
        assert (said.errors, said.note) == ((text, text), text)
        assert (await stored_cron(storage)).error == text

    async def test_what_no_database_stores_in_a_text_is_replaced(self, storage: Storage, runner_a: Ownership) -> None:
        """Whatever an error says, that it failed is told."""
        claim = await grant(runner_a, A)
        row = await start_tick(storage, claim)
        wild = "zero \x00 and half \ud800 a pair"
        assert await write_note(storage, claim, row, outcome="failed", errors=("plain", wild), note=wild) == "written"
        said = await reread(storage, row)
        assert (said.errors, said.note) == (("plain", storable(wild)), storable(wild))
        assert (await stored_cron(storage)).error == storable(wild)

    async def test_progress_may_be_any_whole_number_and_times_any_float(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim = await grant(runner_a, A)
        row = await start_tick(storage, claim)
        for number in (0, -1, 2**63 - 1):
            options: dict[str, Any] = {"done": number, "total": number, "took_s": 0.1 + 0.2, "late_s": 1e-9}
            assert await write_note(storage, claim, row, **options) == "written"
            said = await reread(storage, row)
            assert (said.done, said.total) == (number, number)
            assert said.took_s == pytest.approx(0.3)
            assert said.late_s == pytest.approx(1e-9)


@pytest.mark.parametrize("name", ["it's", 'a "b"; --', "x:y:z", "%", "_", " ", "\N{SNOWMAN} é", "a/b\\c", "n" * 900])
async def test_names_may_have_any_character(storage: Storage, name: str) -> None:
    async with joined(storage, A, name, "other") as session:
        claim = await grant(session, A, name)
        assert (await take_cron(storage, claim, name, definition="{}")).last is None
        assert await claim_result(storage, claim, None, run_verdict(0), name=name) == "written"
        row = await stored_tick(storage, at(0), name=name)
        assert await write_note(storage, claim, row, outcome="ran") == "written"
        assert await storage.ticks.pause(name)
        assert await storage.ticks.resume(name)
        assert await storage.ticks.trigger(name) is not None
        assert len(await history(storage, name)) == 2
        assert [each.name for each in await storage.ticks.list()] == sorted([name, "other"])
        known = await stored_cron(storage, name)
        assert (known.runs, known.open, known.definition) == (1, 1, "{}")
        assert await history(storage, "other") == []


class TestTrigger:
    async def test_it_is_a_tick_that_nobody_has_begun(self, storage: Storage, runner_a: Ownership) -> None:
        """M9: also while nobody holds the cron."""
        row = await storage.ticks.trigger(CRON_A, at=at(3))
        assert row is not None
        assert (row.name, row.kind, row.at, row.until, row.count, row.seq) == (
            CRON_A,
            "manual",
            at(3),
            at(3),
            1,
            1,
        )
        assert (row.epoch, row.attempt, row.outcome, row.reason, row.errors) == (0, 0, None, "", ())
        assert (row.runner, row.ended_at, row.late_s, row.took_s) == ("", None, None, None)
        assert abs(row.claimed_at - await storage.now()) < timedelta(seconds=30)
        assert await reread(storage, row) == row
        known = await stored_cron(storage)
        assert (known.open, known.runs, known.last, known.latest) == (1, 0, None, None)

    async def test_without_an_instant_it_is_for_now(self, storage: Storage, runner_a: Ownership) -> None:
        before = await storage.now()
        row = await storage.ticks.trigger(CRON_A)
        assert row is not None
        assert before <= row.at <= await storage.now()

    async def test_those_for_one_instant_are_told_apart(self, storage: Storage, runner_a: Ownership) -> None:
        """M9: by each other and from the scheduled one; also those that come at once."""
        claim = await grant(runner_a, A)
        await start_tick(storage, claim)
        rows = await asyncio.gather(*(storage.ticks.trigger(CRON_A, at=at(0)) for _ in range(20)))
        assert sorted(row.seq for row in rows if row is not None) == list(range(1, 21))
        other = await storage.ticks.trigger(CRON_A, at=at(1))
        assert other is not None
        assert other.seq == 1
        assert len((await take_cron(storage, claim)).open) == 22

    async def test_its_number_is_not_used_again_while_one_is_there(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A)
        await storage.ticks.trigger(CRON_A, at=at(0))
        (row,) = (await take_cron(storage, claim)).open
        assert await write_note(storage, claim, row, outcome="ran") == "written"
        following = await storage.ticks.trigger(CRON_A, at=at(0))
        assert following is not None
        assert following.seq == 2
        assert (await reread(storage, row)).outcome == "ran"

    async def test_the_end_of_time_can_be_stored(self, storage: Storage, runner_a: Ownership) -> None:
        for instant in (datetime(9998, 12, 31, tzinfo=UTC), datetime(1, 1, 2, tzinfo=UTC)):
            row = await storage.ticks.trigger(CRON_A, at=instant)
            assert row is not None
            assert await reread(storage, row) == row
        assert len(await history(storage)) == 2
        assert len(await history(storage, before=datetime(9999, 12, 30, tzinfo=UTC))) == 2

    async def test_of_no_such_cron_nothing_can_be_asked(self, storage: Storage) -> None:
        async with joined(storage, A, CRON_A, **{"singleton:one": "f", "cro:n": "f", "cron": "f"}):
            for name in ("none", "one", "n", "", "cron:nightly", "NIGHTLY"):
                assert await storage.ticks.trigger(name) is None
                assert await storage.ticks.pause(name) is None
                assert await storage.ticks.resume(name) is None
                assert await history(storage, name) == []
            assert [row.name for row in await storage.ticks.list()] == [CRON_A]


class TestPause:
    async def test_it_is_told_whether_that_is_news(self, storage: Storage, runner_a: Ownership) -> None:
        """C3: also while nobody holds the cron."""
        assert await storage.ticks.resume(CRON_A) is False
        assert await storage.ticks.pause(CRON_A) is True
        paused_at = (await stored_cron(storage)).paused_at
        assert paused_at is not None
        assert abs(paused_at - await storage.now()) < timedelta(seconds=30)
        assert await storage.ticks.pause(CRON_A) is False
        assert (await stored_cron(storage)).paused_at == paused_at
        assert (await stored_cron(storage, CRON_B)).paused_at is None
        assert await storage.ticks.resume(CRON_A) is True
        assert (await stored_cron(storage)).paused_at is None
        assert await storage.ticks.resume(CRON_A) is False
        assert await storage.ticks.pause(CRON_A) is True

    async def test_of_those_who_come_at_once_one_has_done_it(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A)
        for action, opens in ((storage.ticks.pause, True), (storage.ticks.resume, False)):
            results = await asyncio.gather(*(action(CRON_A) for _ in range(10)))
            assert sorted(results, key=bool) == [False] * 9 + [True]
            (pause,) = (await take_cron(storage, claim)).pauses
            assert (pause.until is None) is opens

    async def test_a_holder_is_told_of_those_that_may_touch_a_tick(
        self, storage: Storage, runner_a: Ownership, passing: Passing
    ) -> None:
        """All while no tick has its verdict; later those that had not ended by the last one, in order."""
        claim = await grant(runner_a, A)
        marks = []
        for _ in range(3):
            await storage.ticks.pause(CRON_A)
            await passing(0.001)
            await storage.ticks.resume(CRON_A)
            await passing(0.001)
            marks.append(await storage.now())
            await passing(0.001)
        pauses = (await take_cron(storage, claim)).pauses
        assert len(pauses) == 3
        ends = [pause.until for pause in pauses if pause.until is not None]
        edges = [edge for pause, end in zip(pauses, ends, strict=True) for edge in (pause.since, end)]
        assert edges == sorted(set(edges))
        assert [end < mark for end, mark in zip(ends, marks, strict=True)] == [True] * 3
        last = None
        steps = [
            (ends[0] - INSTANT, 3),
            (ends[0], 2),
            (marks[0], 2),
            (ends[1] - INSTANT, 2),
            (marks[1], 1),
            (marks[2], 0),
        ]
        for instant, left in steps:
            assert await claim_result(storage, claim, last, Verdict(instant, instant, 1, "stale")) == "written"
            last = instant
            book = await take_cron(storage, claim)
            assert book.last == instant, "to the microsecond"
            assert book.pauses == pauses[3 - left :]
        await storage.ticks.pause(CRON_A)
        since = (await stored_cron(storage)).paused_at
        assert since is not None
        assert (await take_cron(storage, claim)).pauses == (PauseRow(since, None),)

    async def test_a_pause_without_length_is_followed_by_the_next(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A)
        for _ in range(20):
            assert await storage.ticks.pause(CRON_A) is True
            assert await storage.ticks.resume(CRON_A) is True
        assert await storage.ticks.pause(CRON_A) is True
        pauses = (await take_cron(storage, claim)).pauses
        assert [pause for pause in pauses[:-1] if pause.until is None] == []
        assert pauses[-1].until is None


class TestHistory:
    async def test_the_latest_instants_come_first_whatever_became_of_them(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim = await grant(runner_a, A)
        await start_tick(storage, claim, 0)
        row = await start_tick(storage, claim, 1, last=at(0))
        await write_note(storage, claim, row, outcome="failed")
        assert await claim_result(storage, claim, at(1), skip_verdict(2, 4)) == "written"
        for minute in (7, 1, 1, 3):
            await storage.ticks.trigger(CRON_A, at=at(minute))
        await storage.ticks.trigger(CRON_B, at=at(5))
        expected = [
            (at(7), "manual", 1, None),
            (at(3), "manual", 1, None),
            (at(2), "scheduled", 0, "skipped"),
            (at(1), "manual", 2, None),
            (at(1), "manual", 1, None),
            (at(1), "scheduled", 0, "failed"),
            (at(0), "scheduled", 0, None),
        ]
        rows = await history(storage)
        assert [(row.at, row.kind, row.seq, row.outcome) for row in rows] == expected
        assert rows == [await reread(storage, row) for row in rows]
        for most in range(len(rows) + 1):
            assert await history(storage, most=most) == rows[:most]
        for minute in range(9):
            assert await history(storage, before=at(minute)) == [row for row in rows if row.at < at(minute)]
        others, last = await history(storage, CRON_B), at(9)
        both = {CRON_A: rows, CRON_B: others}
        found = await storage.ticks.histories([CRON_B, CRON_A, "nobody"], most=1000, since=at(0), before=last)
        assert {name: list(some) for name, some in found.items() if some} == both
        for minute in range(9):
            found = await storage.ticks.histories([CRON_A], most=3, since=at(minute), before=last)
            assert list(found.get(CRON_A, ())) == [row for row in rows if row.until >= at(minute)][:3]
            found = await storage.ticks.histories([CRON_A], most=1000, since=at(0), before=at(minute))
            assert list(found.get(CRON_A, ())) == [row for row in rows if row.at < at(minute)]

    async def test_it_is_read_page_by_page(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A)
        assert await claim_result(storage, claim, None, *(run_verdict(minute) for minute in range(25))) == "written"
        pages: list[list[TickRow]] = []
        before = None
        while page := await history(storage, most=10, before=before):
            pages.append(page)
            before = page[-1].at
        assert [len(page) for page in pages] == [10, 10, 5]
        assert [row.at for page in pages for row in page] == [at(minute) for minute in reversed(range(25))]

    async def test_what_is_not_there_is_not_found(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A)
        row = await start_tick(storage, claim)
        assert await storage.ticks.get(CRON_A, "scheduled", at(0), 0) == row
        assert await storage.ticks.get(CRON_B, "scheduled", at(0), 0) is None
        assert await storage.ticks.get(CRON_A, "manual", at(0), 0) is None
        assert await storage.ticks.get(CRON_A, "scheduled", at(0) + INSTANT, 0) is None
        assert await storage.ticks.get(CRON_A, "scheduled", at(0), 1) is None


class TestList:
    async def test_it_names_every_cron_that_has_a_seat(self, storage: Storage) -> None:
        """Also those that nobody has held yet, and nothing but crons; by name."""
        names = ["b", "a", "Z", "é", "a:b", "a b"]
        others = {"singleton:one": "f", "cron": "f", "crons:x": "f", "cron;x": "f", "shard:default:1": ""}
        assert await storage.ticks.list() == []
        async with joined(storage, A, *names, **others):
            rows = await storage.ticks.list()
            assert [row.name for row in rows] == sorted(names)
            for row in rows:
                assert (row.definition, row.last, row.runs, row.ran_at) == ("", None, 0, None)
                assert (row.error, row.error_at, row.failures, row.failed_at) == (None, None, 0, None)
                assert (row.paused_at, row.open, row.beat_at, row.latest) == (None, 0, None, None)
                assert row.effective_from <= row.now
                assert abs(row.now - await storage.now()) < timedelta(seconds=30)

    async def test_the_latest_is_the_one_that_ended_last(
        self, storage: Storage, runner_a: Ownership, passing: Passing
    ) -> None:
        """Not the one for the latest instant, and not one that was skipped."""
        claim = await grant(runner_a, A)
        first, second = await start_tick(storage, claim, 0), await start_tick(storage, claim, 1, last=at(0))
        assert await write_note(storage, claim, second, outcome="failed", errors=("e",)) == "written"
        assert (await stored_cron(storage)).latest == await reread(storage, second)
        await passing(0.001)
        assert await write_note(storage, claim, first, outcome="ran") == "written"
        await passing(0.001)
        assert await claim_result(storage, claim, at(1), skip_verdict(2, 3)) == "written"
        known = await stored_cron(storage)
        assert known.latest == await reread(storage, first)
        assert (known.open, known.runs) == (0, 2)

    async def test_h1_what_runs_has_a_last_sign(self, storage: Storage, runner_a: Ownership, passing: Passing) -> None:
        """Its beginning, or what was last noted of it; of several the latest."""
        claim = await grant(runner_a, A)
        first = await start_tick(storage, claim, 0)
        assert (await stored_cron(storage)).beat_at == first.claimed_at
        await passing(0.002)
        second = await start_tick(storage, claim, 1, last=at(0))
        assert (await stored_cron(storage)).beat_at == second.claimed_at > first.claimed_at
        await passing(0.002)
        assert await write_note(storage, claim, first, note="half") == "written"
        beat_at = (await stored_cron(storage)).beat_at
        assert beat_at is not None
        assert second.claimed_at < beat_at <= await storage.now()
        assert await write_note(storage, claim, first, outcome="ran") == "written"
        assert (await stored_cron(storage)).beat_at == second.claimed_at
        assert await write_note(storage, claim, second, outcome="ran") == "written"
        assert (await stored_cron(storage)).beat_at is None


class TestPurge:
    async def test_what_ended_long_ago_is_deleted_some_at_a_time(
        self, storage: Storage, runner_a: Ownership, passing: Passing
    ) -> None:
        """What is open stays, and so does what is known of the cron."""
        claim = await grant(runner_a, A)
        await take_cron(storage, claim, definition="{}")
        opened = await start_tick(storage, claim, 0)
        failed = await start_tick(storage, claim, 1, last=at(0))
        await write_note(storage, claim, failed, outcome="failed", errors=("e",))
        assert (
            await claim_result(storage, claim, at(1), *(skip_verdict(minute, minute) for minute in range(2, 6)))
            == "written"
        )
        triggered = await storage.ticks.trigger(CRON_A)
        await passing(0.3)
        young = await start_tick(storage, claim, 6, last=at(5))
        await write_note(storage, claim, young, outcome="ran")
        before = await stored_cron(storage)
        assert await storage.ticks.purge(older_s=3600, most=100) == 0
        for left in (2, 2, 1, 0):
            assert await storage.ticks.purge(older_s=0.3, most=2) == left
        assert await history(storage) == [triggered, await reread(storage, young), opened]
        after = await stored_cron(storage)
        assert (after.last, after.runs, after.error, after.definition) == (at(6), 3, "e", "{}")
        assert (after.failures, after.failed_at, after.open) == (before.failures, before.failed_at, 2)
        await passing(0.001)
        assert await storage.ticks.purge(older_s=0, most=100) == 1
        assert (await stored_cron(storage)).latest is None
        assert await claim_result(storage, claim, None, run_verdict(7)) == "moved", "the last one is known for ever"
        assert await claim_result(storage, claim, at(6), run_verdict(7)) == "written"
        assert await storage.ticks.purge(older_s=1e12, most=100) == 0

    async def test_pauses_that_ended_long_ago_are_deleted_too(
        self, storage: Storage, runner_a: Ownership, passing: Passing
    ) -> None:
        claim = await grant(runner_a, A)
        for _ in range(2):
            await storage.ticks.pause(CRON_A)
            await storage.ticks.resume(CRON_A)
            await passing(0.001)
        await storage.ticks.pause(CRON_A)
        pauses = (await take_cron(storage, claim)).pauses
        # The last tick of all lies before the pauses, so that a holder is told of them.
        assert await claim_result(storage, claim, None, skip_verdict(0, 1)) == "written"
        await storage.ticks.purge(older_s=3600, most=100)
        assert (await take_cron(storage, claim)).pauses == pauses
        now = await storage.now()
        assert await claim_result(storage, claim, at(1), Verdict(now, now, 1, "stale")) == "written"
        await passing(0.001)
        assert await storage.ticks.purge(older_s=0, most=100) == 2
        assert (await take_cron(storage, claim)).pauses == pauses[-1:], "the open one stays"
        assert (await stored_cron(storage)).paused_at == pauses[-1].since


async def test_clusters_do_not_see_each_other(storage: Storage, neighbour: Storage) -> None:
    async with joined(storage, A), joined(neighbour, B):
        await storage.ticks.pause(CRON_A)
        await storage.ticks.trigger(CRON_A, at=at(0))
        other = await stored_cron(neighbour)
        assert (other.paused_at, other.open) == (None, 0)
        assert await history(neighbour) == []
        assert await neighbour.ticks.get(CRON_A, "manual", at(0), 1) is None
        row = await neighbour.ticks.trigger(CRON_A, at=at(0))
        assert row is not None
        assert row.seq == 1
        assert await neighbour.ticks.resume(CRON_A) is False
        assert await neighbour.ticks.purge(older_s=0, most=10) == 0
