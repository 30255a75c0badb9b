"""One cluster's SQLite database: the file, group commit, and the sessions of runners."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from coterie.kernel.clock import to_datetime
from coterie.storage import statements
from coterie.storage.contracts.executions import Stamp
from coterie.storage.contracts.messages import Commit, Insert, Setback
from coterie.storage.contracts.ticks import TickClaim, TickNote
from coterie.storage.contracts.units import StepWrite, UnitEnd
from coterie.storage.group_commit import Group, GroupWriter
from coterie.storage.interface import SECRET_BYTES, StateSave, Storage
from coterie.storage.sqlite import batch, message_writes, schema, states, tick_writes, unit_writes, units
from coterie.storage.sqlite.audit import SqliteInspection
from coterie.storage.sqlite.database import SqliteDatabase
from coterie.storage.sqlite.executor import Executors, threads
from coterie.storage.sqlite.kv import HANDLERS, Scope, SqliteKv
from coterie.storage.sqlite.location import path_of
from coterie.storage.sqlite.machine_ids import SqliteMachines
from coterie.storage.sqlite.messages import SqliteMessages
from coterie.storage.sqlite.ownership import SqliteOwners
from coterie.storage.sqlite.schema import SqliteSchema
from coterie.storage.sqlite.ticks import SqliteTicks
from coterie.storage.sqlite.units import SqliteUnits
from coterie.storage.sqlite.user_sql import SqliteTransactions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

    import apsw

    from coterie.kernel.clock import Clock
    from coterie.kernel.random import Random
    from coterie.kernel.supervisor import Supervisor
    from coterie.settings import Settings
    from coterie.storage.contracts.units import UnitStart
    from coterie.storage.interface import ClusterSnapshot, Write
    from coterie.storage.sqlite.kv import Handler
    from coterie.storage.sqlite.ownership import SqliteOwnership
    from coterie.storage.sqlite.witness import Witness
    from coterie.storage.user_transaction import UserTransaction

_GROUP_MOST = 200
"""Maximum writes of one transaction. Processes alternate: while one commits, others work on what it has committed
before. With groups of 500 the hundreds of calls in flight between two processes moved back and forth as one, and one
process slept while the other worked."""


_PRUNING = statements.load("coterie.storage.sqlite.sql", "pruning.sql")


class SqliteStorage(Storage):
    """One cluster's database in a SQLite file, or in memory for one process.

    Args:
        settings: The url, the cluster's name, and whether an empty file is set up.
        incarnation: The identity of this process.
        clock: Decides about expiry: all processes of a file share a machine, so its clock is the database's.
        chance: For jitter, and for the cluster's secret.
        executors: Creates the executors of SQL: threads, unless a simulator replaces them.
        witness: Knows which processes are alive [m5]: locks beside the file, unless a simulator replaces them.
        check_schema: Refuse a schema that this program cannot work with. Off for `coterie migrate`.
        lock_limit_s: How long a write waits for other processes before it fails with an error that names the holder.
        supervisor: The supervisor of this process.

    Promise:
        A write that returned survives the death of all processes and a power loss.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        incarnation: str,
        clock: Clock,
        chance: Random,
        executors: Executors = threads,
        witness: Witness | None = None,
        check_schema: bool = True,
        lock_limit_s: float = 10.0,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._settings = settings
        self.incarnation = incarnation
        self._clock = clock
        self._chance = chance
        self._check_schema = check_schema
        self._main = SqliteDatabase(
            path_of(settings.url), executors=executors, clock=clock, chance=chance, limit_s=lock_limit_s
        )
        self._owners = SqliteOwners(self._main, settings=settings, clock=clock, chance=chance, witness=witness)
        super().__init__(what=f"storage {self.address}")
        self.groups = GroupWriter(self._commit, most=_GROUP_MOST, supervisor=supervisor)
        self.kv = SqliteKv(self._main, write=self.write, cluster=settings.name, clock=clock)
        named: Any = {"write": self.write, "cluster": settings.name, "clock": clock}
        self.states = states.SqliteStates(self._main, **named)
        self.executions = states.SqliteExecutions(self._main, **named)
        self.ticks = SqliteTicks(self._main, **named)
        self.inspection = SqliteInspection(self._main, cluster=settings.name)
        self.machines = SqliteMachines(self._main, cluster=settings.name, clock=clock)
        audit = settings.audit
        self.units = SqliteUnits(self._main, **named, audit=audit)
        self.messages = SqliteMessages(self._main, writer=self.groups, cluster=settings.name, clock=clock, audit=audit)
        self._handlers: dict[type, Handler] = {
            **{kind: partial(handler, audit=audit) for kind, handler in HANDLERS.items()},
            StateSave: partial(states.save_leader_state, audit=audit),
            Stamp: partial(states.stamp, audit=audit),
            Insert: message_writes.insert,
            Commit: partial(message_writes.commit, audit=audit),
            Setback: partial(message_writes.setback, audit=audit),
            TickClaim: lambda c, scope, write: tick_writes.claim(c, scope, [write], audit=audit)[0],
            TickNote: lambda c, scope, write: tick_writes.note(c, scope, [write], audit=audit)[0],
            StepWrite: lambda c, scope, write: unit_writes.step(c, scope, [write], audit=audit)[0],
            UnitEnd: lambda c, scope, write: unit_writes.end(c, scope, [write], audit=audit)[0],
        }
        self._undertakings = SqliteTransactions(
            self._main, tasks=self.tasks, written=self._run_in_transaction, alone=self.write
        )
        self.schema = self._schema = SqliteSchema(self._main, package=f"{__package__}.migrations", clock=clock)

    @property
    def address(self) -> str:
        """The path of the file as it was given."""
        return self._main.address

    async def now(self) -> datetime:
        """The time of this machine, which all processes of the file share."""
        self._main.require_usable()
        return to_datetime(self._clock.wall_ns())

    async def overdue(self, *, retention_s: float, key_retention_s: float) -> Mapping[str, float]:
        """How long the oldest row of each table has been overdue for pruning. See `storage.interface.Storage`."""
        now_ns = self._clock.wall_ns()
        names = {
            "cluster": self._settings.name,
            "retention_ns": int(retention_s * 1e9),
            "key_retention_ns": int(key_retention_s * 1e9),
        }
        rows: list[Any] = await self._main.read(
            lambda c: c.execute(_PRUNING["overdue"], names).fetchall(), doing="look for what should be gone"
        )
        return {name: (now_ns - at_ns) / 1e9 for name, at_ns in rows if at_ns is not None and at_ns < now_ns}

    async def secret(self) -> bytes:
        """The cluster's secret. See `storage.interface.Storage`."""
        cluster = self._settings.name
        found = await self._main.read(lambda c: schema.read(c, cluster), doing="read the cluster's secret")
        if found is not None:
            return found
        drawn = self._chance.token(SECRET_BYTES)
        return await self._main.transact(
            lambda c: schema.read_or_draw(c, cluster, drawn), doing="draw the cluster's secret"
        )

    async def write(self, write: Write) -> Any:
        """Return the result of a write once durable; concurrent ones share transactions."""
        self._main.require_usable()
        return await self.groups.submit(write)

    def ownership(self, incarnation: str) -> AbstractAsyncContextManager[SqliteOwnership]:
        """Open a session for a runner: its own thread, with unshared connections."""
        return self._owners.open(incarnation)

    def presence(self, incarnation: str) -> AbstractAsyncContextManager[object]:
        """Hold the lock on the file of this incarnation during the block."""
        return self._owners.presence(incarnation)

    def transaction(self, *, limit_s: float) -> UserTransaction:
        """The user's own SQL, in its own thread. See `storage.interface.Storage`."""
        self._main.require_usable()
        return self._undertakings.open(limit_s=limit_s)

    def rename(self, incarnation: str) -> None:
        """Do nothing: only the sessions have an incarnation, and get it when opened."""
        self.incarnation = incarnation

    async def view(self) -> ClusterSnapshot:
        """Read all runners and seats."""
        return await self._owners.view()

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
        await self._undertakings.close()
        await self._main.stop()

    async def _commit(self, group: Group) -> Sequence[Any]:
        doing = f"write to {self.address}"
        results = await self._main.transact(lambda c: self._run_closed(c, group), doing=doing)
        if results is None:
            results = await self._main.transact(lambda c: self._run(c, group), doing=doing)
        return results

    def _run_closed(self, connection: apsw.Connection, group: Group) -> list[Any] | None:
        """Run a group that holds the write lock; None: nothing was written, run it one by one."""
        group.close()
        if len(group) == 1 or batch.meet(group):
            return self._run(connection, group)
        return self._run_together(connection, group)

    def _run(self, connection: apsw.Connection, group: Sequence[Write]) -> list[Any]:
        scope = Scope(self._settings.name, self._clock.wall_ns())
        return [self._handlers[type(write)](connection, scope, write) for write in group]

    def _run_in_transaction(self, connection: apsw.Connection, write: Write, starts: Sequence[UnitStart]) -> Any:
        """Run the writes with which a user's transaction is committed."""
        units.require_started(connection, Scope(self._settings.name, self._clock.wall_ns()), starts)
        return self._run(connection, [write])[0]

    def _run_together(self, connection: apsw.Connection, group: Sequence[Write]) -> list[Any] | None:
        """Run similar writes together; None: one of them is refused, and nothing was written."""
        scope = Scope(self._settings.name, self._clock.wall_ns())
        written = batch.commit(connection, scope, group)
        if written is None:
            connection.execute("rollback")
            return None
        done: dict[int, Any] = {**written, **batch.insert(connection, scope, group)}
        done |= batch.ticks(connection, scope, group, audit=self._settings.audit)
        done |= batch.units(connection, scope, group, audit=self._settings.audit)
        return [
            done[place] if place in done else self._handlers[type(write)](connection, scope, write)
            for place, write in enumerate(group)
        ]
