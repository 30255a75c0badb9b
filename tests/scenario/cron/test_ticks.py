"""Ticks in their turn: the instants of runs, what happens while one goes on, and on which runner (CRON-*, C4, C5)."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from coterie.testing.loop.nodes import current_node
from tests.scenario.cron.cron_cluster import Logbook, accounted, define, history, holder, new_cluster, simulated, told

if TYPE_CHECKING:
    from coterie import Tick


@pytest.mark.simulated(seeds=3)
async def test_cron_01_runs_have_instants_of_their_own_each_the_next_after_the_run_before() -> None:
    """INV-C1. A second cron whose first run fails goes on."""
    cluster, book = new_cluster(), Logbook()
    define(cluster, book)

    @cluster.cron("shaky", "@every 1s")
    async def shaky(tick: Tick) -> None:
        book.begin(tick)
        if len(book.of("shaky")) == 1:
            raise ValueError("the first one")

    async with simulated(cluster, runners=3) as sim:
        await sim.wait_until(lambda: len(book.of()) >= 4 and len(book.of("shaky")) >= 4)
        await sim.advance(0.1)
        assert book.seconds()[:4] == [1, 2, 3, 4]
        for before, after in pairwise(book.of()):
            assert (after.at - before.at).total_seconds() == 1
            assert 0 <= after.began_s - book.seconds()[book.of().index(after)] < 0.01, "it is on time"
        shaken = await history(cluster, "shaky")
        assert told(shaken)[:4] == ["1 failed", "2 ran", "3 ran", "4 ran"]


@pytest.mark.parametrize("from_previous", [True, False])
@pytest.mark.simulated(seeds=2)
async def test_cron_02_c4_after_a_long_run_the_next_tick_is_the_next_instant_or_the_newest(from_previous: bool) -> None:
    """The first run takes 3.2 seconds."""
    cluster, book = new_cluster(), Logbook()

    @cluster.cron("x", "@every 1s", overlap="queue", from_previous=from_previous)
    async def body(tick: Tick) -> None:
        book.begin(tick)
        await asyncio.sleep(3.2 if len(book.lines) == 1 else 0)

    async with simulated(cluster) as sim:
        await sim.wait_until(lambda: len(book.lines) >= 6)
        late_s = [line.began_s - second for line, second in zip(book.lines, book.seconds(), strict=True)]
        if from_previous:
            assert book.seconds()[:6] == [1, 2, 3, 4, 5, 6]
            assert 2 <= late_s[1] < 2.3
        else:
            assert book.seconds()[:4] == [1, 4, 5, 6]
            assert late_s[1] <= 1
            assert told(await history(cluster))[:4] == [
                "1 ran",
                "2 skipped superseded",
                "3 skipped superseded",
                "4 ran",
            ]
        ticks = await history(cluster)
        stored = [tick.late.total_seconds() for tick in ticks if tick.late is not None]
        assert stored[:6] == pytest.approx(late_s[: len(stored)][:6], abs=0.01), "how late they were is stored"
        accounted(ticks)


@pytest.mark.simulated(seeds=3)
async def test_cron_05_a_cron_stays_with_the_runners_of_its_group() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, name="a", group="north")
    define(cluster, book, name="b", group="south")
    async with simulated(cluster, runners=0) as sim:
        await sim.start(1, groups=("default", "north"))
        await sim.start(1, groups=("default", "south"))
        await sim.wait_until(lambda: len(book.of("a")) >= 4 and len(book.of("b")) >= 4)
        assert {line.runner for line in book.of("a")} == {"runner-1"}
        assert {line.runner for line in book.of("b")} == {"runner-2"}
        assert [(each.name, each.group, each.runner) for each in await cluster.crons.list()] == [
            ("a", "north", "runner-1"),
            ("b", "south", "runner-2"),
        ]
        sim.runners[0].kill()
        before = len(book.of("a"))
        await sim.advance(15)
        assert len(book.of("a")) == before, "nobody else of its group is there"
        assert (await cluster.crons.get("a")).problem.startswith("overdue by ")


# Overlap


@pytest.mark.simulated(seeds=2)
async def test_c5_with_allow_runs_go_on_beside_each_other() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, gated=True)
    async with simulated(cluster) as sim:
        await sim.wait_until(lambda: len(book.lines) == 3)
        assert not book.ended
        info = await cluster.crons.get("x")
        assert (info.running, info.run_count) == (3, 3)
        book.gates["x"].set()
        await sim.wait_until(lambda: len(book.ended) == 3)
        await sim.advance(0.2)
        assert told(await history(cluster)) == ["1 ran", "2 ran", "3 ran"]
        assert (await cluster.crons.get("x")).running == 0


@pytest.mark.simulated(seeds=2)
async def test_c5_with_skip_what_falls_into_a_run_is_left_out_in_one_row_for_each_look() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, gated=True, overlap="skip")
    async with simulated(cluster) as sim:
        await sim.wait_until(lambda: book.lines)
        await sim.advance(3.5)
        book.gates["x"].set()
        await sim.wait_until(lambda: len(book.ended) == 3)
        await sim.advance(0.2)
        ticks = await history(cluster)
        assert [tick.outcome for tick in ticks] == ["ran", "skipped", "skipped", "skipped", "ran", "ran"]
        assert {tick.reason for tick in ticks if tick.outcome == "skipped"} == {"overlapping"}
        assert accounted(ticks) == [1, 2, 3, 4, 5, 6]


@pytest.mark.simulated(seeds=2)
async def test_c5_with_queue_one_waits_and_it_is_the_newest() -> None:
    """M9: the queue is bounded."""
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, gated=True, overlap="queue")
    async with simulated(cluster) as sim:
        await sim.wait_until(lambda: book.lines)
        await sim.advance(3.5)
        assert len(book.lines) == 1
        book.gates["x"].set()
        await sim.wait_until(lambda: len(book.ended) == 3)
        assert book.seconds() == [1, 4, 5]
        await sim.advance(0.2)
        ticks = await history(cluster)
        assert accounted(ticks) == [1, 2, 3, 4, 5]
        assert [tick.reason for tick in ticks if tick.outcome == "skipped"].count("superseded") >= 1


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
@pytest.mark.parametrize("overlap", ["allow", "skip", "queue"])
@pytest.mark.simulated(seeds=1)
async def test_c5_across_a_takeover_what_ran_is_resumed_and_what_waited_has_its_turn(
    overlap: Any, catch_up: Any
) -> None:
    """The holder is killed while one runs and one waits. INV-C2."""
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, gated=True, overlap=overlap, catch_up=catch_up)
    async with simulated(cluster) as sim:
        await sim.wait_until(lambda: book.lines)
        await sim.advance(1.5)
        first = holder(sim)
        begun = book.attempts()
        assert begun == ([(1, 1), (2, 1)] if overlap == "allow" else [(1, 1)])
        first.kill()
        await sim.wait_until(lambda: (1, 2) in book.attempts())
        resumed_s = next(line.began_s for line in book.lines if line.attempt == 2)
        assert resumed_s < 2.5 + 10, "S10"
        await sim.advance(3)
        if overlap != "allow":
            assert len(book.lines) == 2, "it runs alone, as before"
        book.gates["x"].set()
        await sim.advance(3)
        ticks = await history(cluster)
        assert told(ticks)[0] == "1 ran/2"
        done = accounted(ticks)
        assert done[-1] >= resumed_s + 5
        assert all(tick.outcome for tick in ticks)
        reasons = {tick.reason for tick in ticks if tick.outcome == "skipped"}
        assert (
            reasons
            <= {
                "latest": {"superseded", "overlapping"},
                "all": {"overlapping"},
                "none": {"stale", "superseded", "overlapping"},
            }[catch_up]
        )
        assert ("overlapping" in reasons) == (overlap == "skip")
        ran = [tick for tick in ticks if tick.outcome == "ran"]
        if (overlap, catch_up) in (("allow", "all"), ("queue", "all")):
            assert len(ran) == len(done), "none was left out"
        assert {line.runner for line in book.ended} == {holder(sim).name} != {first.name}


@pytest.mark.simulated(seeds=3)
async def test_a_job_longer_than_its_period_while_its_seat_moves_never_runs_beside_itself() -> None:
    """C5, M9: also with everybody in turn told to leave."""
    cluster, book = new_cluster(drain="1s"), Logbook()
    inside: list[str] = []

    @cluster.cron("x", "@every 1s", overlap="queue", catch_up="all")
    async def body(tick: Tick) -> None:
        line = book.begin(tick)
        assert not inside, "somebody else is at it"
        inside.append(current_node.get().label)
        try:
            await asyncio.sleep(1.7)
            book.ended.append(line)
        finally:
            inside.remove(current_node.get().label)

    async with simulated(cluster, runners=3) as sim:
        for _ in range(4):
            await sim.wait_until(lambda: inside)
            moving = holder(sim)
            await moving.stop()
            moving.start()
        await sim.advance(2)
        ticks = await history(cluster)
        done = accounted(ticks)
        assert done[0] == 1
        assert {tick.outcome for tick in ticks} <= {"ran", None}
        assert [line.at for line in book.ended] == sorted({line.at for line in book.ended}), "each ended once, in order"
