"""Workload: stand-in owners take seats, renew leases, evict each other and append to fenced state under all faults.

The stand-in does what the ownership room will do, with the same statements, in the plainest way: one task renews and
looks at the others, one writes. The history is written by triggers inside the database, in commit order.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from coterie import Cluster, PersistenceError, ShuttingDown
from coterie.kernel.service import State
from coterie.storage.sqlite import ownership
from coterie.storage.sqlite.ownership import Boot, Claim
from coterie.testing import faults
from coterie.testing.checkers import (
    BeliefBounded,
    EpochsGrow,
    Event,
    Grant,
    NoStaleCommit,
    OneChain,
    Saved,
    Trusted,
    check,
)
from coterie.testing.running import current_loop
from coterie.testing.seeds import stream
from coterie.testing.simulation import Runner, Simulation, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import apsw

T = TypeVar("T")

RUNNERS = 5
LASTING_S = 300
SEATS = tuple(f"seat-{number}" for number in range(8))
CLUSTER = "default"
TTL_S, RENEW_S, MARGIN_S = 6.0, 1.0, 1.5

HISTORY = """
create temp table history (seq integer primary key, what text, name text, seat text, epoch integer, who text,
                           version integer, value blob, at_ns integer);
create temp trigger granted after update of holder on main.seats when new.holder is not null begin
    insert into history (what, name, epoch, who, at_ns) values ('grant', new.name, new.epoch, new.holder, virtual_ns());
end;
create temp trigger saved after insert on main.states begin
    insert into history (what, name, seat, epoch, version, value)
    values ('saved', new.key, new.seat, new.epoch, new.version, new.value);
end;
create temp trigger saved_again after update of value on main.states begin
    insert into history (what, name, seat, epoch, version, value)
    values ('saved', new.key, new.seat, new.epoch, new.version, new.value);
end;
"""


async def main(*, lasting_s: float = LASTING_S, runners: int = RUNNERS) -> int:
    """One seed: faults throughout, then calm, in which every seat finds a holder, then judgement."""
    cluster = Cluster("sqlite://")
    notes = Notes()
    async with simulate(cluster, runners=0, faults=faults.EVERYTHING) as sim:
        prepare(sim)
        sim.body = lambda runner: Owner(sim, runner, notes).live()
        await sim.start(runners)
        await sim.advance(lasting_s)
        await sim.calm()
        await sim.wait_until(lambda: all_held(sim), within="60s")
        await sim.advance(5)
        events = [*history(sim.database.main), *notes.trusted.values()]
        orphans = ownership.seats_without_runner(sim.database.main, CLUSTER)
    assert not orphans, f"seats of runners that do not exist: {orphans}"
    judged = check(events, EpochsGrow(), NoStaleCommit(), OneChain(), BeliefBounded())
    assert sum(isinstance(event, Saved) for event in events) > 10, "hardly anything was written: the run shows nothing"
    return judged


@dataclass
class Notes:
    """What the owners say of themselves."""

    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    trusted: dict[tuple[str, int], Trusted] = field(default_factory=dict)


class Owner:
    """One incarnation of a stand-in for a runner's ownership side."""

    def __init__(self, sim: Simulation, runner: Runner, notes: Notes) -> None:
        self._sim = sim
        self._runner = runner
        self._notes = notes
        self._me = runner.incarnation
        self._random = stream(sim.seed, f"fenced {self._me}")
        self._main = runner.storage._main
        self._seen: dict[str, tuple[int, int]] = {}
        self._held: dict[str, int] = {}
        self._until_ns = 0

    async def live(self) -> None:
        """One life after the other, each under an identity of its own, until the runner stops."""
        while self._runner.storage.state is State.RUNNING:
            await self._one_life()
            await asyncio.sleep(self._random.uniform(0, 2))
            self._me = f"{self._random.getrandbits(128):032x}"

    async def _one_life(self) -> None:
        self._held.clear()
        self._seen.clear()
        try:
            await self._register()
            async with asyncio.TaskGroup() as tasks:
                for seat in SEATS:
                    tasks.create_task(self._work(seat))
                await self._keep()
                raise ShuttingDown(what=self._me)  # ends the others
        except* (ShuttingDown, PersistenceError):
            pass

    async def _register(self) -> None:
        now_ns = self._sim.database.clock.wall_ns()
        runner = ownership.Runner(id=self._me, name=self._runner.name)
        await self._transact(lambda main: ownership.register(main, CLUSTER, runner, now_ns=now_ns))
        sent_ns = self._now_ns()
        ttl_ns = ns(TTL_S)
        await self._lease(
            lambda leases, boot: ownership.grant_lease(leases, CLUSTER, self._me, boot=boot, ttl_ns=ttl_ns)
        )
        self._trust_from(sent_ns)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            sent_ns = self._now_ns()
            try:
                counter, others, registered = await self._renew()
            except PersistenceError:
                continue  # no news: trust runs out by itself
            if counter is None or not registered:
                return
            self._trust_from(sent_ns)
            await self._evict_the_dead(others)
            await self._acquire()

    async def _renew(self) -> tuple[int | None, dict[str, ownership.Lease], bool]:
        main = self._sim.database.main

        def renew(leases: apsw.Connection, boot: Boot) -> tuple[int | None, dict[str, ownership.Lease], bool]:
            counter = ownership.renew(leases, CLUSTER, self._me, boot=boot, ttl_ns=ns(TTL_S))
            others = ownership.observe(leases, CLUSTER, boot=boot)
            return counter, others, ownership.is_registered(main, CLUSTER, self._me)

        return await self._lease(renew)

    async def _evict_the_dead(self, others: dict[str, ownership.Lease]) -> None:
        now_ns = self._now_ns()
        others.pop(self._me, None)
        for victim, lease in others.items():
            counter, since_ns = self._seen.get(victim, (-1, now_ns))
            if counter != lease.counter:
                self._seen[victim] = (lease.counter, now_ns)
            elif lease.expired and now_ns - since_ns >= ns(TTL_S):
                await self._try(self._evict(victim, counter))

    async def _evict(self, victim: str, counter: int) -> bool:
        main = self._sim.database.main
        return await self._lease(
            lambda leases, boot: ownership.evict(
                leases, main, CLUSTER, victim, counter=counter, expired=True, boot=boot
            )
        )

    async def _acquire(self) -> None:
        wanted = [seat for seat in SEATS if seat not in self._held and self._random.random() < 0.5]
        granted = await self._try(self._transact(lambda main: ownership.acquire(main, CLUSTER, self._me, wanted)))
        for seat, epoch in (granted or {}).items():
            if self._trusts():
                self._held[seat] = epoch
                self._note_trust()

    async def _work(self, seat: str) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0.5, 3))
            epoch = self._held.get(seat)
            if epoch is None or not self._trusts():
                continue
            claim = Claim(CLUSTER, self._me, seat, epoch)
            if self._random.random() < 0.05:
                await self._give_up(claim)
            else:
                await self._append(claim)

    async def _append(self, claim: Claim) -> None:
        """Load under the fence, add a number, save under the fence; whatever is unclear is loaded anew."""
        loaded = await self._try(self._transact(lambda main: ownership.claim_state(main, claim, key=claim.seat)))
        if loaded is None:
            self._held.pop(claim.seat, None)
            return
        value, version = loaded
        await asyncio.sleep(self._random.uniform(0, 3))  # user code runs here
        new = msgspec.msgpack.encode([*(msgspec.msgpack.decode(value) if value else []), next(self._notes.numbers)])
        written = await self._try(
            self._transact(lambda main: ownership.save_state(main, claim, key=claim.seat, value=new, version=version))
        )
        if written == "fenced":
            self._held.pop(claim.seat, None)

    async def _give_up(self, claim: Claim) -> None:
        del self._held[claim.seat]
        self._notes.trusted.pop((claim.seat, claim.epoch), None)  # given up of one's own will
        await self._try(self._transact(lambda main: ownership.release(main, claim)))

    # Trust, on this runner's own clock

    def _now_ns(self) -> int:
        return self._runner.clock.steady_ns()

    def _trusts(self) -> bool:
        return self._now_ns() < self._until_ns

    def _trust_from(self, sent_ns: int) -> None:
        self._until_ns = sent_ns + ns(TTL_S - MARGIN_S)
        self._note_trust()

    def _note_trust(self) -> None:
        loop = current_loop()
        until_ns = self._runner.true_ns(self._until_ns)
        if until_ns > loop.now_ns:
            for seat, epoch in self._held.items():
                self._notes.trusted[seat, epoch] = Trusted(seat, epoch, self._me, until_ns)

    # Storage

    async def _transact(self, work: Callable[[apsw.Connection], T]) -> T:
        return await self._main.transact(work, doing="work")

    async def _lease(self, work: Callable[[apsw.Connection, Boot], T]) -> T:
        clock = self._sim.database.clock
        leases = await self._runner.storage.dedicated()
        return await leases.transact(lambda c: work(c, Boot("boot", clock.steady_ns())), doing="lease")

    async def _try(self, attempt: Coroutine[Any, Any, T]) -> T | None:
        try:
            return await attempt
        except PersistenceError:
            return None


def prepare(sim: Simulation) -> None:
    """The seats, and triggers that write the history."""
    main = sim.database.main
    ownership.declare(main, CLUSTER, SEATS, group="default", now_ns=0)
    main.create_scalar_function("virtual_ns", lambda *_: sim.loop.now_ns, 0)
    main.execute(HISTORY)


def history(main: apsw.Connection) -> list[Event]:
    """What was committed, in order."""
    rows = main.execute("select what, name, seat, epoch, who, version, value, at_ns from history order by seq")
    return [_event(*row) for row in rows]


def _event(what: Any, name: Any, seat: Any, epoch: Any, who: Any, version: Any, value: Any, at_ns: Any) -> Event:
    if what == "grant":
        return Grant(name, epoch, who, at_ns)
    return Saved(name, seat, epoch, version, tuple(msgspec.msgpack.decode(value)))


def all_held(sim: Simulation) -> bool:
    """Whether every seat has a holder."""
    return not sim.database.main.execute("select count(*) from seats where holder is null").get


def ns(seconds: float) -> int:
    return int(seconds * 1e9)
