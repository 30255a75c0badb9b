"""Who holds what, on SQLite: the session of one runner, with a thread and connections of its own to both files.

Whatever changes runners takes the locks in one order, the main file's and then the leases', so that nobody who holds
the leases waits for a group commit: renewals pass at any time [C3]. Under both locks an eviction looks at the lease
once more, so that no renewal comes in between [C4]. Two files have two commits. A registration commits the lease first,
an eviction the runner: a crash in between leaves a lease without a runner, which means nothing.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import apsw

from coterie.errors import PersistenceError
from coterie.kernel.clock import to_datetime
from coterie.storage.interface import Presences, Renewal, Sighting
from coterie.storage.sqlite import leases, seats
from coterie.storage.sqlite.failures import failed
from coterie.storage.sqlite.transactions import Patience, commit, read, snapshot, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from coterie.storage.interface import ClusterSnapshot, Declaration, Grant, Registration
    from coterie.storage.sqlite.desk import Desk
    from coterie.storage.sqlite.executor import Executor
    from coterie.storage.sqlite.frozen import Frozen
    from coterie.storage.sqlite.leases import Lease
    from coterie.storage.sqlite.owners import Ground, Waits

T = TypeVar("T")


class SqliteOwnership:
    """See `storage.interface.Ownership`. What takes a desk runs in the executor.

    Args:
        executor: Runs the work of this session, piece by piece.
        me: The incarnation.
        ground: The cluster, its clocks, its witness.
        waits: How long to wait for locks.
        frozen: Who may be in the way, and what to do about it.
    """

    witnessed = True
    leases_only = False
    generation = 0

    def __init__(self, executor: Executor[Desk], me: str, *, ground: Ground, waits: Waits, frozen: Frozen) -> None:
        self.appeared = False
        """Whether there may be a row of ours."""
        self._executor = executor
        self._me = me
        self._ground = ground
        self._waits = waits
        self._frozen = frozen

    async def prepare(self) -> None:
        """Open the leases, and set them up if nobody has."""
        await self._run(lambda desk: desk.leases)

    async def agree(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Store settings that all must share if nobody has yet; what is stored."""

        def agree(main: apsw.Connection) -> dict[str, str]:
            scope = self._ground.scope()
            seats.agree(main, scope, values)
            stored = seats.agreements(main, scope)
            return {name: stored[name] for name in values}

        return await self._write(agree, doing="agree on settings", patience=self._waits.start)

    async def view(self) -> ClusterSnapshot:
        """Everybody and everything."""
        return await self._read(lambda desk: look(desk, self._ground), doing="look at runners and seats")

    async def register(self, me: Registration, seats: Sequence[Declaration], *, ttl_s: float) -> None:
        """Appear in the cluster, with a lease, and declare seats."""
        assert me.id == self._me, "a session is opened for one incarnation"
        self.appeared = True
        await self._run(lambda desk: self._register(desk, me, seats, ttl_s=ttl_s))

    def _register(self, desk: Desk, me: Registration, declared: Sequence[Declaration], *, ttl_s: float) -> None:
        scope = self._ground.scope()
        with self._both(desk, doing=f"register runner {me.name}", patience=self._waits.start):
            seats.register(desk.main, scope, me)
            seats.declare(desk.main, scope, declared)
            boot = self._ground.boot()
            leases.sweep(desk.leases, boot, set(seats.registered(desk.main, scope)))
            leases.grant(desk.leases, boot, me.id, ttl_s=ttl_s)

    async def declare(self, seats: Sequence[Declaration]) -> None:
        """Make seats known, and their definitions current where that is due [M8]."""
        await self._declare(seats)

    async def define(self, seats: Sequence[Declaration]) -> bool:
        """Declare seats that one's program has defined since `register`, and be a candidate for them."""
        return await self._write(lambda main: self._define(main, seats), doing="define seats")

    def _define(self, main: apsw.Connection, declared: Sequence[Declaration]) -> bool:
        scope = self._ground.scope()
        if not seats.learn(main, scope, self._me, {each.name: each.fingerprint for each in declared}):
            return False
        seats.declare(main, scope, declared)
        return True

    async def _declare(self, declared: Sequence[Declaration]) -> None:
        # The lock, for which others wait, is taken only if there is something to write.
        scope, doing = self._ground.scope, "declare seats"
        if await self._read(lambda desk: seats.undeclared(desk.main, scope(), declared), doing=doing):
            await self._write(lambda main: seats.declare(main, scope(), declared), doing=doing)

    async def renew(self, *, ttl_s: float) -> Renewal | None:
        """Prolong one's lease; None: there is none, one was evicted."""
        return await self._run(lambda desk: self._renew(desk, ttl_s=ttl_s))

    def _renew(self, desk: Desk, *, ttl_s: float) -> Renewal | None:
        boot, doing = self._ground.boot(), "renew the lease"
        try:
            with writing(desk.leases, patience=self._waits.leases, doing=doing):
                mine = leases.renew(desk.leases, boot, self._me, ttl_s=ttl_s)
                everybody = leases.read(desk.leases, boot)
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
        """Mark a runner as leaving; False: there is none."""

        def leave(desk: Desk) -> bool:
            with writing(desk.leases, patience=self._waits.leases, doing=doing):
                there = runner in seats.registered(desk.main, self._ground.scope())
                return there and leases.leave(desk.leases, self._ground.boot(), runner)

        doing = f"have runner {runner} leave"
        return await self._run(leave)

    async def acquire(self, names: Sequence[str]) -> Sequence[Grant]:
        """Take the free ones of these seats."""

        def acquire(main: apsw.Connection) -> list[Grant]:
            grants = seats.acquire(main, self._ground.scope(), self._me, names)
            self._note(main, "granted", self._me, {grant.name: grant.epoch for grant in grants})
            return grants

        return await self._write(acquire, doing="acquire seats") if names else []

    async def release(self, name: str, epoch: int) -> bool:
        """Give a seat back; False: it was not held any more."""

        def release(main: apsw.Connection) -> bool:
            released = seats.release(main, self._ground.scope(), self._me, name=name, epoch=epoch)
            self._note(main, "released", self._me, {name: epoch} if released else {})
            return released

        def lazily(desk: Desk) -> bool:
            # It need not outlive a loss of power, which ends its holder; whoever acquires the seat waits for the disk.
            desk.main.pragma("synchronous", "NORMAL")
            try:
                with writing(desk.main, patience=self._waits.main, doing=f"release seat {name}"):
                    return release(desk.main)
            finally:
                desk.main.pragma("synchronous", "FULL")

        return await self._run(lazily)

    async def presences(self, runners: Sequence[str]) -> Presences:
        """Whose processes are alive. Counters are read before: who renews after that is spared."""

        def presences(desk: Desk) -> Presences:
            everybody = leases.read(desk.leases, self._ground.boot())
            there = seats.registered(desk.main, self._ground.scope())
            known = {each: everybody.get(each, leases.NONE) for each in runners if each in there}
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
        """Delete a runner that has not renewed since `counter` was seen; False: spared [C4]."""
        return await self._run(lambda desk: self._evict(desk, victim, counter=counter, expired=expired))

    def _evict(self, desk: Desk, victim: str, *, counter: int, expired: bool) -> bool:
        def is_due() -> bool:
            return leases.is_still(desk.leases, self._ground.boot(), victim, counter=counter, expired=expired)

        def delete(patience: Patience) -> bool:
            return self._delete(desk, victim, is_due, kind="evicted", about=f"by {self._me}", patience=patience)

        try:
            return delete(self._waits.evict)
        except PersistenceError as error:
            if error.outcome != "refused" or not self._frozen.end_victim(desk, self._ground.boot(), victim):
                raise
        return delete(self._waits.main)

    async def leave(self) -> None:
        """Delete oneself."""
        patience = self._waits.main
        await self._run(lambda desk: self._delete(desk, self._me, lambda: True, kind="left", patience=patience))

    def _delete(
        self, desk: Desk, runner: str, is_due: Callable[[], bool], *, kind: str, patience: Patience, about: str = ""
    ) -> bool:
        doing = f"delete runner {runner}"
        with self._both(desk, doing=doing, patience=patience):
            if not is_due() or not seats.unregister(desk.main, self._ground.scope(), runner):
                return False
            self._note(desk.main, kind, runner, {None: None}, about=about)
            commit(desk.main, doing=doing)
            leases.end(desk.leases, self._ground.boot(), runner)
        self._ground.witness.remove(runner)
        return True

    @contextmanager
    def _both(self, desk: Desk, *, patience: Patience, doing: str) -> Iterator[None]:
        """Hold both write locks. At the end the leases are committed first, and then what is left of the main file."""
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
        def write(desk: Desk) -> T:
            with writing(desk.main, patience=patience or self._waits.main, doing=doing):
                return work(desk.main)

        return await self._run(write)

    async def _read(self, work: Callable[[Desk], T], *, doing: str) -> T:
        return await self._run(
            lambda desk: read(desk.main, lambda _: work(desk), patience=self._waits.main, doing=doing)
        )

    async def _run(self, work: Callable[[Desk], T]) -> T:
        def run(desk: Desk) -> T:
            try:
                with desk.turn:
                    desk.require_in_place()
                    result = work(desk)
                    desk.require_in_place(outcome="unknown")
                    return result
            except (apsw.Error, OSError) as error:  # outside of transactions
                raise failed(error, doing="look after runners and seats") from error

        return await self._executor.run(run)


def look(desk: Desk, ground: Ground) -> ClusterSnapshot:
    """Everybody and everything."""
    everybody = leases.read(desk.leases, ground.boot())
    with snapshot(desk.main):
        return seats.view(desk.main, ground.scope(), everybody)


def _sighting(id: str, everybody: Mapping[str, Lease]) -> Sighting:
    lease = everybody.get(id, leases.NONE)
    return Sighting(id, lease.counter, lease.expired, lease.leaving)
