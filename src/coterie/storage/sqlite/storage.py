"""One cluster's SQLite database: the file, group commit, and the sessions of runners."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from coterie.kernel.clock import to_datetime
from coterie.storage import statements
from coterie.storage.contracts.executions import Stamp
from coterie.storage.contracts.incoming_calls import NoIncomingCalls
from coterie.storage.contracts.jobs import JobEnd, JobInsert, JobSetback
from coterie.storage.contracts.messages import Commit, Insert, Setback
from coterie.storage.contracts.ticks import TickClaim, TickNote
from coterie.storage.contracts.units import StepWrite, UnitEnd
from coterie.storage.contracts.user_writes import NoUserWrites
from coterie.storage.group_commit import Group, GroupWriter
from coterie.storage.interface import SECRET_BYTES, KvPut, KvRemove, KvSwap, StateSave, Storage
from coterie.storage.sqlite import (
    kv,
    message_writes,
    schema,
    states,
    tick_writes,
    unit_writes,
    units,
)
from coterie.storage.sqlite.audit import SqliteActivity, SqliteInspection
from coterie.storage.sqlite.database import SqliteDatabase
from coterie.storage.sqlite.executor import Executors, threads
from coterie.storage.sqlite.file.location import path_of
from coterie.storage.sqlite.jobs import ends, inserts
from coterie.storage.sqlite.jobs.jobs import SqliteJobs
from coterie.storage.sqlite.machine_ids import SqliteMachines
from coterie.storage.sqlite.messages import SqliteMessages
from coterie.storage.sqlite.ownership import SqliteOwners
from coterie.storage.sqlite.pauses import SqlitePauses
from coterie.storage.sqlite.payloads import SqlitePayloads
from coterie.storage.sqlite.run_messages import SqliteRunMessages
from coterie.storage.sqlite.schedules import SqliteSchedules
from coterie.storage.sqlite.schema import SqliteSchema
from coterie.storage.sqlite.store import Scope
from coterie.storage.sqlite.ticks import SqliteTicks
from coterie.storage.sqlite.units import SqliteUnits
from coterie.storage.sqlite.user_sql import SqliteTransactions

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

    import apsw

    from coterie.kernel.clock import Clock
    from coterie.kernel.random import Random
    from coterie.kernel.supervisor import Supervisor
    from coterie.settings import Settings
    from coterie.storage.contracts.jobs import NewJob
    from coterie.storage.contracts.messages import Message
    from coterie.storage.interface import ClusterSnapshot, Write
    from coterie.storage.sqlite.file.witness import Witness
    from coterie.storage.sqlite.ownership import SqliteOwnership
    from coterie.storage.user_transaction import Collected, UserTransaction

    Handler = Callable[..., Sequence[Any] | None]

_GROUP_MOST = 200
"""Maximum writes of one transaction. Processes alternate: while one commits, others work on what it has committed
before. With groups of 500 the hundreds of calls in flight between two processes moved back and forth as one, and one
process slept while the other worked."""


_OVERDUE = statements.load("coterie.storage.sqlite.sql", "overdue.sql")


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
        self._cluster, self._audit = settings.name, settings.audit
        parts: Any = {"writer": self.groups, "cluster": self._cluster, "clock": clock, "audit": self._audit}
        self.kv = kv.SqliteKv(self._main, **parts)
        self.states = states.SqliteStates(self._main, **parts)
        self.executions = states.SqliteExecutions(self._main, **parts)
        self.ticks = SqliteTicks(self._main, **parts)
        self.units = SqliteUnits(self._main, **parts)
        self.messages = SqliteMessages(self._main, **parts)
        self.jobs = SqliteJobs(self._main, **parts)
        self.machines = SqliteMachines(self._main, **parts)
        self.inspection = SqliteInspection(self._main, **parts)
        self.activity = SqliteActivity(self._main, **parts)
        self.incoming = NoIncomingCalls()
        self.schedules = SqliteSchedules(self._main, **parts)
        self.pauses = SqlitePauses(self._main, **parts)
        self.run_messages = SqliteRunMessages(self._main, **parts)
        self.payloads = SqlitePayloads(self._main, **parts)
        self.user_writes = NoUserWrites(self.address)
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
            lambda c: c.execute(_OVERDUE["overdue"], names).fetchall(), doing="look for what should be gone"
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

    async def _start(self) -> None:
        await self._main.start()
        if self._check_schema:
            await self._schema.prepare(migrate=self._settings.migrate)
        await self.groups.start()

    async def _stop(self) -> None:
        self._main.origin.require_same()
        await self.groups.stop()
        await self._undertakings.close()
        await self._main.stop()

    async def _commit(self, group: Group) -> Sequence[Any]:
        doing = f"write to {self.address}"
        results: Sequence[Any] | None = await self._main.transact(lambda c: self._run_closed(c, group), doing=doing)
        if results is None:  # nothing was written
            results = await self._main.transact(lambda c: self._run(c, group, _one_by_one(group)), doing=doing)
        assert results is not None
        return results

    def _run_closed(self, connection: apsw.Connection, group: Group) -> Sequence[Any] | None:
        group.close()
        if len(group) == 1:
            return _HANDLERS[type(group[0])](connection, self._scope(), group)
        return self._run(connection, group, _batches(group))

    def _run(
        self, connection: apsw.Connection, group: Sequence[Write], batches: Sequence[Sequence[int]]
    ) -> list[Any] | None:
        """Run writes, given by their places in the group. None: one was refused, and all were rolled back."""
        scope = self._scope()
        done: list[Any] = [None] * len(group)
        for batch in batches:
            results = _HANDLERS[type(group[batch[0]])](connection, scope, [group[place] for place in batch])
            if results is None:
                connection.execute("rollback")
                return None
            for place, result in zip(batch, results, strict=True):
                done[place] = result
        return done

    def _scope(self) -> Scope:
        return Scope(self._cluster, self._clock.wall_ns(), self._audit)

    def _run_in_transaction(self, connection: apsw.Connection, write: Write | None, collected: Collected) -> Any:
        """Run the writes with which a user's transaction is committed."""
        units.require_started(connection, self._scope(), collected.starts)
        message_writes.require_sent(connection, self._scope(), collected.sends)
        inserts.require_stored(connection, self._scope(), collected.jobs)
        if write is None:
            return "written"
        results = _HANDLERS[type(write)](connection, self._scope(), [write])
        assert results is not None
        return results[0]


def _each(handler: Callable[..., Any]) -> Handler:
    """Make a handler of a function for one write."""

    def handle(connection: apsw.Connection, scope: Scope, writes: Sequence[Write]) -> list[Any]:
        return [handler(connection, scope, write) for write in writes]

    return handle


_HANDLERS: dict[type, Handler] = {
    Commit: message_writes.commit,  # first: if one is refused, little has been written in vain
    Insert: message_writes.insert,
    Setback: _each(message_writes.setback),
    JobEnd: ends.end,
    JobInsert: inserts.insert,
    JobSetback: _each(ends.setback),
    StateSave: _each(states.save_leader_state),
    Stamp: _each(states.stamp),
    TickClaim: tick_writes.claim,
    TickNote: tick_writes.note,
    StepWrite: unit_writes.step,
    UnitEnd: unit_writes.end,
    **dict.fromkeys((KvPut, KvSwap, KvRemove), _each(kv.write)),
}
"""The handler of each kind of write. It takes a list, of one write or of several that are about different rows, and
returns their results. None: one was refused, roll back and run them one by one, each with its own result [M3]."""


def _one_by_one(group: Sequence[Write]) -> list[list[int]]:
    return [[place] for place in range(len(group))]


def _batches(group: Sequence[Write]) -> list[list[int]]:
    """Split a group into batches for one handler each.

    Writes about the same row keep their order: they are in different batches.
    """
    batches: list[list[int]] = []
    for run in _runs(group):
        kinds: dict[Handler, list[int]] = {}
        for place in run:
            kinds.setdefault(_HANDLERS[type(group[place])], []).append(place)
        batches += [kinds.pop(handler) for handler in _HANDLERS.values() if handler in kinds]
    return batches


def _runs(group: Sequence[Write]) -> list[Sequence[int]]:
    """Split a group into runs in which no two writes are about the same row."""
    ended = {write.unit for write in group if type(write) is UnitEnd}
    rows = [_rows(write, ended) for write in group]
    if len(set(chain.from_iterable(rows))) == sum(map(len, rows)):
        return [range(len(group))]
    runs: list[list[int]] = [[]]
    seen: set[object] = set()
    for place, names in enumerate(rows):
        if not seen.isdisjoint(names) or len(set(names)) < len(names):
            runs.append([])
            seen.clear()
        runs[-1].append(place)
        seen.update(names)
    return [run for run in runs if run]


def _rows(write: Write, ended: Container[str]) -> Sequence[object]:
    """Name the rows that a write is about.

    Writes of keys share a handler, which keeps their order. Steps are about their unit only if it ends in this group.
    """
    if type(write) is Insert:  # these have no subclasses, and this runs for each write, under the lock
        return _message_rows(write.message)
    if type(write) is Commit:
        names: list[object] = [] if write.message is None else [write.message]
        if write.state is not None:
            names.append(write.state.key)
        names += (("timer", change.key) for change in write.timers)
        return names + _sent_rows(write)
    if type(write) is JobEnd:
        return [write.job, *_sent_rows(write)]
    if type(write) is StepWrite:
        return (write.key, write.unit) if write.unit in ended else (write.key,)
    if type(write) is UnitEnd:
        return (write.unit,)
    if type(write) is Setback:
        return (write.message,)
    if type(write) is JobSetback:
        return (write.job,)
    if type(write) is JobInsert:
        return [row for job in write.jobs for row in _job_rows(job)]
    if type(write) is StateSave or type(write) is TickClaim or type(write) is TickNote:
        return (write.key,)
    return ()


def _sent_rows(write: Commit | JobEnd) -> list[object]:
    rows: list[object] = []
    for message in write.sends:
        rows += _message_rows(message)
    for job in write.jobs:
        rows += _job_rows(job)
    return rows


def _job_rows(job: NewJob) -> Sequence[object]:
    return (job.id,) if job.key is None else (job.id, (job.task, job.key))


def _message_rows(message: Message) -> Sequence[object]:
    if message.key is None:
        return (message.id,)
    return message.id, (message.entity_type, message.entity_id, message.method, message.key)
