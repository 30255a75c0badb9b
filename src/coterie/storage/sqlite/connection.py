"""How a file is opened: settings that durability rests on, each read back, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw

from coterie.errors import ConfigurationError
from coterie.kernel.clock import SystemClock
from coterie.storage.sqlite.failures import cannot_open

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY_LEAST = (3, 51, 3)
"""The first SQLite in which two writers cannot damage a file in WAL mode (incident 40)."""

# The first read may have to recover what a killed process left, while others do the same: only then SQLite's
# own waiting is right. Later it would starve all but one process, so we wait ourselves.
_OPENING_MS = 5_000

_WANTED: dict[str, str | int] = {
    "synchronous": 2,
    "foreign_keys": 1,
    "trusted_schema": 0,
    "encoding": "UTF-8",
}


def require_library(version: str | None = None) -> None:
    """Raise if the SQLite library is one that can damage files (incident 40, P23)."""
    found = apsw.sqlite_lib_version() if version is None else version
    if tuple(int(part) for part in found.split(".")[:3]) < LIBRARY_LEAST:
        least = ".".join(map(str, LIBRARY_LEAST))
        raise ConfigurationError(
            problem=f"SQLite {found} can damage a file that several processes write; {least} is the least",
            hint="pip install --upgrade apsw (its wheels bring a recent SQLite)",
        )


def open_file(path: Path, *, writes: bool = True) -> apsw.Connection:
    """A connection to a file, which is created if need be. Takes no write lock on a file that is in use."""
    try:
        connection = apsw.Connection(str(path))
    except apsw.Error as error:
        raise cannot_open(error, path) from error
    try:
        _prepare_file(connection, path)
        if not writes:
            connection.pragma("query_only", 1)
        connection.set_busy_timeout(0)
    except BaseException as error:
        connection.close()
        if isinstance(error, apsw.Error):
            raise cannot_open(error, path) from error
        raise
    return connection


def open_memory() -> apsw.Connection:
    """A connection to a database of its own, which is gone with it."""
    connection = apsw.Connection(":memory:")
    _configure(connection)
    return connection


def _prepare_file(connection: apsw.Connection, path: Path) -> None:
    if connection.readonly("main"):
        raise cannot_open(apsw.ReadOnlyError("the file is not writable"), path)
    connection.set_busy_timeout(_OPENING_MS)
    mode = _into_wal(connection)
    _configure(connection)
    connection.execute("select count(*) from sqlite_schema").fetchall()  # the first read: -wal and -shm exist now
    _require_settings(connection, path, mode)


def _into_wal(connection: apsw.Connection) -> object:
    clock = SystemClock()  # real processes, real time
    # Several processes that open a new file at once get BUSY here in spite of the timeout, where waiting
    # would be a deadlock. One of them has won; the mode is in the file, so asking again is enough.
    began_ns = clock.steady_ns()
    while True:
        try:
            return connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            if clock.steady_ns() - began_ns > _OPENING_MS * 1_000_000:
                raise
        apsw.sleep(2)


def _configure(connection: apsw.Connection) -> None:
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    # Plans do not depend on the values that are bound. Otherwise (STAT4) a join is prepared anew for each new value,
    # and the fence takes four times as long.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.pragma("synchronous", "FULL")
    connection.pragma("foreign_keys", 1)
    connection.pragma("trusted_schema", 0)
    connection.pragma("mmap_size", 0)  # a read error must be an error, not a signal


def _require_settings(connection: apsw.Connection, path: Path, mode: object) -> None:
    found = {name: connection.pragma(name) for name in _WANTED} | {"journal_mode": mode}
    wanted = _WANTED | {"journal_mode": "wal"}
    wrong = [f"{name} is {found[name]}, not {wanted[name]}" for name in wanted if found[name] != wanted[name]]
    wrong += ["mmap is on"] if connection.pragma("mmap_size") else []
    if wrong:
        raise ConfigurationError(
            problem=f"{path} cannot be used: {', '.join(wrong)}",
            hint="use a file that coterie created, on a local disk",
        )
