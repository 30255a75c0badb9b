"""The migrations of the tables in the schema `coterie`, applied under a lock, and the cluster's secret.

The secret is drawn by the first process that needs it, and is the same for all from then on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.errors import ConfigurationError, quoted
from coterie.storage import migrations, statements
from coterie.storage.interface import SECRET_BYTES
from coterie.storage.migrations import Migration
from coterie.storage.postgres.errors import DatabaseRefusal, Lost, loss, refusal
from coterie.storage.postgres.lease_session import lock_key
from coterie.storage.postgres.server.server_check import SQL, require_grants
from coterie.storage.postgres.session import deadline

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from coterie.kernel.random import Random
    from coterie.storage.migrations import Phase
    from coterie.storage.postgres.connector import ConnectionLimits, Connector
    from coterie.storage.postgres.pool import Pool
    from coterie.storage.postgres.session import PostgresSession


log = logging.getLogger("coterie")

T = TypeVar("T")

KNOWN = migrations.load("coterie.storage.postgres.migrations")
LOCK = lock_key("migrations")  # per database, not per cluster: clusters share the tables


class PostgresSchema:
    """The migrations of one database. Each call opens its own session, since calls are rare."""

    def __init__(self, connector: Connector, *, limits: ConnectionLimits, known: Sequence[Migration] = KNOWN) -> None:
        self.known = known
        self._connector = connector
        self._limits = limits
        self._doing = f"migrate {connector.address}"

    async def applied(self) -> Sequence[Migration]:
        """Return the applied migrations in order; none for an empty database."""
        return await self._with_session(self._read)

    async def pending(self, phase: Phase | None = None) -> Sequence[Migration]:
        """Return the migrations that this program knows and the database lacks, in order."""
        return migrations.pending(self.known, await self.applied(), phase)

    async def apply(self, phase: Phase | None = None) -> Sequence[Migration]:
        """Apply what is pending under a lock. Returns what this call has applied.

        Promise:
            Safe from several processes at once, and after a crash at any point: a migration and its record
            are one transaction, and so are all of them on an empty database, which is empty or complete.
        """

        async def apply(session: PostgresSession) -> list[Migration]:
            applied = await self._read(session)
            pending = migrations.pending(self.known, applied, phase)
            groups = [[migration] for migration in pending] if applied else [pending]
            return [migration for group in groups for migration in await self._apply(session, group)]

        return await self._with_session(apply)

    async def grant_send(self, role: str) -> None:
        """Let a role call `coterie.send` and `coterie.start_workflow`, which need no rights of their caller [O2]."""

        async def grant(session: PostgresSession) -> None:
            rows = await self._fetch(session, "grant_send", role)
            if not rows:
                raise ConfigurationError(
                    problem=f"role {quoted(role)} cannot be let in: {self._connector.address} has no such role",
                    hint="create it first: create role … login",
                )
            if "incoming" not in {row["name"] for row in await self._fetch(session, "tables")}:
                raise ConfigurationError(
                    problem=f"the schema of {self._connector.address} has no functions to send with yet",
                    hint="run: coterie migrate --apply",
                )
            await session.execute(rows[0]["statements"], over=deadline(self._limits.migration_s))

        await self._with_session(grant)

    async def require_usable(self, *, migrate: bool) -> None:
        """Set up an empty database if asked and permitted, then refuse a schema that this program cannot use."""
        await self._with_session(lambda session: self._require_usable(session, migrate=migrate))

    async def _require_usable(self, session: PostgresSession, *, migrate: bool) -> None:
        if not await self._is_empty(session):
            await self._require_grants(session)
        elif not migrate or not (await self._fetch(session, "role"))[0]["creates"]:
            why = "this role may not create it" if migrate else "migrate is off"
            raise ConfigurationError(
                problem=f"{self._connector.address} has no schema of coterie yet, and {why}",
                hint="run as a role that may: coterie migrate --apply",
            )
        else:
            await self.apply()
            await self._require_grants(session)
        migrations.require_usable(self.known, await self._read(session), address=self._connector.address)

    async def _require_grants(self, session: PostgresSession) -> None:
        role = (await self._fetch(session, "role"))[0]
        may = {row["name"]: row["may"] for row in await self._fetch(session, "tables")}
        require_grants(may, enters=role["enters"], role=role["name"], address=self._connector.address)

    async def _is_empty(self, session: PostgresSession) -> bool:
        return "migrations" not in {row["name"] for row in await self._fetch(session, "tables")}

    async def _read(self, session: PostgresSession) -> Sequence[Migration]:
        if await self._is_empty(session):
            return []
        return [Migration(*row) for row in await self._fetch(session, "applied")]

    async def _apply(self, session: PostgresSession, group: Sequence[Migration]) -> list[Migration]:
        """Apply a group in one transaction, without those that another process has applied. Returns the rest."""
        over = deadline(self._limits.migration_s)
        await session.begin(over=over)
        await session.execute(f"set local lock_timeout = '{self._limits.migration_s:.0f}s'", over=over)
        await self._fetch(session, "lock_migrations", LOCK)
        mine = migrations.pending(group, await self._read(session), None)
        # Waiting long for a table in use would block all sessions that queue behind this one.
        await session.execute("set local lock_timeout = '5s'", over=over)
        for migration in mine:
            await session.execute(migration.sql, over=over)
            await self._fetch(session, "record", migration.number, migration.phase, migration.name)
        await session.execute("commit", over=over)
        for migration in mine:
            log.info("applied migration %s to %s", migration, self._connector.address)
        return mine

    async def _fetch(self, session: PostgresSession, name: str, *values: Any) -> Sequence[Any]:
        return await session.fetch(SQL[name], *values, over=deadline(self._limits.migration_s))

    async def _with_session(self, work: Callable[[PostgresSession], Awaitable[T]]) -> T:
        session = await self._connector.connect("migration", tries=self._limits.tries)
        try:
            return await work(session)
        except Lost as lost:
            raise loss(lost, doing=self._doing, outcome="unknown") from lost
        except DatabaseRefusal as error:
            raise refusal(error, doing=self._doing) from error
        finally:
            await session.close()  # rolls back an open transaction


_SECRETS = statements.load("coterie.storage.postgres.sql", "secrets.sql")


async def read_or_draw(pool: Pool, *, cluster: str, chance: Random) -> bytes:
    """Return the secret of a cluster. A drawn one counts only if it is read back [M4]."""
    rows = await pool.read(_SECRETS["read"], cluster)
    if not rows:
        await pool.write(_SECRETS["draw"], cluster, chance.token(SECRET_BYTES))
        rows = await pool.read(_SECRETS["read"], cluster)
    return bytes(rows[0][0])
