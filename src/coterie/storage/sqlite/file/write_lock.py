"""The holder of a file's write lock: which process it is, and the end of one that is frozen [C3].

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
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.storage.sqlite import seats

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.storage.sqlite.database import SqliteConnections, SqliteDatabase
    from coterie.storage.sqlite.seats import Boot

    Mark = tuple[str, tuple[int, ...]]

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
