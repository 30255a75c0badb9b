"""The key-value store in a SQLite file: plain functions to be run inside a transaction, and the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.storage import statements
from coterie.storage.interface import Entry, KvPut, KvRemove, KvSwap, require_held
from coterie.storage.sqlite import states
from coterie.storage.sqlite.store import SqliteStore, reads, writes

if TYPE_CHECKING:
    import apsw

    from coterie.storage.sqlite.store import Scope

_SQL = statements.load(f"{__package__}.sql", "kv.sql")


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


def purge(connection: apsw.Connection, scope: Scope, *, most: int) -> int:
    """Delete up to `most` expired entries. Returns the number deleted."""
    return _changed(connection, _SQL["purge"], scope.bindings(most=most))


def write(connection: apsw.Connection, scope: Scope, write: KvPut | KvSwap | KvRemove) -> Any:
    """Run a write of a key, with the result that its kind defines."""
    if write.claim is not None and not states.proven(connection, scope, write.claim, about=write.key):
        return "fenced"
    if isinstance(write, KvPut):
        connection.execute(_SQL["put"], _row(scope, write))
        return None
    if isinstance(write, KvRemove):
        return _changed(connection, _SQL["remove"], scope.bindings(key=write.key)) == 1
    return _swap(connection, scope, write)


def _swap(connection: apsw.Connection, scope: Scope, write: KvSwap) -> bool:
    if write.value is None and write.expected is None:
        return get(connection, scope, write.key) is None
    if write.value is None:
        bindings = scope.bindings(key=write.key, expected=write.expected)
        return _changed(connection, _SQL["remove_expected"], bindings) == 1
    if write.expected is None:
        return _changed(connection, _SQL["insert_absent"], _row(scope, write)) == 1
    return _changed(connection, _SQL["replace"], _row(scope, write) | {"expected": write.expected}) == 1


def _row(scope: Scope, write: KvPut | KvSwap) -> dict[str, Any]:
    expires_at_ns = scope.expires_at_ns(write.ttl_s)
    return scope.bindings(key=write.key, value=write.value, stamp=write.stamp, expires_at_ns=expires_at_ns)


def _changed(connection: apsw.Connection, statement: str, bindings: dict[str, Any]) -> int:
    connection.execute(statement, bindings)
    return connection.changes()


class SqliteKv(SqliteStore):
    """The keys and values of one cluster. See `storage.interface.Kv`."""

    async def put(self, write: KvPut) -> None:
        """Durable when it returns."""
        require_held(await self._write(write), write.claim)

    async def swap(self, write: KvSwap) -> bool:
        """Durable when it returns; see `KvSwap`."""
        return bool(require_held(await self._write(write), write.claim))

    async def remove(self, write: KvRemove) -> bool:
        """Durable when it returns; see `KvRemove`."""
        return bool(require_held(await self._write(write), write.claim))

    get = reads(get, "read {key!r}")
    count = reads(count, "count keys")
    page = reads(page, "read keys")
    clear = writes(clear, "clear keys")
    purge = writes(purge, "purge expired keys")
