"""Ends and setbacks of jobs: once, by whoever lives and holds the claim, with all that they send (T1, T6)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coterie.errors import PersistenceError
from coterie.storage.contracts.jobs import GiveBack, JobDelivery, JobFilter, JobProgress
from tests.contract.jobs import (
    CANCELLED,
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
    setback,
    states,
    take,
)
from tests.contract.messages import message

if TYPE_CHECKING:
    from coterie.storage.interface import Storage

__all__ = ["desk"]  # fixtures


def changed(delivery: JobDelivery, **more: Any) -> JobDelivery:
    return msgspec.structs.replace(delivery, **more)


async def test_an_end_stores_the_reply_and_frees_the_runner(storage: Storage, desk: Desk) -> None:
    reply = bytes(range(256))
    delivery = await desk.begin(1, key="k")
    assert await storage.jobs.end(end(delivery, reply)) == "written"
    row = await look(storage, 1)
    assert (row.state, row.reply, row.runner, row.ran_by, row.claim) == ("done", reply, None, A, 1)
    assert (row.failures, row.key) == (0, "k")
    assert row.ended_at is not None
    assert row.claimed_at is not None
    assert row.claimed_at <= row.ended_at
    assert list(await storage.jobs.claimed(A)) == []
    assert await storage.jobs.setback(setback(delivery, 0.0)) == "gone"
    other = await desk.begin(2)
    assert await storage.jobs.end(end(other, b"why", discarded=True)) == "written"
    row = await look(storage, 2)
    assert (row.state, row.reply) == ("discarded", b"why")


async def test_an_end_whose_outcome_was_unknown_is_written_once(storage: Storage, desk: Desk) -> None:
    """T1: asked for again, it says so, and sends nothing twice, whatever became of that meanwhile."""
    delivery = await desk.begin(1)
    write = end(delivery, sends=(message(1, key="k"),), jobs=(job(2, key="k"),))
    assert await storage.jobs.end(write) == "written"
    row = await look(storage, 1)
    await storage.jobs.cancel(id_of(2), reply=CANCELLED)
    await storage.jobs.remove(JobFilter(state="cancelled"), most=10)
    assert await storage.jobs.end(write) == "written"
    assert await look(storage, 1) == row
    assert await states(storage, 2) == [None]


async def test_what_a_job_sends_is_stored_with_its_end_or_not_at_all(storage: Storage, desk: Desk) -> None:
    await insert(storage, job(7, key="k"))
    await storage.messages.insert(message(7, key="k"))
    one, two, three = await desk.begin(1), await desk.begin(2), await desk.begin(3)
    assert await storage.jobs.end(end(one, sends=(message(1),), jobs=(job(11, tags=(("a", "1"),)),))) == "written"
    assert await storage.jobs.end(end(two, sends=(message(2, key="k"),), jobs=(job(12),))) == "taken"
    assert await storage.jobs.end(end(two, sends=(message(3),), jobs=(job(13, key="k"), job(14)))) == "taken"
    assert await storage.jobs.end(end(three, jobs=(job(15, key="x"), job(16, key="x")))) == "taken"
    assert await states(storage, 1, 2, 3) == ["done", "claimed", "claimed"]
    assert await states(storage, *range(11, 17)) == ["ready", *[None] * 5]
    assert (await look(storage, 11)).tags == {"a": "1"}
    assert [row.id for row in await storage.messages.look([id_of(n) for n in (1, 2, 3)])] == [id_of(1)]
    assert await storage.jobs.end(end(two)) == "written", "without them it can end"


async def test_only_who_holds_the_claim_ends_a_job(storage: Storage, desk: Desk) -> None:
    async with joined(storage, B):
        delivery = await desk.begin(1)
        for other in (changed(delivery, claim=2), changed(delivery, claim=0), changed(delivery, runner=B)):
            assert await storage.jobs.end(end(other)) == "gone"
            assert await storage.jobs.setback(setback(other, None)) == "gone"
            assert not await storage.jobs.progress(other.runner, other.id, other.claim, JobProgress(1))
            assert await storage.jobs.give_back(GiveBack(other.runner, ((other.id, other.claim),))) == 0
        unknown = changed(delivery, id=id_of(9))
        assert await storage.jobs.end(end(unknown)) == "gone"
        nobody = changed(delivery, runner="c" * 32)
        assert await storage.jobs.end(end(nobody)) == "fenced"
        assert await storage.jobs.setback(setback(nobody, None)) == "fenced"
        assert await states(storage, 1) == ["claimed"]
        assert await storage.jobs.end(end(delivery)) == "written"


async def test_an_evicted_runner_writes_nothing(storage: Storage) -> None:
    """Its slot counts until its job is taken back."""
    async with joined(storage, A) as session:
        desk = Desk(storage, await take(session, A))
        await desk.define(concurrency=1)
        async with joined(storage, B):
            await insert(storage, job(1), job(2))
            (delivery,) = await desk.started(1, runner=B)
            await evict(session, B)
            (running,) = await storage.jobs.running(desk.claim.seat)
            assert (running.id, running.runner, running.claim) == (delivery.id, None, 1)
            assert list(await storage.jobs.claimed(B)) == []
            assert list(await storage.jobs.fetch({delivery.id: 1})) == []
            for sends in ((), (message(1),)):
                assert await storage.jobs.end(end(delivery, sends=sends)) == "fenced"
            assert await storage.jobs.setback(setback(delivery, 0.0)) == "fenced"
            assert not await storage.jobs.progress(B, delivery.id, 1, JobProgress(1))
            assert await storage.jobs.give_back(GiveBack(B, ((delivery.id, 1),))) == 0
            assert (await desk.start(2)).jobs == ()
            row = await look(storage, 1)
            assert (row.state, row.runner, row.ran_by) == ("claimed", None, B)


async def test_an_end_that_was_stored_before_the_eviction_counts(storage: Storage) -> None:
    async with joined(storage, A) as session:
        desk = Desk(storage, await take(session, A))
        await desk.define()
        async with joined(storage, B):
            await insert(storage, job(1), job(2))
            one, two = await desk.started(1, 2, runner=B)
            assert await storage.jobs.end(end(one)) == "written"
            assert await storage.jobs.setback(setback(two, 60.0)) == "written"
            await evict(session, B)
            assert await storage.jobs.end(end(one)) == "written"
            assert await storage.jobs.setback(setback(two, 60.0)) == "written"
            assert (await look(storage, 2)).failures == 1
            assert (await look(storage, 1)).ran_by == B, "an eviction rewrites no history"


async def test_a_failed_attempt_is_counted_kept_and_tried_again_later(storage: Storage, desk: Desk) -> None:
    delivery = await desk.begin(1)
    write = setback(delivery, 60.0, "boom 💥\0\ud800")
    assert await storage.jobs.setback(write) == "written"
    assert await storage.jobs.setback(write) == "written", "an earlier try of it"
    row = await look(storage, 1)
    assert (row.state, row.failures, row.runner, row.claim, row.lost) == ("later", 1, None, 1, 0)
    assert timedelta(seconds=59) < row.due_at - row.sent_at < timedelta(seconds=600)
    (error,) = row.errors
    assert (error.number, error.error.startswith("boom 💥")) == (1, True)
    assert row.sent_at <= error.at
    assert (await desk.start(1)).jobs == ()


async def test_a_retry_that_is_due_at_once_is_ready_and_a_late_repeat_changes_nothing(
    storage: Storage, desk: Desk
) -> None:
    first = await desk.begin(1)
    assert await storage.jobs.setback(setback(first, 0.0)) == "written"
    assert await states(storage, 1) == ["ready"]
    assert await storage.jobs.end(end(first, b"late")) == "gone", "it is no end that was stored"
    (second,) = await desk.started(1)
    assert (second.claim, second.failures) == (2, 1)
    assert await storage.jobs.setback(setback(first, 0.0)) == "written"
    row = await look(storage, 1)
    assert (row.state, row.claim, row.failures, row.reply) == ("claimed", 2, 1, None)
    assert await storage.jobs.end(end(second)) == "written"


async def test_after_its_last_attempt_a_job_is_dead(storage: Storage, desk: Desk) -> None:
    delivery = await desk.begin(1, key="k")
    assert await storage.jobs.setback(setback(delivery, None)) == "written"
    row = await look(storage, 1)
    assert (row.state, row.failures, row.reply, row.key) == ("dead", 1, None, "k")
    assert row.ended_at is not None
    assert (await storage.jobs.cancel(id_of(1), reply=CANCELLED))[0] == "over"


async def test_of_the_errors_the_last_twenty_are_kept(storage: Storage, desk: Desk) -> None:
    delivery = await desk.begin(1)
    for number in range(25):
        assert await storage.jobs.setback(setback(delivery, 0.0, f"{number}")) == "written"
        (delivery,) = await desk.started(1)
    row = await look(storage, 1)
    assert [each.error for each in row.errors] == [f"{number}" for number in range(5, 25)]
    assert [each.number for each in row.errors] == list(range(6, 26))
    assert row.failures == delivery.failures == 25


async def test_a_job_that_is_put_off_has_not_failed(storage: Storage, desk: Desk) -> None:
    """T5: `Snooze`."""
    delivery = await desk.begin(1)
    assert await storage.jobs.setback(setback(delivery, 60.0, None)) == "written"
    row = await look(storage, 1)
    assert (row.state, row.failures, row.errors) == ("later", 0, ())


async def test_jobs_are_given_back_in_their_place(storage: Storage, desk: Desk) -> None:
    one, two = await desk.begin(1), await desk.begin(2)
    await insert(storage, job(3))
    was = await look(storage, 1)
    assert await storage.jobs.give_back(GiveBack(A, ((one.id, 1), (two.id, 7), (id_of(9), 1)))) == 1
    assert await states(storage, 1, 2) == ["ready", "claimed"]
    row = await look(storage, 1)
    assert (row.due_at, row.failures, row.lost, row.claim, row.runner) == (was.due_at, 0, 0, 1, None)
    (found,) = await storage.jobs.sweep(desk.claim.seat, after=None, parts=1, each=2)
    assert [each.id for each in found.heads] == [id_of(1), id_of(3)]
    assert await storage.jobs.give_back(GiveBack(A, ((one.id, 1),))) == 0
    assert await storage.jobs.end(end(one)) == "gone"
    assert await storage.jobs.give_back(GiveBack(A, ((two.id, 1),), park=True)) == 1
    assert await states(storage, 2) == ["parked"]


async def test_progress_is_stored_by_whoever_runs_the_job(storage: Storage, desk: Desk) -> None:
    """T8."""
    delivery = await desk.begin(1)
    assert await storage.jobs.progress(A, delivery.id, 1, JobProgress(1.5, 3.0, "half\0 way"))
    shown = (await look(storage, 1)).progress
    assert shown is not None
    assert (shown.done, shown.total) == (1.5, 3.0)
    assert shown.note is not None
    assert shown.note.startswith("half")
    assert shown.at is not None
    assert await storage.jobs.progress(A, delivery.id, 1, JobProgress(2))
    shown = (await look(storage, 1)).progress
    assert shown is not None
    assert (shown.done, shown.total, shown.note) == (2.0, None, None)
    await storage.jobs.cancel(delivery.id, reply=CANCELLED)
    assert not await storage.jobs.progress(A, delivery.id, 1, JobProgress(3))
    await storage.jobs.end(end(delivery))
    assert not await storage.jobs.progress(A, delivery.id, 1, JobProgress(3))


@pytest.mark.parametrize("how", ["end", "setback", "give back"])
async def test_nothing_of_a_cancelled_job_commits(storage: Storage, desk: Desk, how: str) -> None:
    """T6: it ends as cancelled, with the reply that the write has, else with that of the cancel."""
    delivery = await desk.begin(1, key="k")
    told, running = await storage.jobs.cancel(delivery.id, reply=CANCELLED)
    assert (told, running) == ("cancelling", (await storage.jobs.running(desk.claim.seat))[0])
    row = await look(storage, 1)
    assert (row.state, row.cancelling, row.reply, row.key) == ("claimed", True, None, None)
    assert (await storage.jobs.cancel(delivery.id, reply=b"second"))[0] == "cancelling"
    assert (await insert(storage, job(2, key="k")))[0].fresh
    if how == "end":
        write = end(delivery, sends=(message(1),), jobs=(job(3), job(4, key="k")), cancelled_reply=b"stopped")
        assert await storage.jobs.end(write) == "cancelled"
        assert await storage.jobs.end(write) == "cancelled", "an earlier try of it"
    elif how == "setback":
        assert await storage.jobs.setback(setback(delivery, 0.0)) == "cancelled"
        assert await storage.jobs.setback(setback(delivery, 0.0)) == "cancelled"
    else:
        assert await storage.jobs.give_back(GiveBack(A, ((delivery.id, 1),))) == 1
    row = await look(storage, 1)
    assert (row.state, row.reply, row.runner) == ("cancelled", b"stopped" if how == "end" else CANCELLED, None)
    assert (row.failures, row.errors) == (0, ())
    assert row.ended_at is not None
    assert await states(storage, 3, 4) == [None, None]
    assert await storage.messages.look([id_of(1)]) == []
    assert (await storage.jobs.cancel(delivery.id, reply=b"third"))[0] == "over"


@pytest.mark.parametrize("how", ["end", "setback"])
async def test_a_cancel_after_the_end_finds_it_over(storage: Storage, desk: Desk, how: str) -> None:
    delivery = await desk.begin(1)
    if how == "end":
        await storage.jobs.end(end(delivery))
        assert await storage.jobs.cancel(delivery.id, reply=CANCELLED) == ("over", None)
        assert await states(storage, 1) == ["done"]
    else:
        await storage.jobs.setback(setback(delivery, 60.0))
        assert await storage.jobs.cancel(delivery.id, reply=CANCELLED) == ("cancelled", None)
        assert await states(storage, 1) == ["cancelled"]


async def test_ends_of_one_group_are_independent(storage: Storage, desk: Desk) -> None:
    """M3: each has its own outcome, beside sends, commits and setbacks of others."""
    await insert(storage, *(job(number) for number in range(1, 61)), job(99, key="taken"))
    deliveries = await desk.started(*range(1, 61))
    for each in deliveries[:5]:
        await storage.jobs.cancel(each.id, reply=CANCELLED)
    writes = []
    for number, each in enumerate(deliveries):
        kind = number if number < 5 else number % 5
        if number >= 5 and kind == 0:
            writes.append(storage.jobs.setback(setback(each, 60.0)))
        elif number >= 5 and kind == 1:
            writes.append(storage.jobs.end(end(each, jobs=(job(100 + number, key="taken"),))))
        elif number >= 5 and kind == 2:
            writes.append(storage.jobs.end(end(changed(each, claim=9))))
        else:
            writes.append(storage.jobs.end(end(each, jobs=(job(100 + number, key=f"k{number}"),))))
    told = await asyncio.gather(*writes)
    expected = [
        "cancelled" if n < 5 else ("written", "taken", "gone", "written", "written")[n % 5] for n in range(len(told))
    ]
    assert told == expected
    stored = [int(row.id, 16) - 100 for row in await storage.jobs.list(JobFilter(), after=id_of(99))]
    assert stored == [n for n in range(5, 60) if n % 5 in (3, 4)]


async def test_two_ends_in_one_group_with_one_key_do_not_both_send(storage: Storage, desk: Desk) -> None:
    one, two = await desk.begin(1), await desk.begin(2)
    told = await asyncio.gather(
        storage.jobs.end(end(one, jobs=(job(11, key="k"),))), storage.jobs.end(end(two, jobs=(job(12, key="k"),)))
    )
    assert sorted(told) == ["taken", "written"]
    assert sorted(map(str, await states(storage, 11, 12))) == ["None", "ready"]


async def test_a_job_ends_with_a_users_transaction(storage: Storage, desk: Desk) -> None:
    """T1: `task.transaction()`: the statements, the end and what is sent, in one fenced commit."""
    setup = storage.transaction(limit_s=60)
    await setup.execute("create table shop (id integer)")
    await setup.commit(None)

    async def commit(number: int, delivery: JobDelivery, **more: Any) -> str:
        sql = storage.transaction(limit_s=60)
        await sql.execute("insert into shop (id) values ($1)", number)
        sql.add_job(job(20 + number), then=lambda: None)
        return await sql.commit(end(delivery, jobs=(job(10 + number),), **more))

    async def shop() -> list[int]:
        sql = storage.transaction(limit_s=60)
        rows = await sql.fetch("select id from shop order by id")
        await sql.rollback()
        return [row["id"] for row in rows]

    one, two, three = [await desk.begin(number) for number in (1, 2, 3)]
    assert await commit(1, one, sends=(message(1),)) == "written"
    assert (await states(storage, 1, 11, 21), await shop()) == (["done", "ready", "ready"], [1])
    assert await storage.jobs.end(end(one, sends=(message(1),), jobs=(job(11),))) == "written", "it tells the outcome"
    await storage.jobs.cancel(two.id, reply=CANCELLED)
    assert await commit(2, two) == "cancelled"
    assert await states(storage, 2, 12, 22) == ["claimed", None, None], "all of it is rolled back"
    assert await storage.jobs.end(end(two)) == "cancelled"
    assert await commit(3, changed(three, claim=7)) == "gone"
    assert await commit(4, changed(three, runner="c" * 32)) == "fenced"
    assert (await states(storage, 3, 13, 24), await shop()) == (["claimed", None, None], [1])
    await insert(storage, job(30, key="k"))
    sql = storage.transaction(limit_s=60)
    await sql.execute("insert into shop (id) values ($1)", 5)
    assert await sql.commit(end(three, jobs=(job(31, key="k"),))) == "taken"
    sql = storage.transaction(limit_s=60)
    sql.add_job(job(31, key="k"), then=lambda: None)
    with pytest.raises(PersistenceError, match="stored meanwhile"):
        await sql.commit(end(three))
    assert (await states(storage, 3, 31), await shop()) == (["claimed", None], [1])
    alone = storage.transaction(limit_s=60)
    assert await alone.commit(end(three)) == "written", "without statements it joins a group commit"
