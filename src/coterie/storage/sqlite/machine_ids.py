"""Machine ids of snowflakes in a SQLite file: a plain function per statement, and the store [M15].

The write lock is held from the search for a free id until it is leased, so there is no race.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.storage import statements
from coterie.storage.interface import Machine
from coterie.storage.sqlite.kv import Scope

if TYPE_CHECKING:
    import apsw

    from coterie.kernel.clock import Clock
    from coterie.storage.sqlite.database import SqliteDatabase

_SQL = statements.load(f"{__package__}.sql", "machines.sql")


def lease(connection: apsw.Connection, scope: Scope, holder: str, *, ttl_s: float, until_ms: int) -> Machine | None:
    """Lease a free id; None: there is none."""
    found = _free(connection, scope)
    if found is None:
        connection.execute(_SQL["stock"], scope.bindings())  # the first lease of a cluster
        found = _free(connection, scope)
    if found is not None:
        bindings = scope.bindings(id=found.id, holder=holder, until_ms=until_ms)
        connection.execute(_SQL["lease"], bindings | {"expires_at_ns": scope.expires_at_ns(ttl_s)})
    return found


def extend(
    connection: apsw.Connection, scope: Scope, machine_id: int, holder: str, *, ttl_s: float, until_ms: int
) -> bool:
    """Renew a lease and raise its mark. Returns False if the lease was lost."""
    bindings = scope.bindings(id=machine_id, holder=holder, until_ms=until_ms)
    connection.execute(_SQL["extend"], bindings | {"expires_at_ns": scope.expires_at_ns(ttl_s)})
    return connection.changes() == 1


def give_back(connection: apsw.Connection, scope: Scope, machine_id: int, holder: str) -> None:
    """Free the id, unless another process holds it."""
    connection.execute(_SQL["give_back"], scope.bindings(id=machine_id, holder=holder))


def _free(connection: apsw.Connection, scope: Scope) -> Machine | None:
    for machine_id, mark_ms in connection.execute(_SQL["free"], scope.bindings()):
        return Machine(machine_id, mark_ms)
    return None


class SqliteMachines:
    """The machine ids of one cluster. See `storage.interface.MachineIds`.

    A call of unknown outcome is harmless: an unused lease expires, and a mark raised in vain only skips ids.
    """

    def __init__(self, database: SqliteDatabase, *, cluster: str, clock: Clock) -> None:
        self._database = database
        self._cluster = cluster
        self._clock = clock

    def _scope(self) -> Scope:
        return Scope(self._cluster, self._clock.wall_ns())

    async def lease(self, holder: str, *, ttl_s: float, until_ms: int) -> Machine | None:
        """Lease a free id. Returns None if all are taken."""
        return await self._database.transact(
            lambda c: lease(c, self._scope(), holder, ttl_s=ttl_s, until_ms=until_ms), doing="lease a machine id"
        )

    async def extend(self, id: int, holder: str, *, ttl_s: float, until_ms: int) -> bool:
        """Renew the lease and raise the mark. Returns False if the lease was lost."""
        return await self._database.transact(
            lambda c: extend(c, self._scope(), id, holder, ttl_s=ttl_s, until_ms=until_ms),
            doing=f"extend machine id {id}",
        )

    async def give_back(self, id: int, holder: str) -> None:
        """Free the id at once; its mark stays."""
        await self._database.transact(
            lambda c: give_back(c, self._scope(), id, holder), doing=f"give back machine id {id}"
        )
