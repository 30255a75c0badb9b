"""Jobs on PostgreSQL alone: groups of writes, users' connections and the keys that they hold, tokens by one clock."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import InvalidArgument
from coterie.storage.contracts.jobs import JobClaim, JobDelivery, JobInsert
from coterie.storage.contracts.messages import Commit, Message
from coterie.storage.postgres.user_writes import insertion_of_jobs
from coterie.storage.postgres.writer import SQL
from tests.contract.jobs import A, B, Desk, end, evict, id_of, insert, job, joined, opened_desk, setback
from tests.unit.postgres.conftest import new_storage, stranger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import asyncpg

    from coterie.storage.contracts.user_writes import JobsInserted, UserWrite
    from coterie.storage.postgres import PostgresStorage

pytestmark = pytest.mark.postgres


@asynccontextmanager
async def opened(url: str, **limits: Any) -> AsyncIterator[tuple[PostgresStorage, Desk]]:
    async with new_storage(url) as storage, opened_desk(storage, **limits) as desk:
        yield storage, desk


async def run(connection: asyncpg.Connection[Any], write: UserWrite[JobsInserted]) -> JobsInserted:
    """Run a write on a user's connection."""
    rows: Sequence[Sequence[Any]] | None = None
    try:
        while True:
            statement = write.send(rows)  # type: ignore[arg-type]  # None begins it
            rows = [tuple(row) for row in await connection.fetch(statement.sql, *statement.values)]
    except StopIteration as stop:
        result: JobsInserted = stop.value
        return result


async def test_writes_of_all_kinds_share_a_group_and_none_costs_another_one(postgres_url: str) -> None:
    """M3."""
    async with opened(postgres_url) as (storage, desk):
        held = await begun(storage, desk, 1, 2, 3, 4)
        await storage.jobs.cancel(id_of(2), reply=b"c")
        groups = storage.writer.groups
        messages = [Message(f"m{n}", desk.claim.seat, "E", "e", "m", b"p", key="x") for n in (1, 2)]
        written: list[Any] = [
            storage.jobs.end(end(held[1])),
            storage.jobs.end(end(held[2])),
            storage.jobs.end(end(held[3], sends=(messages[0],), jobs=(job(7, key="k"),))),
            storage.jobs.end(end(held[4], sends=(messages[1],))),
            storage.jobs.setback(setback(held[1], 0.0)),
            storage.jobs.insert(JobInsert((job(8, key="k"), job(9)))),
            storage.messages.commit(Commit(desk.claim, None, jobs=(job(10), job(11)))),
            storage.messages.commit(Commit(desk.claim, None, jobs=(job(12, key="k"),))),
        ]
        told = [await each for each in written]
        assert told[:5] == ["written", "cancelled", "written", "taken", "gone"]
        assert [(each.id, each.fresh) for each in told[5]] == [(id_of(7), False), (id_of(9), True)]
        assert told[6:] == ["written", "taken"]
        assert storage.writer.groups <= groups + 2
        assert [row.id for row in await storage.messages.look(["m1", "m2"])] == ["m1"]
        there = {int(row.id, 16) for row in await storage.jobs.look([id_of(n) for n in range(13)])}
        assert there == {1, 2, 3, 4, 7, 9, 10, 11}


async def test_ends_of_a_former_incarnation_keep_no_others_from_being_written(postgres_url: str) -> None:
    """An evicted process goes on as another one: ends of both may have queued."""
    async with opened(postgres_url) as (storage, desk), joined(storage, B), joined(storage, "c" * 32) as other:
        (mine,), (lost,) = (await begun(storage, desk, 1)).values(), (await begun(storage, desk, 2, runner=B)).values()
        await evict(other, B)
        told = await asyncio.gather(storage.jobs.end(end(lost)), storage.jobs.end(end(mine)))
        assert list[str](told) == ["fenced", "written"]


async def test_jobs_are_stored_with_a_users_rows_or_not_at_all(postgres_url: str) -> None:
    """O1."""
    async with opened(postgres_url) as (storage, _), stranger(postgres_url) as user:
        await insert(storage, job(1, key="k"))
        sent = [job(2, key="k"), job(3, tags=(("order", "7"),)), job(4, delay_s=60.0)]
        await user.execute("begin")
        told = await run(user, await storage.user_writes.insert_jobs(sent))
        assert [(int(each.id, 16), each.fresh, each.state) for each in told.receipts] == [
            (1, False, "ready"),
            (3, True, "ready"),
            (4, True, "later"),
        ]
        assert told.transaction is not None
        assert await storage.user_writes.ended([told.transaction]) == {}
        assert await storage.jobs.look([id_of(3)]) == []
        await user.execute("commit")
        assert await storage.user_writes.ended([told.transaction]) == {told.transaction: True}
        (row,) = await storage.jobs.look([id_of(3)])
        assert row.tags == {"order": "7"}
        await user.execute("begin")
        await run(user, await storage.user_writes.insert_jobs([job(5)]))
        await user.execute("rollback")
        assert await storage.jobs.look([id_of(5)]) == []
        with pytest.raises(InvalidArgument, match="another database"):
            await run(user, insertion_of_jobs("default", "elsewhere", [job(6)]))


async def test_others_are_stored_while_one_waits_for_a_key_that_a_user_holds(postgres_url: str) -> None:
    """O1, M3: it gets the job that was committed, and so do later ones of that key."""
    async with opened(postgres_url) as (storage, _), stranger(postgres_url) as user:
        await user.execute("begin")
        await run(user, await storage.user_writes.insert_jobs([job(1, key="k")]))
        waiting = [storage.jobs.insert(JobInsert((job(n, key="k"),))) for n in (2, 3)]
        others = [storage.jobs.insert(JobInsert((job(n, key=f"k{n}"),))) for n in (4, 5)]
        assert [(await each)[0].fresh for each in others] == [True, True]
        later = storage.jobs.insert(JobInsert((job(6, key="k"),)))
        assert (await storage.jobs.insert(JobInsert((job(7),))))[0].fresh
        assert not any(each.done() for each in (*waiting, later))
        await user.execute("commit")
        assert [(await each)[0].id for each in (*waiting, later)] == [id_of(1)] * 3


@pytest.mark.parametrize("is_planted", [False, True], ids=["one reading", "two readings"])
async def test_no_token_is_lost_between_two_readings_of_the_clock(postgres_url: str, *, is_planted: bool) -> None:
    """T2: what a bucket gains is what has passed between two claims; planted: the clock is read twice."""
    sql = SQL["claim_jobs"]
    if is_planted:
        assert "refilled_at = bucket.now" in sql
        sql = sql.replace("refilled_at = bucket.now", "refilled_at = clock_timestamp()")
    async with opened(postgres_url, rate=1e6, burst=1e12) as (storage, desk), stranger(postgres_url) as user:
        await insert(storage, *(job(n) for n in range(1, 21)))
        queue = await storage.jobs.queue(desk.claim.seat)
        assert queue is not None
        await user.execute("update coterie.queues set tokens = 1000000")  # far from full
        filled, claimed = 1_000_000.0, 0
        began = queue.refilled_at
        for number in range(1, 21):
            given = desk.claim.runner, desk.claim.seat, desk.claim.epoch, queue.stamp, [id_of(number)], [A]
            claimed += len(await user.fetch(sql, "default", *given))
        after = await storage.jobs.queue(desk.claim.seat)
        assert after is not None
        assert after.tokens is not None
        passed_s = (after.refilled_at - began).total_seconds()
        lost = filled + 1e6 * passed_s - claimed - after.tokens
        assert (abs(lost) < 0.5) != is_planted, f"{lost} tokens are lost"


async def begun(storage: PostgresStorage, desk: Desk, *numbers: int, runner: str = A) -> dict[int, JobDelivery]:
    """Jobs that are stored and claimed for a runner, by number."""
    await insert(storage, *(job(n) for n in numbers))
    queue = await storage.jobs.queue(desk.claim.seat)
    assert queue is not None
    told = await storage.jobs.claim(JobClaim(desk.claim, queue.stamp, tuple((id_of(n), runner) for n in numbers)))
    return {int(each.id, 16): each for each in told.jobs}
