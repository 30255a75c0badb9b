"""Scenarios of ownership, simulated: storage that does not answer (LOCK), drains (REBAL), clocks and restarts (GAP).

Each run is also judged by INV-F1 to F4 and S1: see `seat_cluster`. Two of them need a real server: LOCK-13, a session
whose end hangs, and GAP-07, a transaction pooler (`tests/cluster`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster, PersistenceError
from coterie.kernel import chaos
from coterie.kernel.ids import MACHINES
from coterie.kernel.random import Random
from coterie.runner import NoOccupant
from coterie.settings import Settings
from coterie.storage.interface import Registration, SeatDeclaration
from coterie.storage.sqlite import SqliteStorage
from coterie.testing.simulation import simulate
from tests.simulation.seat_cluster import MARGIN_S, TTL_S, staged
from tests.support.history.ownership import Drawn

if TYPE_CHECKING:
    from coterie.ownership.seats import Tenure
    from coterie.testing.simulation import Runner, Simulation
    from tests.simulation.seat_cluster import SimulatedSeats

TRUSTED_S = TTL_S - MARGIN_S


# Storage that does not answer


@pytest.mark.simulated(seeds=4)
async def test_lock_01_without_storage_a_runner_stops_in_time_and_goes_on_when_it_is_back() -> None:
    """LOCK-01: it gives everything up when trust ends, however long a drain may take, and does not shut down."""
    async with staged(runners=1, drain="30s") as stage:
        (runner,) = stage.sim.runners
        incarnation, before, began_ns = runner.incarnation, stage.seats, stage.sim.loop.now_ns
        runner.cut("storage")
        await stage.sim.wait_until(lambda: not stage.believed_by(runner), within=TRUSTED_S)
        await stage.sim.advance(0.1)
        assert all(each.abandoned for writers in stage.notes.writers.values() for each in writers)
        await stage.sim.advance(20)
        assert stage.grants(since_ns=began_ns) == []
        runner.heal()
        await stage.settle()
        assert runner.incarnation == incarnation
        assert all(stage.seats[name].epoch > row.epoch for name, row in before.items())


@pytest.mark.simulated(seeds=4)
@pytest.mark.parametrize("ways", [(), ("requests",), ("replies",)], ids=["both", "requests", "replies"])
async def test_lock_03_04_of_a_runner_whose_statements_hang_a_peer_takes_over(ways: tuple[Any, ...]) -> None:
    """LOCK-03, LOCK-04: never two owners; when they hang no more both hold seats, and the map stays as it is."""
    async with staged(runners=1) as stage:
        first = stage.sim.runners[0]
        first.cut("storage", *ways)
        await stage.sim.start(1)
        second = stage.sim.runners[1]
        await stage.sim.wait_until(lambda: len(stage.held_by(second)) == len(stage.seats), within="25s")
        assert not stage.believed_by(first)
        first.heal()
        await stage.settle()
        before = stage.seats
        assert stage.held_by(first)
        assert stage.held_by(second)
        await stage.sim.advance(5)
        assert stage.seats == before


@pytest.mark.simulated(seeds=4)
async def test_lock_05_quick_errors_cost_nothing_while_the_lease_is_trusted() -> None:
    """LOCK-05: then silence does."""
    async with staged(runners=2) as stage:
        before = stage.seats
        stage.sim.database.weather.error_before = 1.0
        await stage.sim.advance(2.5)
        stage.sim.database.weather.error_before = 0.0
        await stage.sim.advance(5)
        assert stage.seats == before
        silent, other = stage.sim.runners
        silent.cut("storage")
        await stage.sim.wait_until(lambda: len(stage.held_by(other)) == len(stage.seats), within="15s")
        silent.heal()
        await stage.settle()


class NeverDone(NoOccupant):
    """Sits on a seat that it does not want to leave."""

    async def drain(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.simulated(seeds=4)
async def test_lock_08_what_is_owed_is_given_back_once_and_waits_for_nobody() -> None:
    """LOCK-08: whoever sits on the seat has no say, not even one who would never be done."""
    async with staged(runners=0) as stage:
        stage.sim.occupy = lambda _: lambda _: NeverDone()
        await stage.sim.start(1)
        await stage.settle()
        (runner,) = stage.sim.runners
        runner.cut("storage")
        await stage.sim.advance(10)
        since_ns = stage.sim.loop.now_ns
        runner.heal()
        await stage.settle()
        released = [(seat, epoch) for seat, epoch, *_ in stage.releases(since_ns=since_ns)]
        assert sorted(seat for seat, _ in released) == list(stage.seats)
        runner.kill()


@pytest.mark.simulated(seeds=6)
async def test_lock_09_nothing_is_acquired_before_what_is_owed_was_given_back() -> None:
    """LOCK-09: meanwhile the other one leaves, so that its seats are free for this one."""
    async with staged(runners=2, fair=True) as stage:
        owing, leaving = stage.sim.runners
        owed = stage.held_by(owing)
        owing.cut("storage")
        await stage.sim.wait_until(lambda: not stage.believed_by(owing), within=TRUSTED_S)
        await leaving.stop()
        await stage.sim.advance(5)
        since_ns = stage.sim.loop.now_ns
        owing.heal()
        await stage.settle()
        first_granted_ns = min(at_ns for *_, at_ns in stage.grants(since_ns=since_ns))
        given_back = {seat: at_ns for seat, *_, at_ns in stage.releases(since_ns=since_ns)}
        assert sorted(given_back) == owed
        assert max(given_back.values()) <= first_granted_ns


@pytest.mark.simulated(seeds=4)
async def test_lock_10_11_12_a_session_is_opened_anew_as_often_as_it_takes() -> None:
    """LOCK-10, 11, 12: what hangs is given up, the next session may hang too; then it goes on by itself."""
    async with staged(runners=1) as stage:
        (runner,) = stage.sim.runners
        for ways in (("requests",), ("replies",), ()):
            runner.cut("storage", *ways)
            await stage.sim.advance(8)
            runner.heal()
            await stage.sim.advance(0.0005)
        await stage.sim.wait_until(lambda: len(stage.believed_by(runner)) == len(stage.seats), within="10s")


# One holder


async def registered(storage: SqliteStorage, me: str) -> Any:
    await storage.start()
    session = await storage.ownership(me).__aenter__()
    row = Registration(id=me, name=me, address="", host_id="", groups=("default",))
    await session.register(row, [SeatDeclaration("seat", "default")], ttl_s=60)
    return session


def other_storage(sim: Simulation, me: str, *, cluster: str) -> SqliteStorage:
    return SqliteStorage(
        Settings.load({"url": "sqlite://", "name": cluster}, environ={}),
        incarnation=me,
        clock=sim.database.clock,
        chance=Random(1),
        executors=sim.database.executors(me),
        witness=sim.database.witness,
    )


@pytest.mark.simulated(seeds=4)
async def test_lock_14_15_of_two_one_is_granted_a_seat_and_in_another_cluster_another_one() -> None:
    """LOCK-14, m7; LOCK-15 as it is here: who asks again gets nothing new, since the seat is not free."""
    async with simulate(Cluster("sqlite://"), runners=0) as sim:
        names = {"a": "one", "b": "one", "c": "two"}
        a, b, c = [await registered(other_storage(sim, me, cluster=cluster), me) for me, cluster in names.items()]
        granted = await asyncio.gather(*(session.acquire(["seat"]) for session in (a, b, c)))
        assert sorted(map(len, granted[:2])) == [0, 1]
        assert len(granted[2]) == 1
        assert [await session.acquire(["seat"]) for session in (a, b, c)] == [[], [], []]


@pytest.mark.simulated(seeds=6)
async def test_lock_15_m13_a_grant_whose_answer_was_lost_is_not_acted_upon() -> None:
    """LOCK-15, M13: it is found in the table, given back, and taken at another epoch."""
    async with staged(runners=0) as stage:
        lost: list[tuple[str, int]] = []
        weather = stage.sim.database.weather

        def lose(seat: str, epoch: int, _: str) -> None:
            lost.append((seat, epoch))
            weather.error_after = 1.0
            stage.sim.loop.call_at_ns(stage.sim.loop.now_ns + 1, mend)

        def mend() -> None:
            stage.notes.on_grant, weather.error_after = None, 0.0

        stage.notes.on_grant = lose
        await stage.sim.start(1)
        await stage.settle()
        assert lost
        assert all(stage.seats[seat].epoch > epoch for seat, epoch in lost)
        assert not occupied(stage) & set(lost)


def occupied(stage: SimulatedSeats) -> set[tuple[str, int]]:
    """The seats and epochs on which somebody has ever sat."""
    return {(each.tenure.seat, each.tenure.epoch) for writers in stage.notes.writers.values() for each in writers}


@pytest.mark.simulated(seeds=4)
async def test_m13_what_the_table_does_not_have_in_our_name_is_dropped() -> None:
    """M13 as far as a file can show it: after a failover that lost grants seats are free, or of who does not know."""
    async with staged(runners=2) as stage:
        runner, other = stage.sim.runners
        free, given = stage.held_by(runner)[:2]
        lost = [runner.real.tenure(seat) for seat in (free, given)]
        main = stage.sim.database.main
        main.execute("update seats set holder = null where name = ?", (free,))
        main.execute("update seats set holder = ?, epoch = epoch + 1 where name = ?", (other.incarnation, given))
        strange = given, stage.seats[given].epoch
        await stage.sim.wait_until(lambda: not any(tenure is None or tenure.held for tenure in lost), within="4s")
        await stage.settle()
        assert strange not in occupied(stage), "whoever does not know how it came by a seat gives it back"
        stage.notes.wrongs.clear()  # belief outlived what the database forgot: the fence alone holds then


@pytest.mark.simulated(seeds=4)
async def test_lock_16_who_starts_again_is_another_incarnation() -> None:
    """LOCK-16 as it is here: nobody is taken for who was there before, so its seats pass at new epochs."""
    async with staged(runners=2) as stage:
        runner = stage.sim.runners[0]
        old, held, before = runner.incarnation, stage.held_by(runner), stage.seats
        runner.kill()
        await runner.start()
        assert runner.incarnation != old
        await stage.settle()
        assert stage.rows("select 1 from runners where id = ?", old) == []
        assert all(stage.seats[name].epoch > before[name].epoch for name in held)


# Moves


class Slow(NoOccupant):
    """Needs two seconds to be done, and says when it was asked."""

    def __init__(self, tenure: Tenure, asked: dict[tuple[str, int], int], stage: SimulatedSeats) -> None:
        self._tenure, self._asked, self._stage = tenure, asked, stage

    async def drain(self) -> None:
        self._asked[self._tenure.seat, self._tenure.epoch] = self._stage.sim.loop.now_ns
        for _ in range(20):
            assert self._tenure.held
            await asyncio.sleep(0.1)


@pytest.mark.simulated(seeds=4)
async def test_rebal_05_a_seat_that_moves_is_kept_until_its_work_is_done_and_released_once() -> None:
    """REBAL-05: neither interrupted nor given back before. What ends at the limit is for who sits there to see to."""
    async with staged(runners=0) as stage:
        asked: dict[tuple[str, int], int] = {}
        stage.sim.occupy = lambda _: lambda tenure: Slow(tenure, asked, stage)
        await stage.sim.start(1)
        await stage.settle()
        await stage.sim.start(2)
        await stage.settle()
        released = {(seat, epoch): at_ns for seat, epoch, _, at_ns in stage.releases()}
        assert asked.keys() == released.keys()
        assert len(stage.releases()) == len(released) > 0
        assert all(at_ns - asked[key] >= 1_990_000_000 for key, at_ns in released.items())


# Clocks and restarts


@pytest.mark.simulated(seeds=4)
async def test_gap_04_a_wrong_clock_of_a_runner_moves_nothing_and_repeats_no_id() -> None:
    """GAP-04, INV-S1: an hour off, and back by 5 s again and again while it writes and draws ids."""
    async with staged() as stage:
        before = stage.seats
        for runner, by_s in zip(stage.sim.runners, (3600, -3600, -5), strict=True):
            runner.step_clock(by_s)
        for _ in range(20):
            await stage.sim.advance(1)
            stage.sim.runners[2].step_clock(-5)
        assert stage.seats == before
        assert len({each.by for each in stage.notes.drawn[-60:]}) == 3


@pytest.mark.simulated(seeds=3)
async def test_gap_10_restarted_runners_draw_ids_from_few_machine_ids_without_a_clash() -> None:
    """GAP-10, INV-S1: with four left of 1,024, and kills that leave theirs leased for a minute."""
    async with staged(runners=2) as stage:
        machines = stage.sim.runners[0].storage.machines
        taken = len(stage.rows("select 1 from machines where holder is not null"))
        for _ in range(MACHINES - taken - 4):
            await machines.lease("others", ttl_s=10**6, until_ms=0)
        for number in range(20):
            runner = stage.sim.runners[number % 2]
            runner.kill()
            await runner.start()
            await runner.spawn(draw(stage, runner))
        await stage.settle()


async def draw(stage: SimulatedSeats, runner: Runner) -> None:
    """Draw some ids, if there is a machine id to be had."""
    for _ in range(5):
        try:
            stage.notes.drawn.append(Drawn(await runner.real.ids.take(), runner.incarnation))
        except PersistenceError:
            await asyncio.sleep(20)


# Many seats


@pytest.mark.simulated(seeds=2)
async def test_a_runner_with_very_many_shards_keeps_its_lease_while_it_leaves() -> None:
    """Releases wait for the session of the lease: behind 10,000 of them renewals came too late."""
    chaos.install(None)
    shards = 600
    async with simulate(Cluster("sqlite://", shards=shards, drain="60s"), runners=1) as sim:
        (runner,) = sim.runners
        await sim.wait_until(lambda: len(runner.real.seats) == shards)
        sim.database.weather.slow, sim.database.weather.latency_ns = 0.0, 10_000_000
        before_ns = sim.loop.now_ns
        await runner.stop()
        rows = list(sim.database.main.execute("select holder, epoch, released_epoch from seats"))
        assert rows == [(None, 1, 1)] * shards, "each was given back by its holder"
        assert (sim.loop.now_ns - before_ns) / 1e9 > 2 * TRUSTED_S, "else it proves nothing"
