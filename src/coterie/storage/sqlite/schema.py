"""The migrations of a file's tables, applied under the write lock, and the cluster's secret.

The secret is drawn by the first process that needs it, and is the same for all from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.errors import ConfigurationError
from coterie.kernel.clock import to_datetime
from coterie.storage import migrations, statements
from coterie.storage.migrations import Migration

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from coterie.kernel.clock import Clock
    from coterie.storage.migrations import Phase
    from coterie.storage.sqlite.database import SqliteDatabase


SQL = statements.load("coterie.storage.sqlite.sql", "secrets.sql")


def read(connection: apsw.Connection, cluster: str) -> bytes | None:
    """Return the secret, or None if it has not been drawn."""
    row = connection.execute(SQL["read"], {"cluster": cluster}).fetchone()
    return None if row is None else bytes(row[0])


def read_or_draw(connection: apsw.Connection, cluster: str, drawn: bytes) -> bytes:
    """Return the secret, which is `drawn` if there was none. Run in one write transaction, so there is no race."""
    connection.execute(SQL["draw"], {"cluster": cluster, "value": drawn})
    found = read(connection, cluster)
    assert found is not None, "it was inserted, or was there"
    return found


APPLICATION_ID = 1129272389
"""The application id that the first migration writes into the file's header ("COTE")."""

_SQL = statements.load(f"{__package__}.sql", "schema.sql")


class SqliteSchema:
    """The migrations of one database, from one package."""

    def __init__(self, database: SqliteDatabase, *, package: str, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self.known = migrations.load(package)

    async def applied(self) -> Sequence[Migration]:
        """Return the applied migrations, in order."""
        return await self._database.read(self._applied, doing="read which migrations are applied")

    async def pending(self, phase: Phase | None = None) -> Sequence[Migration]:
        """Return the migrations that this program knows and the file lacks, in order."""
        return migrations.pending(self.known, await self.applied(), phase)

    async def apply(self, phase: Phase | None = None) -> Sequence[Migration]:
        """Apply what is pending in one transaction: all of it, or nothing."""
        if not await self.pending(phase):
            return []  # without the write lock, which may be held for long
        doing = f"apply migrations to {self._database.address}"
        return await self._database.transact(lambda connection: self._apply(connection, phase), doing=doing)

    async def grant_send(self, role: str) -> None:
        """Refuse: nobody but coterie writes into the file [C2]."""
        raise ConfigurationError(
            problem=f"role {role} cannot be let in: {self._database.address} has no roles, and coterie alone writes it",
            hint="send from Python (cluster.send, cluster.sync()), or use PostgreSQL",
        )

    async def prepare(self, *, migrate: bool) -> None:
        """Set up an empty database if `migrate`; raise unless this program can work with the schema."""
        found = await self.applied()
        if not found and migrate:
            await self.apply()
            found = await self.applied()
        migrations.require_usable(self.known, found, address=self._database.address)

    def _applied(self, connection: apsw.Connection) -> list[Migration]:
        return applied(connection, address=self._database.address)

    def _apply(self, connection: apsw.Connection, phase: Phase | None) -> list[Migration]:
        due = migrations.pending(self.known, self._applied(connection), phase)
        apply(connection, due, clock=self._clock)
        return due


def applied(connection: apsw.Connection, *, address: str) -> list[Migration]:
    """The applied migrations, in order."""
    if not connection.execute(_SQL["tables"]).get:
        return []
    if connection.pragma("application_id") != APPLICATION_ID:
        raise ConfigurationError(
            problem=f"{address} holds tables that are not coterie's",
            hint="give coterie a file of its own",
        )
    return [Migration(number, phase, name) for number, phase, name in connection.execute(_SQL["applied"])]


def apply(connection: apsw.Connection, due: Sequence[Migration], *, clock: Clock) -> None:
    """Run migrations inside a write transaction."""
    applied_at = to_datetime(clock.wall_ns()).isoformat()
    for step in due:
        connection.execute(step.sql).fetchall()
        row = {"number": step.number, "phase": step.phase, "name": step.name, "applied_at": applied_at}
        connection.execute(_SQL["record"], row)
