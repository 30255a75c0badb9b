"""The SQLite engine as a whole: main file, group commit, and the leases file for those who ask."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from coterie.kernel.clock import to_datetime
from coterie.storage.groups import GroupWriter
from coterie.storage.interface import SECRET_BYTES, Storage
from coterie.storage.sqlite import secrets
from coterie.storage.sqlite.database import Database
from coterie.storage.sqlite.executor import Executors, threads
from coterie.storage.sqlite.kv import HANDLERS, Scope, SqliteKv
from coterie.storage.sqlite.location import beside, path_of
from coterie.storage.sqlite.schema import SqliteSchema

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import apsw

    from coterie.kernel.chance import Chance
    from coterie.kernel.clock import Clock
    from coterie.settings import Settings
    from coterie.storage.interface import Write

_PAUSE_S = 0.001
"""Between two tries for the write lock: 0.2 ms halved the throughput of all, SQLite's own waiting starves."""

_LEASES_PAUSE_S = 0.0003
"""The lease keeper asks more often: its transactions are tiny, and it must not be the one who waits [m6]."""


class SqliteStorage(Storage):
    """One cluster's database in a SQLite file, or in memory for one process.

    Args:
        settings: The url, the cluster's name, and whether an empty file is set up.
        incarnation: The identity of this process.
        clock: Decides about expiry: all processes of a file share a machine, so its clock is the database's.
        chance: For jitter, and for the cluster's secret.
        executors: Who runs the SQL; threads, unless a simulator puts something else in their place.
        check_schema: Refuse a schema that this program cannot work on. Off for `coterie migrate`.
        lock_limit_s: How long a write waits for other processes before it fails and names who holds the lock.

    Promise:
        A write that returned survives the death of all processes and a loss of power.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        incarnation: str,
        clock: Clock,
        chance: Chance,
        executors: Executors = threads,
        check_schema: bool = True,
        lock_limit_s: float = 10.0,
    ) -> None:
        self._path = path_of(settings.url)
        self._settings = settings
        self.incarnation = incarnation
        self._clock = clock
        self._chance = chance
        self._check_schema = check_schema
        self._open = partial(Database, executors=executors, chance=chance, limit_s=lock_limit_s)
        self._main = self._open(self._path, writer="writer", reader="reader", pause_s=_PAUSE_S)
        self._leases: Database | None = None
        self._changing = asyncio.Lock()
        super().__init__(what=f"storage {self.address}")
        self.groups = GroupWriter(self._commit)
        self.kv = SqliteKv(self._main, write=self.write, cluster=settings.name, clock=clock)
        self.schema = self._schema = SqliteSchema(self._main, package=f"{__package__}.migrations", clock=clock)

    @property
    def address(self) -> str:
        """The path of the file as it was given."""
        return self._main.address

    async def now(self) -> datetime:
        """The time of this machine, which all processes of the file share."""
        self._main.require_usable()
        return to_datetime(self._clock.wall_ns())

    async def secret(self) -> bytes:
        """The cluster's secret. See `storage.interface.Storage`."""
        cluster = self._settings.name
        found = await self._main.read(lambda c: secrets.read(c, cluster), doing="read the cluster's secret")
        if found is not None:
            return found
        drawn = self._chance.token(SECRET_BYTES)
        return await self._main.transact(
            lambda c: secrets.read_or_draw(c, cluster, drawn), doing="draw the cluster's secret"
        )

    async def write(self, write: Write) -> Any:
        """The result of a write, durable; concurrent ones share transactions."""
        self._main.require_usable()
        return await self.groups.write(write)

    async def dedicated(self) -> Database:
        """The database of leases: a file of its own beside the main one, a connection that nothing else
        shares.

        It is opened at the first request, stopped with this storage, and belongs to the loop that asked
        first.
        """
        async with self._changing:
            self._main.require_usable()
            if self._leases is None:
                self._leases = await self._open_leases()
            return self._leases

    def write_lock_holder(self) -> int | None:
        """The id of the other process that holds the main file's write lock now, if there is one [C3]."""
        return self._main.write_lock_holder()

    async def _start(self) -> None:
        await self._main.start()
        if self._check_schema:
            await self._schema.prepare(migrate=self._settings.migrate)
        await self.groups.start()

    async def _stop(self) -> None:
        self._main.require_same_process()
        await self.groups.stop()
        async with self._changing:
            if self._leases is not None:
                await self._leases.stop()
            await self._main.stop()

    async def _open_leases(self) -> Database:
        path = None if self._path is None else beside(self._path, ["-leases"])[0]
        leases = self._open(path, writer="leases", reader=None, pause_s=_LEASES_PAUSE_S)
        await leases.start()
        try:
            schema = SqliteSchema(leases, package=f"{__package__}.migrations.leases", clock=self._clock)
            # Whatever `migrate` says: leases end with their processes, so there is nothing to decide about.
            await schema.prepare(migrate=True)
        except BaseException:
            await leases.stop()
            raise
        return leases

    async def _commit(self, group: Sequence[Write]) -> Sequence[Any]:
        return await self._main.transact(lambda c: self._run(c, group), doing=f"write to {self.address}")

    def _run(self, connection: apsw.Connection, group: Sequence[Write]) -> list[Any]:
        scope = Scope(self._settings.name, self._clock.wall_ns())
        return [HANDLERS[type(write)](connection, scope, write) for write in group]
