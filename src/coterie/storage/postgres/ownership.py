"""Ownership on PostgreSQL: the dedicated session of one runner and its operations.

The statements are in `sql/ownership.sql`; `tests/interleavings` runs every pair that may conflict in all orders. Each
call is one statement or one transaction, retried where that helps (`lease_session.py`).
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from coterie.errors import PersistenceError
from coterie.storage import statements
from coterie.storage.interface import ClusterSnapshot, Grant, Presences, Renewal, RunnerRow, SeatRow, Sighting
from coterie.storage.postgres.lease_session import LeaseSession, SessionTerminator, lock_key
from coterie.storage.postgres.server import server_check
from coterie.storage.postgres.session import deadline
from coterie.storage.unreadable_rows import checked_runner, checked_seat, readable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from coterie.kernel.random import Random
    from coterie.storage.interface import Registration, SeatDeclaration
    from coterie.storage.postgres.connector import ConnectionLimits, Connector
    from coterie.storage.postgres.lease_session import Fetch

T = TypeVar("T")

log = logging.getLogger("coterie")

SQL = statements.load("coterie.storage.postgres.sql", "ownership.sql")

_RUNNERS, _RUNNER = msgspec.json.Decoder(tuple[msgspec.Raw, ...]), msgspec.json.Decoder(RunnerRow)


class PostgresOwners:
    """Opens the dedicated sessions of one process: one at a time, plus one for each new life after an eviction."""

    def __init__(
        self, connector: Connector, *, cluster: str, chance: Random, limits: ConnectionLimits, audit: bool
    ) -> None:
        self._connector = connector
        self._cluster = cluster
        self._chance = chance
        self._limits = limits
        self._audit = audit
        self._ending = SessionTerminator(connector, transaction_s=limits.transaction_s)

    @asynccontextmanager
    async def open(self, incarnation: str) -> AsyncIterator[PostgresOwnership]:
        """Open a session with the lock of this incarnation, on the caller's loop, outside of the pool."""
        over = deadline(1.5 * self._limits.dedicated_s)  # a single try: the lease keeper decides when to retry
        session = await self._connector.connect("dedicated", over=over, tries=1, incarnation=incarnation)
        address = self._connector.address
        dedicated = LeaseSession(session, address=address, chance=self._chance, limits=self._limits)
        label = self._chance.token(4).hex()
        opened = PostgresOwnership(
            dedicated,
            cluster=self._cluster,
            me=incarnation,
            label=label,
            ending=self._ending,
            audit=self._audit,
            leases_only=self._connector.pooled,
        )
        try:
            await opened.prepare()
            yield opened
        finally:
            await dedicated.close()


class PostgresOwnership:
    """See `storage.interface.Ownership`.

    Args:
        dedicated: The session.
        cluster: The cluster's name.
        me: The incarnation.
        label: A label that no other session has.
        ending: Terminates what blocks an eviction.
        audit: Whether to write audit rows.
        leases_only: Whether there are no session locks: each transaction may be on another server session.
    """

    def __init__(
        self,
        dedicated: LeaseSession,
        *,
        cluster: str,
        me: str,
        label: str,
        ending: SessionTerminator,
        audit: bool,
        leases_only: bool = False,
    ) -> None:
        self.witnessed = False
        self.leases_only = leases_only
        self.generation = 0
        self._dedicated = dedicated
        self._cluster = cluster
        self._me = me
        self._label = label
        self._ending = ending
        self._audit = audit
        self._pid = 0

    async def prepare(self) -> None:
        """Take the lock if possible, record the server, and warn of roles whose sessions could not be terminated."""
        if not self.leases_only:
            # Shared: after a cut the server may not have noticed yet that the last session is gone, and keeps its lock.
            row = (await self._dedicated.write(SQL["hold"], lock_key("runner", self._cluster, self._me)))[0]
            self.witnessed, self._pid = row["held"], row["pid"]
        await self._raise_generation()
        self._ending.warn({found["role"] for found in await self._dedicated.read(SQL["foreign_roles"])})

    async def agree(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Store the settings that all runners must share unless they are stored already. Returns the stored ones."""
        await self._dedicated.write(SQL["agree"], self._cluster, list(values), list(values.values()))
        rows = await self._dedicated.read(SQL["agreements"], self._cluster, list(values))
        return {row["name"]: row["value"] for row in rows}

    async def view(self) -> ClusterSnapshot:
        """Read all runners and seats."""
        return to_view(await self._dedicated.read(SQL["view"], self._cluster))

    async def register(self, me: Registration, seats: Sequence[SeatDeclaration], *, ttl_s: float) -> None:
        """Insert the runner with a lease and declare its seats, in one transaction."""
        assert me.id == self._me, "a session is opened for one incarnation"
        about = me.name, me.address, me.host_id, list(me.groups), me.weight, me.version
        knows = msgspec.json.encode(me.knows).decode()

        async def appear(fetch: Fetch) -> None:
            about_me = knows, me.process, ttl_s, self.witnessed, me.credentials
            await fetch(SQL["register"], self._cluster, self._me, *about, *about_me)
            await self._define(fetch, seats)

        await self._dedicated.transact(appear)

    async def declare(self, seats: Sequence[SeatDeclaration]) -> None:
        """Declare seats, and make their definitions current where that is due [M8]."""
        await self._dedicated.transact(partial(self._define, seats=seats))

    async def define(self, seats: Sequence[SeatDeclaration]) -> bool:
        """Declare seats that this program has defined since `register`, and become a candidate for them."""
        knows = msgspec.json.encode({seat.name: seat.fingerprint for seat in seats}).decode()

        async def learn(fetch: Fetch) -> bool:
            if not await fetch(SQL["learn"], self._cluster, self._me, knows):
                return False
            await self._define(fetch, seats)
            return True

        return await self._dedicated.transact(learn)

    async def _define(self, fetch: Fetch, seats: Sequence[SeatDeclaration]) -> None:
        await fetch(SQL["declare"], self._cluster, *_columns(seats))
        defined = [seat for seat in seats if seat.fingerprint]
        if not defined:
            return
        names, groups, fingerprints = _columns(defined)
        await fetch(SQL["contest"], self._cluster, names, fingerprints)
        await fetch(SQL["redefine"], self._cluster, names, groups, fingerprints)

    async def renew(self, *, ttl_s: float) -> Renewal | None:
        """Renew this runner's lease. Returns None if it has none: it was evicted."""
        rows = await self._dedicated.write(SQL["renew"], self._cluster, self._me, ttl_s)
        if rows and rows[0]["synchronous_commit"] == "off":
            # The caller then opens another session, which is refused with the same text as at start.
            problem = "synchronous_commit was set to off: the server acknowledges writes that a crash loses"
            raise PersistenceError(doing="renew the lease", problem=problem, outcome="unreachable")
        return to_renewal(rows[0]) if rows else None

    async def leaving(self, runner: str) -> bool:
        """Mark a runner as leaving. Returns False if it is unknown."""
        return bool(await self._dedicated.write(SQL["leaving"], self._cluster, runner))

    async def acquire(self, names: Sequence[str]) -> Sequence[Grant]:
        """Acquire those of these seats that are free."""
        grants = await self._acquire(names)
        if names and not grants and await self._raise_generation():
            grants = await self._acquire(names)
        return grants

    async def _acquire(self, names: Sequence[str]) -> Sequence[Grant]:
        async def take(fetch: Fetch) -> list[Grant]:
            rows = await fetch(SQL["acquire"], self._cluster, self._me, list(names))
            grants = [Grant(*row) for row in rows]
            await self._note(fetch, "granted", self._me, {grant.name: grant.epoch for grant in grants})
            return grants

        return await self._run(take)

    async def release(self, name: str, epoch: int) -> bool:
        """Release a seat after the writes in flight. Returns False if it was no longer held."""

        async def give(fetch: Fetch) -> bool:
            released = bool(await fetch(SQL["release"], self._cluster, self._me, name, epoch))
            await self._note(fetch, "released", self._me, {name: epoch} if released else {})
            return released

        return await self._run(give)

    async def presences(self, runners: Sequence[str]) -> Presences:
        """Return whose sessions are alive.

        When a server process crashes, all sessions end while the server goes on under its old start time. This session
        ends too, so it is part of `server`: nothing is concluded across two sessions either. Behind a pooler there is
        no such session, so all runners are reported as alive and nothing is ever concluded from locks.
        """
        keys = {lock_key("runner", self._cluster, runner): runner for runner in runners}
        (row,) = await self._dedicated.read(SQL["presences"], self._cluster, list(keys.values()), list(keys))
        all_of_them = frozenset(runners)
        return Presences(
            "" if self.leases_only else f"{row['server']} {self._label}",
            all_of_them if self.leases_only else frozenset(keys[key] for key in row["held"]),
            dict(zip(row["ids"], row["counters"], strict=True)),
            expired=frozenset(row["expired"]),
            unwitnessed=all_of_them if self.leases_only else frozenset(row["unwitnessed"]),
            up_s=row["up_s"],
        )

    async def evict(self, victim: str, *, counter: int, expired: bool) -> bool:
        """Delete a runner that has not renewed since `counter` was read. Returns False if it was spared [C4]."""
        lock = "lock_expired_lease" if expired else "lock_still_lease"
        return await self._delete(victim, lock, counter, kind="evicted", note=f"by {self._me}")

    async def leave(self) -> None:
        """Delete this runner."""
        await self._delete(self._me, "lock_own_lease", kind="left")

    async def _delete(self, victim: str, lock: str, *seen: int, kind: str, note: str = "") -> bool:
        async def delete(fetch: Fetch) -> bool:
            if self.leases_only:
                self._pid = (await fetch(server_check.SQL["whose"]))[0]["pid"]
            if not await fetch(SQL[lock], self._cluster, victim, *seen):
                return False
            await fetch(SQL["evict"], self._cluster, victim)
            await fetch(SQL["date_losses"], self._cluster)
            await self._note(fetch, kind, victim, {None: None}, note=note)
            return True

        blocked = partial(self._ending.beside, pid=lambda: self._pid, victim=victim)
        return await self._dedicated.transact(delete, blocked=blocked)

    async def _raise_generation(self) -> bool:
        # Read first: a write that changes nothing still locks the row, and waits for a synchronous standby.
        if same := await self._dedicated.read(SQL["same_server"], self._cluster):
            self.generation = same[0]["generation"]
            return False
        rows = await self._dedicated.write(SQL["raise_generation"], self._cluster)
        if not rows:  # another runner was faster
            return await self._raise_generation()
        self.generation = rows[0]["generation"]
        if self.generation > 0:
            log.warning("the server is another one than before: epochs go on in generation %d", self.generation)
        return True

    async def _run(self, work: Callable[[Fetch], Awaitable[T]]) -> T:
        """Run one statement, or a transaction of two with an audit row."""
        return await (self._dedicated.transact(work) if self._audit else work(self._dedicated.write))

    async def _note(
        self, fetch: Fetch, kind: str, runner: str, seats: Mapping[str | None, int | None], *, note: str = ""
    ) -> None:
        if self._audit:
            await fetch(SQL["note"], self._cluster, runner, kind, list(seats), list(seats.values()), note)


def to_view(rows: Sequence[Any]) -> ClusterSnapshot:
    """Convert the row of the statement `view`."""
    row = rows[0]
    columns = ("names", "groups", "holders", "epochs", "fingerprints", "effective_from", "clean")
    runners = readable(
        _RUNNERS.decode(row["runners"]),
        lambda each: checked_runner(_RUNNER.decode(each)),
        table="runners",
        key=lambda each: msgspec.json.decode(each)["id"],
        is_whole=True,
    )
    seats = readable(
        zip(*(row[column] for column in columns), strict=True),
        lambda each: checked_seat(SeatRow(*each)),
        table="seats",
        key=itemgetter(0),
        is_whole=True,
    )
    return ClusterSnapshot(tuple(runners), tuple(seats), row["stamp"])


def to_renewal(row: Any) -> Renewal:
    """Convert the row of the statement `renew`."""
    others = zip(row["ids"], row["counters"], row["expired"], row["others_leaving"], strict=True)
    sightings = tuple(Sighting(*other) for other in others)
    return Renewal(
        row["counter"], row["leaving"], sightings, row["checksum"], row["stamp"], row["now"], row["generation"] or 0
    )


def _columns(seats: Sequence[SeatDeclaration]) -> tuple[list[str], list[str], list[str]]:
    return [seat.name for seat in seats], [seat.group for seat in seats], [seat.fingerprint for seat in seats]
