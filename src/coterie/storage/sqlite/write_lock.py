"""The write lock of a file: waiting for it fairly, one transaction inside it, and killing a frozen holder [C3].

SQLite's own waiting (`busy_timeout`) sleeps longer and longer while a busy process takes the lock again at once, so one
process gets everything. Retrying each millisecond or so serves all; the error after the limit names the holder.

A process that freezes inside a write transaction blocks all other writers, and only its end frees the lock. The kernel
knows the process that holds the lock; it is killed if it is a runner whose lease has not been renewed for its whole
TTL, and if the setting allows it. Any other process is named in the log.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import struct
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import apsw

from coterie.errors import CoterieError, PersistenceError
from coterie.kernel.clock import SystemClock
from coterie.storage.sqlite import seats
from coterie.storage.sqlite.errors import commit_failed, failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.storage.sqlite.database import SqliteConnections, SqliteDatabase
    from coterie.storage.sqlite.seats import Boot

    Mark = tuple[str, tuple[int, ...]]
    from collections.abc import Iterator

    from coterie.errors import Outcome
    from coterie.kernel.random import Random


# `struct flock` of Linux on 64-bit machines: type, whence, (4 bytes of padding) start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")

# In WAL mode the one writer holds a lock on this byte of the -shm file (WAL_WRITE_LOCK in SQLite's wal.c).
_WRITE_LOCK_BYTE = 120

_STATES = {"T": ", stopped", "t": ", stopped by a debugger", "Z": ", dead", "D": ", waiting for the disk"}


def write_lock_holder(shm: int) -> int | None:
    """The id of the *other* process that holds the write lock, given a descriptor of the -shm file.

    None if the lock is free, held by this process, or held in a container that is not visible from here.
    """
    if sys.platform != "linux":
        return None  # the structure differs there
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _WRITE_LOCK_BYTE, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(shm, fcntl.F_GETLK, asked))
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None


def described(pid: int) -> str:
    """Describe a process: its id, its command and whether it is stopped."""
    folder = Path("/proc") / str(pid)
    try:
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        state = _stat(pid)[0]
    except (OSError, IndexError):
        return f"process {pid}"
    return f"process {pid} ({command[:120] or 'unnamed'}{_STATES.get(state, '')})"


def process_of(pid: int) -> str:
    """A process as runners register it: its id and its start time, since ids are reused. Empty if it is gone."""
    try:
        return f"{pid}:{_stat(pid)[19]}"
    except (OSError, IndexError):
        return ""


def end(process: str) -> bool:
    """Kill (SIGKILL) a process given as by `process_of`. Returns False if it is gone or that is not permitted."""
    pid = int(process.partition(":")[0])
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # The handle prevents reuse of the id between this check and the signal.
        if process_of(pid) != process:
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _stat(pid: int) -> list[str]:
    """The kernel's status of a process from field 3 on (its state): the name before it may contain anything."""
    return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()


log = logging.getLogger("coterie")

_LOOKS = 5
_LOOK_S = 0.02
"""A busy process holds the lock at some of the checks, a frozen one at all of them."""


class Frozen:
    """Finds the process that blocks a runner's ownership, and kills it where that is right.

    Args:
        database: Knows the holders of the locks of its two files.
        kill: The setting `sqlite_kill_frozen`.
    """

    def __init__(self, database: SqliteDatabase, *, kill: bool) -> None:
        self._database = database
        self._kill = kill
        self._named: set[str] = set()
        self._mark: Mark | None = None
        self._since_ns = 0

    def end_victim(self, desk: SqliteConnections, boot: Boot, victim: str) -> bool:
        """Kill the process that holds the main file's lock if it is the victim's. Returns whether it was killed.

        All runners of that process must have expired: an evicted one may live on as another incarnation.
        """
        process = standing(self._database.write_lock_holder)
        if not process:
            return False
        runners = seats.runners_of(desk.main, process)
        if not any(runner == victim for _, runner in runners):
            self._name(process)
            return False
        return all(_lease(desk, boot, *each).expired for each in runners) and self._end(process)

    def blocks_leases(self, desk: SqliteConnections, boot: Boot, *, ttl_s: float) -> None:
        """Handle a renewal that could not get the leases' lock: kill its holder if that has not renewed for a TTL."""
        process = standing(self._database.leases_lock_holder)
        if not process:
            self._mark = None
            return
        runners = seats.runners_of(desk.main, process)
        if not runners:
            self._name(process)
            return
        mark = process, tuple(_lease(desk, boot, *each).counter for each in runners)
        if mark != self._mark:
            self._mark, self._since_ns = mark, boot.now_ns
        elif boot.now_ns - self._since_ns >= ttl_s * 1e9:
            self._end(process)

    def _end(self, process: str) -> bool:
        said = described(_pid(process))
        if not self._kill or not end(process):
            self._name(process)
            return False
        log.warning("%s stood still inside a commit and held up all others: it was ended", said)
        return True

    def _name(self, process: str) -> None:
        """Log once which process is in the way, and what helps."""
        if process in self._named:
            return
        self._named.add(process)
        pid = _pid(process)
        log.warning(
            "%s holds the write lock of %s and holds up others: let it go on (kill -CONT %d) or end it (kill -KILL %d)",
            described(pid), self._database.address, pid, pid,
        )  # fmt: skip


def standing(holder: Callable[[], int | None]) -> str:
    """The one process that holds the lock at every check; empty if there is none."""
    seen = set()
    for look in range(_LOOKS):
        if look:
            time.sleep(_LOOK_S)
        pid = holder()
        seen.add("" if pid is None else process_of(pid))
        if "" in seen or len(seen) > 1:
            return ""
    return seen.pop()


def _pid(process: str) -> int:
    return int(process.partition(":")[0])


def _lease(desk: SqliteConnections, boot: Boot, cluster: str, runner: str) -> seats.Lease:
    there = seats.Boot(cluster, boot.id, boot.now_ns)
    return seats.read(desk.leases, there).get(runner, seats.NONE)


T = TypeVar("T")


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


def transact(connection: apsw.Connection, work: Callable[[apsw.Connection], T], *, patience: Patience, doing: str) -> T:
    """Return the result of `work`, durable. See `writing`."""
    with writing(connection, patience=patience, doing=doing):
        return work(connection)


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
