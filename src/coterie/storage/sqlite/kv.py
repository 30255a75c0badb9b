"""The key-value store in a SQLite file: a plain function per read, a handler per write, and the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coterie.storage import statements
from coterie.storage.interface import Entry, KvPut, KvRemove, KvSwap, require_held
from coterie.storage.sqlite import states

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import apsw

    from coterie.kernel.clock import Clock
    from coterie.storage.interface import Fenced, Write
    from coterie.storage.sqlite.database import SqliteDatabase

    Handler = Callable[..., Any]

_SQL = statements.load(f"{__package__}.sql", "kv.sql")

_LAST_NS = 2**63 - 1
_LONGEST_S = 9e9


@dataclass(frozen=True, slots=True)
class Scope:
    """The cluster and the current time."""

    cluster: str
    now_ns: int

    def bindings(self, **more: object) -> dict[str, Any]:
        """Parameters of a statement."""
        return {"cluster": self.cluster, "now_ns": self.now_ns, **more}

    def expires_at_ns(self, ttl_s: float | None) -> int | None:
        """When something expires that is written now; capped at the latest instant."""
        if ttl_s is None:
            return None
        return min(self.now_ns + int(min(ttl_s, _LONGEST_S) * 1e9), _LAST_NS)


def end_of(prefix: str) -> bytes:
    """The bytes that come right after all keys with this prefix.

    The last byte of a string in UTF-8 is at most 0xBF, so adding one never carries; no string begins with 0xFF.
    """
    encoded = prefix.encode()
    return encoded[:-1] + bytes((encoded[-1] + 1,)) if encoded else b"\xff"


def get(connection: apsw.Connection, scope: Scope, key: str) -> Entry | None:
    """The live entry of a key."""
    for value, stamp in connection.execute(_SQL["get"], scope.bindings(key=key)):
        return Entry(key, value, stamp)
    return None


def count(connection: apsw.Connection, scope: Scope, prefix: str) -> int:
    """Count the live keys that start with `prefix`."""
    found: int = connection.execute(_SQL["count"], scope.bindings(start=prefix, end=end_of(prefix))).get
    return found


def page(connection: apsw.Connection, scope: Scope, prefix: str, *, after: str | None, most: int) -> list[Entry]:
    """The next live entries after the key `after`."""
    past = after is not None and after.encode() > prefix.encode()
    bindings = scope.bindings(start=after if past else prefix, end=end_of(prefix), after=after, most=most)
    return [Entry(*row) for row in connection.execute(_SQL["page"], bindings)]


def clear(connection: apsw.Connection, scope: Scope, prefix: str) -> int:
    """Remove all keys that start with `prefix`. Returns the number of live ones."""
    live = count(connection, scope, prefix)
    connection.execute(_SQL["clear"], scope.bindings(start=prefix, end=end_of(prefix)))
    return live


def purge(connection: apsw.Connection, scope: Scope, most: int) -> int:
    """Delete up to `most` expired entries. Returns the number deleted."""
    return _changed(connection, _SQL["purge"], scope.bindings(most=most))


def _put(connection: apsw.Connection, scope: Scope, write: KvPut, *, audit: bool = False) -> Fenced | None:
    if write.claim is not None and not states.proven(connection, scope, write.claim, about=write.key, audit=audit):
        return "fenced"
    connection.execute(_SQL["put"], _row(scope, write))
    return None


def _swap(connection: apsw.Connection, scope: Scope, write: KvSwap, *, audit: bool = False) -> bool | Fenced:
    if write.claim is not None and not states.proven(connection, scope, write.claim, about=write.key, audit=audit):
        return "fenced"
    if write.value is None and write.expected is None:
        return get(connection, scope, write.key) is None
    if write.value is None:
        bindings = scope.bindings(key=write.key, expected=write.expected)
        return _changed(connection, _SQL["remove_expected"], bindings) == 1
    if write.expected is None:
        return _changed(connection, _SQL["insert_absent"], _row(scope, write)) == 1
    return _changed(connection, _SQL["replace"], _row(scope, write) | {"expected": write.expected}) == 1


def _remove(connection: apsw.Connection, scope: Scope, write: KvRemove, *, audit: bool = False) -> bool | Fenced:
    if write.claim is not None and not states.proven(connection, scope, write.claim, about=write.key, audit=audit):
        return "fenced"
    return _changed(connection, _SQL["remove"], scope.bindings(key=write.key)) == 1


def _row(scope: Scope, write: KvPut | KvSwap) -> dict[str, Any]:
    expires_at_ns = scope.expires_at_ns(write.ttl_s)
    return scope.bindings(key=write.key, value=write.value, stamp=write.stamp, expires_at_ns=expires_at_ns)


def _changed(connection: apsw.Connection, statement: str, bindings: dict[str, Any]) -> int:
    connection.execute(statement, bindings)
    return connection.changes()


HANDLERS: dict[type, Handler] = {
    KvPut: _put,
    KvSwap: _swap,
    KvRemove: _remove,
}
"""The handler of each kind of write, run inside its group's transaction."""


class SqliteKv:
    """The keys and values of one cluster. See `storage.interface.Kv`."""

    def __init__(
        self, database: SqliteDatabase, *, write: Callable[[Write], Awaitable[Any]], cluster: str, clock: Clock
    ) -> None:
        self._database = database
        self._write = write
        self._cluster = cluster
        self._clock = clock

    def _scope(self) -> Scope:
        return Scope(self._cluster, self._clock.wall_ns())

    async def get(self, key: str) -> Entry | None:
        """Return the entry, or None if it is absent or expired."""
        return await self._database.read(lambda c: get(c, self._scope(), key), doing=f"read {key!r}")

    async def put(self, write: KvPut) -> None:
        """Durable when it returns."""
        require_held(await self._write(write), write.claim)

    async def swap(self, write: KvSwap) -> bool:
        """Durable when it returns; see `KvSwap`."""
        return bool(require_held(await self._write(write), write.claim))

    async def remove(self, write: KvRemove) -> bool:
        """Durable when it returns; see `KvRemove`."""
        return bool(require_held(await self._write(write), write.claim))

    async def count(self, prefix: str) -> int:
        """Count the keys that start with `prefix`."""
        return await self._database.read(lambda c: count(c, self._scope(), prefix), doing="count keys")

    async def page(self, prefix: str, *, after: str | None, most: int) -> Sequence[Entry]:
        """Return the next entries whose keys start with `prefix`, in order, after the key `after`."""
        return await self._database.read(
            lambda c: page(c, self._scope(), prefix, after=after, most=most), doing="read keys"
        )

    async def clear(self, prefix: str) -> int:
        """Remove all keys that start with `prefix`. Returns the number removed, expired ones not counted."""
        return await self._database.transact(lambda c: clear(c, self._scope(), prefix), doing="clear keys")

    async def purge(self, *, most: int) -> int:
        """Delete up to `most` expired entries for good. Returns the number deleted."""
        return await self._database.transact(lambda c: purge(c, self._scope(), most), doing="purge expired keys")
