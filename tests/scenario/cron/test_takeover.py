"""Runners that are lost, cut off or told to leave while a cron runs: what becomes of its ticks (C2, C3, GAP-27, M9)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie import LeadershipLost, PersistenceError, Retry, current
from coterie.testing.loop.nodes import current_node
from tests.scenario.cron.cron_cluster import (
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
from tests.support.chaos_points import At

if TYPE_CHECKING:
    from coterie import Tick


@pytest.mark.simulated(seeds=3)
async def test_gap_27_killed_between_the_end_of_a_job_and_its_outcome_it_runs_once_more_and_that_is_recorded() -> None:
    """The stated rule: attempt 2."""
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, catch_up="all")
    async with simulated(cluster) as sim:
        killed: list[str] = []

        def kill() -> None:
            killed.append(holder(sim).name)
            holder(sim).kill()

        At("cron.before_outcome", kill, time=3)
        await sim.wait_until(lambda: killed)
        await sim.wait_until(lambda: len(book.ended) >= 6)
        await sim.advance(0.1)
        ticks = await history(cluster)
        assert told(ticks)[:5] == ["1 ran", "2 ran", "3 ran/2", "4 ran", "5 ran"]
        assert [attempt for second, attempt in book.attempts() if second == 3] == [1, 2]
        assert ticks[2].errors == (), "nothing failed"
        assert ticks[2].runner != killed[0]
        assert [tick.epoch for tick in ticks[:4]] == [1, 1, 2, 2]
        accounted(ticks)


@pytest.mark.parametrize(
    ("point", "attempts"), [("cron.before_claim", [1]), ("cron.before_body", [2]), ("cron.before_outcome", [1, 2])]
)
@pytest.mark.simulated(seeds=2)
async def test_c2_m9_a_holder_that_is_killed_at_any_moment_leaves_a_tick_that_has_one_outcome(
    point: str, attempts: list[int]
) -> None:
    """INV-C1, INV-C2: of the tick at which it is killed, these are the attempts whose bodies began."""
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, catch_up="all")
    async with simulated(cluster) as sim:
        at = At(point, lambda: holder(sim).kill(), time=2)
        await sim.wait_until(lambda: at.happened)
        await sim.wait_until(lambda: len(book.ended) >= 5)
        await sim.advance(0.1)
        ticks = await history(cluster)
        accounted(ticks)
        assert {tick.outcome for tick in ticks} == {"ran"}
        assert [attempt for second, attempt in book.attempts() if second == 2] == attempts


@pytest.mark.simulated(seeds=1)
async def test_a_job_that_kills_its_process_each_time_does_so_five_times_and_has_failed_then() -> None:
    """One that is poison must not take every runner down for ever."""
    cluster, book = new_cluster(), Logbook()

    @cluster.cron("x", "5 0 12 * * *")
    async def body(tick: Tick) -> None:
        book.begin(tick)
        victim = holder(sim)
        victim.kill()
        await asyncio.sleep(0)

    async with simulated(cluster, runners=3) as sim:
        for count in range(1, 6):
            await sim.wait_until(lambda: len(book.lines) >= count)  # noqa: B023 it is waited for
            for runner in sim.runners:
                if not runner.alive:
                    runner.start()
        await sim.advance(15)
        (tick,) = await history(cluster)
        assert [line.attempt for line in book.lines] == [1, 2, 3, 4, 5]
        assert (tick.outcome, tick.errors) == ("failed", ("attempt 6: its runner was lost in each of 5 attempts",))


@pytest.mark.simulated(seeds=2)
async def test_m9_a_frozen_holder_writes_no_outcome_and_claims_no_tick_once_it_was_replaced() -> None:
    """REVIEW C1: whatever it does when it wakes up is refused."""
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, gated=True, overlap="queue", catch_up="all")
    async with simulated(cluster, runners=3) as sim:
        await sim.wait_until(lambda: book.lines)
        frozen = holder(sim)
        frozen.freeze()
        await sim.wait_until(lambda: (1, 2) in book.attempts())
        book.gates["x"].set()
        await sim.wait_until(lambda: len(book.ended) >= 3)
        frozen.thaw()
        await sim.advance(8)
        ticks = await history(cluster)
        assert told(ticks)[0] == "1 ran/2"
        accounted(ticks)
        assert frozen.name not in {tick.runner for tick in ticks}
        assert {line.runner for line in book.lines[1:]} == {holder(sim).name}


@pytest.mark.simulated(seeds=2)
async def test_a_holder_cut_off_from_the_database_stops_its_run_and_another_one_makes_the_next_attempt() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, gated=True, overlap="queue")
    async with simulated(cluster) as sim:
        await sim.wait_until(lambda: book.lines)
        first = holder(sim)
        first.cut("storage")
        await sim.wait_until(lambda: (1, 2) in book.attempts())
        cancelled, second = book.cancelled[0], book.lines[1]
        assert (cancelled.runner, cancelled.attempt) == (first.name, 1)
        assert second.runner != first.name
        book.gates["x"].set()
        first.heal()
        await sim.advance(3)
        assert told(await history(cluster))[0] == "1 ran/2"


@pytest.mark.simulated(seeds=3)
async def test_an_outcome_waits_for_a_database_that_restarts_and_is_written_once() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, catch_up="all")
    async with simulated(cluster) as sim:
        At("cron.before_outcome", lambda: sim.restart_storage(down="800ms"), time=2)
        await until(sim, noon(8.5))
        ticks = await history(cluster)
        assert accounted(ticks)[:8] == list(range(1, 9))
        assert {tick.outcome for tick in ticks} == {"ran"}


# Outages


@pytest.mark.parametrize("graceful", [True, False])
@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
@pytest.mark.simulated(seeds=1)
async def test_c3_inv_c4_of_a_thousand_missed_ticks_a_bounded_number_runs_in_order(
    catch_up: Any, graceful: bool
) -> None:
    """Incidents 24 and 25. Nobody was there for 1,000 seconds."""
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, catch_up=catch_up, overlap="queue")
    async with simulated(cluster) as sim:
        await until(sim, noon(2.5))
        if graceful:
            await stop_all(sim)
        else:
            kill_all(sim)
        await until(sim, noon(1002.5))
        await deploy(sim, cluster)
        await sim.wait_until(lambda: book.seconds()[-1] > 1010)
        await sim.advance(0.1)
        ticks = await history(cluster)
        accounted(ticks)
        caught_up = [second for second in book.seconds() if 2 < second <= 1002]
        if catch_up == "all":
            assert caught_up == list(range(round(caught_up[0]), 1003))
            assert 90 < len(caught_up) <= 100
        assert len(caught_up) <= {"latest": 1, "all": 100, "none": 0}[catch_up]
        assert book.seconds() == sorted(book.seconds())
        assert len(ticks) < 130, "what is skipped shares rows"


@pytest.mark.simulated(seeds=1)
async def test_c3_what_is_older_than_allowed_is_skipped_as_stale() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, catch_up="all", skip_if_older_than="3s")
    async with simulated(cluster, runners=1) as sim:
        await until(sim, noon(2.5))
        await stop_all(sim)
        await until(sim, noon(20.5))
        await deploy(sim, cluster, runners=1)
        await until(sim, noon(21.5))
        assert told(await history(cluster)) == [
            "1 ran",
            "2 ran",
            "3-17 skipped stale",
            "18 ran",
            "19 ran",
            "20 ran",
            "21 ran",
        ]


@pytest.mark.simulated(seeds=2)
async def test_all_runners_killed_and_started_again_lose_and_double_nothing() -> None:
    cluster, book = new_cluster(), Logbook()
    define(cluster, book, catch_up="all")
    async with simulated(cluster, runners=3) as sim:
        for _ in range(3):
            await sim.advance(2.3)
            kill_all(sim)
            await sim.advance(1.7)
            for runner in sim.runners:
                runner.start()
        await sim.advance(12)
        ticks = await history(cluster)
        assert accounted(ticks)[0] == 1
        assert {tick.outcome for tick in ticks} == {"ran"}
        assert {second for second, _ in book.attempts()} == set(accounted(ticks))


# Leaving


@pytest.mark.simulated(seeds=2)
async def test_a_drain_lets_a_run_end() -> None:
    cluster, book = new_cluster(drain="5s"), Logbook()

    @cluster.cron("x", "5 0 12 * * *")
    async def body(tick: Tick) -> None:
        line = book.begin(tick)
        await asyncio.sleep(3)
        book.ended.append(line)

    async with simulated(cluster) as sim:
        await sim.wait_until(lambda: book.lines)
        first = holder(sim)
        await first.stop()
        assert book.attempts() == [(5, 1)]
        assert len(book.ended) == 1
        (tick,) = await history(cluster)
        assert (tick.outcome, tick.attempt, tick.runner) == ("ran", 1, first.name)
        assert tick.took is not None
        assert timedelta(seconds=3) <= tick.took < timedelta(seconds=3.1)


@pytest.mark.simulated(seeds=2)
async def test_a_drain_cuts_off_a_run_that_does_not_end_and_the_next_holder_makes_another_attempt() -> None:
    cluster, book = new_cluster(drain="1s"), Logbook()
    define(cluster, book, gated=True, schedule="5 0 12 * * *")
    async with simulated(cluster) as sim:
        await sim.wait_until(lambda: book.lines)
        first = holder(sim)
        began = sim.now()
        await first.stop()
        assert sim.now() - began < timedelta(seconds=6)
        assert [line.runner for line in book.cancelled] == [first.name]
        await sim.wait_until(lambda: len(book.lines) == 2, within="5s")
        book.gates["x"].set()
        await sim.advance(0.5)
        assert told(await history(cluster)) == ["5 ran/2"]


@pytest.mark.simulated(seeds=2)
async def test_a_run_that_ignores_its_cancellation_does_not_keep_its_runner() -> None:
    """It is left behind, and what it writes is refused."""
    cluster, book = new_cluster(drain="1s"), Logbook()
    refused: list[str] = []

    @cluster.cron("x", "5 0 12 * * *")
    async def body(tick: Tick) -> None:
        book.begin(tick)
        if tick.attempt > 1:
            return
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.3)
            try:
                await tick.cluster.kv.set("stubborn", tick.epoch)
            except (LeadershipLost, PersistenceError) as error:
                refused.append(type(error).__name__)

    async with simulated(cluster) as sim:
        await sim.wait_until(lambda: book.lines)
        first = holder(sim)
        first.spawn(cluster.runners.drain(first.name))
        await sim.wait_until(lambda: len(book.lines) == 2)
        await sim.wait_until(lambda: "LeadershipLost" in refused)
        await sim.advance(0.5)
        assert told(await history(cluster)) == ["5 ran/2"]
        first.kill()  # nobody else can end such a body


# What a body writes


@pytest.mark.parametrize("way", ["freeze", "cut"])
@pytest.mark.simulated(seeds=2)
async def test_c2_what_a_former_holder_writes_is_refused_all_of_it(way: str) -> None:
    """tick.transaction and cluster.kv are fenced; verify says so before an effect elsewhere."""
    cluster, book = new_cluster(), Logbook()
    told_to: list[tuple[int, str, str]] = []

    async def tried(tick: Tick, what: str, write: Any) -> None:
        try:
            await write
        except LeadershipLost:
            told_to.append((tick.attempt, what, "lost"))
        except PersistenceError as error:
            told_to.append((tick.attempt, what, error.outcome))
        else:
            told_to.append((tick.attempt, what, "done"))

    async def transact(tick: Tick) -> None:
        async with tick.transaction() as sql:
            await sql.execute("insert into notes (attempt) values ($1)", tick.attempt)

    @cluster.cron("x", "5 0 12 * * *")
    async def body(tick: Tick) -> None:
        book.begin(tick)
        with suppress(asyncio.CancelledError):
            await book.gates["x"].wait()
        await tried(tick, "verify", tick.verify())
        await tried(tick, "kv", tick.cluster.kv.set("by", tick.attempt))
        await tried(tick, "transaction", transact(tick))

    async with simulated(cluster) as sim:
        sim.database.main.execute("create table notes (attempt integer)")
        await sim.wait_until(lambda: book.lines)
        first = holder(sim)
        if way == "freeze":
            first.freeze()
        else:
            first.cut("storage")
        await sim.wait_until(lambda: len(book.lines) == 2)
        book.gates["x"].set()
        await sim.wait_until(lambda: (2, "transaction", "done") in told_to)
        first.thaw() if way == "freeze" else first.heal()
        await sim.advance(5)
        assert [each[1:] for each in told_to if each[0] == 2] == [
            ("verify", "done"),
            ("kv", "done"),
            ("transaction", "done"),
        ]
        late = [result for attempt, _, result in told_to if attempt == 1]
        assert late, "it woke up and tried"
        assert "done" not in late
        assert list(sim.database.main.execute("select attempt from notes")) == [(2,)]
        assert await cluster.kv.get("by") == 2


@pytest.mark.simulated(seeds=2)
async def test_c2_a_transaction_that_is_open_when_the_seat_is_lost_is_refused_at_its_end() -> None:
    """Its body does not listen to its cancellation; or is cancelled in the commit, and nobody hears of the refusal."""
    cluster, book = new_cluster(transaction_limit="1m"), Logbook()
    ended: list[tuple[int, str]] = []

    @cluster.cron("x", "5 0 12 * * *")
    async def body(tick: Tick) -> None:
        book.begin(tick)
        try:
            async with tick.transaction() as sql:
                await sql.execute("insert into notes (attempt) values ($1)", tick.attempt)
                while tick.attempt == 1 and not book.gates["x"].is_set():
                    with suppress(asyncio.CancelledError):
                        await book.gates["x"].wait()
        except BaseException as error:
            ended.append((tick.attempt, type(error).__name__))
            raise

    async with simulated(cluster) as sim:
        sim.database.main.execute("create table notes (attempt integer)")
        await sim.wait_until(lambda: book.lines)
        first = holder(sim)
        first.freeze()
        await sim.wait_until(lambda: len(book.lines) == 2)
        first.thaw()
        book.gates["x"].set()
        await sim.wait_until(lambda: ended)
        await sim.advance(1)
        assert ended in ([(1, "LeadershipLost")], [(1, "CancelledError")])
        assert list(sim.database.main.execute("select attempt from notes")) == [(2,)]
        assert told(await history(cluster)) == ["5 ran/2"]


@pytest.mark.simulated(seeds=2)
async def test_c2_a_transaction_whose_holder_is_killed_before_the_end_of_its_block_is_not_there() -> None:
    cluster, book = new_cluster(), Logbook()

    @cluster.cron("x", "5 0 12 * * *", retry=Retry.never)
    async def body(tick: Tick) -> None:
        book.begin(tick)
        async with tick.transaction() as sql:
            await sql.execute("insert into notes (attempt) values ($1)", tick.attempt)
            if tick.attempt == 1:
                holder(sim).kill()
                await asyncio.sleep(0)

    async with simulated(cluster) as sim:
        sim.database.main.execute("create table notes (attempt integer)")
        await sim.wait_until(lambda: len(book.lines) == 2)
        await sim.advance(0.5)
        assert list(sim.database.main.execute("select attempt from notes")) == [(2,)]
        assert told(await history(cluster)) == ["5 ran/2"]


@pytest.mark.simulated(seeds=1)
async def test_c2_a_transaction_that_raises_leaves_nothing_and_the_tick_has_failed() -> None:
    cluster = new_cluster()

    @cluster.cron("x", "5 0 12 * * *")
    async def body(tick: Tick) -> None:
        async with tick.transaction() as sql:
            await sql.execute("insert into notes (attempt) values ($1)", tick.attempt)
            with pytest.raises(
                RuntimeError, match=r"a write to cluster\.kv needs a commit of its own, and cron 'x' has a"
            ):
                await tick.cluster.kv.set("a", 1)
            raise ValueError("no")

    async with simulated(cluster) as sim:
        sim.database.main.execute("create table notes (attempt integer)")
        await until(sim, noon(6))
        assert list(sim.database.main.execute("select attempt from notes")) == []
        assert told(await history(cluster)) == ["5 failed"]


@pytest.mark.simulated(seeds=1)
async def test_k4_a_tick_knows_its_context_and_its_runner() -> None:
    """`define` asserts the seat; here is the rest."""
    cluster = new_cluster()
    seen: list[Any] = []

    @cluster.cron("x", "5 0 12 * * *")
    async def body(tick: Tick) -> None:
        here = current()
        seen.append((here.name, here.is_leader, here.epoch == tick.epoch, here.attempt, current_node.get().label))
        task = asyncio.create_task(asyncio.sleep(0, current().seat))
        seen.append(await task)
        seen.append((repr(tick), tick.manual, tick.cluster is cluster, here.runner_id == holder(sim).incarnation))

    async with simulated(cluster) as sim:
        await until(sim, noon(6))
        assert seen == [
            ("x", True, True, 1, holder(sim).name),
            "cron:x",
            ("<Tick of 'x' at 2026-03-01T12:00:05Z, attempt 1>", False, True, True),
        ]


@pytest.mark.simulated(seeds=3)
@pytest.mark.parametrize("how", ["without steps", "with a stored step", "young enough", "triggered"])
async def test_a_tick_that_was_cut_off_and_is_too_old_is_skipped_unless_it_has_stored_steps(how: str) -> None:
    """`skip_if_older_than` counts for another attempt too; work that is half done is brought to its end."""
    cluster, began, ran = new_cluster(), [], []
    limit = "1h" if how == "young enough" else "2s"
    gate = asyncio.Event()

    @cluster.cron("x", "0 0 1 1 *" if how == "triggered" else "@every 1m", skip_if_older_than=limit)
    async def body(tick: Tick) -> None:
        began.append((tick.scheduled_at, tick.attempt))
        if how == "with a stored step":
            await tick.step("one", half)
        await gate.wait()
        ran.append(tick.scheduled_at)

    async def half() -> int:
        return 1

    async with simulated(cluster) as sim:
        if how == "triggered":
            await cluster.crons.trigger("x")
        await sim.wait_until(lambda: began, within="90s")
        await sim.advance(0.5)
        kill_all(sim)
        await sim.advance(10)
        gate.set()
        await sim.start(2)
        await sim.wait_until(lambda: bool(sim.database.main.execute(_OVER).fetchall()), within="30s")
        (tick, *_) = [each for each in await cluster.crons.history("x") if each.scheduled_at == began[0][0]]
        if how == "without steps":
            assert (tick.outcome, tick.reason, ran, len(began)) == ("skipped", "cut off and too old", [], 1)
        else:
            assert (tick.outcome, tick.reason, ran) == ("ran", "", [began[0][0]])
        await sim.wait_until(lambda: not sim.database.main.execute("select 1 from units").fetchall())


_OVER = "select 1 from ticks where outcome is not null and attempt > 1"
