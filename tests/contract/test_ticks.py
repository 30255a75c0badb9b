"""What the holders of crons take and claim, on every engine: whose a tick is, and by which schedule.

C1, C2, C3, INV-C2; REVIEW C1, M8, M9.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from coterie.kernel.ids import Seat
from coterie.storage.contracts.ticks import CronTakeover, Verdict
from coterie.storage.interface import Claim, SeatDeclaration
from tests.contract.test_states import A, B, evict
from tests.contract.ticks import (
    CRON_A,
    CRON_B,
    FINGERPRINT,
    INSTANT,
    LOSSES,
    at,
    claim_result,
    fingerprint,
    foreign_claims,
    grant,
    history,
    joined,
    lose,
    new_claim,
    next_claim,
    reread,
    run_verdict,
    runner_a,
    runner_b,
    runner_name,
    skip_verdict,
    snapshot,
    start_tick,
    stored_cron,
    stored_tick,
    take_cron,
    write_note,
)

if TYPE_CHECKING:
    from coterie.storage.contracts.ticks import ClaimResult
    from coterie.storage.interface import Ownership, Storage
    from tests.contract.conftest import Passing

__all__ = ["runner_a", "runner_b"]  # fixtures


class TestTake:
    async def test_of_a_cron_that_nobody_has_held_all_is_empty(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A)
        book = await take_cron(storage, claim)
        assert (book.fingerprint, book.effective_from) == fingerprint(await storage.view())
        assert (book.last, book.failures, book.failed_at, book.pauses, book.open) == (None, 0, None, (), ())
        assert abs(book.now - await storage.now()) < timedelta(seconds=30)
        assert book.effective_from <= book.now

    async def test_what_is_not_held_is_missing_and_nothing_is_written(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        """C1: each of them for itself."""
        claim = await grant(runner_a, A)
        row = await start_tick(storage, claim)
        await storage.ticks.trigger(CRON_A)
        before = await snapshot(storage)
        for other in foreign_claims(claim):
            assert await storage.ticks.take([CronTakeover(other, CRON_A, "{}")]) == {}
        assert await snapshot(storage) == before
        books = await storage.ticks.take(
            [CronTakeover(foreign_claims(claim)[0], CRON_B, "no"), CronTakeover(claim, CRON_A, "yes")]
        )
        assert list(books) == [CRON_A]
        assert ((await stored_cron(storage)).definition, (await stored_cron(storage, CRON_B)).definition) == ("yes", "")
        assert row in books[CRON_A].open
        assert await storage.ticks.take([]) == {}

    @pytest.mark.parametrize("how", LOSSES)
    async def test_a_former_holder_takes_nothing(
        self, storage: Storage, runner_a: Ownership, runner_b: Ownership, how: str
    ) -> None:
        """C1: also before the next one has the seat."""
        old = await grant(runner_a, A)
        await start_tick(storage, old)
        await lose(how, old, runner_a, runner_b)
        await storage.ticks.trigger(CRON_A)
        before = await snapshot(storage)
        assert await storage.ticks.take([CronTakeover(old, CRON_A, "stale")]) == {}
        await next_claim(how, runner_a, runner_b)
        assert await storage.ticks.take([CronTakeover(old, CRON_A, "stale")]) == {}
        assert await snapshot(storage) == before

    async def test_what_others_are_told_stays_until_it_is_told_anew(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim = await grant(runner_a, A)
        assert (await stored_cron(storage)).definition == ""
        for given, expected in ((None, ""), ("{}", "{}"), ("{}", "{}"), (None, "{}"), ('{"x": "\u2603\'"}', None)):
            await take_cron(storage, claim, definition=given)
            assert (await stored_cron(storage)).definition == (given if expected is None else expected)

    async def test_what_a_former_holder_has_begun_is_the_next_attempt(
        self, storage: Storage, runner_a: Ownership, runner_b: Ownership
    ) -> None:
        """M9: the same tick, with all that is known of it; what has ended is left alone."""
        old = await grant(runner_a, A)
        first = await start_tick(storage, old, 0)
        second = await start_tick(storage, old, 1, last=at(0))
        ended = await start_tick(storage, old, 2, last=at(1))
        said = {"errors": ("one",), "took_s": 1.5, "late_s": 0.25, "note": "half", "done": 1, "total": 2}
        assert await write_note(storage, old, second, again=True, **said) == "written"
        assert await write_note(storage, old, ended, outcome="ran") == "written"
        second, ended = await reread(storage, second), await reread(storage, ended)
        await evict(runner_b, A)
        new = await grant(runner_b, B)
        book = await take_cron(storage, new)
        assert book.last == at(2)
        expected = [
            (first.at, new.epoch, 2, runner_name(B), first.claimed_at, (), ""),
            (second.at, new.epoch, 3, runner_name(B), second.claimed_at, ("one",), "half"),
        ]
        rows = [(row.at, row.epoch, row.attempt, row.runner, row.claimed_at, row.errors, row.note) for row in book.open]
        assert rows == expected
        assert (book.open[1].took_s, book.open[1].late_s, book.open[1].done, book.open[1].total) == (1.5, 0.25, 1, 2)
        assert await reread(storage, ended) == ended
        assert (await stored_cron(storage)).runs == 3, "an attempt is not another tick"

    async def test_to_take_twice_is_to_take_once(
        self, storage: Storage, runner_a: Ownership, runner_b: Ownership
    ) -> None:
        """0.6: repeated after a lost answer, and every few seconds."""
        old = await grant(runner_a, A)
        await start_tick(storage, old)
        await storage.ticks.trigger(CRON_A)
        assert await runner_a.release(old.seat, old.epoch)
        new = await grant(runner_b, B)
        book = await take_cron(storage, new, definition="{}")
        before = await snapshot(storage)
        for definition in ("{}", None):
            once_more = await take_cron(storage, new, definition=definition)
            assert (once_more.open, once_more.last) == (book.open, book.last)
        assert await snapshot(storage) == before
        assert sorted((row.kind, row.attempt) for row in book.open) == [("manual", 1), ("scheduled", 2)]

    async def test_what_was_triggered_begins_when_it_is_taken(
        self, storage: Storage, runner_a: Ownership, runner_b: Ownership, passing: Passing
    ) -> None:
        """M9: it is taken once, as the first attempt, and counts as begun then."""
        old = await grant(runner_a, A)
        await take_cron(storage, old)
        row = await storage.ticks.trigger(CRON_A, at=at(7))
        assert row is not None
        assert ((await stored_cron(storage)).runs, (await stored_cron(storage)).ran_at) == (0, None)
        await passing(0.001)
        (mine,) = (await take_cron(storage, old)).open
        assert (mine.kind, mine.at, mine.seq, mine.epoch, mine.attempt) == ("manual", at(7), 1, old.epoch, 1)
        assert mine.runner == runner_name(A)
        assert mine.claimed_at > row.claimed_at, "when it was taken, not when it was triggered"
        known = await stored_cron(storage)
        assert (known.runs, known.last) == (1, None)
        assert known.ran_at is not None
        assert mine.claimed_at <= known.ran_at <= await storage.now()
        await evict(runner_b, A)
        new = await grant(runner_b, B)
        (theirs,) = (await take_cron(storage, new)).open
        assert (theirs.epoch, theirs.attempt, theirs.runner) == (new.epoch, 2, runner_name(B))
        assert theirs.claimed_at == mine.claimed_at
        assert (await stored_cron(storage)).runs == 1
        assert await write_note(storage, old, mine, outcome="ran") == "fenced"
        assert await write_note(storage, new, theirs, outcome="ran") == "written"
        assert (await take_cron(storage, new)).open == ()

    async def test_what_is_open_comes_by_kind_instant_and_sequence(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A)
        for minute in (5, 3, 3):
            await storage.ticks.trigger(CRON_A, at=at(minute))
        await start_tick(storage, claim, 1)
        await start_tick(storage, claim, 2, last=at(1))
        book = await take_cron(storage, claim)
        assert [(row.kind, row.at, row.seq) for row in book.open] == [
            ("manual", at(3), 1),
            ("manual", at(3), 2),
            ("manual", at(5), 1),
            ("scheduled", at(1), 0),
            ("scheduled", at(2), 0),
        ]
        assert [row for row in book.open if row.epoch != claim.epoch] == []

    async def test_many_crons_are_taken_at_once(self, storage: Storage) -> None:
        names = [f"cron {number:03}" for number in range(300)]
        async with joined(storage, A, *names) as session:
            grants = await session.acquire([Seat.cron(name) for name in names])
            takes = [
                CronTakeover(Claim(A, each.name, each.epoch), each.name.partition(":")[2], each.name) for each in grants
            ]
            for name in names[::10]:
                await storage.ticks.trigger(name)
            books = await storage.ticks.take(takes)
            assert sorted(books) == names
            assert [name for name in names if books[name].open] == names[::10]
            assert [row.definition for row in await storage.ticks.list()] == [Seat.cron(name) for name in names]
            assert {name: book.open for name, book in (await storage.ticks.take(takes)).items()} == {
                name: book.open for name, book in books.items()
            }


class TestClaim:
    async def test_a_tick_that_runs_is_there_with_all_that_is_known(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim = await grant(runner_a, A)
        claimed = await storage.ticks.claim(new_claim(claim, None, run_verdict(0), delay_s=90.5))
        assert claimed.told == "written"
        row = await stored_tick(storage, at(0))
        assert (row.name, row.kind, row.at, row.until, row.count, row.seq) == (
            CRON_A,
            "scheduled",
            at(0),
            at(0),
            1,
            0,
        )
        assert (row.epoch, row.attempt, row.outcome, row.reason, row.errors) == (claim.epoch, 1, None, "", ())
        assert (row.runner, row.claimed_at, row.ended_at) == (runner_name(A), claimed.now, None)
        assert (row.took_s, row.note, row.done, row.total) == (None, "", None, None)
        assert row.late_s == pytest.approx((claimed.now - at(0)).total_seconds() - 90.5, abs=0.001)
        assert abs(claimed.now - await storage.now()) < timedelta(seconds=30)
        known = await stored_cron(storage)
        assert (known.last, known.runs, known.ran_at, known.open, known.latest) == (at(0), 1, claimed.now, 1, None)
        book = await take_cron(storage, claim)
        assert (book.last, book.open) == (at(0), (row,))

    async def test_neighbours_that_are_skipped_are_one_row_that_is_over(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        """M9: however many they are."""
        claim = await grant(runner_a, A)
        claimed = await storage.ticks.claim(new_claim(claim, None, skip_verdict(0, 9, 604_800, "paused")))
        assert claimed.told == "written"
        row = await stored_tick(storage, at(0))
        assert (row.at, row.until, row.count, row.reason, row.outcome) == (at(0), at(9), 604_800, "paused", "skipped")
        assert (row.epoch, row.attempt, row.runner, row.late_s) == (claim.epoch, 0, runner_name(A), None)
        assert (row.claimed_at, row.ended_at) == (claimed.now, claimed.now)
        known = await stored_cron(storage)
        assert (known.last, known.runs, known.ran_at, known.open, known.latest) == (at(9), 0, None, 0, None)
        assert (await take_cron(storage, claim)).open == ()
        assert await stored_tick(storage, at(9)) is None

    async def test_verdicts_are_written_all_or_none(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A)
        future = await storage.now() + timedelta(hours=1)
        late = Verdict(future, future)
        assert await claim_result(storage, claim, None, run_verdict(0), skip_verdict(1, 3), late) == "early"
        assert await history(storage) == []
        assert (await stored_cron(storage)).last is None
        verdicts = (run_verdict(0), skip_verdict(1, 3), run_verdict(4), skip_verdict(5, 5, 1, "overlapping"))
        assert await claim_result(storage, claim, None, *verdicts) == "written"
        rows = await history(storage)
        assert [(row.at, row.until, row.count, row.reason, row.attempt) for row in reversed(rows)] == [
            (at(0), at(0), 1, "", 1),
            (at(1), at(3), 2, "stale", 0),
            (at(4), at(4), 1, "", 1),
            (at(5), at(5), 1, "overlapping", 0),
        ]
        known = await stored_cron(storage)
        assert (known.last, known.runs, known.open) == (at(5), 2, 2)

    async def test_skipped_ones_leave_alone_when_it_last_ran(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a, A)
        await start_tick(storage, claim)
        before = await stored_cron(storage)
        assert await claim_result(storage, claim, at(0), skip_verdict(1, 2)) == "written"
        after = await stored_cron(storage)
        assert (after.runs, after.ran_at, after.last) == (before.runs, before.ran_at, at(2))

    async def test_without_the_seat_nothing_is_claimed(self, storage: Storage, runner_a: Ownership) -> None:
        """C1."""
        claim = await grant(runner_a, A)
        await start_tick(storage, claim)
        before = await snapshot(storage)
        for other in foreign_claims(claim):
            assert await claim_result(storage, other, at(0), run_verdict(1)) == "fenced"
            assert await claim_result(storage, other, None, run_verdict(1), name="first") == "fenced"
        assert await snapshot(storage) == before
        assert await history(storage, "first") == []

    @pytest.mark.parametrize("how", LOSSES)
    async def test_however_the_seat_was_lost_a_former_holder_claims_and_notes_nothing(
        self, storage: Storage, runner_a: Ownership, runner_b: Ownership, how: str
    ) -> None:
        """C1, M9: else a tick is claimed after its successor has looked, and nobody runs it."""
        old = await grant(runner_a, A)
        row = await start_tick(storage, old)
        await lose(how, old, runner_a, runner_b)

        async def is_refused() -> None:
            assert await claim_result(storage, old, at(0), run_verdict(1)) == "fenced"
            assert await write_note(storage, old, row, outcome="ran") == "fenced"

        await is_refused()
        new = await next_claim(how, runner_a, runner_b)
        await is_refused()
        (mine,) = (await take_cron(storage, new)).open
        assert (mine.at, mine.attempt, mine.outcome) == (at(0), 2, None)
        await is_refused()
        assert await write_note(storage, new, mine, outcome="ran") == "written"
        assert await claim_result(storage, new, at(0), run_verdict(1)) == "written"
        await is_refused()

    async def test_who_is_evicted_while_it_claims_has_claimed_what_it_was_told(
        self, storage: Storage, runner_a: Ownership, runner_b: Ownership
    ) -> None:
        """C1: what was told "written" its successor finds, and nothing else."""
        claim = await grant(runner_a, A)
        written: list[datetime] = []
        under_way, lost = asyncio.Event(), "written"

        async def go_on() -> None:
            nonlocal lost
            minute, last = 0, None
            while lost == "written":
                lost = await claim_result(storage, claim, last, run_verdict(minute))
                if lost == "written":
                    written.append(at(minute))
                minute, last = minute + 1, at(minute)
                if minute == 5:
                    under_way.set()

        async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
            tasks.create_task(go_on())
            await under_way.wait()
            await evict(runner_b, A)
            new = await grant(runner_b, B)
            book = await take_cron(storage, new)
        assert lost == "fenced"
        assert [row.at for row in book.open] == written
        assert book.last == written[-1]
        assert [row.at for row in reversed(await history(storage))] == written

    async def test_another_last_tick_than_the_known_one_is_told(self, storage: Storage, runner_a: Ownership) -> None:
        """INV-C2: nobody claims from what it does not know; also to the microsecond."""
        claim = await grant(runner_a, A)
        assert await claim_result(storage, claim, at(0), run_verdict(1)) == "moved", "there is none"
        await start_tick(storage, claim, 1)
        before = await snapshot(storage)
        for last in (None, at(0), at(2), at(1) - INSTANT, at(1) + INSTANT):
            assert await claim_result(storage, claim, last, run_verdict(3)) == "moved"
        assert await snapshot(storage) == before
        assert await claim_result(storage, claim, at(1), run_verdict(3)) == "written"

    async def test_a_claim_of_unknown_outcome_can_be_asked_again(self, storage: Storage, runner_a: Ownership) -> None:
        """0.6: nobody else writes under this epoch, so it has moved because of this very claim."""
        claim = await grant(runner_a, A)
        write = new_claim(claim, None, skip_verdict(0, 1), run_verdict(2))
        assert (await storage.ticks.claim(write)).told == "written"  # and the answer was lost
        before = await snapshot(storage)
        assert (await storage.ticks.claim(write)).told == "moved"
        assert await snapshot(storage) == before
        book = await take_cron(storage, claim)
        assert book.last == write.verdicts[-1].until
        assert [(row.at, row.epoch) for row in book.open] == [(at(2), claim.epoch)]

    async def test_nobody_claims_a_tick_that_has_its_verdict(self, storage: Storage, runner_a: Ownership) -> None:
        """M9: the row is the proof, whatever the last one is said to be."""
        claim = await grant(runner_a, A)
        await start_tick(storage, claim, 1)
        before = await snapshot(storage)
        assert await claim_result(storage, claim, at(1), run_verdict(1)) == "moved"
        assert await snapshot(storage) == before

    async def test_what_is_not_due_by_the_databases_clock_is_early(self, storage: Storage, runner_a: Ownership) -> None:
        """C2: the process's clock does not count; `delay_s` after its instant a tick is due."""
        claim = await grant(runner_a, A)
        soon = await storage.now() + timedelta(seconds=0.2)
        write = new_claim(claim, None, Verdict(soon, soon))
        first = await storage.ticks.claim(write)
        assert first.told == "early"
        assert first.now < soon
        assert await history(storage) == []
        last: ClaimResult = first
        async with asyncio.timeout(120):
            while last.told == "early":
                assert last.now < soon
                last = await storage.ticks.claim(write)
        assert last.told == "written"
        assert last.now >= soon
        row = await stored_tick(storage, soon)
        assert row.late_s == pytest.approx((last.now - soon).total_seconds(), abs=0.001)
        assert row.late_s >= 0

    async def test_a_delay_and_the_end_of_a_span_count_for_being_due(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim = await grant(runner_a, A)
        now = await storage.now()
        past, future = now - timedelta(seconds=60), now + timedelta(seconds=3600)
        assert await claim_result(storage, claim, None, Verdict(past, past), delay_s=3600.0) == "early"
        assert await claim_result(storage, claim, None, Verdict(past, future, 2, "stale")) == "early"
        assert await claim_result(storage, claim, None, Verdict(past, past, 1, "stale"), delay_s=3600.0) == "early"
        assert await claim_result(storage, claim, None, Verdict(future, future), delay_s=-7200.0) == "written"

    async def test_a_paused_cron_claims_nothing_that_runs(self, storage: Storage, runner_a: Ownership) -> None:
        """C3: what is skipped may be told of, and other crons go on."""
        claim, other = await grant(runner_a, A), await grant(runner_a, A, CRON_B)
        await start_tick(storage, claim, 0)
        assert await storage.ticks.pause(CRON_A)
        assert await claim_result(storage, claim, at(0), run_verdict(1)) == "paused"
        assert await claim_result(storage, claim, at(0), skip_verdict(1, 2), run_verdict(3)) == "paused"
        assert [row.at for row in await history(storage)] == [at(0)]
        assert await claim_result(storage, other, None, run_verdict(1), name=CRON_B) == "written"
        assert await claim_result(storage, claim, at(0), skip_verdict(1, 2)) == "written"
        row = await stored_tick(storage, at(0))
        assert await write_note(storage, claim, row, outcome="ran") == "written", "what has begun goes on"
        assert await storage.ticks.resume(CRON_A)
        assert await claim_result(storage, claim, at(2), run_verdict(3)) == "written"

    async def test_conditions_are_told_in_their_order(
        self, storage: Storage, runner_a: Ownership, runner_b: Ownership
    ) -> None:
        claim = await grant(runner_a, A)
        await start_tick(storage, claim, 0)
        future = await storage.now() + timedelta(hours=1)
        early = Verdict(future, future)
        assert await storage.ticks.pause(CRON_A)
        assert await claim_result(storage, claim, at(0), early) == "paused"
        await runner_b.declare([SeatDeclaration(claim.seat, "default", "s2:o1")])
        assert await claim_result(storage, claim, at(0), early) == "redefined"
        assert await claim_result(storage, claim, None, early) == "moved"
        assert await runner_a.release(claim.seat, claim.epoch)
        assert await claim_result(storage, claim, None, early) == "fenced"


class TestDefinitions:
    async def test_ticks_of_another_schedule_are_claimed_only_before_it_took_effect(
        self, storage: Storage, runner_a: Ownership, runner_b: Ownership
    ) -> None:
        """M8: what was due before is the old schedule's, to the microsecond; what comes then is the new one's."""
        claim = await grant(runner_a, A)
        await take_cron(storage, claim)
        await runner_b.declare([SeatDeclaration(claim.seat, "default", "s2:o1")])
        book = await take_cron(storage, claim)
        since = book.effective_from
        assert (book.fingerprint, since) == fingerprint(await storage.view())
        assert book.fingerprint == "s2:o1"
        for instant in (since, since + INSTANT):
            assert await claim_result(storage, claim, None, Verdict(instant, instant)) == "redefined"
        assert await claim_result(storage, claim, None, Verdict(at(0), since, 2, "stale")) == "redefined", (
            "the last one counts"
        )
        assert await history(storage) == []
        before = since - INSTANT
        assert await claim_result(storage, claim, None, Verdict(before, before)) == "written"
        new = Verdict(since, since)
        assert await claim_result(storage, claim, before, new) == "redefined"
        assert await claim_result(storage, claim, before, new, schedule="s2") == "written"

    async def test_the_current_schedule_is_claimed_from_before_it_took_effect_too(
        self, storage: Storage, runner_a: Ownership, runner_b: Ownership
    ) -> None:
        claim = await grant(runner_a, A)
        await runner_b.declare([SeatDeclaration(claim.seat, "default", "s2:o1")])
        assert await claim_result(storage, claim, None, run_verdict(0), schedule="s2") == "written"

    @pytest.mark.parametrize(
        ("old", "new", "is_other"),
        [
            ("s1:o1", "s1:o2", False),
            ("s1:o1", "s1", False),
            ("s1", "s1:o1", False),
            ("s1:o1:x", "s1:o2:x", False),
            ("s1:o1", "s2:o1", True),
            ("s1:o1", "s11:o1", True),
            ("s1", "s2", True),
            ("s1:o", ":o", True),
        ],
    )
    async def test_only_another_schedule_takes_effect_anew(
        self, storage: Storage, old: str, new: str, is_other: bool
    ) -> None:
        """M8: a new option must not make it forget a tick that is due. That there is a new one is seen by all."""
        async with (
            joined(storage, A, CRON_A, fingerprint=old) as first,
            joined(storage, B, CRON_B, fingerprint=old) as second,
        ):
            claim = await grant(first, A)
            before = await storage.view()
            renewed = await first.renew(ttl_s=60)
            await second.declare([SeatDeclaration(claim.seat, "default", new)])
            after = await storage.view()
            renewed_after = await first.renew(ttl_s=60)
            assert fingerprint(after)[0] == new
            assert (fingerprint(after)[1] > fingerprint(before)[1]) is is_other
            assert after.stamp != before.stamp
            assert renewed is not None
            assert renewed_after is not None
            assert renewed_after.stamp != renewed.stamp
            now = await storage.now()
            told_now = await claim_result(storage, claim, None, Verdict(now, now), schedule=old.partition(":")[0])
            assert told_now == ("redefined" if is_other else "written")

    async def test_an_older_option_that_comes_back_keeps_since_when_the_schedule_is(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        """M8: a finished rollback."""
        before = await storage.view()
        async with joined(storage, B, CRON_A, fingerprint="s1:o2") as new:
            stamps = {before.stamp, (await storage.view()).stamp}
            await new.leave()
        await runner_a.declare([SeatDeclaration(Seat.cron(CRON_A), "default", FINGERPRINT)])
        after = await storage.view()
        assert fingerprint(after) == fingerprint(before)
        assert len(stamps) == 2
