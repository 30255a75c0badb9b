"""Crons on real databases, with runners in one process: what simulation holds at length, in short (C2, C7, M9, S3)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from coterie import Cluster, LeadershipLost, Retry, current
from tests.scenario.cron.cron_cluster import told
from tests.scenario.persisted.entity_program import evict, until

if TYPE_CHECKING:
    from coterie import Tick, TickInfo

HOSTILE = ["'; drop table ticks; --", "a/b:c", "größe \u202e%_"]
NEVER = "0 0 29 2 *"  # not while this test runs


class Bell:
    """What the bodies of several runners share."""

    def __init__(self) -> None:
        self.began: list[tuple[str, int]] = []
        """Runner and attempt."""
        self.cancelled: list[str] = []
        self.ended: list[str] = []
        self.refused: dict[str, list[str]] = defaultdict(list)
        self.gate = asyncio.Event()
        self.notes: list[int] = []
        """What is in the user's table."""


def program(url: str, name: str) -> Cluster:
    """A process of the program. Seats move within half a second, and nothing else is hurried."""
    return Cluster(url, runner_name=name, shards=1, lease_renew="200ms", drain="20s")


def define_gated(cluster: Cluster, bell: Bell, **options: Any) -> None:
    """A cron whose first attempt waits for the gate, through its cancellation, and then writes as if nothing was."""

    @cluster.cron("x", NEVER, **options)
    async def body(tick: Tick) -> None:
        here = cluster.settings.runner_name or ""
        bell.began.append((here, tick.attempt))
        assert current().epoch == tick.epoch
        while tick.attempt == 1 and not bell.gate.is_set():
            try:
                await bell.gate.wait()
            except asyncio.CancelledError:
                bell.cancelled.append(here)
        try:
            await cluster.kv.set("by", tick.attempt)
        except LeadershipLost:
            bell.refused[here].append("kv")
        try:
            async with tick.transaction() as sql:
                await sql.execute("insert into notes (attempt) values ($1)", tick.attempt)
        except LeadershipLost:
            bell.refused[here].append("transaction")
        try:
            await tick.verify()
        except LeadershipLost:
            bell.refused[here].append("verify")
        tick.heartbeat("rung", done=1, total=1)
        bell.ended.append(here)

    @cluster.cron("table", NEVER)
    async def table(tick: Tick) -> None:
        async with tick.transaction() as sql:
            await sql.execute("create table notes (attempt integer)")

    @cluster.cron("notes", NEVER)
    async def notes(tick: Tick) -> None:
        async with tick.transaction() as sql:
            bell.notes = [row["attempt"] for row in await sql.fetch("select attempt from notes")]


async def made(cluster: Cluster, name: str) -> TickInfo:
    """A cron that was triggered, when it is over."""
    return await cluster.crons.wait(await cluster.crons.trigger(name), timeout="2m")


async def test_cron_01_s3_each_second_has_one_run_in_the_whole_cluster(url: str) -> None:
    ran: list[tuple[str, Any]] = []
    runners = [program(url, name) for name in ("anna", "bert")]
    for cluster in runners:

        @cluster.cron("x", "@every 1s", retry=Retry(attempts=2, base="10ms"))
        async def body(tick: Tick) -> None:
            ran.append((current().runner_id or "", tick.scheduled_at))
            if tick.attempt == 1:
                tick.heartbeat("half", done=1, total=2)
                raise ValueError("the first one")

    anna, bert = runners
    async with anna, bert:
        await until(lambda: len(ran) >= 6)
        async with asyncio.timeout(120):
            while len(ticks := [each for each in await bert.crons.history("x") if each.outcome]) < 3:
                await asyncio.sleep(0.02)
        assert {(each.outcome, each.attempt, each.count) for each in ticks} == {("ran", 2, 1)}
        for later, earlier in pairwise(ticks):
            assert later.scheduled_at - earlier.scheduled_at == timedelta(seconds=1)
        for each in ticks:
            assert each.errors[0].startswith("attempt 1: ValueError: the first one")
            assert (each.note, each.done, each.total) == ("half", 1, 2)
            assert each.late is not None
            assert each.took is not None
            assert each.started_at is not None
            assert each.ended_at is not None
            assert each.scheduled_at <= each.started_at <= each.ended_at, "by the database's clock"
        info = await anna.crons.get("x")
        assert info.run_count >= 3
        assert info.failures == 0
        assert (info.last_error or "").startswith("attempt 1: ValueError")
        assert len(set(ran)) == len({at for _, at in ran}), "a tick has run on two runners"


async def test_c7_what_people_do_about_crons(url: str) -> None:
    """A client that defines none of them."""
    anna, client = program(url, "anna"), program(url, "client")
    for name in HOSTILE:

        @anna.cron(name, NEVER)
        async def body(tick: Tick) -> None:
            del tick

    async with anna, client.connect():
        await anna.ready(timeout="2m")
        seats = {"shard:default:0", *(f"cron:{name}" for name in HOSTILE)}  # and that of calls from SQL, on PostgreSQL
        await until(lambda: {*anna._acting().seats} - {"incoming:default"} == seats)  # type: ignore[attr-defined] # of runners
        for name in HOSTILE:
            first = await client.crons.wait(await client.crons.trigger(name), timeout="2m")
            assert (first.cron, first.outcome, first.matches_schedule) == (name, "ran", False)
            assert await client.crons.pause(name)
            assert not await client.crons.pause(name)
            second = await client.crons.wait(await client.crons.trigger(name, at=first.scheduled_at), timeout="2m")
            assert second.number == first.number + 1
            assert (await client.crons.get(name)).paused_at is not None
            assert await client.crons.resume(name)
            assert not await client.crons.resume(name)
            assert await client.crons.history(name) == [second, first]
            assert await client.crons.history(name, limit=1) == [second]
            assert (await client.crons.preview(name, count=1))[0].at.month == 2
        found = await client.crons.list()
        assert [(each.name, each.run_count, each.runner) for each in found] == [
            (name, 2, "anna") for name in sorted(HOSTILE)
        ]


async def test_c2_m9_what_an_evicted_runner_had_begun_is_ended_by_another_and_nothing_of_it_is_written(
    url: str,
) -> None:
    bell = Bell()
    anna, bert, client = (program(url, name) for name in ("anna", "bert", "client"))
    for cluster in (anna, bert):
        define_gated(cluster, bell)
    async with client.connect(), anna:
        await anna.ready(timeout="2m")
        assert (await made(client, "table")).outcome == "ran"
        triggered = await client.crons.trigger("x")
        await until(lambda: bell.began == [("anna", 1)])
        starts = asyncio.create_task(bert.start())
        await evict(url, anna)
        await starts
        ended = await client.crons.wait(triggered, timeout="2m")
        assert (ended.outcome, ended.attempt) == ("ran", 2)
        assert (ended.note, ended.done) == ("rung", 1)
        await until(lambda: bell.cancelled == ["anna"])
        await anna.ready(timeout="2m")  # in its next life: nobody cancels any more
        bell.gate.set()
        await until(lambda: len(bell.ended) == 2)
        assert bell.refused == {"anna": ["kv", "transaction", "verify"]}
        assert await client.kv.get("by") == 2
        assert told([await client.crons.wait(triggered)]) == told([ended]), "its late end changes nothing"
        await made(client, "notes")
        assert bell.notes == [2]
        await bert.stop()


async def test_a_runner_that_leaves_lets_its_run_end_and_hands_the_cron_over(url: str) -> None:
    bell = Bell()
    anna, bert, client = (program(url, name) for name in ("anna", "bert", "client"))
    for cluster in (anna, bert):
        define_gated(cluster, bell)
    async with client.connect(), anna, bert:
        assert (await made(client, "table")).outcome == "ran"
        triggered = await client.crons.trigger("x")
        await until(lambda: bell.began)
        first = anna if bell.began[0][0] == "anna" else bert
        stops = asyncio.create_task(first.stop())
        await until(lambda: first.is_shutting_down)
        bell.gate.set()
        await stops
        ended = await client.crons.wait(triggered, timeout="2m")
        assert (ended.outcome, ended.attempt, ended.runner) == ("ran", 1, first.settings.runner_name)
        other = await made(client, "x")
        assert other.runner != ended.runner
        assert other.epoch > ended.epoch


async def test_s3_a_count_beyond_all_databases_does_not_keep_a_run_from_its_end(url: str) -> None:
    cluster = program(url, "anna")

    @cluster.cron("x", NEVER)
    async def body(tick: Tick) -> None:
        tick.heartbeat("far", done=2**70, total=2**80)

    async with cluster:
        tick = await made(cluster, "x")
        assert (tick.outcome, tick.done, tick.total) == ("ran", 2**63 - 1, 2**63 - 1)
