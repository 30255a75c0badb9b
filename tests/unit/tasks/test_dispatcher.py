"""The holder of a queue's seat: what it claims, for whom, and what it does when memory and storage differ."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from coterie.tasks.dispatcher import upkeep
from coterie.tasks.dispatcher.dispatcher import TokenBucket, batches
from coterie.tasks.frames import LOOK, NOT_MINE, JobOver, JobQuestion, JobsOver, JobsSent, KnownTask
from tests.unit.tasks.fake_jobs import ME, SEAT, Bench, FakeStore, head, outage


async def test_a_job_that_is_sent_is_claimed_at_once_and_assigned() -> None:
    async with Bench() as bench:
        bench.send(head("1"))
        await bench.until(bench.begun)
        (frame,) = bench.runners.frames
        assert (frame.seat, frame.epoch, [each.claim for each in frame.deliveries]) == (SEAT, 7, [1])
        assert bench.dispatcher.facts().claimed == 1


async def test_what_accumulates_while_a_claim_is_under_way_is_in_the_next_one() -> None:
    async with Bench() as bench:
        bench.store.gate.clear()
        bench.send(head("1"))
        await bench.until(lambda: bench.store.batches)
        for number in "2345":
            bench.send(head(number))
        await bench.quiet()
        assert bench.store.batches == [["1"]], "one statement is under way at a time"
        bench.store.gate.set()
        await bench.until(lambda: len(bench.begun()) == 5)
        assert bench.store.batches == [["1"], ["2", "3", "4", "5"]]


async def test_what_waited_before_the_seat_was_taken_starts() -> None:
    store = FakeStore()
    store.put(*(head(f"{part}{n}", part) for part in "abc" for n in range(30)))
    async with Bench(store) as bench:
        await bench.until(lambda: len(bench.begun()) == 90)
        assert not bench.dispatcher.facts().waiting


async def test_jobs_that_a_former_holder_has_claimed_count() -> None:
    store = FakeStore(concurrency=2)
    store.put(head("1"))
    store._begin("1", "r9")
    store.put(head("2"), head("3"))
    async with Bench(store) as bench:
        await bench.until(bench.begun)
        await bench.quiet()
        assert bench.begun() == ["2"]
        assert bench.dispatcher.facts().is_blocked
        store.end("1")
        bench.dispatcher.over("r9", JobsOver(SEAT, (JobOver("1", 1),)))
        await bench.until(lambda: len(bench.begun()) == 2)


async def test_no_more_start_than_the_queue_and_its_partitions_allow() -> None:
    async with Bench(FakeStore(concurrency=3, partition_concurrency=2)) as bench:
        bench.send(*(head(f"{part}{n}", part) for part in "ab" for n in range(4)))
        await bench.until(lambda: len(bench.begun()) == 3)
        await bench.quiet()
        assert bench.begun() == ["a0", "b0", "a1"]
        bench.over("b0")
        await bench.until(lambda: len(bench.begun()) == 3)
        assert bench.begun() == ["a0", "a1", "b1"]
        assert bench.store.count("claim") == 2, "nothing is claimed in vain"


async def test_with_one_at_a_time_a_partition_is_read_before_its_next_job_starts() -> None:
    async with Bench(FakeStore(partition_concurrency=1)) as bench:
        bench.store.put(head("a", "acme"))  # its hint is late
        bench.send(head("b", "acme"))
        await bench.until(bench.begun)
        assert bench.begun() == ["a"]
        bench.over("a")
        await bench.until(bench.begun)
        assert bench.begun() == ["b"]


async def test_runners_get_what_they_have_room_for() -> None:
    async with Bench(r1=2, r2=1) as bench:
        bench.send(*(head(f"{n}") for n in range(5)))
        await bench.until(lambda: len(bench.begun()) == 3)
        await bench.quiet()
        assert (len(bench.begun("r1")), len(bench.begun("r2"))) == (2, 1)
        bench.over(bench.begun("r2")[0])
        await bench.until(lambda: len(bench.begun("r2")) == 1)


async def test_a_lone_job_runs_here() -> None:
    async with Bench(r0=100, r1=100, r2=100) as bench:
        for number in range(5):
            bench.send(head(f"{number}"))
            await bench.until(bench.begun)
            assert bench.begun(ME)
            bench.over(f"{number}")


# The end of a job


async def test_who_waits_for_a_job_gets_its_reply_and_who_asks_late_gets_it_too() -> None:
    async with Bench() as bench:
        told: list[bytes] = []
        bench.dispatcher.wait(JobQuestion("1", SEAT), told.append)
        bench.send(head("1"))
        await bench.until(bench.begun)
        bench.over("1", reply=b"reply")
        bench.dispatcher.wait(JobQuestion("1", SEAT), told.append)
        assert told == [b"reply", b"reply"]


async def test_a_reply_that_is_only_in_storage_is_looked_up() -> None:
    async with Bench() as bench:
        told: list[bytes] = []
        bench.dispatcher.wait(JobQuestion("1", SEAT), told.append)
        bench.send(head("1"))
        await bench.until(bench.begun)
        bench.over("1")
        assert told == [LOOK]


async def test_a_job_that_was_cancelled_while_it_waited_is_not_claimed() -> None:
    async with Bench(r1=0) as bench:
        told: list[bytes] = []
        bench.send(head("1"))
        bench.dispatcher.wait(JobQuestion("1", SEAT), told.append)
        del bench.store.ready["1"]
        bench.dispatcher.over("sender", JobsOver(SEAT, (JobOver("1", 0, reply=b"cancelled"),)))
        assert (told, bench.dispatcher.facts().waiting) == ([b"cancelled"], 0)


async def test_a_job_that_is_given_back_starts_again() -> None:
    async with Bench() as bench:
        bench.send(head("1"))
        await bench.until(bench.begun)
        bench.runners.jobs.clear()
        given, _, claim = bench.store.claimed["1"]
        bench.store.end("1")
        bench.store.put(given)
        bench.dispatcher.over(ME, JobsOver(SEAT, (JobOver("1", claim, "returned"),)))
        await bench.until(bench.begun)
        assert bench.store.claims["1"] == 2


async def test_a_job_that_a_runner_cannot_read_goes_to_one_with_its_parameters() -> None:
    async with Bench(r1=10, r2=10) as bench:
        bench.runners.tasks["mail"] = KnownTask("f2")
        bench.dispatcher.slots.report("r1", bench.runners.slots("r1"), asyncio.get_running_loop().time())
        bench.runners.tasks["mail"] = KnownTask("f1")
        bench.runners.free["r2"] = 0
        bench.dispatcher.slots.report("r2", bench.runners.slots("r2"), asyncio.get_running_loop().time())
        bench.send(head("1"))
        await bench.until(lambda: bench.begun("r1"))
        given, _, claim = bench.store.claimed["1"]
        bench.store.end("1")
        bench.store.put(given)
        bench.runners.jobs.clear()
        bench.dispatcher.over("r1", JobsOver(SEAT, (JobOver("1", claim, "returned"),)))
        await bench.quiet()
        assert not bench.begun()
        bench.runners.free["r2"] = 1
        bench.dispatcher.over("r2", JobsOver(SEAT, (), bench.runners.slots("r2")))
        await bench.until(lambda: bench.begun("r2"))


async def test_an_end_that_comes_before_the_answer_to_its_claim_counts() -> None:
    async with Bench() as bench:
        bench.store.gate.clear()
        bench.send(head("1"))
        await bench.until(lambda: bench.store.claimed)
        bench.store.end("1")
        bench.dispatcher.over(ME, JobsOver(SEAT, (JobOver("1", 1, reply=b"x"),)))
        bench.store.gate.set()
        await bench.until(lambda: bench.runners.frames)
        assert bench.dispatcher.facts().claimed == 0


async def test_a_comparison_while_a_claim_is_under_way_counts_no_job_twice() -> None:
    async with Bench(FakeStore(partition_concurrency=2)) as bench:
        bench.store.gate.clear()
        bench.send(head("1", "acme"))
        await bench.until(lambda: bench.store.claimed)
        await bench.dispatcher.upkeep.compare()
        bench.store.gate.set()
        await bench.until(bench.begun)
        assert bench.dispatcher.lanes.claimed("acme") == 1
        bench.over("1")
        assert bench.dispatcher.lanes.claimed("acme") == 0


# What storage refuses


async def test_another_stamp_makes_the_row_be_read() -> None:
    async with Bench(FakeStore(concurrency=1)) as bench:
        bench.store.change(concurrency=2)
        bench.send(head("1"), head("2"))
        await bench.until(lambda: len(bench.begun()) == 2)


async def test_a_paused_queue_waits_without_statements_until_it_goes_on() -> None:
    async with Bench() as bench:
        bench.store.change(paused_at=datetime.now(UTC))
        bench.dispatcher.changed()
        await bench.until(lambda: bench.store.count("queue") == 1)
        bench.send(head("1"))
        await bench.quiet()
        calls = len(bench.store.calls)
        await bench.quiet()
        assert (bench.begun(), len(bench.store.calls), bench.store.count("claim")) == ([], calls, 0)
        bench.store.change(paused_at=None)
        bench.poll()  # its hint was lost
        await bench.until(bench.begun)


async def test_a_higher_limit_is_noticed_without_its_hint() -> None:
    async with Bench(FakeStore(concurrency=1)) as bench:
        bench.send(head("1"), head("2"))
        await bench.until(bench.begun)
        bench.store.change(concurrency=2)
        await bench.quiet()
        bench.poll()
        await bench.until(lambda: len(bench.begun()) == 2)


async def test_a_job_that_is_not_ready_any_more_is_not_tried_for_ever() -> None:
    async with Bench() as bench:
        bench.dispatcher.sent(JobsSent(SEAT, (head("1"),)))  # it was never stored
        await bench.until(lambda: bench.store.count("claim"))
        await bench.until(lambda: not bench.dispatcher.facts().waiting)
        await bench.quiet()
        assert bench.store.count("claim") <= 2
        bench.send(head("2"))
        await bench.until(bench.begun)


async def test_refusals_without_a_visible_reason_are_repeated_ever_less_often() -> None:
    async with Bench() as bench:
        bench.store.refuses = {"1"}
        bench.send(head("1"))
        await asyncio.sleep(0.3)
        assert 2 <= bench.store.count("claim") <= 8
        bench.store.refuses = set()
        await bench.until(bench.begun)


async def test_a_claim_of_unknown_outcome_is_found_out() -> None:
    async with Bench(FakeStore(concurrency=1)) as bench:
        claim = bench.store.claim

        async def lost(write: object) -> object:
            bench.store.claim = claim  # type: ignore[method-assign]
            await claim(write)  # type: ignore[arg-type]
            raise outage("unknown")

        bench.store.claim = lost  # type: ignore[method-assign, assignment]
        bench.send(head("1"), head("2"))
        await bench.until(lambda: bench.dispatcher.facts().claimed == 1)
        await bench.quiet()
        assert list(bench.store.claimed) == ["1"]
        assert [each.id for each in bench.dispatcher.claimed] == ["1"]


@pytest.mark.parametrize("outcome", ["refused", "unreachable"])
async def test_a_claim_that_fails_is_tried_again(outcome: str) -> None:
    async with Bench() as bench:
        bench.store.failing["claim"] = [outage(outcome)]
        bench.send(head("1"))
        await bench.until(bench.begun)


@pytest.mark.parametrize("name", ["define_queue", "running", "refill", "sweep", "mature"])
async def test_what_waits_is_found_though_a_read_fails(name: str) -> None:
    store = FakeStore(partition_concurrency=1)
    store.put(head("1", "acme"))
    store.failing[name] = [outage("unreachable")]
    async with Bench(store) as bench:
        await bench.until(bench.begun)


async def test_a_holder_without_the_seat_claims_nothing_more() -> None:
    async with Bench() as bench:
        told: list[bytes] = []
        bench.store.is_fenced = True
        bench.dispatcher.wait(JobQuestion("1", SEAT), told.append)
        bench.send(head("1"))
        await bench.until(lambda: told)
        assert told == [NOT_MINE]
        bench.send(head("2"))
        bench.dispatcher.wait(JobQuestion("1", SEAT), told.append)
        await bench.quiet()
        assert (told, bench.store.count("claim")) == ([NOT_MINE, NOT_MINE], 1)


async def test_a_drain_waits_for_the_claim_that_is_under_way_and_assigns_it() -> None:
    async with Bench() as bench:
        bench.store.gate.clear()
        bench.send(head("1"))
        await bench.until(lambda: bench.store.claimed)
        draining = asyncio.create_task(bench.dispatcher.drain())
        await bench.quiet()
        bench.send(head("2"))
        bench.store.gate.set()
        await draining
        assert bench.begun() == ["1"]
        assert bench.store.count("claim") == 1


# Hints that were lost


async def test_a_job_without_a_hint_is_found_by_a_sweep() -> None:
    async with Bench() as bench:
        bench.store.put(head("1"))
        bench.poll()
        await bench.until(bench.begun)


async def test_a_hint_that_knows_only_the_seat_makes_it_look() -> None:
    async with Bench() as bench:
        bench.store.put(head("1"))
        bench.store.due = [head("2")]
        bench.dispatcher.sent(JobsSent(SEAT, due_in_s=0.0))
        await bench.until(lambda: len(bench.begun()) == 2)


async def test_a_job_is_made_ready_when_it_is_due() -> None:
    async with Bench() as bench:
        bench.store.due = [head("1")]
        before = bench.store.count("mature")
        bench.dispatcher.sent(JobsSent(SEAT, due_in_s=0.05))
        await bench.until(bench.begun)
        assert bench.store.count("mature") == before + 1


async def test_an_end_without_a_report_is_found_and_its_waiters_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_ROUND_S", 0.02)
    async with Bench(FakeStore(concurrency=1)) as bench:
        told: list[bytes] = []
        bench.send(head("1"), head("2"))
        bench.dispatcher.wait(JobQuestion("1", SEAT), told.append)
        await bench.until(bench.begun)
        bench.store.end("1")
        await bench.quiet()
        bench.poll()
        await bench.until(lambda: "2" in bench.begun())
        assert told == [LOOK]


async def test_the_jobs_of_a_lost_runner_are_taken_back_and_start_elsewhere() -> None:
    async with Bench(r1=1, r2=1) as bench:
        bench.send(head("1"), head("2"))
        await bench.until(lambda: len(bench.begun()) == 2)
        (lost,) = bench.begun("r2")
        bench.store.evict("r2")
        del bench.runners.free["r2"]
        bench.dispatcher.gone("r2")
        bench.over(bench.begun("r1")[0])
        await bench.until(lambda: lost in bench.begun("r1"))
        assert bench.store.claims[lost] == 2


async def test_jobs_of_lost_runners_go_one_at_a_time_to_each_runner() -> None:
    async with Bench(r1=5, r2=5) as bench:
        bench.send(*(head(f"{n}", lost=1) for n in range(4)), head("new", rank_s=2.0))
        await bench.until(lambda: len(bench.begun()) == 3)
        await bench.quiet()
        assert sorted(bench.begun()) == ["0", "1", "new"]
        bench.over("0")
        await bench.until(lambda: "2" in bench.begun())


# Tasks that nobody knows


async def test_jobs_of_an_unknown_task_are_parked_until_a_runner_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_UNKNOWN_S", 0.05)
    monkeypatch.setattr(upkeep, "_REPORT_S", 0.01)
    async with Bench() as bench:
        bench.send(head("1", task="other"), head("2"))
        bench.poll()
        await bench.until(lambda: bench.store.parked_)
        await bench.until(lambda: bench.begun() == ["2"])
        bench.poll()
        await bench.quiet()
        assert list(bench.store.parked_) == ["1"]
        bench.runners.tasks["other"] = KnownTask("f1")
        bench.dispatcher.over(ME, JobsOver(SEAT, (), bench.runners.slots(ME)))
        bench.poll()
        await bench.until(lambda: sorted(bench.begun()) == ["1", "2"])


# Rate


async def test_starts_follow_the_rate() -> None:
    loop = asyncio.get_running_loop()
    async with Bench(FakeStore(rate=50.0, burst=1.0)) as bench:
        began_s = loop.time()
        bench.send(*(head(f"{n}") for n in range(6)))
        await bench.until(lambda: len(bench.begun()) == 6)
        assert loop.time() - began_s >= 5 / 50 - 0.02
        assert all(len(batch) == 1 for batch in bench.store.batches)


async def test_a_token_that_comes_right_after_it_was_looked_for_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_ROUND_S", "_REPORT_S", "_UNKNOWN_S"):
        monkeypatch.setattr(upkeep, name, 600)  # nothing else that would wake it
    whole, looks = TokenBucket.whole, iter([0])
    async with Bench(FakeStore(rate=1000.0, burst=5.0)) as bench:
        await bench.quiet()
        monkeypatch.setattr(TokenBucket, "whole", lambda bucket, now_s: next(looks, whole(bucket, now_s)))
        bench.send(head("a"))
        await bench.until(lambda: bench.begun() == ["a"])


async def test_a_start_that_comes_too_early_for_its_token_is_not_read_about() -> None:
    async with Bench(FakeStore(rate=50.0, burst=1.0)) as bench:
        bench.store.refuses = {"1"}  # as the statement does without a token
        reads = bench.store.count("refill")
        bench.send(head("1"))
        await bench.until(lambda: bench.store.count("claim") >= 2)
        bench.store.refuses = set()
        await bench.until(bench.begun)
        assert bench.store.count("refill") == reads


async def test_a_higher_rate_is_noticed_without_its_hint() -> None:
    async with Bench(FakeStore(rate=0.001, burst=1.0)) as bench:
        bench.send(head("1"), head("2"))
        await bench.until(bench.begun)
        await bench.quiet()
        bench.store.change(rate=1000.0, tokens=0.0)
        bench.poll()
        await bench.until(lambda: len(bench.begun()) == 2)


def test_tokens_come_back_with_time_and_not_beyond_the_burst() -> None:
    bucket = TokenBucket()
    assert (bucket.whole(0.0), bucket.wait_s(0.0)) == (None, 0.0)
    bucket.limit(FakeStore(rate=10.0, burst=3.0).row, 100.0)
    assert bucket.whole(100.0) == 3
    bucket.set(0.5, 100.0)
    assert (bucket.whole(100.0), bucket.whole(100.05), bucket.whole(100.15), bucket.whole(200.0)) == (0, 1, 2, 3)
    assert bucket.wait_s(100.0) == pytest.approx(0.05)


async def test_frames_to_runners_are_bounded() -> None:
    store = FakeStore()
    store.put(*(head(f"{n}") for n in range(3)))
    big = [store._begin(f"{n}", ME) for n in range(3)]
    jobs = [type(each)(each.id, SEAT, "", "mail", "f1", b"x" * 700_000, None, 1, ME, 0, 0, 1.0) for each in big]
    assert [len(batch) for batch in batches(jobs)] == [1, 1, 1]
    assert [len(batch) for batch in batches(big)] == [3]


async def test_a_backlog_is_read_as_it_starts_and_not_over_and_over() -> None:
    store = FakeStore()
    store.put(*(head(f"{part}{n:04}", f"{part}") for part in range(30) for n in range(450)))
    async with Bench(store, r1=10) as bench:
        await bench.until(lambda: len(bench.begun()) == 10)
        await bench.quiet()
        calls = store.count("refill")
        assert calls <= 6
        for _ in range(30):
            for job in bench.begun():
                bench.over(job)
            await bench.until(lambda: len(bench.begun()) == 10)
        assert store.count("refill") == calls


async def test_a_lost_hint_of_a_job_in_the_middle_of_a_backlog_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: jobs behind it must not start for long while it is not known."""
    monkeypatch.setattr(upkeep, "_WHOLE_S", 0.02)
    async with Bench(r1=1) as bench:
        bench.send(*(head(f"{n:02}", rank_s=float(n)) for n in range(20)))
        await bench.until(bench.begun)
        bench.store.put(head("lost", rank_s=10.5))
        await bench.quiet()
        bench.poll()
        await bench.until(lambda: "lost" in bench.dispatcher.lanes)
