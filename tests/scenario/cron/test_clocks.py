"""Clocks that are wrong: the database's alone decides when a tick is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.scenario.cron.cron_cluster import (
    Logbook,
    accounted,
    define,
    deploy,
    history,
    holder,
    new_cluster,
    noon,
    simulated,
    stop_all,
    until,
)

MINUTES = pytest.mark.parametrize("off_s", [-300.0, 300.0, -86_400.0], ids=["behind", "ahead", "a day behind"])


@MINUTES
@pytest.mark.simulated(seeds=2)
async def test_a_runner_whose_wall_clock_is_off_fires_neither_early_nor_late(off_s: float) -> None:
    """From its start on."""
    cluster, book = new_cluster(), Logbook()
    define(cluster, book)
    async with simulated(cluster, runners=0) as sim:
        started = sim.start(2)
        for runner in sim.runners:
            runner.step_clock(off_s)
        await started
        await until(sim, noon(6.5))
        assert book.seconds() == [1, 2, 3, 4, 5, 6]
        assert all(0 <= line.began_s - second < 0.02 for line, second in zip(book.lines, book.seconds(), strict=True))
        for tick in await history(cluster):
            assert tick.late is not None
            assert timedelta() <= tick.late < timedelta(milliseconds=20)
            assert tick.started_at is not None
            assert timedelta() <= tick.started_at - tick.scheduled_at < timedelta(milliseconds=20)


@MINUTES
@pytest.mark.simulated(seeds=1)
async def test_a_wall_clock_that_is_set_while_it_runs_changes_nothing(off_s: float) -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book)
    async with simulated(cluster) as sim:
        await until(sim, noon(2.5))
        holder(sim).step_clock(off_s)
        await until(sim, noon(6.5))
        assert book.seconds() == [1, 2, 3, 4, 5, 6]
        assert all(0 <= line.began_s - second < 0.02 for line, second in zip(book.lines, book.seconds(), strict=True))


@pytest.mark.parametrize("ppm", [-50_000, 50_000])
@pytest.mark.simulated(seeds=1)
async def test_a_clock_that_runs_too_fast_or_too_slow_is_no_harm(ppm: int) -> None:
    """By a twentieth, which no clock does: a wait of two minutes would be six seconds off."""
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, schedule="0 2 12 * * *")
    async with simulated(cluster, runners=2) as sim:
        for runner in sim.runners:
            runner.drift(ppm)
        await until(sim, noon(130))
        assert book.seconds() == [120]
        assert 0 <= book.lines[0].began_s - 120 < 0.5


@pytest.mark.simulated(seeds=2)
async def test_the_database_s_clock_set_back_repeats_no_tick() -> None:
    """INV-C1: what it shows twice was claimed once. The ticks after are on its time."""
    cluster, book = new_cluster(), Logbook()
    define(cluster, book)
    async with simulated(cluster) as sim:
        await until(sim, noon(5.5))
        sim.database.step_clock(-3)
        await until(sim, noon(9.5))
        assert book.seconds() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
        began = {round((line.at - noon(0)).total_seconds()): line.began_s for line in book.lines}
        assert 9 <= began[6] < 9.1, "three seconds later than it would have been"
        ticks = await history(cluster)
        assert accounted(ticks) == list(range(1, 10))
        assert all(tick.late is not None and tick.late < timedelta(seconds=0.2) for tick in ticks)


@pytest.mark.parametrize(("catch_up", "expected"), [("all", [6, 7, 8, 9, 10]), ("latest", [6, 10]), ("none", [6, 10])])
@pytest.mark.simulated(seeds=1)
async def test_the_database_s_clock_set_forward_skips_no_tick_without_a_word(
    catch_up: str, expected: list[int]
) -> None:
    """Those in between passed while the cron was held. The first is claimed before anybody here knows."""
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, catch_up=catch_up)
    async with simulated(cluster) as sim:
        await until(sim, noon(5.5))
        sim.database.step_clock(4.7)
        await until(sim, noon(13.5))
        assert [second for second in book.seconds() if 5 < second <= 10] == expected
        assert accounted(await history(cluster)) == list(range(1, 14))


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        (datetime(2026, 3, 29, 0, 59, 55, tzinfo=UTC), datetime(2026, 3, 29, 1, tzinfo=UTC)),  # 02:30 is left out
        (datetime(2026, 10, 25, 0, 29, 55, tzinfo=UTC), datetime(2026, 10, 25, 0, 30, tzinfo=UTC)),  # 02:30 comes twice
    ],
    ids=["gap", "overlap"],
)
@pytest.mark.simulated(seeds=1)
async def test_c1_where_clocks_change_a_tick_runs_once(begin: datetime, expected: datetime) -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, schedule="30 2 * * *", timezone="Europe/Zurich")
    async with simulated(cluster, runners=1, at=begin) as sim:
        await sim.advance(10)
        assert [line.at for line in book.lines] == [expected]
        await stop_all(sim)
        await sim.advance(3600)
        await deploy(sim, cluster)
        await sim.advance(10)
        assert [line.at for line in book.lines] == [expected], "nothing was missed"


@pytest.mark.simulated(seeds=1)
async def test_jitter_delays_each_tick_by_the_same_and_lateness_counts_from_there() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, schedule="@every 10s", jitter="5s")
    define(cluster, book, name="y", schedule="@every 10s", jitter="5s")
    async with simulated(cluster) as sim:
        await until(sim, noon(36))
        delays = [
            {round(line.began_s - second, 1) for line, second in zip(book.of(name), book.seconds(name), strict=True)}
            for name in ("x", "y")
        ]
        assert [len(each) for each in delays] == [1, 1]
        assert delays[0] != delays[1]
        assert max(max(each) for each in delays) < 5.1
        ticks = await history(cluster)
        assert all(tick.late is not None and tick.late < timedelta(milliseconds=20) for tick in ticks)
        next_at = (await cluster.crons.get("x")).next_at
        assert next_at is not None
        assert {round((next_at - noon(40)).total_seconds(), 1)} == delays[0], "when it is due, not for which instant"
