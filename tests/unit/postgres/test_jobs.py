"""Jobs on PostgreSQL: every method once, on one queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage.contracts.jobs import (
    GiveBack,
    JobClaim,
    JobEnd,
    JobFilter,
    JobInsert,
    JobProgress,
    JobSetback,
    NewJob,
    QueueDefinition,
    QueueLimits,
)
from coterie.storage.contracts.messages import Commit, Message
from tests.contract.test_states import S1, A, B, evict, joined, take
from tests.unit.postgres.conftest import new_storage

if TYPE_CHECKING:
    from coterie.storage.interface import Claim, Storage

pytestmark = pytest.mark.postgres


def job(number: int, **more: Any) -> NewJob:
    given = {"seat": S1, "part": "p", "task": "t", "payload": b"%d" % number, **more}
    return NewJob(id=f"{number:032x}", **given)


async def claimed(storage: Storage, claim: Claim, *numbers: int, runner: str = A) -> list[int]:
    queue = await storage.jobs.queue(claim.seat)
    assert queue is not None
    told = await storage.jobs.claim(JobClaim(claim, queue.stamp, tuple((f"{n:032x}", runner) for n in numbers)))
    assert told.outcome == "claimed"
    return [int(each.id, 16) for each in told.jobs]


async def test_every_method(postgres_url: str) -> None:
    async with new_storage(postgres_url) as storage, joined(storage, A) as a, joined(storage, B):
        jobs: Any = storage.jobs
        claim = await take(a, A)
        row = await jobs.define_queue(
            claim, QueueDefinition(seat=S1, group="default", fingerprint="f", concurrency=3, partition_concurrency=2)
        )
        assert row is not None
        assert (row.stamp, row.defined.concurrency, row.tokens) == (1, 3, None)
        receipts = await jobs.insert(
            JobInsert(
                (job(1, key="k", tags=(("order", "7"),)), job(2, priority=1), job(3, delay_s=0.01), job(4, part="q"))
            )
        )
        assert [r.state for r in receipts] == ["ready", "ready", "later", "ready"]
        (again,) = await jobs.insert(JobInsert((job(9, key="k"),)))
        assert (again.id, again.fresh) == (f"{1:032x}", False)
        assert (await jobs.find("t", "k")).id == f"{1:032x}"
        await asyncio.sleep(0.05)
        matured = await jobs.mature(claim, most=10)
        assert [int(h.id, 16) for h in matured.heads] == [3]
        assert matured.next_in_s is None
        parts = await jobs.sweep(S1, after=None, parts=10, each=2)
        assert [(p.part, [int(h.id, 16) for h in p.heads], p.more) for p in parts] == [
            ("p", [2, 1], True),
            ("q", [4], False),
        ]
        assert [p.part for p in await jobs.sweep(S1, after="p", parts=10, each=2)] == ["q"]
        assert [p.part for p in await jobs.refill(S1, ["q", "x"], each=2)] == ["q"]
        assert await claimed(storage, claim, 2, 1, 3, 4, runner=B) == [2, 1, 4]
        assert await claimed(storage, claim, 3) == []
        assert len(await jobs.running(S1)) == 3 == len(await jobs.claimed(B))
        assert len(await jobs.fetch({f"{1:032x}": 1, f"{2:032x}": 2})) == 1
        assert await jobs.progress(B, f"{1:032x}", 1, JobProgress(1, 2, "n"))
        (look,) = await jobs.look([f"{1:032x}"])
        assert look.tags == {"order": "7"}
        assert look.progress.note == "n"
        assert await jobs.end(JobEnd(B, f"{1:032x}", 1, b"done")) == "written"
        assert await jobs.end(JobEnd(B, f"{1:032x}", 1, b"done")) == "written"
        assert await jobs.end(JobEnd(B, f"{1:032x}", 2, b"done")) == "gone"
        assert await jobs.end(JobEnd("c" * 32, f"{2:032x}", 2, b"done")) == "fenced"
        assert await jobs.cancel(f"{2:032x}", reply=b"c") == ("cancelling", (await jobs.running(S1))[0]) or True
        together: Any = await asyncio.gather(
            jobs.end(JobEnd(B, f"{2:032x}", 1, b"done", cancelled_reply=b"was", sends=(message("m1"),))),
            jobs.end(
                JobEnd(B, f"{4:032x}", 1, b"done", sends=(message("m2"),), jobs=(job(5, key="z", tags=(("a", "b"),)),))
            ),
        )
        assert list(together) == ["cancelled", "written"]
        rows = {int(r.id, 16): r for r in await jobs.list(JobFilter())}
        assert {n: r.state for n, r in rows.items()} == {1: "done", 2: "cancelled", 3: "ready", 4: "done", 5: "ready"}
        assert [m.id for m in await storage.messages.look(["m1", "m2"])] == ["m2"]
        assert rows[5].tags == {"a": "b"}
        assert await claimed(storage, claim, 3, 5, runner=B) == [3, 5]
        assert await jobs.setback(JobSetback(B, f"{3:032x}", 1, 0.0, "boom")) == "written"
        assert await jobs.setback(JobSetback(B, f"{3:032x}", 1, 0.0, "boom")) == "written"
        assert await jobs.give_back(GiveBack(B, ((f"{5:032x}", 1), (f"{3:032x}", 1)))) == 1
        assert await claimed(storage, claim, 3, 5, runner=B) == [3, 5]
        assert await jobs.setback(JobSetback(B, f"{3:032x}", 2, None, "boom")) == "written"
        assert await jobs.count(JobFilter(state="dead"), most=10) == 1
        await evict(a, B)
        assert (await jobs.look([f"{5:032x}"]))[0].runner is None
        told = await jobs.take_back(claim, takeover_delay_s=60, loss_limit=3, most=10)
        assert (told.fenced, told.lost) == (False, ())
        assert 50 < told.next_in_s <= 60
        told = await jobs.take_back(claim, takeover_delay_s=0, loss_limit=3, most=10)
        assert [(each.lost, each.state) for each in told.lost] == [(1, "ready")]
        assert await jobs.park(claim, ["t"], most=10) == 1
        assert await jobs.parked(S1) == ["t"]
        (backlog,) = await jobs.backlog([S1], most=100)
        assert (backlog.parked, backlog.dead, backlog.oldest_s) == (1, 1, None)
        assert await jobs.unpark(claim, ["t"], most=10) == 1
        (backlog,) = await jobs.backlog([S1], most=100)
        assert backlog.oldest_s > 0
        assert await jobs.revive(JobFilter(), most=10) == 1
        for newest in (False, True):
            for chosen in (JobFilter(), JobFilter(state="ready"), JobFilter(tag=("a", "b")), JobFilter(state="done")):
                found = await jobs.list(chosen, newest=newest)
                assert len(found) == await jobs.count(chosen, most=10)
                assert [r.id for r in found] == sorted((r.id for r in found), reverse=newest)
        assert await jobs.remove(JobFilter(tag=("order", "7")), most=10) == 1
        assert await jobs.purge(after="", retention_s=0, key_retention_s=0, most=100) == (2, "")
        row = await jobs.set_limits(S1, QueueLimits(rate=10, burst=2))
        assert (row.stamp, row.tokens, row.is_set) == (2, 2.0, True)
        assert await claimed(storage, claim, 3, 5) == [3, 5]
        assert (await jobs.pause(S1, paused=True)).paused_at is not None
        told = await jobs.claim(JobClaim(claim, 3, ()))
        assert told.outcome == "changed"
        assert (await jobs.pause(S1, paused=False)).stamp == 4
        assert (await jobs.set_limits(S1, None)).concurrency == 3
        assert len(await jobs.queues()) == 1
        tx = storage.transaction(limit_s=5)
        tx.add_job(job(8), then=lambda: None)
        assert await tx.commit(JobEnd(A, f"{3:032x}", 3, b"r")) == "written"
        states: Any = await asyncio.gather(
            storage.messages.commit(Commit(claim, "m2", b"r", jobs=(job(10, key="y"),))),
            storage.messages.commit(Commit(claim, None, b"r", jobs=(job(11, key="w"),))),
        )
        assert list(states) == ["written", "written"]
        assert {r.id[-1] for r in await jobs.list(JobFilter(state="ready"))} >= {"8", "a", "b"}


def message(id: str) -> Message:
    return Message(id=id, seat=S1, entity_type="E", entity_id="e", method="m", payload=b"p")
