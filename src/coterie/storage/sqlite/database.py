"""One SQLite database, a file or memory: how it is checked, opened and guarded, and how work runs on it.

A file is opened with the settings that durability rests on, each read back. Each executor has its own connections to
the main database and, from its first use on, to the leases beside it.

SQLite's own waiting for a lock (`busy_timeout`) sleeps longer and longer while a busy process takes the lock again at
once, so one process gets everything. Retrying each millisecond or so serves all (`Patience`); the error after the limit
names the holder.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import apsw

from coterie.errors import ConfigurationError, CoterieError, PersistenceError, StorageReplaced
from coterie.kernel import metrics
from coterie.kernel.clock import SystemClock
from coterie.kernel.fork_guard import ProcessOrigin
from coterie.kernel.service import Service
from coterie.storage import migrations
from coterie.storage.sqlite import schema
from coterie.storage.sqlite.errors import cannot_open, commit_failed, failed
from coterie.storage.sqlite.file import file_guard
from coterie.storage.sqlite.file.location import beside, require_folder, require_local, require_owned
from coterie.storage.sqlite.file.write_lock import described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from coterie.errors import Outcome
    from coterie.kernel.clock import Clock
    from coterie.kernel.random import Random
    from coterie.storage.sqlite.executor import Executor, Executors

T = TypeVar("T")

LIBRARY_LEAST = (3, 51, 3)
"""The first SQLite in which two writers cannot damage a file in WAL mode (incident 40)."""

# The first read may have to recover what a killed process left, while others do the same: only then SQLite's
# own busy timeout is right. Later it would starve all but one process, so `Patience` waits instead.
_OPENING_MS = 5_000

_WANTED: dict[str, str | int] = {
    "synchronous": 2,
    "foreign_keys": 1,
    "trusted_schema": 0,
    "encoding": "UTF-8",
}


def require_library(version: str | None = None) -> None:
    """Raise if this SQLite library can damage files (incident 40, P23)."""
    found = apsw.sqlite_lib_version() if version is None else version
    if tuple(int(part) for part in found.split(".")[:3]) < LIBRARY_LEAST:
        least = ".".join(map(str, LIBRARY_LEAST))
        raise ConfigurationError(
            problem=f"SQLite {found} can damage a file that several processes write; {least} is the least",
            hint="pip install --upgrade apsw (its wheels bring a recent SQLite)",
        )


def open_file(path: Path, *, writes: bool = True) -> apsw.Connection:
    """Open a file, creating it if necessary. Takes no write lock on a file that is in use."""
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
    """Open a private database in memory, which ends with the connection."""
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
    # Processes that open a new file at once get BUSY here in spite of the timeout, where waiting would be a
    # deadlock. One of them has won; the mode is in the file, so a retry is enough.
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
    # Plans do not depend on bound values. Otherwise (STAT4) a join is prepared again for each new value, and the
    # fence takes four times as long.
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


class Patience:
    """How long, and in which steps, to wait for a busy file.

    It waits in real time, in an executor's thread. Where work runs in the loop (simulation) there is one
    connection, which is never busy.

    Args:
        chance: For the jitter that keeps processes from retrying in step.
        limit_s: When to give up.
        pause_s: About how long to sleep between two tries.
        holder: Returns the holder of the write lock, for the error.
        refused: The outcome to report: by default "unreachable", since nothing began.
    """

    def __init__(
        self,
        *,
        chance: Random,
        limit_s: float,
        pause_s: float,
        holder: Callable[[], int | None],
        refused: Outcome = "unreachable",
    ) -> None:
        self._chance = chance
        self._limit_s = limit_s
        self._pause_s = pause_s
        self._holder = holder
        self._outcome = refused
        self._clock = SystemClock()
        self.ended = False

    def end(self) -> None:
        """Stop waiting: waiters give up at their next try."""
        self.ended = True

    def insist(self, attempt: Callable[[], T], *, doing: str) -> T:
        """Return the result of `attempt` once the file is not busy."""
        began_ns: int | None = None  # read lazily: waiting is rare
        while True:
            try:
                return attempt()
            except apsw.BusyError as error:
                now_ns = self._clock.steady_ns()
                began_ns = now_ns if began_ns is None else began_ns
                waited_s = (now_ns - began_ns) / 1e9
                if self.ended or waited_s >= self._limit_s:
                    raise self._refused(waited_s, doing) from error
            time.sleep(self._pause_s * self._chance.between(0.5, 1.5))

    def _refused(self, waited_s: float, doing: str) -> PersistenceError:
        # "unreachable", since nothing began: with "refused" the group writer would make each member wait once more.
        if self.ended:
            problem = f"the process is shutting down, after {waited_s:.1f}s of waiting for the file's lock"
            return PersistenceError(doing=doing, problem=problem, outcome="unreachable")
        pid = self._holder()
        if pid is None:
            problem = f"the file was locked for {waited_s:.1f}s, by no single process that can be seen from here"
            hint = "write less at once, or use PostgreSQL"
        else:
            problem = f"{described(pid)} has held the file's write lock, and {waited_s:.1f}s were waited for it"
            hint = f"let it go on (kill -CONT {pid}) or end it (kill -KILL {pid})"
        return PersistenceError(doing=doing, problem=problem, outcome=self._outcome, hint=hint)


@contextmanager
def writing(connection: apsw.Connection, *, patience: Patience, doing: str) -> Iterator[None]:
    """Hold the write lock during the block, whose changes are durable after it; it may commit them itself.

    Promise:
        Any error has rolled everything back before it is raised; for the one exception see `commit_failed`.
    """
    patience.insist(lambda: connection.execute("begin immediate"), doing=doing)
    try:
        yield
    except BaseException as error:
        _roll_back(connection)
        if isinstance(error, CoterieError) or not isinstance(error, Exception):
            raise
        raise failed(error, doing=doing) from error
    if connection.in_transaction:
        commit(connection, doing=doing)


def commit(connection: apsw.Connection, *, doing: str) -> None:
    """Make the writes durable and release the write lock."""
    try:
        connection.execute("commit")
    except Exception as error:
        _roll_back(connection)
        raise commit_failed(error, doing=doing) from error


def read(connection: apsw.Connection, work: Callable[[apsw.Connection], T], *, patience: Patience, doing: str) -> T:
    """Return the result of `work`, which only reads. Waits while another process recovers or closes the file."""
    try:
        return patience.insist(lambda: work(connection), doing=doing)
    except CoterieError:
        raise
    except Exception as error:
        raise failed(error, doing=doing) from error


@contextmanager
def snapshot(connection: apsw.Connection) -> Iterator[None]:
    """Make all reads during the block see one snapshot. Neither blocks writers nor waits for them."""
    connection.execute("begin")
    try:
        yield
    finally:
        _roll_back(connection)


def _roll_back(connection: apsw.Connection) -> None:
    if connection.in_transaction:  # after some errors SQLite has rolled back already
        connection.execute("rollback")


_MIGRATIONS = "coterie.storage.sqlite.migrations.leases"


class SqliteConnections:
    """The connections of one executor.

    Args:
        main: The connection to the main database.
        open_leases: Opens the connection to the leases.
        turn: Held during each piece of work: in memory all executors share the connections.
        files: The paths that must lead to the open files; those of the leases may be added later.

    Attributes:
        closing: The actions of `close`.
    """

    def __init__(
        self,
        main: apsw.Connection,
        open_leases: Callable[[], apsw.Connection],
        *,
        turn: threading.Lock | None = None,
        files: list[Path] | None = None,
    ) -> None:
        self.main = main
        self.turn = turn or threading.Lock()
        self.closing = ExitStack()
        self._open_leases = open_leases
        self._leases: apsw.Connection | None = None
        self._files = [] if files is None else files

    def require_in_place(self, *, outcome: Outcome = "refused", lately: bool = False) -> None:
        """Raise `StorageReplaced` if a file was deleted, moved or replaced: writes would be lost.

        Checked before a piece of work, and again after a commit before its result is returned (outcome "unknown": the
        first check has found nothing). With `lately` a check within the last 10 ms is enough.
        """
        for file in self._files:
            file_guard.require_in_place(file, outcome=outcome, lately=lately)

    @property
    def leases(self) -> apsw.Connection:
        """The connection to the leases."""
        if self._leases is None:
            self._leases = self._open_leases()
        return self._leases

    def lent(self) -> SqliteConnections:
        """Return the same connections for another executor, which does not close them."""
        return SqliteConnections(self.main, lambda: self.leases, turn=self.turn)

    def close(self) -> None:
        """Close the connections that belong to this object."""
        with self.turn:
            self.closing.close()


def desk_of_files(main: Path, leases: Path, *, writes: bool, patience: Patience, clock: Clock) -> SqliteConnections:
    """Open connections to two files (resolved paths); `patience` is for setting up the leases."""
    closing = ExitStack()
    files = [main]

    def open_leases() -> apsw.Connection:
        with ExitStack() as undo:
            connection = undo.enter_context(_opened(leases, writes=True))
            # Leases end with this boot of the machine at the latest: a renewal need not survive a power loss, so it
            # need not wait for a busy disk. The file stays intact either way.
            connection.pragma("synchronous", "NORMAL")
            prepare_leases(connection, patience=patience, clock=clock, address=str(leases))
            closing.push(undo.pop_all())
        files.append(leases)
        return connection

    desk = SqliteConnections(closing.enter_context(_opened(main, writes=writes)), open_leases, files=files)
    desk.closing = closing
    return desk


def desk_in_memory(*, patience: Patience, clock: Clock) -> SqliteConnections:
    """Open private databases in memory, which end with the connections."""

    def open_leases() -> apsw.Connection:
        connection = open_memory()
        desk.closing.callback(connection.close)
        prepare_leases(connection, patience=patience, clock=clock, address="memory")
        return connection

    desk = SqliteConnections(open_memory(), open_leases)
    desk.closing.callback(desk.main.close)
    return desk


def prepare_leases(connection: apsw.Connection, *, patience: Patience, clock: Clock, address: str) -> None:
    """Create or migrate the database of leases; every opener does so, since there is nothing to decide."""

    def due() -> list[migrations.Migration]:
        return migrations.pending(migrations.load(_MIGRATIONS), schema.applied(connection, address=address), None)

    doing = f"set up {address}"
    if read(connection, lambda _: due(), patience=patience, doing=doing):
        with writing(connection, patience=patience, doing=doing):
            schema.apply(connection, due(), clock=clock)


@contextmanager
def _opened(path: Path, *, writes: bool) -> Iterator[apsw.Connection]:
    """Open a file that is guarded while it is open."""
    with file_guard.opening():
        file_guard.require_in_place(path)  # else this would create an empty file beside the one that is open
        _create_private(path)
        connection = open_file(path, writes=writes)
        try:
            held = file_guard.hold(path)
        except StorageReplaced:
            connection.close()
            raise
        except OSError as error:
            connection.close()
            raise failed(error, doing=f"open {path}") from error
    try:
        yield connection
    finally:
        # Both at once: closing the last connection deletes -wal and -shm, and a concurrent opener would miss them.
        with file_guard.opening():
            connection.close()
            held.release()


def _create_private(path: Path) -> None:
    """Create the file for this user alone, as it will hold the cluster's secret; -wal and -shm get its mode [X4]."""
    if path.exists():  # with the mode it already has
        return
    with suppress(OSError):  # another process is faster; or SQLite reports what is wrong
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


_PAUSE_S = 0.0004
"""About the pause between two tries for the write lock. With 1 ms a sender and a runner did a twentieth less; with
0.3 ms four busy senders and a runner seemed to do less again; SQLite's own waiting starves."""


class SqliteDatabase(Service):
    """A database with a writing executor, a reading one if it is a file, and more on request.

    Args:
        path: The file, or None for memory.
        executors: Creates the executors.
        clock: For the time at which the leases beside it were set up.
        chance: For jitter.
        limit_s: How long to wait for the write lock.
    """

    def __init__(
        self, path: Path | None, *, executors: Executors, clock: Clock, chance: Random, limit_s: float
    ) -> None:
        self.address = "memory" if path is None else str(path)
        super().__init__(what=f"SQLite database {self.address}")
        self.path = None if path is None else path.resolve()
        self.leases_path = None if self.path is None else beside(self.path, ["-leases"])[0]
        self._executors = executors
        self._clock = clock
        self._writer = executors("writer", lambda: self._open(writes=True))
        self._reader = self._writer
        if self.path is not None:
            self._reader = executors("reader", lambda: self._open(writes=False))
        self._memory: SqliteConnections | None = None
        self.origin = ProcessOrigin(self.what)
        self._chance = chance
        self._patience = self.patience(limit_s=limit_s)

    def require_usable(self) -> None:
        """Raise unless it was started in this process: a forked child must not use its parent's connections [P13]."""
        self.origin.require_same()
        self.require_running()

    async def transact(self, work: Callable[[apsw.Connection], T], *, doing: str) -> T:
        """Run `work` in one write transaction. Returns its result once durable."""
        self.require_usable()
        patience = self._patience

        def run(desk: SqliteConnections) -> T:
            with desk.turn:
                desk.require_in_place(lately=True)
                with writing(desk.main, patience=patience, doing=doing):
                    result = work(desk.main)
                desk.require_in_place(outcome="unknown", lately=True)
                return result

        return await self._writer.run(run)

    async def read(self, work: Callable[[apsw.Connection], T], *, doing: str) -> T:
        """Return the result of `work`, which sees all earlier commits."""
        return await self.read_desk(lambda desk: work(desk.main), doing=doing)

    async def read_desk(self, work: Callable[[SqliteConnections], T], *, doing: str) -> T:
        """Return the result of `work`, which may read the leases too."""
        self.require_usable()
        patience = self._patience

        def run(desk: SqliteConnections) -> T:
            with desk.turn:
                desk.require_in_place(lately=True)
                return read(desk.main, lambda _: work(desk), patience=patience, doing=doing)

        try:
            return await self._reader.run(run)
        except PersistenceError as error:
            metrics.STORAGE_ERRORS.of("read", error.outcome).value += 1
            raise

    def session(self) -> Executor[SqliteConnections]:
        """Return one more writing executor, not started yet: it belongs to the loop that starts it."""
        self.require_usable()
        return self._executors("ownership", lambda: self._open(writes=True))

    def desk(self) -> SqliteConnections:
        """Open one more set of writing connections, which belongs to the calling thread."""
        return self._open(writes=True)

    def patience(self, *, limit_s: float) -> Patience:
        """How to wait for the write lock, with this limit."""
        return Patience(chance=self._chance, limit_s=limit_s, pause_s=_PAUSE_S, holder=self.write_lock_holder)

    def write_lock_holder(self) -> int | None:
        """The id of the other process that holds the write lock now, if one is visible [C3]."""
        return None if self.path is None else file_guard.lock_holder(self.path)

    def leases_lock_holder(self) -> int | None:
        """The id of the other process that holds the leases' write lock now, if one is visible."""
        return None if self.leases_path is None else file_guard.lock_holder(self.leases_path)

    async def _start(self) -> None:
        self.origin.set()
        require_library()
        if self.path is not None:
            file_guard.require_not_inherited(self.path)
            require_folder(self.path)
            require_local(self.path)
            require_owned(self.path)
        await self._writer.start()
        if self._reader is not self._writer:
            await self._reader.start()

    async def _stop(self) -> None:
        self.origin.require_same()  # a forked child must not close its parent's connections [P13]
        self._patience.end()
        if self._reader is not self._writer:
            await self._reader.stop()
        await self._writer.stop()

    def _open(self, *, writes: bool) -> SqliteConnections:
        patience, clock = self._patience, self._clock
        if self.path is not None and self.leases_path is not None:
            return desk_of_files(self.path, self.leases_path, writes=writes, patience=patience, clock=clock)
        if self._memory is not None:
            return self._memory.lent()
        self._memory = desk_in_memory(patience=patience, clock=clock)
        return self._memory
