"""Opens the sessions of this process's runners, and reads for those who have none."""

from __future__ import annotations

from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.storage.sqlite.frozen import Frozen
from coterie.storage.sqlite.kv import Scope
from coterie.storage.sqlite.leases import Boot
from coterie.storage.sqlite.ownership import SqliteOwnership, look
from coterie.storage.sqlite.transactions import Patience
from coterie.storage.sqlite.witness import FlockWitness, MemoryWitness, boot_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from coterie.kernel.clock import Clock
    from coterie.kernel.random import Chance
    from coterie.settings import Settings
    from coterie.storage.interface import ClusterSnapshot
    from coterie.storage.sqlite.database import Database
    from coterie.storage.sqlite.witness import Witness

_PAUSE_S = 0.0003
"""Between two tries for a lock, less than others take: a lease keeper must not be the one who waits [m6]."""

_LIMIT_S = 1.0
"""How long to wait for a lock, and not for longer than the time between two renewals, which wait behind it: renewals
that lie too far apart prove nothing about others [M1], and nobody would ever end who stands still with the lock."""

_EVICT_LIMIT_S = 0.25
"""How long an eviction waits before it asks who is in the way."""

_START_LIMIT_S = 10.0
"""How long a start waits: nothing is held yet."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What the work of all sessions stands on."""

    cluster: str
    clock: Clock
    boot_id: str
    witness: Witness
    audit: bool

    def scope(self) -> Scope:
        """Whose rows, and what time it is."""
        return Scope(self.cluster, self.clock.wall_ns())

    def boot(self) -> Boot:
        """Whose leases, and what time it is for them."""
        return Boot(self.cluster, self.boot_id, self.clock.steady_ns())


class Waits:
    """How long one session waits for which lock.

    Args:
        renew_s: The time between two of its renewals.
    """

    def __init__(self, database: Database, chance: Chance, *, renew_s: float) -> None:
        def patience(limit_s: float, *, main: bool = True) -> Patience:
            holder = database.write_lock_holder if main else database.leases_lock_holder
            # "refused": the session is as good as before.
            return Patience(chance=chance, limit_s=limit_s, pause_s=_PAUSE_S, holder=holder, refused="refused")

        self.start = patience(_START_LIMIT_S)
        self.main = patience(min(_LIMIT_S, renew_s))
        self.evict = patience(min(_EVICT_LIMIT_S, renew_s))
        self.leases = patience(min(_LIMIT_S, renew_s), main=False)

    def end(self) -> None:
        """Wait no more."""
        for patience in (self.start, self.main, self.evict, self.leases):
            patience.end()


class Owners:
    """The sessions of one process: one at a time, and one more for each life after an eviction.

    Args:
        witness: Who knows whose process lives; by default locks beside the file.
    """

    def __init__(
        self, database: Database, *, settings: Settings, clock: Clock, chance: Chance, witness: Witness | None
    ) -> None:
        if witness is None:
            cluster, path = settings.name, database.path
            witness = MemoryWitness() if path is None else FlockWitness(path, cluster=cluster)
        boot = "" if database.path is None else boot_id()
        self._database = database
        self._chance = chance
        self._kill = settings.sqlite_kill_frozen
        self._renew_s = settings.lease_renew.total_seconds()
        self._ground = Ground(settings.name, clock, boot, witness, settings.audit)

    @asynccontextmanager
    async def open(self, incarnation: str) -> AsyncIterator[SqliteOwnership]:
        """A session with the sign of life of this incarnation, on the loop of whoever opens it."""
        executor = self._database.session()
        waits = Waits(self._database, self._chance, renew_s=self._renew_s)
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
        """The sign of life of this incarnation across its sessions, where the kernel keeps it."""
        witness = self._ground.witness
        return witness.taken(incarnation) if witness.is_proof else nullcontext()

    async def view(self) -> ClusterSnapshot:
        """Everybody and everything, for those who hold nothing."""
        doing = "look at runners and seats"
        return await self._database.read_desk(lambda desk: look(desk, self._ground), doing=doing)
