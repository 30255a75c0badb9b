"""What the stores of a SQLite file share: their base class, parameters of statements, and statements for many rows.

A verb of a store is a plain function `(connection, scope, …)` that runs inside a transaction. `reads` and `writes` make
a method of it that runs it on the right connection.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from datetime import datetime
from functools import cache, wraps
from itertools import chain
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import msgspec

from coterie.kernel.clock import to_datetime

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    import apsw

    from coterie.kernel.clock import Clock
    from coterie.kernel.fork_guard import ProcessOrigin
    from coterie.storage.group_commit import GroupWriter
    from coterie.storage.interface import Write
    from coterie.storage.sqlite.database import SqliteDatabase

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

LAST_NS = (2**63 - 1) // 1000 * 1000
"""The latest instant that can be stored, in whole microseconds."""

PAST_ALL = "\U0010ffff"
"""Sorts after every id."""

_LONGEST_S = 9e9
"""Longer times are cut: they would lead past the latest instant."""

_EACH = re.compile(r"(\([?\d, ]+\)) -- each")
_ROWS_MOST = 128
"""Rows of one statement. Powers of two up to it make any number of rows, with few statements to keep prepared; bound
values are copied, so more would cost memory."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The cluster, the current time, and whether refusals by the fence are recorded."""

    cluster: str
    now_ns: int
    audit: bool = False

    def bindings(self, **more: object) -> dict[str, Any]:
        """Parameters of a statement."""
        return {"cluster": self.cluster, "now_ns": self.now_ns, **more}

    def expires_at_ns(self, ttl_s: float | None) -> int | None:
        """When something expires that is written now; capped at the latest instant."""
        if ttl_s is None:
            return None
        return min(self.now_ns + int(min(ttl_s, _LONGEST_S) * 1e9), 2**63 - 1)


class SqliteStore:
    """The base of the stores of one cluster.

    Args:
        database: Runs the reads and transactions.
        writer: Commits the writes that share transactions.
        cluster: The cluster's name.
        clock: The clock that all processes of the file share.
        audit: Record refusals by the fence.
    """

    def __init__(
        self, database: SqliteDatabase, *, writer: GroupWriter, cluster: str, clock: Clock, audit: bool
    ) -> None:
        self.database = database
        self._writer = writer
        self._origin: ProcessOrigin = database.origin
        self._cluster = cluster
        self._clock = clock
        self._audit = audit

    def scope(self) -> Scope:
        """The scope of a statement that runs now."""
        return Scope(self._cluster, self._clock.wall_ns(), self._audit)

    async def _write(self, write: Write) -> Any:
        """Return the result of a write once durable."""
        self.database.require_usable()
        return await self._writer.submit(write)


def reads(
    work: Callable[Concatenate[apsw.Connection, Scope, P], T], doing: str
) -> Callable[Concatenate[SqliteStore, P], Coroutine[Any, Any, T]]:
    """Make a method of a function that reads.

    Args:
        work: The function.
        doing: What an error says was being done; may name parameters, as in `load {key!r}`.
    """
    return _method(work, doing, lambda store: store.database.read)


def writes(
    work: Callable[Concatenate[apsw.Connection, Scope, P], T], doing: str
) -> Callable[Concatenate[SqliteStore, P], Coroutine[Any, Any, T]]:
    """Make a method of a function that writes, in its own transaction. Arguments as of `reads`."""
    return _method(work, doing, lambda store: store.database.transact)


def _method(
    work: Callable[Concatenate[apsw.Connection, Scope, P], T], doing: str, runner: Callable[[SqliteStore], Any]
) -> Callable[Concatenate[SqliteStore, P], Coroutine[Any, Any, T]]:
    names = list(inspect.signature(work).parameters)[2:]

    @wraps(work)
    async def method(store: SqliteStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        named = doing.format(**dict(zip(names, args, strict=False)), **kwargs)
        result: T = await runner(store)(lambda c: work(c, store.scope(), *args, **kwargs), doing=named)
        return result

    return method


def later_ns(scope: Scope, seconds: float = 0.0) -> int:
    """An instant in whole microseconds: a mark made of it as a datetime must compare the same."""
    at_ns = scope.expires_at_ns(seconds) if seconds else scope.now_ns
    assert at_ns is not None
    return at_ns - at_ns % 1000


def ago_ns(scope: Scope, seconds: float) -> int:
    """An instant in the past, in whole microseconds."""
    return later_ns(scope, -min(seconds, _LONGEST_S))


def bindings(scope: Scope, **more: object) -> dict[str, Any]:
    """Parameters of a statement, with the time in whole microseconds."""
    return {"cluster": scope.cluster, "now_ns": later_ns(scope), **more}


def encoded(rows: Iterable[object]) -> str:
    """Rows as one parameter."""
    return msgspec.json.encode(list(rows)).decode()


def to_instant(at_ns: int | None) -> datetime | None:
    """A stored instant, or None if there is none."""
    return None if at_ns is None else to_datetime(at_ns)


def to_struct(kind: type[S], row: Sequence[Any]) -> S:
    """A struct from a row whose columns are its fields, in order. See `to_fields`."""
    return kind(**to_fields(kind, row))


def to_fields(kind: type[msgspec.Struct], row: Sequence[Any]) -> dict[str, Any]:
    """The fields of a struct from a row: instants are stored in nanoseconds, truth values as 0 or 1."""
    return {
        name: value if read is None else read(value) for (name, read), value in zip(_fields(kind), row, strict=False)
    }


@cache
def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, Callable[[Any], Any] | None]]:
    readers: dict[Any, Callable[[Any], Any]] = {datetime: to_datetime, datetime | None: to_instant, bool: bool}
    return [(field.name, readers.get(field.type)) for field in msgspec.structs.fields(kind)]


def purged(
    connection: apsw.Connection,
    scope: Scope,
    sql: Mapping[str, str],
    *,
    after: str,
    retention_s: float,
    key_retention_s: float,
    most: int,
) -> tuple[int, str]:
    """Delete what ended long ago among the next rows of a table. Returns the number and where to continue [m17].

    Args:
        connection: Inside a transaction.
        scope: The cluster and the time.
        sql: The statements `last_of` and `purge` of the table, whose ids begin with the time at which they were drawn.
        after: The id to begin after.
        retention_s: How long rows are kept.
        key_retention_s: The same for those with a key.
        most: The number of rows to look at.
    """
    before_ns, keys_before_ns = later_ns(scope, -retention_s), later_ns(scope, -key_retention_s)
    found: list[Any] = connection.execute(sql["last_of"], bindings(scope, after=after, most=most)).fetchall()
    last, sent_at_ns = found[0] if found else (None, 0)
    names = bindings(scope, after=after, last=last or PAST_ALL, before_ns=before_ns, keys_before_ns=keys_before_ns)
    connection.execute(sql["purge"], names)
    # After a recent id all others are recent.
    is_young = sent_at_ns > max(before_ns, keys_before_ns)
    return connection.changes(), "" if last is None or is_young else last


def write_rows(connection: apsw.Connection, statement: str, same: Sequence[Any], rows: Sequence[Sequence[Any]]) -> int:
    """Run a statement for all rows. Returns the number of rows changed.

    The statement repeats the row that is marked `-- each` in the SQL file. With one SQLite step per row another thread
    may take the GIL after each of them, and a busy event loop keeps it for a while, under the write lock. The
    statements have `or rollback`: otherwise SQLite keeps a copy of each page that they change, to undo one statement.

    Args:
        connection: Inside a transaction. Any error rolls it back.
        statement: With one row in it. `?1`, `?2`, … are the same for all rows and come before it.
        same: The values of these.
        rows: The values of each row.
    """
    if len(rows) == 1:
        connection.execute(repeated(statement, 1), (*same, *rows[0]))
        return connection.changes()
    changed = begin = 0
    while begin < len(rows):
        times = min(_ROWS_MOST, 1 << (len(rows) - begin).bit_length() - 1)
        some = rows[begin : begin + times]
        connection.execute(repeated(statement, times), (*same, *chain.from_iterable(some)))
        changed += connection.changes()  # not `total_changes`, which counts what triggers change too
        begin += times
    return changed


@cache
def repeated(statement: str, times: int) -> str:
    """A statement with its row repeated this many times."""
    (row,) = _EACH.findall(statement)
    return _EACH.sub(",\n".join([row] * times), statement)
