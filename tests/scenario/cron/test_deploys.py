"""Schedules that change, crons that come and go, programs of two versions at once (M8, GAP-25)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.scenario.cron.cron_cluster import (
    EVERY_SECOND,
    NOON,
    Logbook,
    accounted,
    define,
    deploy,
    history,
    holder,
    kill_all,
    new_cluster,
    noon,
    simulated,
    stop_all,
    told,
    until,
)

MODES = pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
DAY = timedelta(days=1)


@MODES
@pytest.mark.simulated(seeds=1)
async def test_gap_25_an_edited_schedule_counts_from_its_deploy_and_nothing_is_left_of_the_old_one(
    catch_up: Any,
) -> None:
    """Everybody is replaced at once, with a pause: neither schedule is caught up with by the other's rules."""
    old, new, book = new_cluster(), new_cluster(), Logbook()
    define(old, book, schedule="@every 2s", catch_up=catch_up)
    define(new, book, schedule="@every 5s", catch_up=catch_up)
    async with simulated(old) as sim:
        await until(sim, noon(4.5))
        await stop_all(sim)
        await until(sim, noon(17.5))
        await deploy(sim, new)
        await until(sim, noon(30.5))
        assert book.seconds() == [2, 4, 20, 25, 30]
        assert told(await history(old)) == ["2 ran", "4 ran", "20 ran", "25 ran", "30 ran"]
        assert (await old.crons.get("x")).schedule == "@every 5s"


@MODES
@pytest.mark.simulated(seeds=1)
async def test_gap_25_a_zone_is_part_of_the_schedule(catch_up: Any) -> None:
    old, new, book = new_cluster(), new_cluster(), Logbook()
    define(old, book, schedule="5 0 12 * * *", catch_up=catch_up)
    define(new, book, schedule="5 0 12 * * *", catch_up=catch_up, timezone="Europe/Zurich")
    async with simulated(old) as sim:
        await until(sim, noon(3))
        await stop_all(sim)
        await deploy(sim, new)
        await until(sim, noon(8))
        assert not book.lines
        assert (await old.crons.get("x")).next_at == noon(5) + DAY - timedelta(hours=1)


@MODES
@pytest.mark.simulated(seeds=1)
async def test_gap_25_what_was_removed_and_added_again_catches_up_as_after_an_outage(catch_up: Any) -> None:
    """The schedule is the same, and its ticks are."""
    with_it, without, book = new_cluster(), new_cluster(), Logbook()
    define(with_it, book, catch_up=catch_up)
    define(without, book, name="other")
    async with simulated(with_it) as sim:
        await until(sim, noon(2.5))
        await stop_all(sim)
        await deploy(sim, without)
        await until(sim, noon(6.5))
        assert book.seconds() == [1, 2]
        info = await with_it.crons.get("x")
        assert (info.runner, info.problem, info.schedule) == (None, "nobody holds it", EVERY_SECOND)
        await stop_all(sim)
        await until(sim, noon(8.5))
        await deploy(sim, with_it)
        await until(sim, noon(10.5))
        ticks = await history(with_it)
        assert accounted(ticks) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
        expected = {
            "latest": ["3-7 skipped superseded", "8 ran", "9 ran", "10 ran"],
            "all": [f"{second} ran" for second in range(3, 11)],
            "none": ["3-8 skipped stale", "9 ran", "10 ran"],
        }
        assert told(ticks)[2:] == expected[catch_up]


@MODES
@pytest.mark.simulated(seeds=1)
async def test_gap_25_a_schedule_that_comes_back_counts_from_when_it_came_back(catch_up: Any) -> None:
    """A finished rollback [M8]: what it would have done meanwhile was not its own."""
    old, new, book = new_cluster(), new_cluster(), Logbook()
    define(old, book, catch_up=catch_up)
    define(new, book, schedule="@every 10s", catch_up=catch_up)
    async with simulated(old) as sim:
        await until(sim, noon(2.5))
        await stop_all(sim)
        await deploy(sim, new)
        await until(sim, noon(11.5))
        await stop_all(sim)
        await until(sim, noon(13.5))
        await deploy(sim, old)
        await until(sim, noon(15.5))
        assert told(await history(old)) == ["1 ran", "2 ran", "10 ran", "14 ran", "15 ran"]


@pytest.mark.parametrize("old_first", [True, False])
@pytest.mark.simulated(seeds=2)
async def test_m8_in_a_rolling_deploy_no_tick_is_invented_lost_or_doubled(old_first: bool) -> None:
    """v1 runs at 03:00, v2 at 02:59, and is deployed at 02:59:30. Yesterday v1 ran."""
    three = datetime(2026, 3, 2, 3, tzinfo=UTC)
    old, new, book = new_cluster(retention="30d"), new_cluster(retention="30d"), Logbook()
    define(old, book, schedule="0 3 * * *", catch_up="all")
    define(new, book, schedule="59 2 * * *", catch_up="all")
    async with simulated(old, runners=3, at=three - DAY - timedelta(seconds=5)) as sim:
        await until(sim, three - DAY + timedelta(seconds=1))
        assert [line.at for line in book.lines] == [three - DAY]
        await stop_all(sim)
        await until(sim, three - timedelta(seconds=70))  # nobody is needed, and nothing is due
        for runner in sim.runners:
            runner.start()
        await until(sim, three - timedelta(seconds=30))
        sim.cluster = new
        for runner in list(sim.runners):
            if old_first:
                await runner.stop()
                await sim.start(1)
            else:
                await sim.start(1)
                await runner.stop()
            await sim.advance(5)
        await until(sim, three + timedelta(seconds=5))
        assert [line.at for line in book.lines] == [three - DAY], "02:59 was not missed, and 03:00 is no time any more"
        info = await old.crons.get("x")
        assert (info.next_at, info.schedule) == (three + DAY - timedelta(minutes=1), "59 2 * * *")
        await stop_all(sim)
        await until(sim, three + DAY - timedelta(seconds=65))
        await deploy(sim, new)
        await until(sim, three + DAY + timedelta(seconds=5))
        ran = [tick.scheduled_at for tick in await history(old)]
        assert ran == [three - DAY, three + DAY - timedelta(minutes=1)]


@pytest.mark.simulated(seeds=3)
async def test_m8_while_both_versions_are_there_only_the_new_one_runs_and_an_old_one_never_again() -> None:
    old, new, book = new_cluster(), new_cluster(), Logbook()
    define(old, book, schedule="@every 2s", catch_up="all")
    define(new, book, schedule="1-59/2 * * * * *", catch_up="all")  # at odd seconds
    async with simulated(old, runners=3) as sim:
        await until(sim, noon(4.5))
        await deploy(sim, new, runners=1)
        await until(sim, noon(11.5))
        assert holder(sim) is sim.runners[3]
        old_ones = sim.runners[:3]
        await asyncio.gather(*(runner.stop() for runner in old_ones))
        await until(sim, noon(14.5))
        assert book.seconds() == [2, 4, 5, 7, 9, 11, 13]
        assert {line.runner for line in book.lines if line.at > noon(5)} == {"runner-4"}


@pytest.mark.simulated(seeds=3)
async def test_m8_a_holder_that_does_not_know_of_the_new_schedule_yet_claims_no_tick_after_it() -> None:
    """It was registered some milliseconds before, and nobody told the holder: its claim is refused."""
    old, new, book = new_cluster(), new_cluster(), Logbook()
    define(old, book, schedule="@every 2s", catch_up="all")
    define(new, book, schedule="1-59/2 * * * * *", catch_up="all")  # at odd seconds
    async with simulated(old, runners=1) as sim:
        await until(sim, noon(6) - timedelta(milliseconds=10))
        sim.network.cut("runner-1", "runner-2")
        await deploy(sim, new, runners=1)
        await until(sim, noon(14.5))
        assert [second for second in book.seconds() if second % 2 == 0] == [2, 4]
        assert book.seconds()[2:] == [7, 9, 11, 13]


@pytest.mark.simulated(seeds=2)
async def test_m8_what_runs_when_its_schedule_changes_is_ended_by_whoever_has_the_seat() -> None:
    """The run of the old version goes on to its end, within the drain."""
    old, new, book = new_cluster(), new_cluster(), Logbook()
    define(old, book, gated=True, schedule="5 0 12 * * *")
    define(new, book, gated=True, schedule="0 0 13 * * *")
    async with simulated(old, runners=1) as sim:
        await sim.wait_until(lambda: book.lines)
        kill_all(sim)
        await deploy(sim, new)
        await sim.wait_until(lambda: len(book.lines) == 2)
        book.gates["x"].set()
        await sim.advance(1)
        assert book.attempts() == [(5, 1), (5, 2)]
        assert told(await history(old)) == ["5 ran/2"]


@pytest.mark.simulated(seeds=2)
async def test_m8_a_cron_that_only_new_runners_know_runs_on_them_from_its_deploy_on() -> None:
    old, new, book = new_cluster(), new_cluster(), Logbook()
    define(old, book, name="known")
    define(new, book, name="known")
    define(new, book, name="new", catch_up="all")
    async with simulated(old, runners=2) as sim:
        await until(sim, noon(3.5))
        await deploy(sim, new, runners=1)
        await until(sim, noon(8.5))
        assert book.seconds("new") == [4, 5, 6, 7, 8]
        assert {line.runner for line in book.of("new")} == {"runner-3"}
        assert book.seconds("known") == [1, 2, 3, 4, 5, 6, 7, 8]
        assert [each.name for each in await old.crons.list()] == ["known", "new"], "also those that others define"


@pytest.mark.parametrize("options", [{"timeout": "1m"}, {"catch_up": "all"}, {"overlap": "queue"}], ids=str)
@pytest.mark.simulated(seeds=1)
async def test_m8_another_option_leaves_ticks_due(options: dict[str, Any]) -> None:
    """Only the schedule makes ticks others: the one of the pause in between is caught up with."""
    old, new, book = new_cluster(), new_cluster(), Logbook()
    define(old, book, schedule="@every 5s")
    define(new, book, schedule="@every 5s", **options)
    async with simulated(old) as sim:
        await until(sim, noon(7))
        await stop_all(sim)
        await until(sim, noon(11))
        await deploy(sim, new)
        await until(sim, noon(16))
        assert book.seconds() == [5, 10, 15]
        assert accounted(await history(old), every_s=5) == [5, 10, 15]


@pytest.mark.simulated(seeds=2)
async def test_m8_in_a_rolling_deploy_of_an_option_every_tick_has_one_run() -> None:
    old, new, book = new_cluster(), new_cluster(), Logbook()
    define(old, book, catch_up="all")
    define(new, book, catch_up="all", timeout="1m")
    async with simulated(old, runners=3) as sim:
        await until(sim, noon(2.5))
        sim.cluster = new
        for runner in list(sim.runners):
            await asyncio.gather(runner.stop(), sim.start(1))
            await sim.advance(1)
        await until(sim, noon(12.5))
        ticks = await history(old)
        assert accounted(ticks) == list(range(1, 13))
        assert {tick.outcome for tick in ticks} == {"ran"}
        assert sorted(book.seconds()) == list(range(1, 13))


@pytest.mark.simulated(seeds=1)
async def test_a_cron_in_another_group_moves_there() -> None:
    """Its runners are others; its ticks are not."""
    old, new, book = new_cluster(), new_cluster(), Logbook()
    define(old, book, catch_up="all")
    define(new, book, catch_up="all", group="special")
    async with simulated(old, runners=1) as sim:
        await until(sim, noon(2.5))
        sim.cluster = new
        await sim.start(1, groups=("default", "special"))
        await until(sim, noon(6.5))
        assert holder(sim) is sim.runners[1]
        assert sorted(book.seconds()) == [1, 2, 3, 4, 5, 6]
        assert (await old.crons.get("x")).group == "special"


@pytest.mark.simulated(seeds=1)
async def test_a_tick_at_the_very_second_of_a_deploy_is_run_once() -> None:
    """M8: whose it is, the old or the new schedule's, is decided by one instant."""
    old, new, book = new_cluster(), new_cluster(), Logbook()
    define(old, book, schedule="@every 5s", catch_up="all")
    define(new, book, schedule="*/5 * * * * *", catch_up="all")
    async with simulated(old, runners=2) as sim:
        for second in (10, 15, 20):
            await until(sim, noon(second) - timedelta(milliseconds=6))
            await deploy(sim, new if second % 2 == 0 else old, runners=1)
            await asyncio.gather(*(runner.stop() for runner in sim.runners[:-1] if runner.alive))
        await until(sim, noon(26))
        seconds = book.seconds()
        assert seconds == sorted(set(seconds)), "none twice"
        assert set(seconds) == {5, 10, 15, 20, 25}, "they are ticks of both"
        assert NOON not in {line.at for line in book.lines}
