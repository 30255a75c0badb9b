"""`cluster.crons`: what people see of crons, and the few things that they do about them (C7, S3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from coterie import NotStarted, ScheduleError
from tests.scenario.cron.cron_cluster import (
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

SOMETIME = "0 0 18 * * *"

# Looking ahead


@pytest.mark.simulated(seeds=1)
async def test_c7_a_preview_of_a_cron_shows_where_clocks_change() -> None:
    """By its own zone, whatever the zone of whoever asks."""
    cluster = new_cluster()
    define(cluster, Logbook(), schedule="30 2 * * *", timezone="Europe/Zurich")
    async with simulated(cluster, runners=1, at=datetime(2026, 3, 27, 12, tzinfo=UTC)):
        ahead = await cluster.crons.preview("x", count=3)
        assert [(f"{tick.local:%a %H:%M %Z}", tick.note) for tick in ahead] == [
            ("Sat 02:30 CET", ""),
            ("Sun 03:00 CEST", "clocks go forward at 02:00"),
            ("Mon 02:30 CEST", ""),
        ]
        assert [tick.at for tick in ahead] == [
            datetime(2026, 3, 28, 1, 30, tzinfo=UTC),
            datetime(2026, 3, 29, 1, tzinfo=UTC),
            datetime(2026, 3, 30, 0, 30, tzinfo=UTC),
        ]
        later = await cluster.crons.preview("x", count=1, after=datetime(2026, 10, 24, 12, tzinfo=UTC))
        assert [(f"{tick.local:%a %H:%M %Z}", tick.at.hour) for tick in later] == [("Sun 02:30 CEST", 0)]
        elsewhere = await cluster.crons.preview("x", timezone="Asia/Kolkata", count=1)
        assert elsewhere[0].at == datetime(2026, 3, 27, 21, tzinfo=UTC)


@pytest.mark.simulated(seeds=1)
async def test_c7_a_preview_of_an_expression_needs_no_cron() -> None:
    cluster = new_cluster()
    async with simulated(cluster, runners=0, at=datetime(2026, 10, 24, 12, tzinfo=UTC)):
        ahead = await cluster.crons.preview("0 3 * * *", timezone="Europe/Zurich", count=2)
        assert [(f"{tick.local:%a %H:%M %Z}", tick.note) for tick in ahead] == [
            ("Sun 03:00 CET", "clocks go back at 03:00"),
            ("Mon 03:00 CET", ""),
        ]
        assert len(await cluster.crons.preview("@hourly")) == 5
        assert await cluster.crons.preview("@hourly", count=0) == []
        assert await cluster.crons.explain("0 3 * * *", timezone="Europe/Zurich") == "every day at 03:00, Europe/Zurich"
        assert await cluster.crons.explain("@every 90s") == "every 90 seconds"


@pytest.mark.simulated(seeds=1)
async def test_c7_crons_of_another_program_are_seen_and_driven_like_one_s_own() -> None:
    """`admin` defines none of them."""
    admin, program, book = new_cluster(), new_cluster(), Logbook()
    define(program, book, schedule="0 3 * * *", timezone="Europe/Zurich")
    async with simulated(admin, runners=0) as sim:
        await deploy(sim, program)
        await sim.advance(1)
        (info,) = await admin.crons.list()
        assert (info.name, info.schedule, info.timezone) == ("x", "0 3 * * *", "Europe/Zurich")
        assert (info.explained, info.problem) == ("every day at 03:00, Europe/Zurich", "")
        assert info.next_at == datetime(2026, 3, 2, 2, tzinfo=UTC)
        assert await admin.crons.explain("x") == info.explained
        assert [tick.at for tick in await admin.crons.preview("x", count=1)] == [info.next_at]
        triggered = await admin.crons.trigger("x", at=datetime(2026, 3, 1, 2, tzinfo=UTC))
        assert triggered.matches_schedule
        assert (await admin.crons.wait(triggered, timeout="5s")).outcome == "ran"
        assert await admin.crons.pause("x")
        assert (await admin.crons.get("x")).next_at is None


# Triggers


@pytest.mark.simulated(seeds=2)
async def test_c7_a_trigger_runs_at_once_and_is_recorded_as_manual() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, schedule=SOMETIME)
    async with simulated(cluster) as sim:
        await until(sim, noon(7.25))
        triggered = await cluster.crons.trigger("x")
        assert (triggered.kind, triggered.outcome, triggered.attempt) == ("manual", None, 0)
        assert not triggered.matches_schedule
        assert noon(7.25) <= triggered.scheduled_at < noon(7.3)
        made = await cluster.crons.wait(triggered, timeout="5s")
        assert (made.outcome, made.attempt, made.runner, made.kind) == ("ran", 1, holder(sim).name, "manual")
        (line,) = book.lines
        assert line.manual
        assert line.at == triggered.scheduled_at
        assert line.began_s < 7.4, "nobody waited for a sweep"
        info = await cluster.crons.get("x")
        assert (info.run_count, info.next_at) == (1, noon(6 * 3600)), "the schedule is as it was"
        assert await history(cluster) == [made]


@pytest.mark.simulated(seeds=1)
async def test_c7_a_trigger_for_an_instant_stands_in_for_a_tick_that_was_missed() -> None:
    """It tells whether the schedule has it, and may be asked for as often as one likes [M9]."""
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, schedule=SOMETIME)
    yesterday = NOON.replace(hour=18) - timedelta(days=1)
    async with simulated(cluster) as sim:
        await sim.advance(1)
        for _ in range(2):
            made = await cluster.crons.wait(await cluster.crons.trigger("x", at=yesterday), timeout="5s")
            assert (made.outcome, made.scheduled_at, made.matches_schedule) == ("ran", yesterday, True)
        other = await cluster.crons.trigger("x", at=yesterday.astimezone().replace(minute=7))
        assert not other.matches_schedule
        await cluster.crons.wait(other, timeout="5s")
        assert [line.at for line in book.lines] == [yesterday, yesterday, yesterday.replace(minute=7)]
        assert [tick.number for tick in await history(cluster)] == [1, 2, 1]


@pytest.mark.simulated(seeds=1)
async def test_m9_a_trigger_for_the_very_instant_of_a_tick_is_no_claim_of_it() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, schedule="5 0 12 * * *")
    async with simulated(cluster) as sim:
        await until(sim, noon(2))
        await cluster.crons.trigger("x", at=noon(5))
        await until(sim, noon(6))
        assert [(line.at, line.manual) for line in book.lines] == [(noon(5), True), (noon(5), False)]
        assert sorted(told(await history(cluster))) == ["5 manual ran", "5 ran"]


@pytest.mark.parametrize("overlap", ["skip", "queue"])
@pytest.mark.simulated(seeds=1)
async def test_c7_a_trigger_waits_its_turn_where_one_runs_at_a_time(overlap: Any) -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, schedule="5 0 12 * * *", gated=True, overlap=overlap)
    async with simulated(cluster) as sim:
        await until(sim, noon(5.5))
        made = [await cluster.crons.trigger("x") for _ in range(3)]
        await sim.advance(6)
        assert len(book.lines) == 1
        assert (await cluster.crons.get("x")).running == 4
        book.gates["x"].set()
        for tick in made:
            assert (await cluster.crons.wait(tick, timeout="5s")).outcome == "ran"
        assert [line.at for line in book.lines] == [noon(5), *(tick.scheduled_at for tick in made)]


@pytest.mark.simulated(seeds=1)
async def test_c7_with_overlap_allow_triggers_run_beside_each_other() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, schedule=SOMETIME, gated=True)
    async with simulated(cluster) as sim:
        await sim.advance(1)
        for _ in range(3):
            await cluster.crons.trigger("x")
        await sim.wait_until(lambda: len(book.lines) == 3, within="5s")


@pytest.mark.simulated(seeds=2)
async def test_m9_a_trigger_of_which_the_holder_is_not_told_is_found_by_its_sweep() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, schedule=SOMETIME)
    async with simulated(cluster) as sim:
        await sim.advance(1)
        sim.network.cut("test", holder(sim).name)
        triggered = await cluster.crons.trigger("x")
        assert (await cluster.crons.wait(triggered, timeout="6s")).outcome == "ran"


@pytest.mark.simulated(seeds=1)
async def test_c7_a_trigger_while_nobody_is_there_runs_when_somebody_is() -> None:
    """Once, also if that one is lost."""
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, schedule=SOMETIME, gated=True)
    async with simulated(cluster, runners=1) as sim:
        await sim.advance(1)
        await stop_all(sim)
        triggered = await cluster.crons.trigger("x")
        await sim.advance(10)
        await deploy(sim, cluster)
        await sim.wait_until(lambda: book.lines)
        holder(sim).kill()
        await sim.wait_until(lambda: len(book.lines) == 2)
        book.gates["x"].set()
        made = await cluster.crons.wait(triggered, timeout="5s")
        assert (made.outcome, made.attempt) == ("ran", 2)
        assert [line.attempt for line in book.lines] == [1, 2]


@pytest.mark.simulated(seeds=1)
async def test_c7_a_cron_that_nobody_has_held_yet_is_known_and_can_be_triggered() -> None:
    """By a program that does not define it: its schedule was not told yet."""
    admin, program, book = new_cluster(), new_cluster(), Logbook()
    define(program, book, schedule=SOMETIME, group="special")
    async with simulated(admin, runners=0) as sim:
        await deploy(sim, program, runners=1)  # not of its group
        await sim.advance(1)
        info = await admin.crons.get("x")
        assert (info.schedule, info.explained, info.next_at, info.latest) == ("", "", None, None)
        assert info.problem == "nobody holds it"
        triggered = await admin.crons.trigger("x", at=NOON.replace(hour=18))
        assert (triggered.kind, triggered.outcome) == ("manual", None)
        assert not triggered.matches_schedule, "nobody knows"
        assert [tick.number for tick in await history(admin)] == [triggered.number]
        for ask in (admin.crons.preview, admin.crons.explain):
            with pytest.raises(ValueError, match=r"^the schedule of cron 'x' is not known: no runner has held it, nor"):
                await ask("x")
        await sim.start(1, groups=("default", "special"))
        made = await admin.crons.wait(triggered, timeout="5s")
        assert made.outcome == "ran"
        assert (await history(admin))[0].matches_schedule


@pytest.mark.simulated(seeds=1)
async def test_waiting_for_a_tick_has_a_deadline() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, schedule=SOMETIME, gated=True)
    async with simulated(cluster) as sim:
        await sim.advance(1)
        triggered = await cluster.crons.trigger("x")
        with pytest.raises(TimeoutError):
            await cluster.crons.wait(triggered, timeout="2s")
        book.gates["x"].set()
        await cluster.crons.wait(triggered)


# Pauses


@pytest.mark.simulated(seeds=2)
async def test_c7_a_pause_begins_at_once_and_its_ticks_are_one_row_when_it_has_ended() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, catch_up="all")
    async with simulated(cluster) as sim:
        await until(sim, noon(2.5))
        assert await cluster.crons.pause("x")
        assert not await cluster.crons.pause("x"), "it was paused already"
        await until(sim, noon(8.5))
        info = await cluster.crons.get("x")
        assert info.paused_at is not None
        assert noon(2.5) <= info.paused_at < noon(2.6)
        assert (info.next_at, info.problem) == (None, "")
        assert await cluster.crons.resume("x")
        assert not await cluster.crons.resume("x")
        await until(sim, noon(10.5))
        ticks = await history(cluster)
        assert told(ticks) == ["1 ran", "2 ran", "3-8 skipped paused", "9 ran", "10 ran"]
        assert (await cluster.crons.get("x")).paused_at is None


@pytest.mark.simulated(seeds=2)
async def test_c7_a_pause_of_which_the_holder_is_not_told_counts_all_the_same() -> None:
    """The claim of the next tick is refused."""
    cluster, book = new_cluster(), Logbook()
    define(cluster, book)
    async with simulated(cluster) as sim:
        await until(sim, noon(2.5))
        sim.network.cut("test", holder(sim).name)
        await cluster.crons.pause("x")
        began_s = (sim.now() - NOON).total_seconds()
        await until(sim, noon(7.5))
        assert [second for second in book.seconds() if second > began_s] == []
        await cluster.crons.resume("x")
        await until(sim, noon(14.5))
        ticks = await history(cluster)
        reasons = {tick.reason for tick in ticks if tick.outcome == "skipped"}
        assert {"paused"} <= reasons <= {"paused", "superseded"}
        accounted(ticks)


@pytest.mark.simulated(seeds=2)
async def test_c7_a_pause_outlives_everybody() -> None:
    """Restarts of all runners, killed or not, and of all at once."""
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, catch_up="all")
    async with simulated(cluster) as sim:
        await until(sim, noon(2.5))
        await cluster.crons.pause("x")
        await stop_all(sim)
        await deploy(sim, cluster)
        await until(sim, noon(6.5))
        kill_all(sim)
        await deploy(sim, cluster)
        await until(sim, noon(20.5))
        assert book.seconds() == [1, 2]
        assert await cluster.crons.resume("x")
        await until(sim, noon(22.5))
        assert told(await history(cluster)) == ["1 ran", "2 ran", "3-20 skipped paused", "21 ran", "22 ran"]


@pytest.mark.simulated(seeds=1)
async def test_c7_what_runs_when_a_pause_begins_goes_on_and_a_trigger_runs_in_it() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, gated=True, overlap="queue")
    async with simulated(cluster) as sim:
        await until(sim, noon(2.5))
        await cluster.crons.pause("x")
        book.gates["x"].set()
        await until(sim, noon(4.5))
        assert book.seconds() == [1], "what waited does not begin either"
        made = await cluster.crons.wait(await cluster.crons.trigger("x"), timeout="5s")
        assert made.outcome == "ran"
        await cluster.crons.resume("x")
        await until(sim, noon(5.5))
        ticks = [tick for tick in await history(cluster) if tick.kind == "scheduled"]
        assert ticks[0].outcome == "ran"
        assert {tick.reason for tick in ticks[1:-1]} == {"paused"}
        assert accounted(ticks) == [1, 2, 3, 4, 5]


@pytest.mark.simulated(seeds=1)
async def test_c7_a_pause_while_nobody_is_there_counts() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, catch_up="all")
    async with simulated(cluster) as sim:
        await until(sim, noon(2.5))
        await stop_all(sim)
        await until(sim, noon(3.5))
        await cluster.crons.pause("x")
        await until(sim, noon(5.5))
        await cluster.crons.resume("x")
        await until(sim, noon(7.5))
        await deploy(sim, cluster)
        await until(sim, noon(8.5))
        assert told(await history(cluster)) == [
            "1 ran", "2 ran", "3 ran", "4-5 skipped paused", "6 ran", "7 ran", "8 ran",
        ]  # fmt: skip


# History


@pytest.mark.simulated(seeds=1)
async def test_c7_history_comes_in_pages_the_newest_first() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book)
    async with simulated(cluster) as sim:
        await until(sim, noon(10.5))
        pages: list[list[str]] = []
        before = None
        while page := await cluster.crons.history("x", limit=4, before=before):
            pages.append(told(page))
            before = page[-1].scheduled_at
        assert pages == [
            ["10 ran", "9 ran", "8 ran", "7 ran"],
            ["6 ran", "5 ran", "4 ran", "3 ran"],
            ["2 ran", "1 ran"],
        ]
        assert await cluster.crons.history("x", limit=0) == []
        assert await cluster.crons.history("x", before=noon(1)) == []
        (latest,) = await cluster.crons.history("x", limit=1)
        assert latest.started_at is not None
        assert latest.ended_at is not None
        assert noon(10) <= latest.started_at <= latest.ended_at < noon(10.1)


@pytest.mark.simulated(seeds=1)
async def test_c7_history_is_kept_for_as_long_as_retention_says_and_counts_stay() -> None:
    cluster, book = new_cluster(retention="30s", call_timeout="5s"), Logbook()
    define(cluster, book)
    async with simulated(cluster, runners=1) as sim:
        await until(sim, noon(150.5))
        ticks = await history(cluster)
        assert 30 <= len(ticks) <= 95
        assert accounted(ticks)[-1] == 150
        info = await cluster.crons.get("x")
        assert info.run_count == 150
        assert book.seconds() == list(range(1, 151)), "what was cleared away does not come back"


@pytest.mark.simulated(seeds=1)
async def test_a_tick_that_is_cleared_away_is_not_waited_for() -> None:
    cluster = new_cluster(retention="30s", call_timeout="5s")
    define(cluster, Logbook(), schedule=SOMETIME)
    async with simulated(cluster, runners=1) as sim:
        await sim.advance(1)
        made = await cluster.crons.wait(await cluster.crons.trigger("x"), timeout="5s")
        await sim.advance(120)
        with pytest.raises(ValueError, match=r"tick 2026-03-01 12:00:01\S+ of cron 'x' is not there any more"):
            await cluster.crons.wait(made)
        assert await cluster.crons.history("x") == []
        assert (await cluster.crons.get("x")).latest is None
        assert (await cluster.crons.get("x")).last_run_at is not None


# Names and errors

HOSTILE = ["a/b:c", " ", "größe", "\u202e%_'\"", "line\nbreak", "x" * 1000, "'; drop table ticks; --", "0 3 * * *"]


@pytest.mark.simulated(seeds=1)
async def test_hostile_names_are_names() -> None:
    """They come back exactly, everywhere."""
    cluster, book = new_cluster(), Logbook()
    for name in HOSTILE:
        define(cluster, book, name=name, schedule="@every 5s")
    async with simulated(cluster) as sim:
        await until(sim, noon(5.5))
        assert sorted(line.cron for line in book.lines) == sorted(HOSTILE)
        assert [each.name for each in await cluster.crons.list()] == sorted(HOSTILE)
        for name in HOSTILE:
            assert (await cluster.crons.get(name)).run_count == 1
            assert await cluster.crons.pause(name)
            assert await cluster.crons.resume(name)
            made = await cluster.crons.wait(await cluster.crons.trigger(name), timeout="5s")
            assert (made.cron, made.outcome) == (name, "ran")
            assert [tick.cron for tick in await cluster.crons.history(name)] == [name, name]
            assert await cluster.crons.explain(name) == "every 5 seconds", "a cron of that name comes first"


@pytest.mark.simulated(seeds=1)
async def test_an_unknown_cron_is_told_with_those_that_there_are() -> None:
    cluster = new_cluster()
    define(cluster, Logbook(), name="nightly", schedule=SOMETIME)
    define(cluster, Logbook(), name="weekly", schedule="@weekly")
    crons = cluster.crons
    async with simulated(cluster) as sim:
        await sim.advance(1)
        says = r"^there is no cron 'nigthly' in this cluster: there are nightly, weekly$"
        for ask in (crons.get, crons.trigger, crons.pause, crons.resume, crons.history, crons.preview, crons.explain):
            with pytest.raises(ValueError, match=says):
                await ask("nigthly")
        assert await crons.preview("weekly", count=1)


@pytest.mark.simulated(seeds=1)
async def test_without_any_cron_none_is_listed() -> None:
    cluster = new_cluster()
    async with simulated(cluster):
        assert await cluster.crons.list() == []
        with pytest.raises(ValueError, match=r"^there is no cron 'x' in this cluster: there are none$"):
            await cluster.crons.get("x")


@pytest.mark.simulated(seeds=1)
async def test_what_cannot_be_read_says_where() -> None:
    cluster = new_cluster()
    define(cluster, Logbook(), schedule=SOMETIME)
    crons = cluster.crons
    async with simulated(cluster, runners=1) as sim:
        await sim.advance(1)
        with pytest.raises(ScheduleError, match="hour 25 is out of range 0-23"):
            await crons.preview("0 25 * * *")
        with pytest.raises(ScheduleError, match="@wekly"):
            await crons.explain("@wekly")
        with pytest.raises(ScheduleError, match="Europe/Zuerich"):
            await crons.preview("0 3 * * *", timezone="Europe/Zuerich")
        with pytest.raises(ScheduleError, match="Europe/Zuerich"):
            await crons.preview("x", timezone="Europe/Zuerich")
        naive = datetime(2026, 3, 1, 2)  # noqa: DTZ001 that is the point
        with pytest.raises(
            ValueError,
            match=r"^at is 2026-03-01 02:00:00, which has no time zone: add one, as in datetime\(…, tzinfo=UTC\)$",
        ):
            await crons.trigger("x", at=naive)
        with pytest.raises(ValueError, match="2026-03-01 02:00:00"):
            await crons.preview("x", after=naive)
        with pytest.raises(ValueError, match="2026-03-01 02:00:00"):
            await crons.history("x", before=naive)
        for wrong in (-1, 1001):
            with pytest.raises(ValueError, match=rf"^count is {wrong}, expected 0 to 1000$"):
                await crons.preview("x", count=wrong)
            with pytest.raises(ValueError, match=rf"^limit is {wrong}, expected 0 to 1000$"):
                await crons.history("x", limit=wrong)
        assert await history(cluster) == []


async def test_without_a_connection_nothing_is_asked() -> None:
    cluster = new_cluster()
    with pytest.raises(NotStarted):
        await cluster.crons.list()


@pytest.mark.simulated(seeds=1)
async def test_s3_h1_a_cron_that_nobody_holds_is_a_problem_and_a_paused_one_is_not() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book)
    async with simulated(cluster) as sim:
        await until(sim, noon(2.5))
        assert (await cluster.crons.get("x")).problem == ""
        await stop_all(sim)
        await until(sim, noon(5.5))
        assert (await cluster.crons.get("x")).problem == "nobody holds it"
        await until(sim, noon(30.5))
        assert (await cluster.crons.get("x")).problem == "overdue by 28s: nobody holds it"
        await cluster.crons.pause("x")
        assert (await cluster.crons.get("x")).problem == ""
