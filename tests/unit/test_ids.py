"""Ids of a process: unique through restarts, lost leases, broken databases and wrong clocks (K2, S1, M15)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import pytest

from coterie.errors import Forked, NotStarted, PersistenceError, ShuttingDown
from coterie.kernel import fork_guard
from coterie.kernel.ids import MACHINES, Snowflake
from coterie.kernel.random import Random
from coterie.ownership.machine_id import AHEAD_MS, LEASE_S, IdGenerator
from coterie.settings import Settings
from coterie.storage.engines import open_storage
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.errors import Outcome
    from coterie.storage.interface import Machine, MachineIds, Storage

START_AT = datetime(2025, 6, 1, tzinfo=UTC)
DOWN = PersistenceError(doing="reach the database", problem="it is down", outcome="unreachable")


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the machine with the database."""
    return ManualClock(START_AT)


@pytest.fixture
async def storage(clock: ManualClock) -> AsyncIterator[Storage]:
    settings = Settings.load({"url": "sqlite://"}, environ={})
    async with open_storage(settings, incarnation="0" * 32, clock=clock, chance=Random(1)) as storage:
        yield storage


class Watched:
    """Stands before the machine ids of a storage: notes what is asked, keeps it waiting, or fails it."""

    def __init__(self, machines: MachineIds) -> None:
        self._machines = machines
        self.asked: list[str] = []
        self.fails: dict[str, PersistenceError] = {}
        self.open = asyncio.Event()
        self.open.set()

    async def lease(self, holder: str, *, ttl_s: float, until_ms: int) -> Machine | None:
        await self._pass("lease")
        return await self._machines.lease(holder, ttl_s=ttl_s, until_ms=until_ms)

    async def extend(self, id: int, holder: str, *, ttl_s: float, until_ms: int) -> bool:
        await self._pass("extend")
        return await self._machines.extend(id, holder, ttl_s=ttl_s, until_ms=until_ms)

    async def give_back(self, id: int, holder: str) -> None:
        await self._pass("give_back")
        await self._machines.give_back(id, holder)

    async def _pass(self, what: str) -> None:
        self.asked.append(what)
        await self.open.wait()
        if what in self.fails:
            raise self.fails[what]


@pytest.fixture
def machines(storage: Storage) -> Watched:
    return Watched(storage.machines)


@pytest.fixture
async def ids(machines: Watched, clock: ManualClock) -> AsyncIterator[IdGenerator]:
    async with IdGenerator(machines, holder="a", clock=clock) as ids:
        yield ids


@asynccontextmanager
async def process(machines: MachineIds, clock: ManualClock, *, holder: str) -> AsyncIterator[IdGenerator]:
    """A process that draws ids, and stops in good order."""
    async with IdGenerator(machines, holder=holder, clock=clock) as ids:
        yield ids


async def taken(ids: IdGenerator, count: int) -> list[int]:
    return [await ids.take() for _ in range(count)]


def machine_of(drawn: int) -> int:
    return Snowflake.parts(drawn).machine_id


async def test_nothing_is_leased_before_the_first_id(ids: IdGenerator, machines: Watched) -> None:
    """M15: a client that draws none needs none."""
    assert machines.asked == []
    await ids.take()
    assert machines.asked == ["lease"]


async def test_ids_increase_and_tell_the_time_and_the_machine(ids: IdGenerator, clock: ManualClock) -> None:
    drawn = await taken(ids, 5000)
    assert all(one < two for one, two in pairwise(drawn))
    assert set(map(machine_of, drawn)) == {0}
    assert abs(Snowflake.datetime(drawn[0]) - START_AT) < timedelta(seconds=1)


async def test_after_a_failover_a_machine_id_is_leased_anew_and_ids_go_on_increasing(
    ids: IdGenerator, machines: Watched
) -> None:
    """The new server may know nothing of the lease, and give the machine id to another process."""
    before = await taken(ids, 3)
    ids.lease_again()
    after = await taken(ids, 3)
    assert before + after == sorted({*before, *after})
    assert machines.asked.count("lease") == 2


async def test_the_mark_is_raised_ahead_so_that_nobody_waits(
    ids: IdGenerator, machines: Watched, clock: ManualClock
) -> None:
    await ids.take()
    for _ in range(100):  # 100 s of drawing
        clock.advance(timedelta(seconds=1))
        before = len(machines.asked)
        machines.open.clear()
        await ids.take()  # would wait for ever if it needed the database
        machines.open.set()
        await settled(ids)
        assert len(machines.asked) - before <= 1
    assert machines.asked[0] == "lease"
    assert set(machines.asked[1:]) == {"extend"}
    assert len(machines.asked) <= 1 + 100 // (AHEAD_MS // 2000)


async def settled(ids: IdGenerator) -> None:
    async with asyncio.timeout(120):
        while len(ids.tasks):
            await asyncio.sleep(0)


async def test_all_who_wait_share_one_statement(ids: IdGenerator, machines: Watched, clock: ManualClock) -> None:
    drawn = await asyncio.gather(*(ids.take() for _ in range(100)))
    assert machines.asked == ["lease"]
    clock.advance(timedelta(hours=1))
    drawn += await asyncio.gather(*(ids.take() for _ in range(100)))
    assert machines.asked == ["lease", "extend"]
    assert len(set(drawn)) == 200


async def test_a_caller_that_is_cancelled_leaves_the_others_their_ids(ids: IdGenerator, machines: Watched) -> None:
    machines.open.clear()
    first, second = asyncio.create_task(ids.take()), asyncio.create_task(ids.take())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    machines.open.set()
    assert await second >= 0
    assert machines.asked == ["lease"]


async def test_a_database_that_is_down_is_not_needed_while_the_mark_lies_ahead(
    ids: IdGenerator, machines: Watched, clock: ManualClock
) -> None:
    drawn = await taken(ids, 10)
    machines.fails = {"extend": DOWN}
    clock.advance(timedelta(milliseconds=AHEAD_MS - 1))
    for _ in range(100):
        drawn += await taken(ids, 1)
        await settled(ids)
    assert machines.asked == ["lease", "extend"], "one try ahead of need, not one for each id"
    clock.advance(timedelta(milliseconds=2))
    with pytest.raises(PersistenceError, match="it is down"):
        await ids.take()
    machines.fails = {}
    drawn += await taken(ids, 10)
    assert len(set(drawn)) == 120


async def draw_each_second(ids: IdGenerator, clock: ManualClock, drawn: list[int]) -> None:
    for _ in range(100):
        clock.advance(timedelta(seconds=1))
        drawn += await taken(ids, 1)
        await settled(ids)


@pytest.mark.parametrize("outcome", ["unknown", "unreachable"])
async def test_whoever_is_cut_off_draws_nothing_that_its_successor_may_draw(
    ids: IdGenerator, machines: Watched, clock: ManualClock, storage: Storage, outcome: Outcome
) -> None:
    """S1, 0.6: whatever became of the last extension, no id passes a mark that is known to be stored."""
    drawn = await taken(ids, 1)
    clock.advance(timedelta(milliseconds=AHEAD_MS + 1))
    drawn += await taken(ids, 1)  # the mark was raised once
    machines.fails = {"extend": PersistenceError(doing="extend", problem="lost", outcome=outcome)}
    with pytest.raises(PersistenceError, match="lost"):
        await draw_each_second(ids, clock, drawn)
    assert len(drawn) >= 10
    clock.advance(timedelta(seconds=LEASE_S))
    heir = await storage.machines.lease("b", ttl_s=600, until_ms=0)
    assert heir is not None
    assert heir.id == machine_of(drawn[-1])
    assert heir.after_ms >= Snowflake.parts(drawn[-1]).timestamp


async def test_whoever_has_lost_its_machine_id_and_gets_no_other_draws_nothing(
    ids: IdGenerator, machines: Watched, clock: ManualClock, storage: Storage
) -> None:
    """S1."""
    await ids.take()
    clock.advance(timedelta(seconds=LEASE_S + 1))
    assert await storage.machines.lease("b", ttl_s=600, until_ms=0) is not None
    machines.fails = {"lease": DOWN}
    for _ in range(3):
        with pytest.raises(PersistenceError, match="it is down"):
            await ids.take()


async def test_a_lease_is_prolonged_while_it_is_used_also_when_the_clock_does_not_move_on(
    ids: IdGenerator, machines: Watched, clock: ManualClock, storage: Storage
) -> None:
    """GAP-04: after a step back no id comes near the mark for long; the lease is kept all the same."""
    await ids.take()
    clock.step_wall(-timedelta(hours=1))
    for _ in range(10):
        clock.advance(timedelta(seconds=LEASE_S / 4))
        await ids.take()
        await settled(ids)
        other = await storage.machines.lease("b", ttl_s=0, until_ms=0)
        assert other is not None
        assert other.id != 0
    assert machines.asked.count("extend") == 5
    assert machine_of(await ids.take()) == 0


async def test_whoever_lost_its_machine_id_goes_on_with_another_and_ids_still_increase(
    ids: IdGenerator, clock: ManualClock, storage: Storage
) -> None:
    """S1: idle for so long that somebody else has taken it; the second time the clock has stepped back as well."""
    drawn = await taken(ids, 10)
    clock.advance(timedelta(seconds=LEASE_S + 1))
    heir = await storage.machines.lease("b", ttl_s=600, until_ms=0)
    assert heir is not None
    assert heir.after_ms >= Snowflake.parts(drawn[-1]).timestamp
    drawn += await taken(ids, 10)
    assert machine_of(drawn[-1]) != heir.id == machine_of(drawn[0])
    clock.advance(timedelta(seconds=LEASE_S + 1))
    assert await storage.machines.lease("c", ttl_s=600, until_ms=0) is not None
    clock.step_wall(-timedelta(hours=1))
    for _ in range(10):
        drawn += await taken(ids, 1)
        await settled(ids)
    assert len(set(map(machine_of, drawn))) == 3
    assert all(one < two for one, two in pairwise(drawn))


async def test_gap_04_wrong_clocks_and_steps_back_under_load_repeat_nothing_and_fail_nothing(storage: Storage) -> None:
    """GAP-04: two processes an hour wrong, one right; each clock steps back 5 s again and again, once by an hour."""
    clocks = [ManualClock(START_AT + timedelta(hours=hours)) for hours in (-1, 0, 1)]
    runners = [IdGenerator(storage.machines, holder=f"{number}", clock=clock) for number, clock in enumerate(clocks)]
    for ids in runners:
        await ids.start()
    drawn: list[list[int]] = [[] for _ in runners]

    async def load(number: int) -> None:
        for step in range(60):
            drawn[number] += await taken(runners[number], 500)
            clocks[number].advance(timedelta(milliseconds=700))
            if step % 5 == 4:
                clocks[number].step_wall(-timedelta(seconds=5))
            if step in (20, 40):
                clocks[number].step_wall(timedelta(hours=1 if step == 20 else -1))

    await asyncio.gather(*(load(number) for number in range(3)))
    for ids in runners:
        await ids.stop()
    for each in drawn:
        assert all(one < two for one, two in pairwise(each))
    assert len(set(chain.from_iterable(drawn))) == 3 * 60 * 500


async def test_gap_10_more_restarts_than_machine_ids_clash_nowhere(storage: Storage, clock: ManualClock) -> None:
    """GAP-10: 3,000 processes, half of them killed, with clocks that are wrong; in 300 s, so that leases expire."""
    drawn: list[int] = []
    chance = Random(7)
    left: list[IdGenerator] = []
    for number in range(3000):
        clock.advance(timedelta(milliseconds=100))
        its = ManualClock(START_AT + timedelta(seconds=number / 10 + chance.between(-30, 30)))
        ids = IdGenerator(storage.machines, holder=f"{number}", clock=its)
        await ids.start()
        drawn += await taken(ids, 3)
        if number % 2:
            await ids.stop()
        else:
            left.append(ids)
            drawn += await taken(left[chance.bits(20) % len(left)], 1)  # somebody lives longer than its lease
    assert len(set(drawn)) == len(drawn)
    for ids in left:
        await ids.stop()


async def leave_free(storage: Storage, count: int) -> None:
    for _ in range(MACHINES - count):
        assert await storage.machines.lease("others", ttl_s=10**6, until_ms=0) is not None


async def test_the_next_holder_of_a_machine_id_begins_after_the_mark_whatever_its_clock_says(storage: Storage) -> None:
    """M15, GAP-04."""
    await leave_free(storage, 1)
    drawn: list[int] = []
    for hours in (1, 0, -1, 0):
        clock = ManualClock(START_AT + timedelta(hours=hours))
        async with process(storage.machines, clock, holder=f"{hours}") as ids:
            drawn += await taken(ids, 5000)
    assert len(set(map(machine_of, drawn))) == 1
    assert all(one < two for one, two in pairwise(drawn))


async def test_gap_10_restarts_on_the_last_few_machine_ids_clash_nowhere(storage: Storage, clock: ManualClock) -> None:
    """GAP-10, GAP-04: 1,100 processes follow each other on 16 machine ids, some killed, with clocks an hour wrong."""
    await leave_free(storage, 16)
    drawn: list[int] = []
    chance = Random(3)
    for number in range(1100):
        clock.advance(timedelta(seconds=10))
        hours = chance.bits(20) % 3 - 1
        its = ManualClock(START_AT + timedelta(seconds=10 * number, hours=hours))
        ids = IdGenerator(storage.machines, holder=f"{number}", clock=its)
        await ids.start()
        drawn += await taken(ids, 3)
        if number % 2:
            await ids.stop()
    assert len(set(drawn)) == len(drawn) == 3300
    assert len(set(map(machine_of, drawn))) == 16


async def test_restarts_do_not_push_ids_into_the_future(storage: Storage, clock: ManualClock) -> None:
    """GAP-10: each restart writes a mark ahead; the next process takes a machine id whose mark has passed."""
    for number in range(300):
        clock.advance(timedelta(milliseconds=10))
        async with process(storage.machines, clock, holder=f"{number}") as ids:
            drawn = await ids.take()
        assert abs(Snowflake.parts(drawn).timestamp - clock.wall_ns() // 1_000_000) < 1000


async def test_incident_7_the_1025th_process_is_told_what_to_do_and_the_next_after_a_stop_works(
    storage: Storage, clock: ManualClock
) -> None:
    held = [IdGenerator(storage.machines, holder=f"{number}", clock=clock) for number in range(MACHINES)]
    for ids in held:
        await ids.start()
    drawn = [await ids.take() for ids in held]
    assert set(map(machine_of, drawn)) == set(range(MACHINES))
    async with process(storage.machines, clock, holder="late") as late:
        with pytest.raises(PersistenceError, match="all 1,024 machine ids are leased") as caught:
            await late.take()
        assert "come free within 60s" in caught.value.hint
        assert caught.value.retryable
        await held[5].stop()
        assert machine_of(await late.take()) == 5
        clock.advance(timedelta(seconds=LEASE_S + 1))
        async with process(storage.machines, clock, holder="later") as later:
            assert await later.take() not in drawn


async def test_a_runner_out_of_trust_draws_nothing(machines: Watched, clock: ManualClock) -> None:
    trusted = True
    async with IdGenerator(machines, holder="a", clock=clock, trust=lambda: trusted) as ids:
        await ids.take()
        trusted = False
        with pytest.raises(PersistenceError, match="renew its lease") as caught:
            await ids.take()
        assert caught.value.outcome == "unreachable"
        trusted = True
        await ids.take()


async def test_trust_that_ends_while_waiting_for_the_database_is_noticed(machines: Watched, clock: ManualClock) -> None:
    trusted = True
    async with IdGenerator(machines, holder="a", clock=clock, trust=lambda: trusted) as ids:
        machines.open.clear()
        waiting = asyncio.create_task(ids.take())
        await asyncio.sleep(0)
        trusted = False
        machines.open.set()
        with pytest.raises(PersistenceError, match="renew its lease"):
            await waiting


async def test_a_stop_gives_the_machine_id_back_and_ends_those_who_wait(machines: Watched, clock: ManualClock) -> None:
    ids = IdGenerator(machines, holder="a", clock=clock)
    with pytest.raises(NotStarted):
        await ids.take()
    await ids.start()
    await ids.take()
    clock.advance(timedelta(hours=1))
    machines.open.clear()
    waiting = asyncio.create_task(ids.take())
    await asyncio.sleep(0)
    stopping = asyncio.create_task(ids.stop())
    with pytest.raises(ShuttingDown):
        await waiting
    machines.open.set()
    await stopping
    assert machines.asked == ["lease", "extend", "give_back"]
    async with process(machines, clock, holder="b") as heir:
        assert machine_of(await heir.take()) == 0


async def test_a_stop_without_a_database_is_a_stop(machines: Watched, clock: ManualClock) -> None:
    ids = IdGenerator(machines, holder="a", clock=clock)
    await ids.start()
    await ids.take()
    machines.fails = {"give_back": DOWN}
    await ids.stop()


async def test_a_forked_child_draws_nothing(ids: IdGenerator, monkeypatch: pytest.MonkeyPatch) -> None:
    """P13: it has its parent's memory, and would draw the same ids."""
    await ids.take()
    with monkeypatch.context() as child:
        child.setattr(fork_guard, "_here", 1)
        with pytest.raises(Forked):
            await ids.take()
    await ids.take()
