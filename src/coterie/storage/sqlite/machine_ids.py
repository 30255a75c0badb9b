"""Machine ids of snowflakes in a SQLite file: a plain function per statement, and the store [M15].

The write lock is held from the search for a free id until it is leased, so there is no race.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.storage import statements
from coterie.storage.interface import Machine
from coterie.storage.sqlite.store import SqliteStore, writes

if TYPE_CHECKING:
    import apsw

    from coterie.storage.sqlite.store import Scope

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


def extend(connection: apsw.Connection, scope: Scope, id: int, holder: str, *, ttl_s: float, until_ms: int) -> bool:
    """Renew a lease and raise its mark. Returns False if the lease was lost."""
    bindings = scope.bindings(id=id, holder=holder, until_ms=until_ms)
    connection.execute(_SQL["extend"], bindings | {"expires_at_ns": scope.expires_at_ns(ttl_s)})
    return connection.changes() == 1


def give_back(connection: apsw.Connection, scope: Scope, id: int, holder: str) -> None:
    """Free the id, unless another process holds it; its mark stays."""
    connection.execute(_SQL["give_back"], scope.bindings(id=id, holder=holder))


def _free(connection: apsw.Connection, scope: Scope) -> Machine | None:
    for machine_id, mark_ms in connection.execute(_SQL["free"], scope.bindings()):
        return Machine(machine_id, mark_ms)
    return None


class SqliteMachines(SqliteStore):
    """The machine ids of one cluster. See `storage.interface.MachineIds`.

    A call of unknown outcome is harmless: an unused lease expires, and a mark raised in vain only skips ids.
    """

    lease = writes(lease, "lease a machine id")
    extend = writes(extend, "extend machine id {id}")
    give_back = writes(give_back, "give back machine id {id}")
