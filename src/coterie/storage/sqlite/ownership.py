"""Ownership on SQLite: the session of one runner, with its own thread and connections to both files.

Changes of runners take the locks in one order, first the main file's, then the leases', so that no holder of the
leases' lock waits for a group commit: renewals pass at any time [C3]. Under both locks an eviction reads the lease once
more, so that no renewal comes in between [C4]. Two files have two commits. A registration commits the lease first, an
eviction the runner: a crash in between leaves a lease without a runner, which has no effect.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import apsw

from coterie.errors import PersistenceError
from coterie.kernel.clock import to_datetime
from coterie.storage.interface import Presences, Renewal, Sighting
from coterie.storage.sqlite import seats
from coterie.storage.sqlite.database import Patience, commit, read, snapshot, writing
from coterie.storage.sqlite.errors import failed
from coterie.storage.sqlite.file.witness import FlockWitness, MemoryWitness, boot_id
from coterie.storage.sqlite.file.write_lock import Frozen
from coterie.storage.sqlite.seats import Boot
from coterie.storage.sqlite.store import Scope

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from coterie.kernel.clock import Clock
    from coterie.kernel.random import Random
    from coterie.settings import Settings
    from coterie.storage.interface import ClusterSnapshot, Grant, Registration, SeatDeclaration
    from coterie.storage.sqlite.database import SqliteConnections, SqliteDatabase
    from coterie.storage.sqlite.executor import Executor
    from coterie.storage.sqlite.file.witness import Witness
    from coterie.storage.sqlite.seats import Lease


_PAUSE_S = 0.0003
"""Between two tries for a lock, shorter than other writers' pause: a renewal must not lose the race [m6]."""

_LIMIT_S = 1.0
"""How long to wait for a lock, at most the time between two renewals, which wait behind it: renewals too far apart
prove nothing about other runners [M1], and a process frozen with the lock would never be killed."""

_EVICT_LIMIT_S = 0.25
"""How long an eviction waits before it looks for the process that blocks it."""

_START_LIMIT_S = 10.0
"""How long a start waits: it holds nothing yet."""


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What all sessions of a process share."""

    cluster: str
    clock: Clock
    boot_id: str
    witness: Witness
    audit: bool

    def scope(self) -> Scope:
        """The cluster and the current time."""
        return Scope(self.cluster, self.clock.wall_ns())

    def boot(self) -> Boot:
        """The cluster and the current time of the boot clock, for leases."""
        return Boot(self.cluster, self.boot_id, self.clock.steady_ns())


class LockWaits:
    """How long one session waits for each lock.

    Args:
        renew_s: The time between two of its renewals.
    """

    def __init__(self, database: SqliteDatabase, chance: Random, *, renew_s: float) -> None:
        def patience(limit_s: float, *, main: bool = True) -> Patience:
            holder = database.write_lock_holder if main else database.leases_lock_holder
            # "refused": the session stays usable.
            return Patience(chance=chance, limit_s=limit_s, pause_s=_PAUSE_S, holder=holder, refused="refused")

        self.start = patience(_START_LIMIT_S)
        self.main = patience(min(_LIMIT_S, renew_s))
        self.evict = patience(min(_EVICT_LIMIT_S, renew_s))
        self.leases = patience(min(_LIMIT_S, renew_s), main=False)

    def end(self) -> None:
        """Stop waiting."""
        for patience in (self.start, self.main, self.evict, self.leases):
            patience.end()


class SqliteOwners:
    """The sessions of one process: one at a time, plus one for each new life after an eviction.

    Args:
        witness: Knows which processes are alive; by default locks beside the file.
    """

    def __init__(
        self, database: SqliteDatabase, *, settings: Settings, clock: Clock, chance: Random, witness: Witness | None
    ) -> None:
        if witness is None:
            cluster, path = settings.name, database.path
            witness = MemoryWitness() if path is None else FlockWitness(path, cluster=cluster)
        boot = "" if database.path is None else boot_id()
        self._database = database
        self._chance = chance
        self._kill = settings.sqlite_kill_frozen
        self._renew_s = settings.lease_renew.total_seconds()
        self._ground = SessionContext(settings.name, clock, boot, witness, settings.audit)

    @asynccontextmanager
    async def open(self, incarnation: str) -> AsyncIterator[SqliteOwnership]:
        """Open a session with the sign of life of this incarnation, on the caller's loop."""
        executor = self._database.session()
        waits = LockWaits(self._database, self._chance, renew_s=self._renew_s)
        frozen = Frozen(self._database, kill=self._kill)
        session = SqliteOwnership(executor, incarnation, ground=self._ground, waits=waits, frozen=frozen)
        await executor.start()
        try:
            async with self._ground.witness.taken(incarnation) as fresh:
                try:
                    await session.prepare()
                    yield session
                finally:
                    if fresh and not session.appeared:
                        self._ground.witness.remove(incarnation)
        finally:
            waits.end()
            await executor.stop()

    def presence(self, incarnation: str) -> AbstractAsyncContextManager[object]:
        """Hold the sign of life of this incarnation across its sessions, where the kernel manages it."""
        witness = self._ground.witness
        return witness.taken(incarnation) if witness.is_proof else nullcontext()

    async def view(self) -> ClusterSnapshot:
        """Read all runners and seats without a session."""
        doing = "look at runners and seats"
        return await self._database.read_desk(lambda desk: look(desk, self._ground), doing=doing)


T = TypeVar("T")


class SqliteOwnership:
    """See `storage.interface.Ownership`. Work on `SqliteConnections` runs in the executor.

    Args:
        executor: Runs the work of this session, one piece at a time.
        me: The incarnation.
        ground: The cluster, its clocks, its witness.
        waits: How long to wait for locks.
        frozen: Finds and kills the process that blocks a lock.
    """

    witnessed = True
    leases_only = False
    generation = 0

    def __init__(
        self,
        executor: Executor[SqliteConnections],
        me: str,
        *,
        ground: SessionContext,
        waits: LockWaits,
        frozen: Frozen,
    ) -> None:
        self.appeared = False
        """Whether a row of this runner may exist."""
        self._executor = executor
        self._me = me
        self._ground = ground
        self._waits = waits
        self._frozen = frozen

    async def prepare(self) -> None:
        """Open the leases, and create them if they do not exist."""
        await self._run(lambda desk: desk.leases)

    async def agree(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Store the settings that all runners must share unless they are stored already. Returns the stored ones."""

        def agree(main: apsw.Connection) -> dict[str, str]:
            scope = self._ground.scope()
            seats.agree(main, scope, values)
            stored = seats.agreements(main, scope)
            return {name: stored[name] for name in values}

        return await self._write(agree, doing="agree on settings", patience=self._waits.start)

    async def view(self) -> ClusterSnapshot:
        """Read all runners and seats."""
        return await self._read(lambda desk: look(desk, self._ground), doing="look at runners and seats")

    async def register(self, me: Registration, seats: Sequence[SeatDeclaration], *, ttl_s: float) -> None:
        """Insert the runner with a lease and declare its seats."""
        assert me.id == self._me, "a session is opened for one incarnation"
        self.appeared = True
        await self._run(lambda desk: self._register(desk, me, seats, ttl_s=ttl_s))

    def _register(
        self, desk: SqliteConnections, me: Registration, declared: Sequence[SeatDeclaration], *, ttl_s: float
    ) -> None:
        scope = self._ground.scope()
        with self._both(desk, doing=f"register runner {me.name}", patience=self._waits.start):
            seats.register(desk.main, scope, me)
            seats.declare(desk.main, scope, declared)
            boot = self._ground.boot()
            seats.sweep(desk.leases, boot, set(seats.registered(desk.main, scope)))
            seats.grant(desk.leases, boot, me.id, ttl_s=ttl_s)

    async def declare(self, seats: Sequence[SeatDeclaration]) -> None:
        """Declare seats, and make their definitions current where that is due [M8]."""
        await self._declare(seats)

    async def define(self, seats: Sequence[SeatDeclaration]) -> bool:
        """Declare seats that this program has defined since `register`, and become a candidate for them."""
        return await self._write(lambda main: self._define(main, seats), doing="define seats")

    def _define(self, main: apsw.Connection, declared: Sequence[SeatDeclaration]) -> bool:
        scope = self._ground.scope()
        if not seats.learn(main, scope, self._me, {each.name: each.fingerprint for each in declared}):
            return False
        seats.declare(main, scope, declared)
        return True

    async def _declare(self, declared: Sequence[SeatDeclaration]) -> None:
        # Take the contended lock only if there is something to write.
        scope, doing = self._ground.scope, "declare seats"
        if await self._read(lambda desk: seats.undeclared(desk.main, scope(), declared), doing=doing):
            await self._write(lambda main: seats.declare(main, scope(), declared), doing=doing)

    async def renew(self, *, ttl_s: float) -> Renewal | None:
        """Renew this runner's lease. Returns None if it has none: it was evicted."""
        return await self._run(lambda desk: self._renew(desk, ttl_s=ttl_s))

    def _renew(self, desk: SqliteConnections, *, ttl_s: float) -> Renewal | None:
        boot, doing = self._ground.boot(), "renew the lease"
        try:
            with writing(desk.leases, patience=self._waits.leases, doing=doing):
                mine = seats.renew(desk.leases, boot, self._me, ttl_s=ttl_s)
                everybody = seats.read(desk.leases, boot)
        except PersistenceError:
            self._frozen.blocks_leases(desk, boot, ttl_s=ttl_s)
            raise
        if mine is None:
            return None
        tell = self._told(mine, everybody)
        return read(desk.main, tell, patience=self._waits.main, doing=doing)

    def _told(self, mine: Lease, everybody: Mapping[str, Lease]) -> Callable[[apsw.Connection], Renewal | None]:
        scope = self._ground.scope()

        def tell(main: apsw.Connection) -> Renewal | None:
            with snapshot(main):
                runners = seats.registered(main, scope)
                held = seats.holdings(main, scope, self._me)
                stamp = seats.stamp(main, scope)
            if self._me not in runners:
                return None
            others = tuple(_sighting(each, everybody) for each in runners if each != self._me)
            return Renewal(mine.counter, mine.leaving, others, held, stamp, to_datetime(scope.now_ns))

        return tell

    async def leaving(self, runner: str) -> bool:
        """Mark a runner as leaving. Returns False if it is unknown."""

        def leave(desk: SqliteConnections) -> bool:
            with writing(desk.leases, patience=self._waits.leases, doing=doing):
                there = runner in seats.registered(desk.main, self._ground.scope())
                return there and seats.leave(desk.leases, self._ground.boot(), runner)

        doing = f"have runner {runner} leave"
        return await self._run(leave)

    async def acquire(self, names: Sequence[str]) -> Sequence[Grant]:
        """Acquire those of these seats that are free."""

        def acquire(main: apsw.Connection) -> list[Grant]:
            grants = seats.acquire(main, self._ground.scope(), self._me, names)
            self._note(main, "granted", self._me, {grant.name: grant.epoch for grant in grants})
            return grants

        return await self._write(acquire, doing="acquire seats") if names else []

    async def release(self, name: str, epoch: int) -> bool:
        """Release a seat. Returns False if it was no longer held."""

        def release(main: apsw.Connection) -> bool:
            released = seats.release(main, self._ground.scope(), self._me, name=name, epoch=epoch)
            self._note(main, "released", self._me, {name: epoch} if released else {})
            return released

        def lazily(desk: SqliteConnections) -> bool:
            # It need not survive a power loss, which ends its holder as well; `acquire` waits for the disk.
            desk.main.pragma("synchronous", "NORMAL")
            try:
                with writing(desk.main, patience=self._waits.main, doing=f"release seat {name}"):
                    return release(desk.main)
            finally:
                desk.main.pragma("synchronous", "FULL")

        return await self._run(lazily)

    async def presences(self, runners: Sequence[str]) -> Presences:
        """Return whose processes are alive. Counters are read first: a runner that renews later is not evicted."""

        def presences(desk: SqliteConnections) -> Presences:
            everybody = seats.read(desk.leases, self._ground.boot())
            there = seats.registered(desk.main, self._ground.scope())
            known = {each: everybody.get(each, seats.NONE) for each in runners if each in there}
            witness = self._ground.witness
            gone, held = witness.gone(runners), witness.held(runners)
            gone |= {each for each, lease in known.items() if lease.other_boot} - held
            return Presences(
                witness.server,
                held - gone,
                {each: lease.counter for each, lease in known.items()},
                expired=frozenset(each for each, lease in known.items() if lease.expired),
                gone=gone,
                up_s=witness.up_s,
            )

        return await self._read(presences, doing="look for signs of life")

    async def evict(self, victim: str, *, counter: int, expired: bool) -> bool:
        """Delete a runner that has not renewed since `counter` was read. Returns False if it was spared [C4]."""
        return await self._run(lambda desk: self._evict(desk, victim, counter=counter, expired=expired))

    def _evict(self, desk: SqliteConnections, victim: str, *, counter: int, expired: bool) -> bool:
        def is_due() -> bool:
            return seats.is_still(desk.leases, self._ground.boot(), victim, counter=counter, expired=expired)

        def delete(patience: Patience) -> bool:
            return self._delete(desk, victim, is_due, kind="evicted", about=f"by {self._me}", patience=patience)

        try:
            return delete(self._waits.evict)
        except PersistenceError as error:
            if error.outcome != "refused" or not self._frozen.end_victim(desk, self._ground.boot(), victim):
                raise
        return delete(self._waits.main)

    async def leave(self) -> None:
        """Delete this runner."""
        patience = self._waits.main
        await self._run(lambda desk: self._delete(desk, self._me, lambda: True, kind="left", patience=patience))

    def _delete(
        self,
        desk: SqliteConnections,
        runner: str,
        is_due: Callable[[], bool],
        *,
        kind: str,
        patience: Patience,
        about: str = "",
    ) -> bool:
        doing = f"delete runner {runner}"
        with self._both(desk, doing=doing, patience=patience):
            if not is_due() or not seats.unregister(desk.main, self._ground.scope(), runner):
                return False
            self._note(desk.main, kind, runner, {None: None}, about=about)
            commit(desk.main, doing=doing)
            seats.end(desk.leases, self._ground.boot(), runner)
        self._ground.witness.remove(runner)
        return True

    @contextmanager
    def _both(self, desk: SqliteConnections, *, patience: Patience, doing: str) -> Iterator[None]:
        """Hold both write locks. At the end the leases are committed first, and then the rest of the main file."""
        with (
            writing(desk.main, patience=patience, doing=doing),
            writing(desk.leases, patience=self._waits.leases, doing=doing),
        ):
            yield

    def _note(
        self, main: apsw.Connection, kind: str, runner: str, what: Mapping[str | None, int | None], *, about: str = ""
    ) -> None:
        if self._ground.audit:
            seats.note(main, self._ground.scope(), kind, runner, what, about=about)

    async def _write(self, work: Callable[[apsw.Connection], T], *, doing: str, patience: Patience | None = None) -> T:
        def write(desk: SqliteConnections) -> T:
            with writing(desk.main, patience=patience or self._waits.main, doing=doing):
                return work(desk.main)

        return await self._run(write)

    async def _read(self, work: Callable[[SqliteConnections], T], *, doing: str) -> T:
        return await self._run(
            lambda desk: read(desk.main, lambda _: work(desk), patience=self._waits.main, doing=doing)
        )

    async def _run(self, work: Callable[[SqliteConnections], T]) -> T:
        def run(desk: SqliteConnections) -> T:
            try:
                with desk.turn:
                    desk.require_in_place()
                    result = work(desk)
                    desk.require_in_place(outcome="unknown")
                    return result
            except (apsw.Error, OSError) as error:  # outside of transactions
                raise failed(error, doing="look after runners and seats") from error

        return await self._executor.run(run)


def look(desk: SqliteConnections, ground: SessionContext) -> ClusterSnapshot:
    """Read all runners and seats."""
    everybody = seats.read(desk.leases, ground.boot())
    with snapshot(desk.main):
        return seats.view(desk.main, ground.scope(), everybody)


def _sighting(id: str, everybody: Mapping[str, Lease]) -> Sighting:
    lease = everybody.get(id, seats.NONE)
    return Sighting(id, lease.counter, lease.expired, lease.leaving)
