"""Jobs on every engine: stored once per key, found again, cancelled, listed, revived and purged."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from coterie.errors import PersistenceError
from coterie.storage.contracts.jobs import JobFilter, JobInsert, JobProgress
from coterie.storage.contracts.messages import Commit
from tests.contract.jobs import (
    CANCELLED,
    ONE,
    TWO,
    A,
    desk,
    end,
    id_of,
    insert,
    job,
    look,
    numbers,
    setback,
    states,
)
from tests.contract.messages import message

if TYPE_CHECKING:
    from coterie.storage.interface import Storage
    from tests.contract.conftest import Passing
    from tests.contract.jobs import Desk

__all__ = ["desk"]  # fixtures


async def test_a_job_comes_back_as_it_was_given(storage: Storage) -> None:
    payload = bytes(range(256)) * 40
    tags = (("order", "7"), ("o'brien %\u202e", ""))
    given = job(7, part="", payload=payload, key="s:k", digest=b"\x00\xff", priority=-3, tags=tags, trace_id="t1")
    (receipt,) = await insert(storage, given)
    assert (receipt.id, receipt.fresh, receipt.state, receipt.digest) == (id_of(7), True, "ready", b"\x00\xff")
    assert receipt.rank_s == pytest.approx(receipt.due_at.timestamp() + 3 * 3600, abs=1e-6)
    row = await look(storage, 7)
    assert (row.id, row.seat, row.part, row.task, row.fingerprint) == (given.id, ONE, "", "resize", "f1")
    assert (row.payload, row.key, row.priority, row.trace_id) == (payload, "s:k", -3, "t1")
    assert (row.state, row.failures, row.lost, row.errors, row.reply) == ("ready", 0, 0, (), None)
    assert (row.claim, row.runner, row.ran_by, row.claimed_at, row.ended_at) == (0, None, None, None, None)
    assert (row.tags, row.progress, row.cancelling) == (dict(tags), None, False)
    assert row.due_at == row.sent_at == receipt.due_at


async def test_what_is_due_later_waits_for_its_time(storage: Storage) -> None:
    before = await storage.now()
    chosen = before + timedelta(hours=1, microseconds=7)
    receipts = await insert(storage, job(1, delay_s=30.0), job(2, due_at=chosen), job(3, due_at=before))
    assert [each.state for each in receipts] == ["later", "later", "ready"]
    assert timedelta(seconds=29) < receipts[0].due_at - receipts[0].now <= timedelta(seconds=30)
    assert (receipts[1].due_at, receipts[2].due_at) == (chosen, before)
    assert await states(storage, 1, 2, 3) == ["later", "later", "ready"]


async def test_a_priority_that_is_worth_centuries_can_be_stored(storage: Storage) -> None:
    receipts = await insert(storage, job(1, priority=100, age_s=1e12), job(2, priority=-100, age_s=1e12), job(3))
    ranks = [each.rank_s for each in receipts]
    assert ranks[0] < ranks[2] < ranks[1]
    (found,) = await storage.jobs.sweep(ONE, after=None, parts=1, each=3)
    assert numbers(found.heads) == [1, 3, 2]
    assert [each.rank_s for each in found.heads] == sorted(ranks), "as the receipts say"


async def test_an_id_that_is_there_already_is_ones_own_from_an_earlier_try(storage: Storage) -> None:
    given = [job(1, tags=(("a", "1"),)), job(2, key="s:k", digest=b"d")]
    first = await insert(storage, *given)
    again = await insert(storage, *given)
    assert [(each.id, each.fresh, each.due_at, each.state, each.rank_s) for each in again] == [
        (each.id, True, each.due_at, "ready", each.rank_s) for each in first
    ]
    assert (await look(storage, 1)).tags == {"a": "1"}
    assert await storage.jobs.count(JobFilter(), most=10) == 2


async def test_a_key_that_is_there_already_gives_the_first_job(storage: Storage, desk: Desk) -> None:
    (first,) = await insert(storage, job(1, key="k", digest=b"one"))
    second, third = await insert(storage, job(2, key="k", digest=b"other", tags=(("a", "1"),)), job(3))
    assert (second.id, second.fresh, second.due_at, second.digest) == (id_of(1), False, first.due_at, b"one")
    assert (third.id, third.fresh) == (id_of(3), True)
    assert await states(storage, 1, 2) == ["ready", None]
    (delivery,) = await desk.started(1)
    assert await storage.jobs.end(end(delivery, b"reply")) == "written"
    (late,) = await insert(storage, job(4, key="k"))
    assert (late.id, late.fresh, late.state, late.reply) == (id_of(1), False, "done", b"reply")
    found = await storage.jobs.find("resize", "k")
    assert found is not None
    assert (found.id, found.fresh, found.state, found.reply) == (id_of(1), False, "done", b"reply")
    assert await storage.jobs.find("resize", "K") is None
    assert await storage.jobs.find("other", "k") is None


async def test_of_two_jobs_with_one_key_in_one_group_the_first_wins(storage: Storage) -> None:
    """Both get the receipt of the first, their neighbours get their own; also within one write."""
    given = [job(n, key=f"k{n // 2}" if n < 40 else None, digest=b"%d" % n) for n in range(100)]
    writes = [JobInsert(tuple(given[n : n + 5])) for n in range(0, 100, 5)]
    receipts = [each for told in await asyncio.gather(*map(storage.jobs.insert, writes)) for each in told]
    for number, receipt in enumerate(receipts):
        first = number - number % 2 if number < 40 else number
        assert (receipt.id, receipt.fresh, receipt.digest) == (id_of(first), first == number, b"%d" % first)
    assert await storage.jobs.count(JobFilter(), most=200) == 80


async def test_jobs_are_sent_with_the_commit_of_a_handler(storage: Storage, desk: Desk) -> None:
    sent = (job(1, key="k", tags=(("a", "1"),)), job(2, delay_s=60.0))
    commit = Commit(desk.claim, jobs=sent)
    assert await storage.messages.commit(commit) == "written"
    assert await storage.messages.commit(commit) == "written", "an earlier try of it"
    assert await states(storage, 1, 2) == ["ready", "later"]
    taken = Commit(desk.claim, sends=(message(1),), jobs=(job(3, key="k"), job(4)))
    assert await storage.messages.commit(taken) == "taken"
    assert await storage.messages.commit(Commit(desk.claim, jobs=(job(5, key="x"), job(6, key="x")))) == "taken"
    assert await states(storage, 3, 4, 5, 6) == [None] * 4
    assert await storage.messages.look([id_of(1)]) == []


async def test_jobs_are_sent_with_a_users_transaction(storage: Storage) -> None:
    then: list[str] = []
    sql = storage.transaction(limit_s=60)
    await sql.execute("create table shop (id integer)")
    sql.add_job(job(1, key="k", payload=b"x"), then=lambda: then.append("sent"))
    assert numbers(sql.jobs) == [1]
    assert sql.jobs[0].payload == b"x"
    assert await states(storage, 1) == [None]
    assert await sql.commit(None) == "written"
    assert (await states(storage, 1), then) == (["ready"], ["sent"])

    sql = storage.transaction(limit_s=60)
    sql.add_job(job(2), then=lambda: then.append("never"))
    sql.add_job(job(3, key="k"), then=lambda: then.append("never"))
    with pytest.raises(PersistenceError, match="stored meanwhile"):
        await sql.commit(None)
    assert (await states(storage, 2, 3), then) == ([None, None], ["sent"])

    sql = storage.transaction(limit_s=60)
    sql.add_job(job(4), then=lambda: then.append("never"))
    await sql.rollback()
    assert (await states(storage, 4), then) == ([None], ["sent"])


async def test_a_waiting_job_is_cancelled_and_its_key_is_free(storage: Storage, desk: Desk) -> None:
    await insert(storage, job(1, key="k"), job(2, delay_s=60.0), job(3, task="odd"))
    assert await storage.jobs.park(desk.claim, ["odd"], most=10) == 1
    for number in (1, 2, 3):
        assert await storage.jobs.cancel(id_of(number), reply=CANCELLED) == ("cancelled", None)
        row = await look(storage, number)
        assert (row.state, row.reply, row.key) == ("cancelled", CANCELLED, None)
        assert row.ended_at is not None
        assert await storage.jobs.cancel(id_of(number), reply=b"again") == ("over", None)
    assert (await desk.start(1, 2, 3)).jobs == ()
    (receipt,) = await insert(storage, job(4, key="k"))
    assert receipt.fresh
    assert await storage.jobs.cancel(id_of(9), reply=CANCELLED) == ("unknown", None)


async def test_jobs_are_listed_by_their_properties(storage: Storage, desk: Desk, passing: Passing) -> None:
    await insert(
        storage,
        job(1, tags=(("order", "7"), ("kind", "a"))),
        job(2, tags=(("order", "7"),), delay_s=60.0),
        job(3, task="other", tags=(("order", "8"),)),
        job(4, seat=TWO),
        job(5, task="odd"),
        *(job(number) for number in range(6, 10)),
    )
    await storage.jobs.park(desk.claim, ["odd"], most=10)
    done, dead, discarded, _ = await desk.started(6, 7, 8, 9)
    await storage.jobs.end(end(done))
    await storage.jobs.setback(setback(dead, None))
    await storage.jobs.end(end(discarded, discarded=True))
    await passing(0.05)
    wanted = {
        JobFilter(): [1, 2, 3, 4, 5, 6, 7, 8, 9],
        JobFilter(seat=TWO): [4],
        JobFilter(task="other"): [3],
        JobFilter(tag=("order", "7")): [1, 2],
        JobFilter(tag=("order", "9")): [],
        JobFilter(tag=("order", "7"), state="later"): [2],
        JobFilter(state="ready"): [1, 3, 4],
        JobFilter(state="ready", seat=ONE): [1, 3],
        JobFilter(state="later"): [2],
        JobFilter(state="parked"): [5],
        JobFilter(state="done"): [6],
        JobFilter(state="dead"): [7],
        JobFilter(state="discarded"): [8],
        JobFilter(state="cancelled"): [],
        JobFilter(state="claimed"): [9],
        JobFilter(older_than_s=0.01): [1, 2, 3, 4, 5, 6, 7, 8, 9],
        JobFilter(older_than_s=600.0): [],
    }
    for chosen, expected in wanted.items():
        assert numbers(await storage.jobs.list(chosen)) == expected, chosen
        assert numbers(await storage.jobs.list(chosen, newest=True)) == expected[::-1], chosen
        assert numbers(await storage.jobs.list(chosen, most=1, newest=True)) == expected[-1:], chosen
        assert await storage.jobs.count(chosen, most=100) == len(expected), chosen
        assert await storage.jobs.count(chosen, most=1) == min(1, len(expected)), chosen
        after = await storage.jobs.list(chosen, after=id_of(2), most=2)
        assert numbers(after) == [number for number in expected if number > 2][:2], chosen
        before = await storage.jobs.list(chosen, after=id_of(7), most=2, newest=True)
        assert numbers(before) == [number for number in reversed(expected) if number < 7][:2], chosen


async def test_dead_jobs_are_revived_and_their_claims_go_on(storage: Storage, desk: Desk) -> None:
    for number in (1, 2, 3):
        delivery = await desk.begin(number, priority=1)
        assert await storage.jobs.setback(setback(delivery, None)) == "written"
    was = await look(storage, 1)
    assert await storage.jobs.revive(JobFilter(), id=id_of(1), most=10) == 1
    assert await states(storage, 1, 2, 3) == ["ready", "dead", "dead"]
    row = await look(storage, 1)
    assert (row.failures, row.lost, row.claim, row.ended_at, len(row.errors)) == (0, 0, 1, None, 1)
    assert row.due_at > was.due_at
    (found,) = await storage.jobs.sweep(ONE, after=None, parts=1, each=1)
    assert found.heads[0].rank_s == pytest.approx(row.due_at.timestamp() - 3600, abs=1e-6), "with its priority"
    (delivery,) = await desk.started(1)
    assert delivery.claim == 2, "what the first one writes is refused"
    assert await storage.jobs.revive(JobFilter(state="done"), most=10) == 0
    assert await storage.jobs.revive(JobFilter(task="other"), most=10) == 0
    assert await storage.jobs.revive(JobFilter(task="resize"), most=1) == 1
    assert await storage.jobs.revive(JobFilter(state="dead"), most=10) == 1
    assert await storage.jobs.revive(JobFilter(), id=id_of(1), most=10) == 0


async def test_only_what_has_ended_is_removed(storage: Storage, desk: Desk) -> None:
    deliveries = [await desk.begin(number, tags=(("a", "1"),)) for number in (1, 2, 3)]
    await storage.jobs.progress(A, id_of(1), 1, JobProgress(1))
    await storage.jobs.end(end(deliveries[0]))
    await storage.jobs.setback(setback(deliveries[1], None))
    await insert(storage, job(4, tags=(("a", "1"),)))
    assert await storage.jobs.remove(JobFilter(state="ready"), most=10) == 0
    assert await storage.jobs.remove(JobFilter(tag=("a", "2")), most=10) == 0
    assert await storage.jobs.remove(JobFilter(tag=("a", "1")), most=1) == 1
    assert await storage.jobs.remove(JobFilter(), most=10) == 1
    assert await states(storage, 1, 2, 3, 4) == [None, None, "claimed", "ready"]
    assert numbers(await storage.jobs.list(JobFilter(tag=("a", "1")))) == [3, 4], "their tags are gone"


async def test_what_ended_long_ago_is_purged_and_dead_jobs_stay(storage: Storage, desk: Desk, passing: Passing) -> None:
    for number in range(1, 6):
        delivery = await desk.begin(number, key="k" if number == 2 else None)
        if number == 3:
            await storage.jobs.setback(setback(delivery, None))
        elif number != 5:
            await storage.jobs.end(end(delivery, discarded=number == 4))
    await passing(0.1)

    async def purge(after: str = "", *, retention_s: float = 0.05, most: int = 100) -> tuple[int, str]:
        return await storage.jobs.purge(after=after, retention_s=retention_s, key_retention_s=60.0, most=most)

    assert await purge(retention_s=60.0) == (0, "")
    assert await purge(most=2) == (1, id_of(2))
    assert await states(storage, 1, 2, 3, 4, 5) == [None, "done", "dead", "discarded", "claimed"]
    assert await purge(id_of(2), most=3) == (1, id_of(5))
    assert await purge(id_of(5)) == (0, "")
    assert await states(storage, 2, 3, 4, 5) == ["done", "dead", None, "claimed"]
    assert await storage.jobs.purge(after="", retention_s=0.05, key_retention_s=0.05, most=100) == (1, "")


async def test_clusters_do_not_see_each_others_jobs(storage: Storage, neighbour: Storage) -> None:
    await insert(storage, job(1, key="k", tags=(("a", "1"),)))
    assert await neighbour.jobs.list(JobFilter()) == []
    assert await neighbour.jobs.list(JobFilter(tag=("a", "1"))) == []
    assert await neighbour.jobs.look([id_of(1)]) == []
    assert await neighbour.jobs.find("resize", "k") is None
    assert await neighbour.jobs.cancel(id_of(1), reply=CANCELLED) == ("unknown", None)
    assert await neighbour.jobs.sweep(ONE, after=None, parts=10, each=10) == []
    assert (await insert(neighbour, job(1, key="k")))[0].fresh
    assert await states(storage, 1) == ["ready"]
