"""One cluster's PostgreSQL database: its start with the checks, its parts, and its stop."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

from coterie.errors import PersistenceError
from coterie.kernel import fork_guard
from coterie.storage import statements
from coterie.storage.group_commit import GroupWriter
from coterie.storage.interface import Storage
from coterie.storage.postgres.audit import PostgresActivity, PostgresInspection
from coterie.storage.postgres.connector import ConnectionLimits, Connector
from coterie.storage.postgres.errors import DatabaseRefusal, Lost, hopeless, loss, refusal
from coterie.storage.postgres.incoming_calls import PostgresIncoming
from coterie.storage.postgres.jobs import PostgresJobs
from coterie.storage.postgres.kv import PostgresKv
from coterie.storage.postgres.machine_ids import PostgresMachines
from coterie.storage.postgres.messages import PostgresMessages
from coterie.storage.postgres.ownership import SQL, PostgresOwners, to_view
from coterie.storage.postgres.pauses import PostgresPauses
from coterie.storage.postgres.payloads import PostgresPayloads
from coterie.storage.postgres.pool import Pool
from coterie.storage.postgres.run_messages import PostgresRunMessages
from coterie.storage.postgres.schedules import PostgresSchedules
from coterie.storage.postgres.server import schema as stored_schema
from coterie.storage.postgres.server import server_check
from coterie.storage.postgres.server.schema import PostgresSchema
from coterie.storage.postgres.session import deadline
from coterie.storage.postgres.states import PostgresExecutions, PostgresStates
from coterie.storage.postgres.ticks import PostgresTicks
from coterie.storage.postgres.units import PostgresUnits
from coterie.storage.postgres.user_sql import PostgresTransactions
from coterie.storage.postgres.user_writes import PostgresUserWrites
from coterie.storage.postgres.writer import APART_MOST, PostgresWriter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

    from coterie.kernel.random import Random
    from coterie.kernel.supervisor import Supervisor
    from coterie.settings import Settings
    from coterie.storage.interface import ClusterSnapshot
    from coterie.storage.postgres.ownership import PostgresOwnership
    from coterie.storage.postgres.session import PostgresSession
    from coterie.storage.user_transaction import UserTransaction

log = logging.getLogger("coterie")

_BESIDE_POOLS = 6 + APART_MOST
"""Sessions that a process may have beside the pools for work and users' transactions: the writer's, those of writes
that wait for a key, the lease's, and room for replacements of dropped ones."""

_PAUSE_S = 1.0
"""The pause between two rounds of tries to reach a server."""


_OVERDUE = statements.load("coterie.storage.postgres.sql", "overdue.sql")


class PostgresStorage(Storage):
    """A cluster's data on a PostgreSQL server (14 or newer).

    Args:
        settings: The url, the cluster's name, the size of the pool, whether to set up an empty database.
        incarnation: The identity of this process, seen as application_name on the server.
        chance: For jitter, and for the labels of sessions.
        check_schema: Off for the migrate command: it starts on any schema and sets nothing up.
        limits: The time limits.
        supervisor: The supervisor of this process.
    """

    units: PostgresUnits
    schema: PostgresSchema

    def __init__(
        self,
        settings: Settings,
        *,
        incarnation: str,
        chance: Random,
        check_schema: bool = True,
        limits: ConnectionLimits | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._limits = limits or ConnectionLimits(
            transaction_s=settings.transaction_limit.total_seconds(),
            dedicated_s=min(2.0, settings.lease_ttl.total_seconds() / 3),
        )
        self._connector = Connector(
            settings.url,
            incarnation=incarnation,
            chance=chance,
            limits=self._limits,
            sessions_most=2 * settings.pool_size + _BESIDE_POOLS,
        )
        super().__init__(what=f"the storage at {self.address}")
        self._origin = fork_guard.ProcessOrigin(self.what)
        self._chance = chance
        self._cluster = settings.name
        self._migrate = settings.migrate
        self._check_schema = check_schema
        self._committer = PostgresWriter(
            self._connector, cluster=settings.name, chance=chance, limits=self._limits, audit=settings.audit
        )
        self.writer = GroupWriter(self._committer.commit, apart=self._committer.write_apart, supervisor=supervisor)
        self.pool = Pool(self._connector, size=settings.pool_size, chance=chance, limits=self._limits)
        parts: Any = {"cluster": settings.name, "pool": self.pool, "writer": self.writer, "origin": self._origin}
        self.kv = PostgresKv(**parts)
        self.states = PostgresStates(**parts)
        self.executions = PostgresExecutions(**parts)
        self.ticks = PostgresTicks(**parts)
        self.units = PostgresUnits(**parts)
        self.machines = PostgresMachines(**parts)
        self.messages = PostgresMessages(**parts)
        self.jobs = PostgresJobs(**parts)
        self.inspection = PostgresInspection(**parts)
        self.activity = PostgresActivity(**parts)
        self.incoming = PostgresIncoming(**parts)
        self.schedules = PostgresSchedules(**parts)
        self.run_messages = PostgresRunMessages(**parts)
        self.pauses = PostgresPauses(**parts)
        self.payloads = PostgresPayloads(**parts)
        self.user_writes = PostgresUserWrites(cluster=settings.name, pool=self.pool)
        self.undertakings = PostgresTransactions(
            self._connector,
            size=settings.pool_size,
            limits=self._limits,
            chance=chance,
            tasks=self.tasks,
            started=self.units.require_started,
            sent=self._committer.require_sent,
            stored=self._committer.require_stored,
            written=self._committer.write,
            alone=self.writer.write,
        )
        self.schema = PostgresSchema(self._connector, limits=self._limits)
        self._owners = PostgresOwners(
            self._connector, cluster=settings.name, chance=chance, limits=self._limits, audit=settings.audit
        )

    @property
    def address(self) -> str:
        """The url without its password."""
        return self._connector.address

    async def now(self) -> datetime:
        """The database's clock."""
        self._require_usable()
        return cast("datetime", (await self.pool.read(server_check.SQL["now"]))[0][0])

    async def overdue(self, *, retention_s: float, key_retention_s: float) -> Mapping[str, float]:
        """How long the oldest row of each table has been overdue for pruning. See `storage.interface.Storage`."""
        self._require_usable()
        rows = await self.pool.read(_OVERDUE["overdue"], self._cluster, retention_s, key_retention_s)
        return {row["name"]: row["late_s"] for row in rows}

    async def secret(self) -> bytes:
        """The cluster's secret. See `storage.interface.Storage`."""
        self._require_usable()
        return await stored_schema.read_or_draw(self.pool, cluster=self._cluster, chance=self._chance)

    def ownership(self, incarnation: str) -> AbstractAsyncContextManager[PostgresOwnership]:
        """Open a dedicated session, outside of the pool. See `storage.interface.Storage`."""
        self._require_usable()
        return self._owners.open(incarnation)

    def rename(self, incarnation: str) -> None:
        """Use another incarnation from now on: sessions under the old name are closed."""
        self._connector.rename(incarnation)
        self.pool.rename()
        self._committer.rename()
        self.undertakings.pool.rename()

    async def view(self) -> ClusterSnapshot:
        """Read all runners and seats."""
        self._require_usable()
        return to_view(await self.pool.read(SQL["view"], self._cluster))

    def transaction(self, *, limit_s: float) -> UserTransaction:
        """The user's own SQL, on its own session. See `storage.interface.Storage`."""
        self._require_usable()
        return self.undertakings.open(limit_s=limit_s)

    def _require_usable(self) -> None:
        self._origin.require_same()
        self.require_running()

    async def start(self) -> None:
        """Connect, check, and refuse a server that would break promises."""
        self._origin.require_same()
        await super().start()

    async def stop(self) -> None:
        """Close all connections."""
        self._origin.require_same()
        await super().stop()

    async def _start(self) -> None:
        ours = await self._first_session()
        self.pool.adopt(ours)
        other = await self._connector.connect("writer", tries=self._limits.tries, standby=True, bare=True)
        self._committer.adopt(other)
        try:
            await self._set_up(ours, other)
            over = deadline(self._limits.call_s)
            await self._connector.look(ours, over=over)
        except Lost as lost:
            raise loss(lost, doing=f"start on {self.address}", outcome="unreachable") from lost
        except DatabaseRefusal as error:
            raise refusal(error, doing=f"start on {self.address}") from error
        if self._check_schema:
            await self.schema.require_usable(migrate=self._migrate)
        await self.writer.start()

    async def _first_session(self) -> PostgresSession:
        while True:
            try:
                return await self._connector.connect("work", tries=self._limits.tries, standby=True, bare=True)
            except PersistenceError as error:
                if self.on_unreachable is None or hopeless(error.__cause__):
                    raise
                self.on_unreachable(error)
            await asyncio.sleep(self._chance.between(0.5, 1.0) * _PAUSE_S)

    async def _set_up(self, ours: PostgresSession, other: PostgresSession) -> None:
        """Detect a pooler, and give these two sessions their settings accordingly."""
        over = deadline(self._limits.call_s)
        mark = self._chance.token(8).hex()
        self._connector.pooled = await server_check.lends_sessions(ours, other, mark=mark, over=over)
        if self._connector.pooled:
            log.warning(server_check.POOLED, self.address)
        await self._connector.set_up(ours, "work", over=over)
        await self._connector.set_up(other, "writer", over=over)

    async def _stop(self) -> None:
        await self.writer.stop()
        await self._committer.close()
        await self.undertakings.pool.close()
        await self.pool.close()
