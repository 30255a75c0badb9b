"""Real processes that do not outlive the test run: whoever starts one here may be killed itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import pwd
    from collections.abc import Iterator, Mapping, Sequence

GONE_S = 20.0
"""How long a process may take to go; then it is killed."""

# Drops root, asks the kernel for a signal when the test run dies, and becomes the program. A process of its own
# instead of preexec_fn, which forks one that may have threads. PDEATHSIG follows setuid, as a change of
# credentials clears it; it means the *thread* that starts us, so that must be a lasting one.
_BECOME = """
import ctypes, os, sys
parent, death, uid, gid, *command = sys.argv[1:]
if os.geteuid() != int(uid):
    os.setgroups([]); os.setgid(int(gid)); os.setuid(int(uid))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(death))  # PR_SET_PDEATHSIG
    if os.getppid() != int(parent):
        sys.exit("the test run is gone")
os.execv(command[0], command)
"""


def launch(
    command: Sequence[str | Path],
    *,
    death: signal.Signals,
    output: IO[bytes] | int,
    env: Mapping[str, str],
    cwd: Path,
    user: pwd.struct_passwd | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program with a session of its own; call it from the main thread.

    Args:
        death: What the kernel sends it when the thread that calls this ends (Linux).
        output: Where stdout and stderr go.
        user: Whom to run it as; needs root.
    """
    uid, gid = (os.geteuid(), os.getegid()) if user is None else (user.pw_uid, user.pw_gid)
    become = [sys.executable, "-I", "-S", "-c", _BECOME, *map(str, (os.getpid(), int(death), uid, gid))]
    return subprocess.Popen(  # noqa: S603 what to run is the test's own choice
        [*become, *map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(env),
        cwd=cwd,
        start_new_session=True,  # a Ctrl-C in the terminal is for the test run, which then ends us
    )


def end(process: subprocess.Popen[bytes], how: signal.Signals) -> int:
    """Send a signal and wait until the process is gone, killing it if it takes too long; its exit code."""
    process.send_signal(how)
    try:
        return process.wait(timeout=GONE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run (Linux)."""
    return [other for other, fields in _processes() if int(fields[1]) == pid]


def left_behind(session: int, *, folder: Path) -> list[int]:
    """The processes of a session that we started, told from later ones of that number by where they work (Linux)."""
    found = []
    for pid, fields in _processes():
        with suppress(OSError):
            if int(fields[3]) == session and fields[0] not in "ZX" and Path(f"/proc/{pid}/cwd").readlink() == folder:
                found.append(pid)
    return found


def halt(pid: int, *, within_s: float = 10.0) -> None:
    """Stop a process by SIGSTOP; return when none of its threads runs any more (Linux)."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + within_s
    while any(fields[0] not in "TtZX" for _, fields in _processes(f"/proc/{pid}/task")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} runs on {within_s:g}s after SIGSTOP")
        time.sleep(0.001)


def _processes(place: str = "/proc") -> Iterator[tuple[int, list[str]]]:
    """The processes, or threads, with what /proc says of each: state, parent, group, session …"""
    for stat in Path(place).glob("[0-9]*/stat"):
        with suppress(OSError):  # gone meanwhile
            yield int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
