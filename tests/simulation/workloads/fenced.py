"""Workload: stand-in owners take seats, renew leases, evict each other and append to fenced state under all faults.

The stand-in does what the ownership room does, over the same session, in the plainest way: one task renews and looks at
the others, one writes. It is of a cluster of its own, beside the runners that carry it. The history is written by
triggers inside the database, in commit order.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from coterie import Cluster, PersistenceError, ShuttingDown
from coterie.kernel.random import Random
from coterie.kernel.service import State
from coterie.settings import Settings
from coterie.storage.interface import Claim, Registration, SeatDeclaration, StateSave
from coterie.storage.sqlite import SqliteStorage, seats
from coterie.storage.sqlite.store import Scope
from coterie.testing import faults
from coterie.testing.loop.seeds import stream
from coterie.testing.run import current_loop
from coterie.testing.simulation import Runner, Simulation, simulate
from tests.support.history.ownership import (
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

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from contextlib import AbstractAsyncContextManager

    import apsw

    from coterie.storage.interface import Ownership, Sighting

T = TypeVar("T")

RUNNERS = 5
LASTING_S = 300
SEATS = tuple(f"seat-{number}" for number in range(8))
CLUSTER = "stand-ins"
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
    # The runners that carry the stand-ins are as quiet as they can be.
    quiet = {"lease_ttl": "60s", "lease_renew": "10s", "stall_limit": "60s"}
    cluster = Cluster("sqlite://", settings=Settings.load({"shards": 1, **quiet}, environ={}))
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
        orphans = seats_without_runner(sim.database.main, CLUSTER)
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
        self._storage = self._new_storage()
        self._turn = asyncio.Lock()
        self._opened = AsyncExitStack()
        self._session: Ownership | None = None
        self._seen: dict[str, tuple[int, int]] = {}
        self._held: dict[str, int] = {}
        self._until_ns = 0

    async def live(self) -> None:
        """One life after the other, each under an identity of its own, until the runner stops."""
        while not await self._started():
            self._storage = self._new_storage()
        while self._runner.storage.state is State.RUNNING:
            await self._one_life()
            await self._close()
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
        me = Registration(id=self._me, name=self._runner.name, address="", host_id="", groups=("default",))
        sent_ns = self._now_ns()
        await self._ask(lambda session: session.register(me, [], ttl_s=TTL_S))
        self._trust_from(sent_ns)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            sent_ns = self._now_ns()
            try:
                renewal = await self._ask(lambda session: session.renew(ttl_s=TTL_S))
            except PersistenceError:
                continue  # no news: trust runs out by itself
            if renewal is None:
                return
            self._trust_from(sent_ns)
            await self._evict_the_dead(renewal.others)
            await self._acquire()

    async def _evict_the_dead(self, others: Sequence[Sighting]) -> None:
        now_ns = self._now_ns()
        for other in others:
            counter, since_ns = self._seen.get(other.id, (-1, now_ns))
            if counter != other.counter:
                self._seen[other.id] = (other.counter, now_ns)
            elif other.expired and now_ns - since_ns >= ns(TTL_S):
                if self._random.random() < 0.3:  # whoever evicts may act on what it saw a while ago
                    await asyncio.sleep(self._random.uniform(0, 0.5))
                await self._try(self._evict(other))

    async def _evict(self, other: Sighting) -> bool:
        return await self._ask(lambda session: session.evict(other.id, counter=other.counter, expired=True))

    async def _acquire(self) -> None:
        wanted = [seat for seat in SEATS if seat not in self._held and self._random.random() < 0.5]
        for grant in await self._try(self._ask(lambda session: session.acquire(wanted))) or ():
            if self._trusts():
                self._held[grant.name] = grant.epoch
                self._note_trust()

    async def _work(self, seat: str) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0.5, 3))
            epoch = self._held.get(seat)
            if epoch is None or not self._trusts():
                continue
            claim = Claim(self._me, seat, epoch)
            if self._random.random() < 0.05:
                await self._give_up(claim)
            else:
                await self._append(claim)

    async def _append(self, claim: Claim) -> None:
        """Load under the fence, add a number, save under the fence; whatever is unclear is loaded anew."""
        loaded = await self._try(self._storage.states.load(claim, claim.seat))
        if loaded is None:
            self._held.pop(claim.seat, None)
            return
        value = loaded.value
        await asyncio.sleep(self._random.uniform(0, 3))  # user code runs here
        new = msgspec.msgpack.encode([*(msgspec.msgpack.decode(value) if value else []), next(self._notes.numbers)])
        write = StateSave(claim, claim.seat, new, loaded.version)
        written = await self._try(self._storage.states.save(write))
        if written == "fenced":
            self._held.pop(claim.seat, None)

    async def _give_up(self, claim: Claim) -> None:
        del self._held[claim.seat]
        self._notes.trusted.pop((claim.seat, claim.epoch), None)  # given up of one's own will
        await self._try(self._ask(lambda session: session.release(claim.seat, claim.epoch)))

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

    def _new_storage(self) -> SqliteStorage:
        database = self._sim.database
        return SqliteStorage(
            Settings.load({"url": "sqlite://", "name": CLUSTER}, environ={}),
            incarnation=self._me,
            clock=database.clock,
            chance=Random(self._random.getrandbits(64)),
            executors=database.executors(self._runner.name),
            witness=database.witness,
        )

    async def _started(self) -> bool:
        try:
            await self._storage.start()
        except PersistenceError:
            await asyncio.sleep(self._random.uniform(0, 2))
            return False
        return True

    async def _ask(self, work: Callable[[Ownership], Coroutine[Any, Any, T]]) -> T:
        """The result of `work` on the session, which is opened anew after each failure."""
        async with self._turn:
            try:
                if self._session is None:
                    opening: AbstractAsyncContextManager[Ownership] = self._storage.ownership(self._me)
                    self._session = await self._opened.enter_async_context(opening)
                return await work(self._session)
            except PersistenceError:
                await self._close()
                raise

    async def _close(self) -> None:
        self._session = None
        opened, self._opened = self._opened, AsyncExitStack()
        await opened.aclose()

    async def _try(self, attempt: Coroutine[Any, Any, T]) -> T | None:
        try:
            return await attempt
        except PersistenceError:
            return None


def prepare(sim: Simulation) -> None:
    """The seats, and triggers that write the history."""
    main = sim.database.main
    seats.declare(main, Scope(CLUSTER, 0), [SeatDeclaration(seat, "default") for seat in SEATS])
    main.create_scalar_function("virtual_ns", lambda *_: sim.loop.now_ns, 0)
    main.execute(HISTORY)


def seats_without_runner(main: apsw.Connection, cluster: str) -> list[tuple[Any, ...]]:
    """Seats whose holder is no runner of this cluster. There must be none [C4]."""
    return main.execute(
        "select s.name, s.holder from seats s where s.cluster = ? and s.holder is not null"
        " and not exists (select 1 from runners r where r.id = s.holder and r.cluster = s.cluster) order by s.name",
        (cluster,),
    ).fetchall()


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
    free = "select count(*) from seats where holder is null and cluster = ?"
    return not sim.database.main.execute(free, (CLUSTER,)).get


def ns(seconds: float) -> int:
    return int(seconds * 1e9)
