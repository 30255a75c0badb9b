"""Jobs from send to end on a runner of this process: what bodies may do in them (T1, T5, T6, T8)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster, Discard, Entity, MessageId, Retry, Snooze, current, rpc
from coterie.errors import Discarded, MessageCancelled, MessageDead

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class TooMany(Exception):
    """Declared by a task."""


class Program:
    """A cluster with some tasks, of which this process runs the jobs."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.cluster = cluster = Cluster(url, shards=4, http_listen=None, **settings)
        self.ran: list[str] = []

        @cluster.entity
        class Counter(Entity[None]):
            @rpc(persisted=True)
            async def add(self, name: str) -> str:
                ran.append(f"add {name}")
                return f"added {name}"

        self.Counter = Counter
        ran = self.ran

        @cluster.task
        async def leaf(name: str) -> str:
            ran.append(f"leaf {name}")
            return f"leaf {name}"

        @cluster.task(retry=Retry(attempts=3, base="10ms"))
        async def sends(fails: int) -> list[str]:
            job = await cluster.send(leaf.job("sent"), delay="1ms")
            message = await cluster.send(cluster.ref(Counter, "alice").add("sent"))
            if (current().attempt or 0) <= fails:
                raise ValueError("not yet")
            return [job, message]

        @cluster.task(retry=Retry(attempts=3, base="10ms"))
        async def awaits() -> list[str]:
            found = [await leaf.job("awaited"), await cluster.ref(Counter, "alice").add("awaited")]
            if current().attempt == 1:
                raise ValueError("not yet")
            return found

        @cluster.task(errors=[TooMany], retry=Retry(attempts=4, base="10ms", on=[ValueError]))
        async def raises(kind: str) -> int:
            attempt = current().attempt or 0
            match kind:
                case "declared":
                    raise TooMany(3)
                case "discard":
                    raise Discard("no such thing")
                case "once":
                    if attempt == 1:
                        raise ValueError("once")
                case "other":
                    raise KeyError("other")
                case "snooze":
                    if "snoozed" not in ran:
                        ran.append("snoozed")
                        raise Snooze("20ms")
            return attempt

        @cluster.task(retry=Retry(attempts=2, base="10ms"))
        async def writes(name: str) -> str:
            async with writes.transaction() as sql:
                await sql.execute("insert into pictures (name) values ($1)", name)
                await cluster.send(leaf.job(name), via=sql)
            if current().attempt == 1:
                raise ValueError("once")
            return name

        @cluster.task
        async def waits() -> None:
            ran.append("waits")
            await asyncio.sleep(600)

        self.leaf, self.sends, self.awaits, self.raises = leaf, sends, awaits, raises
        self.writes, self.waits = writes, waits

    async def count(self, name: str, number: int) -> None:
        """Wait until something has run so often."""
        async with asyncio.timeout(120):
            while self.ran.count(name) < number:
                await asyncio.sleep(0.005)


@pytest.fixture
async def program(url: str) -> AsyncIterator[Program]:
    program = Program(url)
    async with program.cluster:
        yield program


async def test_what_a_job_sends_runs_once_after_the_attempt_that_succeeds(program: Program) -> None:
    """T1: of attempts that fail nothing is sent."""
    job, message = map(MessageId[str], await program.sends.job(2))
    assert await program.cluster.result(job) == "leaf sent"
    assert await program.cluster.result(message) == "added sent"
    assert sorted(program.ran) == ["add sent", "leaf sent"]


async def test_what_a_job_awaits_is_found_again_by_its_next_attempt(program: Program) -> None:
    """M6: persisted calls and jobs that a body awaits run once, however often it is tried."""
    assert await program.awaits.job() == ["leaf awaited", "added awaited"]
    assert sorted(program.ran) == ["add awaited", "leaf awaited"]


async def test_errors_decide_by_their_class(program: Program) -> None:
    """T5."""
    with pytest.raises(TooMany):
        await program.raises.job("declared")
    with pytest.raises(Discarded, match="no such thing"):
        await program.raises.job("discard")
    with pytest.raises(MessageDead, match="KeyError: 'other'"):
        await program.raises.job("other")
    assert await program.raises.job("once") == 2
    assert await program.raises.job("snooze") == 1


async def test_the_users_sql_is_committed_with_the_end(program: Program) -> None:
    """T1: with what is sent in it; of a failed attempt nothing is left."""
    async with program.cluster.transaction() as sql:
        await sql.execute("create table pictures (name text)")
    assert await program.writes.job("a.png") == "a.png"
    await program.count("leaf a.png", 1)
    async with program.cluster.transaction() as sql:
        rows = await sql.fetch("select name from pictures")
    assert [row["name"] for row in rows] == ["a.png"]
    assert program.ran == ["leaf a.png"]


async def test_a_running_job_is_cancelled(program: Program) -> None:
    """T6."""
    job = await program.cluster.send(program.waits.job())
    await program.count("waits", 1)
    assert await program.cluster.cancel(job)
    with pytest.raises(MessageCancelled):
        await program.cluster.result(job)


async def test_a_task_that_is_defined_after_the_start_is_run(program: Program) -> None:
    """O7."""

    @program.cluster.task(group="default")
    async def late(name: str) -> str:
        return f"late {name}"

    assert await program.cluster.call(late.job("x"), timeout="60s") == "late x"


async def test_many_jobs_are_run_by_one_runner(program: Program) -> None:
    ids = await program.cluster.send_many(program.leaf.job(str(number)) for number in range(500))
    results = await asyncio.gather(*(program.cluster.result(each, timeout="2m") for each in ids))
    assert results == [f"leaf {number}" for number in range(500)]
    assert len(program.ran) == 500


async def test_jobs_that_wait_for_jobs_leave_their_slots_to_these(url: str) -> None:
    """Else none would be left for those that all of them wait for."""
    program = Program(url, jobs=2)
    async with program.cluster as cluster:
        ids = await cluster.send_many(program.awaits.job() for _ in range(6))
        for each in ids:
            assert (await cluster.result(each, timeout="2m"))[0] == "leaf awaited"


async def test_what_a_thread_sends_is_stored_with_the_end_of_its_job(url: str) -> None:
    """T1, T7: by `cluster.sync()` in a plain function."""
    program = Program(url)

    @program.cluster.task(retry=Retry(attempts=2, base="10ms"))
    def sends_in_thread() -> str:
        with program.cluster.sync() as c:
            job = c.send(program.leaf.job("from a thread"))
        if current().attempt == 1:
            raise ValueError("once")
        return str(job)

    async with program.cluster as cluster:
        job = await sends_in_thread.job()
        assert await cluster.result(MessageId[str](job)) == "leaf from a thread"
        assert program.ran == ["leaf from a thread"]


async def test_the_first_task_may_be_defined_after_the_start(url: str) -> None:
    """O7."""
    cluster = Cluster(url, shards=4, http_listen=None)
    async with cluster:

        @cluster.task
        async def late(name: str) -> str:
            return f"late {name}"

        assert await cluster.call(late.job("x"), timeout="60s") == "late x"
