"""Claims on every engine: by the holder of the seat alone, within all limits at every instant (T2)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from coterie.storage.contracts.jobs import GiveBack, JobClaim, JobFilter, RunningJob
from coterie.storage.interface import Claim
from tests.contract.jobs import (
    CANCELLED,
    ONE,
    A,
    B,
    Desk,
    desk,
    end,
    evict,
    id_of,
    insert,
    job,
    joined,
    look,
    numbers,
    opened_desk,
    setback,
    states,
    take,
)

if TYPE_CHECKING:
    from coterie.storage.interface import Storage
    from tests.contract.conftest import Passing

__all__ = ["desk"]  # fixtures


async def test_a_claimed_job_comes_with_all_that_is_needed_to_run_it(storage: Storage, desk: Desk) -> None:
    before = await storage.now()
    payload = bytes(range(256))
    (receipt,) = await insert(storage, job(1, payload=payload, key="k", digest=b"d", trace_id="t1", priority=2))
    (delivery,) = await desk.started(1)
    assert (delivery.id, delivery.seat, delivery.part, delivery.task) == (id_of(1), ONE, "acme", "resize")
    assert (delivery.fingerprint, delivery.payload, delivery.key) == ("f1", payload, "k")
    assert (delivery.claim, delivery.runner, delivery.failures, delivery.lost) == (1, A, 0, 0)
    assert (delivery.due_s, delivery.trace_id) == (receipt.due_at.timestamp(), "t1")
    row = await look(storage, 1)
    assert (row.state, row.claim, row.runner, row.ran_by) == ("claimed", 1, A, A)
    assert row.claimed_at is not None
    assert before <= row.claimed_at <= await storage.now()
    running = RunningJob(id_of(1), ONE, "acme", "resize", 1, A, cancelling=False)
    assert list(await storage.jobs.running(ONE)) == list(await storage.jobs.claimed(A)) == [running]
    assert list(await storage.jobs.claimed(B)) == []
    assert list(await storage.jobs.fetch({id_of(1): 1, id_of(2): 1})) == [delivery]
    assert list(await storage.jobs.fetch({id_of(1): 2})) == []


async def test_only_ready_jobs_are_claimed_once_each_in_the_order_given(storage: Storage, desk: Desk) -> None:
    await insert(storage, *(job(number) for number in range(1, 7)), job(7, delay_s=60.0), job(8, task="odd"))
    await storage.jobs.park(desk.claim, ["odd"], most=10)
    await storage.jobs.cancel(id_of(2), reply=CANCELLED)
    await storage.jobs.end(end((await desk.started(3))[0]))
    told = await desk.start(6, 2, 3, 1, 7, 8, 99, 4, 4)
    assert (told.outcome, numbers(told.jobs), told.tokens) == ("claimed", [6, 1, 4], None)
    assert [each.claim for each in told.jobs] == [1, 1, 1]
    assert (await desk.start(6, 1, 4)).jobs == ()
    assert numbers((await desk.start(5)).jobs) == [5]
    assert (await desk.start()).outcome == "claimed"


async def test_jobs_go_to_the_runners_that_they_are_claimed_for(storage: Storage, desk: Desk) -> None:
    async with joined(storage, B):
        await insert(storage, *(job(number) for number in range(1, 5)))
        gone = "c" * 32
        pairs = ((id_of(1), B), (id_of(2), gone), (id_of(3), A), (id_of(4), B))
        told = await storage.jobs.claim(JobClaim(desk.claim, desk.stamp, pairs))
        assert [(int(each.id, 16), each.runner) for each in told.jobs] == [(1, B), (3, A), (4, B)]
        assert sorted(numbers(await storage.jobs.claimed(B))) == [1, 4]
        assert await states(storage, 2) == ["ready"], "its runner is not there"


async def test_only_the_holder_of_the_seat_claims(storage: Storage, desk: Desk) -> None:
    await insert(storage, job(1))
    for claim in (Claim(A, ONE, desk.claim.epoch + 1), Claim(B, ONE, desk.claim.epoch)):
        told = await storage.jobs.claim(JobClaim(claim, desk.stamp, ((id_of(1), A),)))
        assert (told.outcome, told.jobs) == ("fenced", ())
    assert (await storage.jobs.claim(JobClaim(desk.claim, desk.stamp + 1, ((id_of(1), A),)))).outcome == "changed"
    assert await states(storage, 1) == ["ready"]


async def test_a_former_holder_claims_nothing(storage: Storage) -> None:
    async with joined(storage, B) as other, joined(storage, A) as session:
        desk = Desk(storage, await take(session, A))
        await desk.define()
        await insert(storage, job(1), job(2))
        await desk.started(1)
        await evict(other, A)
        assert (await desk.start(2)).outcome == "fenced"
        successor = Desk(storage, await take(other, B))
        await successor.define()
        assert (await desk.start(2)).outcome == "fenced"
        assert (await successor.start(2, runner=A)).jobs == (), "an evicted runner gets nothing"
        assert numbers((await successor.start(2, runner=B)).jobs) == [2]


async def test_no_more_run_than_the_queue_allows(storage: Storage) -> None:
    """Each way in which a slot becomes free."""
    async with opened_desk(storage, concurrency=2) as desk:
        await insert(storage, *(job(number, part=f"p{number}") for number in range(1, 10)))
        one, two = (await desk.start(1, 2, 3)).jobs
        assert numbers([one, two]) == [1, 2]
        assert (await desk.start(3)).jobs == ()
        await storage.jobs.end(end(one))
        (three,) = (await desk.start(3, 4)).jobs
        await storage.jobs.setback(setback(two, 60.0))
        (four,) = (await desk.start(4, 5)).jobs
        assert await storage.jobs.give_back(GiveBack(A, ((three.id, three.claim),))) == 1
        (three,) = (await desk.start(3, 5)).jobs
        assert await storage.jobs.cancel(four.id, reply=CANCELLED) == (
            "cancelling",
            RunningJob(four.id, ONE, "p4", "resize", 1, A, cancelling=True),
        )
        assert (await desk.start(5)).jobs == (), "until its body has ended it takes its slot (T6)"
        assert await storage.jobs.end(end(four)) == "cancelled"
        assert numbers((await desk.start(5, 6)).jobs) == [5]


async def test_no_more_of_a_partition_run_than_it_may(storage: Storage) -> None:
    """T3: and one busy partition takes nothing from others."""
    async with opened_desk(storage, concurrency=4, partition_concurrency=2) as desk:
        await insert(storage, *(job(number, part="a" if number < 6 else f"p{number % 2}") for number in range(1, 12)))
        told = await desk.start(*range(1, 12))
        assert numbers(told.jobs) == [1, 2, 6, 7]
        await storage.jobs.end(end(told.jobs[0]))
        assert numbers((await desk.start(8, 3, 9, 10)).jobs) == [8]
        await storage.jobs.end(end(told.jobs[2]))
        assert numbers((await desk.start(3, 4, 10)).jobs) == [3]


async def test_concurrent_claims_keep_the_limits(storage: Storage) -> None:
    async with opened_desk(storage, concurrency=3) as desk:
        await insert(storage, *(job(number) for number in range(1, 11)))
        told = await asyncio.gather(*(desk.start(number) for number in range(1, 11)))
        assert sum(len(each.jobs) for each in told) == 3
        assert len(await storage.jobs.running(ONE)) == 3


async def test_limits_that_have_become_smaller_let_nothing_start_until_there_is_room(storage: Storage) -> None:
    async with opened_desk(storage, concurrency=3) as desk:
        await insert(storage, *(job(number) for number in range(1, 6)))
        one, two, _ = (await desk.start(1, 2, 3)).jobs
        await desk.define(concurrency=1)
        await storage.jobs.end(end(one))
        assert (await desk.start(4)).jobs == ()
        await storage.jobs.end(end(two))
        assert (await desk.start(4)).jobs == ()
        await desk.define(concurrency=0)
        assert (await desk.start(4)).jobs == ()
        await desk.define()
        assert numbers((await desk.start(4, 5)).jobs) == [4, 5]


async def test_starts_spend_tokens_that_come_back_with_time(storage: Storage, passing: Passing) -> None:
    """T2: in any t seconds at most rate * t + burst starts, by the database's clock."""
    async with opened_desk(storage, rate=20.0, burst=3.0) as desk:
        await insert(storage, *(job(number) for number in range(1, 200)))
        began = await storage.now()
        told = await desk.start(1, 2, 3, 4)
        assert (numbers(told.jobs), told.tokens) == ([1, 2, 3], 0.0)
        started: list[int] = [1, 2, 3]
        while len(started) < 23:
            told = await desk.start(*range(started[-1] + 1, 200))
            passed_s = (await storage.now() - began).total_seconds()
            started += numbers(told.jobs)
            assert len(started) <= 3 + 20 * passed_s
            assert told.tokens is not None
            assert 0 <= told.tokens < 1 or not told.jobs
            await passing(0.02)
        instants = [(await look(storage, number)).claimed_at for number in started]
        assert all(instants)
        await passing(1.0)
        told = await desk.start(*range(started[-1] + 1, 200))
        assert (len(told.jobs), told.tokens) == (3, 0.0), "the bucket holds no more than the burst"


async def test_what_cannot_start_costs_no_token(storage: Storage) -> None:
    async with opened_desk(storage, rate=0.001, burst=3.0, concurrency=1) as desk:
        await insert(storage, job(1), job(2))
        told = await desk.start(9, 1, 2)
        assert numbers(told.jobs) == [1]
        assert told.tokens == pytest.approx(2.0, abs=0.5)
        row = await storage.jobs.queue(ONE)
        assert row is not None
        assert row.tokens == told.tokens


async def test_a_claim_that_comes_back_is_not_counted_twice_and_never_falls(storage: Storage, desk: Desk) -> None:
    """Given back, set back, revived: a job's claim only grows, so that nothing old is taken for new."""
    delivery = await desk.begin(1)
    seen = [delivery.claim]
    for back in ("give", "set", "die"):
        if back == "give":
            await storage.jobs.give_back(GiveBack(A, ((delivery.id, delivery.claim),)))
        elif back == "set":
            await storage.jobs.setback(setback(delivery, 0.0))
        else:
            await storage.jobs.setback(setback(delivery, None))
            await storage.jobs.revive(JobFilter(), id=delivery.id, most=1)
        (delivery,) = await desk.started(1)
        seen.append(delivery.claim)
    assert seen == [1, 2, 3, 4]
    assert list(await storage.jobs.fetch({delivery.id: 3})) == []


async def test_a_cancelled_job_is_not_fetched(storage: Storage, desk: Desk) -> None:
    delivery = await desk.begin(1)
    await storage.jobs.cancel(delivery.id, reply=CANCELLED)
    assert list(await storage.jobs.fetch({delivery.id: 1})) == []
    (running,) = await storage.jobs.claimed(A)
    assert running.cancelling


@pytest.mark.parametrize("first", ["claim", "cancel"])
async def test_a_cancel_and_a_claim_take_effect_one_after_the_other(storage: Storage, desk: Desk, first: str) -> None:
    await insert(storage, job(1))
    if first == "claim":
        await desk.started(1)
        assert (await storage.jobs.cancel(id_of(1), reply=CANCELLED))[0] == "cancelling"
    else:
        assert (await storage.jobs.cancel(id_of(1), reply=CANCELLED))[0] == "cancelled"
        assert (await desk.start(1)).jobs == ()
