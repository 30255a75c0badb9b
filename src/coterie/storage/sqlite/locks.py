"""Who holds the write lock of a file: the kernel knows, even of a process that is frozen; and how to end it [C3]."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import sys
from pathlib import Path

# `struct flock` of Linux on 64-bit machines: type, whence, (4 bytes of padding) start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")

# In WAL mode the one writer holds a lock on this byte of the -shm file (WAL_WRITE_LOCK in SQLite's wal.c).
_WRITE_LOCK_BYTE = 120

_STATES = {"T": ", stopped", "t": ", stopped by a debugger", "Z": ", dead", "D": ", waiting for the disk"}


def write_lock_holder(shm: int) -> int | None:
    """The id of the *other* process that holds the write lock, given a descriptor of the -shm file.

    None if nobody does, if it is this very process, or if the holder lives in a container that we cannot see.
    """
    if sys.platform != "linux":
        return None  # the structure differs there
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _WRITE_LOCK_BYTE, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(shm, fcntl.F_GETLK, asked))
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None


def described(pid: int) -> str:
    """A process in words: its id, its command and whether it is stopped."""
    folder = Path("/proc") / str(pid)
    try:
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        state = _stat(pid)[0]
    except (OSError, IndexError):
        return f"process {pid}"
    return f"process {pid} ({command[:120] or 'unnamed'}{_STATES.get(state, '')})"


def process_of(pid: int) -> str:
    """A process as runners register it: its id and its start time, since ids come back. Empty if it is gone."""
    try:
        return f"{pid}:{_stat(pid)[19]}"
    except (OSError, IndexError):
        return ""


def end(process: str) -> bool:
    """End a process, given as `process_of` names it, as SIGKILL does; False if it is gone or may not be ended."""
    pid = int(process.partition(":")[0])
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # The handle keeps the id from being given to another one between this look and the signal.
        if process_of(pid) != process:
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _stat(pid: int) -> list[str]:
    """What the kernel says of a process, from its state (field 3) on: the name before it may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
