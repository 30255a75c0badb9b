"""Jobs of lost runners on every engine: taken back once, after the delay, under the fence, and dead at the limit."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from coterie.storage.contracts.jobs import GiveBack, JobFilter, LostJob, TakenBack
from coterie.storage.interface import Claim
from tests.contract.jobs import (
    CANCELLED,
    ONE,
    TWO,
    A,
    B,
    Desk,
    end,
    evict,
    id_of,
    insert,
    job,
    joined,
    look,
    numbers,
    states,
    take,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.interface import Ownership, Storage
    from tests.contract.conftest import Passing


@pytest.fixture
async def session(storage: Storage) -> AsyncIterator[Ownership]:
    async with joined(storage, A) as session:
        yield session


@pytest.fixture
async def desk(storage: Storage, session: Ownership) -> Desk:
    desk = Desk(storage, await take(session, A))
    await desk.define(concurrency=3)
    return desk


@asynccontextmanager
async def lost(storage: Storage, session: Ownership, *, by: str = "eviction") -> AsyncIterator[None]:
    """A runner B during the block, lost at its end."""
    async with joined(storage, B) as other:
        yield
        if by == "leave":
            await other.leave()
        else:
            await evict(session, B)


async def taken_back(desk: Desk, *, delay_s: float = 0.0, limit: int = 3, most: int = 100) -> TakenBack:
    return await desk.storage.jobs.take_back(desk.claim, takeover_delay_s=delay_s, loss_limit=limit, most=most)


@pytest.mark.parametrize("by", ["eviction", "leave"])
async def test_jobs_of_a_lost_runner_are_ready_again(storage: Storage, session: Ownership, desk: Desk, by: str) -> None:
    await insert(storage, job(1), job(2), job(3))
    was = await look(storage, 1)
    async with lost(storage, session, by=by):
        (delivery,) = await desk.started(1, runner=B)
        await desk.started(2, runner=A)
        assert await taken_back(desk) == TakenBack(False)
    assert await taken_back(desk) == TakenBack(False, (LostJob(id_of(1), "resize", 1, "ready"),))
    row = await look(storage, 1)
    assert (row.state, row.lost, row.failures, row.claim, row.runner, row.ran_by) == ("ready", 1, 0, 1, None, B)
    assert row.due_at == was.due_at, "in its place"
    assert await taken_back(desk) == TakenBack(False), "once"
    (found,) = await storage.jobs.sweep(ONE, after=None, parts=1, each=5)
    assert [(each.id, each.lost) for each in found.heads] == [(id_of(1), 1), (id_of(3), 0)]
    (again,) = await desk.started(1)
    assert (again.claim, again.lost) == (2, 1)
    assert await storage.jobs.end(end(delivery)) == "fenced"
    assert await storage.jobs.end(end(again)) == "written"


async def test_a_lost_job_takes_its_slot_until_it_is_taken_back(
    storage: Storage, session: Ownership, desk: Desk, passing: Passing
) -> None:
    """T2: with a delay nothing else starts in its slot before that is over."""
    await insert(storage, *(job(number) for number in range(1, 8)))
    async with lost(storage, session):
        await desk.started(1, 2, runner=B)
    first = await taken_back(desk, delay_s=0.2)
    assert (first.fenced, first.lost) == (False, ())
    assert first.next_in_s is not None
    assert 0 < first.next_in_s <= 0.2
    assert numbers((await desk.start(3, 4)).jobs) == [3]
    await passing(0.25)
    one = await taken_back(desk, delay_s=0.2, most=1)
    assert (len(one.lost), one.next_in_s) == (1, 0.0)
    assert len((await desk.start(4, 5)).jobs) == 1
    two = await taken_back(desk, delay_s=0.2)
    assert (len(two.lost), two.next_in_s) == (1, None)
    assert sorted(each.id for each in one.lost + two.lost) == [id_of(1), id_of(2)]


async def test_a_job_that_loses_its_runners_again_and_again_is_dead(
    storage: Storage, session: Ownership, desk: Desk
) -> None:
    """C5: counted apart from its failures; revived it has all of its attempts again."""
    await insert(storage, job(1))
    for number in (1, 2, 3):
        async with lost(storage, session):
            await desk.started(1, runner=B)
        (told,) = (await taken_back(desk, limit=3)).lost
        assert told == LostJob(id_of(1), "resize", number, "dead" if number == 3 else "ready")
    row = await look(storage, 1)
    assert (row.state, row.lost, row.failures) == ("dead", 3, 0)
    assert row.ended_at is not None
    assert "3 times" in row.errors[-1].error
    assert numbers(await storage.jobs.list(JobFilter(state="dead"))) == [1]
    await storage.jobs.revive(JobFilter(), id=id_of(1), most=1)
    (delivery,) = await desk.started(1)
    assert (delivery.claim, delivery.lost) == (4, 0)


async def test_a_cancelled_job_whose_runner_is_lost_has_ended(storage: Storage, session: Ownership, desk: Desk) -> None:
    """T6: in either order, with the reply of the cancel."""
    await insert(storage, job(1), job(2))
    async with lost(storage, session):
        await desk.started(1, 2, runner=B)
        assert (await storage.jobs.cancel(id_of(1), reply=CANCELLED))[0] == "cancelling"
    told, running = await storage.jobs.cancel(id_of(2), reply=CANCELLED)
    assert told == "cancelling"
    assert running is not None
    assert running.runner is None
    back = await taken_back(desk)
    assert {(each.id, each.state, each.lost) for each in back.lost} == {
        (id_of(1), "cancelled", 1),
        (id_of(2), "cancelled", 1),
    }
    for number in (1, 2):
        row = await look(storage, number)
        assert (row.state, row.reply) == ("cancelled", CANCELLED)


async def test_only_the_holder_takes_back_and_only_of_its_seat(
    storage: Storage, session: Ownership, desk: Desk
) -> None:
    other = Desk(storage, await take(session, A, TWO))
    await other.define()
    await insert(storage, job(1), job(2, seat=TWO))
    async with lost(storage, session):
        await desk.started(1, runner=B)
        await other.started(2, runner=B)
    former = Claim(A, ONE, desk.claim.epoch - 1)
    told = await storage.jobs.take_back(former, takeover_delay_s=0.0, loss_limit=3, most=10)
    assert told == TakenBack(True)
    assert [each.id for each in (await taken_back(desk)).lost] == [id_of(1)]
    assert [each.id for each in (await taken_back(other)).lost] == [id_of(2)]


async def test_what_was_given_back_before_the_loss_is_not_lost(
    storage: Storage, session: Ownership, desk: Desk
) -> None:
    await insert(storage, job(1), job(2))
    async with lost(storage, session):
        one, two = await desk.started(1, 2, runner=B)
        await storage.jobs.give_back(GiveBack(B, ((one.id, 1),)))
        await storage.jobs.end(end(two))
    assert await taken_back(desk) == TakenBack(False)
    assert await states(storage, 1, 2) == ["ready", "done"]
    assert (await look(storage, 1)).lost == 0


@pytest.mark.parametrize("first", ["claim", "eviction"])
async def test_a_claim_for_a_runner_and_its_eviction_leave_no_orphan(
    storage: Storage, session: Ownership, desk: Desk, first: str
) -> None:
    await insert(storage, job(1))
    async with joined(storage, B):
        if first == "claim":
            await desk.started(1, runner=B)
            await evict(session, B)
            assert len((await taken_back(desk)).lost) == 1
        else:
            await evict(session, B)
            assert (await desk.start(1, runner=B)).jobs == ()
            assert await taken_back(desk) == TakenBack(False)
    assert numbers((await desk.start(1)).jobs) == [1]


async def test_a_claim_beside_an_eviction_leaves_no_orphan(storage: Storage, session: Ownership, desk: Desk) -> None:
    await insert(storage, *(job(number) for number in (1, 2, 3)))
    async with joined(storage, B):
        told, *_ = await asyncio.gather(desk.start(1, 2, 3, runner=B), evict(session, B))
    back = await taken_back(desk)
    assert sorted(each.id for each in back.lost) == sorted(each.id for each in told.jobs)
    assert await states(storage, 1, 2, 3) == ["ready"] * 3
