"""A cluster of real processes, with the verbs of the simulator: slower, in real time, and with nothing simulated.

    async with processes("app.py", runners=3, url=server.url(database)) as cluster:
        cluster.runners[0].freeze()
        await cluster.wait_until(lambda: …)

Every verb acts at once; what it returns may be awaited and need not be. No process outlives the test run, even if that
is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from coterie.kernel.durations import Duration, to_seconds
from coterie.kernel.service import Tasks
from coterie.testing.proxy import Proxy
from coterie.testing.simulation import holds, name_of

if TYPE_CHECKING:
    import pwd
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    from coterie.testing.database import Way


GONE_S = 60.0
"""How long a process may take to exit; then it is killed."""

# Drops root, has the kernel send a signal when the test run dies, and executes the program. A process of its own
# instead of preexec_fn, which is unsafe in a process with threads. PDEATHSIG follows setuid, as a change of credentials
# clears it; it applies to the *thread* that starts us, so that must be a lasting one.
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
        death: The signal that the kernel sends it when the calling thread ends (Linux).
        output: Where stdout and stderr go.
        user: The user to run it as; needs root.
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
        start_new_session=True,  # a Ctrl-C in the terminal is for the test run, which then ends its processes
    )


def end(process: subprocess.Popen[bytes], how: signal.Signals) -> int:
    """Send a signal and wait until the process has exited, killing it if it takes too long; returns its exit code."""
    process.send_signal(how)
    try:
        return process.wait(timeout=GONE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def children(pid: int) -> list[int]:
    """The running child processes of a process (Linux)."""
    return [other for other, fields in _processes() if int(fields[1]) == pid]


def left_behind(session: int, *, folder: Path) -> list[int]:
    """The processes of a session that we started, not of a later one with its number: by working directory (Linux)."""
    found = []
    for pid, fields in _processes():
        with suppress(OSError):
            if int(fields[3]) == session and fields[0] not in "ZX" and Path(f"/proc/{pid}/cwd").readlink() == folder:
                found.append(pid)
    return found


def halt(pid: int, *, within_s: float = 60.0) -> None:
    """Stop a process by SIGSTOP; return when none of its threads runs any more (Linux)."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + within_s
    while any(fields[0] not in "TtZX" for _, fields in _processes(f"/proc/{pid}/task")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} runs on {within_s:g}s after SIGSTOP")
        time.sleep(0.001)


def _processes(place: str = "/proc") -> Iterator[tuple[int, list[str]]]:
    """The processes, or threads, with the fields of /proc for each: state, parent, group, session …"""
    for stat in Path(place).glob("[0-9]*/stat"):
        with suppress(OSError):  # gone meanwhile
            yield int(stat.parent.name), stat.read_text().rpartition(")")[2].split()


POLL_S = 0.02
_READY_S = 120.0
_TRIES = 3
_UNANSWERED = "is the database up, and reachable from here?"
_TAIL = 20
"""Lines of each log that a failing test shows."""


class Process:
    """One process of the program. It may die and start again under the same name.

    Attributes:
        name: Its name, also in COTERIE_RUNNER_NAME.
        link: The network between it and PostgreSQL; None on SQLite, or without a proxy.
    """

    def __init__(self, cluster: Processes, name: str, env: Mapping[str, str]) -> None:
        self.name = name
        self.link: Proxy | None = None
        self._cluster = cluster
        self._env = env
        self._log = cluster.directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: list[int] = []  # of all its starts: each may have left children behind
        self._frozen = False

    @property
    def pid(self) -> int:
        """The id of the process, the last one if it is dead."""
        return self._started.pid

    @property
    def alive(self) -> bool:
        """Whether it runs, frozen or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def frozen(self) -> bool:
        """Whether it is frozen."""
        return self._frozen and self.alive

    @property
    def exit_code(self) -> int | None:
        """Its exit code, negative if ended by a signal; None while it runs, or before."""
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> list[str]:
        """What it has written to stdout and stderr so far, in all its starts."""
        return self._log.read_text(errors="replace").splitlines() if self._log.exists() else []

    def start(self) -> Awaitable[None]:
        """Start or restart it; done when it is ready.

        One that ends because its database has not answered in time, on a busy machine, is started again, as whoever
        supervises it would do.
        """
        assert not self.alive, f"{self.name} runs already"
        if self.link is None:
            self.link = self._cluster.new_link()
        self._launch()
        return self._cluster.spawn(self._becomes_ready(), name=f"start of {self.name}")

    def _launch(self) -> None:
        with self._log.open("ab") as log:
            env = {**self._cluster.environment(self.name, self.link), **self._env}
            folder = self._cluster.directory
            command: list[str | Path] = [sys.executable, self._cluster.program]
            self._process = launch(command, death=signal.SIGKILL, output=log, env=env, cwd=folder)
        self._sessions.append(self._process.pid)
        self._frozen = False

    def kill(self) -> Awaitable[None]:
        """End it by SIGKILL."""
        end(self._started, signal.SIGKILL)
        return _done()

    def stop(self, *, within: Duration = "2m") -> Awaitable[int]:
        """Ask it by SIGTERM to stop gracefully; returns its exit code when it has exited."""
        self.send(signal.SIGTERM)
        return self._cluster.spawn(self._gone(to_seconds(within, what="within")), name=f"stop of {self.name}")

    def send(self, number: signal.Signals) -> None:
        """Send a signal; does nothing if it has exited."""
        if self.alive:
            self._started.send_signal(number)

    def freeze(self) -> Awaitable[None]:
        """Stop it by SIGSTOP; none of its threads runs when this returns (Linux)."""
        assert self.alive, f"{self.name} does not run"
        halt(self.pid)
        self._frozen = True
        return _done()

    def thaw(self) -> Awaitable[None]:
        """Resume it by SIGCONT."""
        self.send(signal.SIGCONT)
        self._frozen = False
        return _done()

    def cut(self, peer: Literal["storage"], *ways: Way) -> Awaitable[None]:
        """Cut it off from storage, silently; with `ways` only one direction. `link` has more verbs."""
        assert peer == "storage", "there is no network of ours between processes"
        assert self.link is not None, f"no proxy stands between {self.name} and its storage"
        self.link.cut(*ways)
        return _done()

    def heal(self) -> Awaitable[None]:
        """Heal everything that was cut."""
        if self.link is not None:
            self.link.heal()
        return _done()

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    async def _becomes_ready(self) -> None:
        deadline, tries = time.monotonic() + _READY_S, _TRIES
        while not await holds(lambda: self._cluster.ready(self)):
            if not self.alive and self.exit_code == 1 and _UNANSWERED in self.tail() and tries > 1:
                tries -= 1  # its first statement may be late on a busy machine; a supervisor would start it again, too
                self._launch()
            elif not self.alive:
                raise RuntimeError(f"{self.name} ended with {self.exit_code} before it was ready:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} was not ready within {_READY_S:g}s:\n{self.tail()}")
            await asyncio.sleep(POLL_S)

    async def _gone(self, within_s: float) -> int:
        deadline = time.monotonic() + within_s
        while (code := self._started.poll()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} still runs {within_s:g}s after SIGTERM:\n{self.tail()}")
            await asyncio.sleep(POLL_S)
        return code

    def tail(self) -> str:
        """The end of its log."""
        return "\n".join(self.log[-_TAIL:])

    def close(self) -> None:
        """End it and the children it may have left behind, whatever state they are in."""
        if self._process is not None:
            end(self._process, signal.SIGKILL)
        for session in self._sessions:
            for pid in left_behind(session, folder=self._cluster.directory):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.link is not None:
            self.link.close()


def _done() -> Awaitable[None]:
    """What a verb returns that has already acted."""
    done = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


class Processes:
    """What `processes` returns: the processes of one cluster and the verbs for all of them.

    Attributes:
        runners: All processes, dead ones too.
        url: The database, bypassing all proxies: for the test itself.
        directory: The working directory of the processes, with their logs.
    """

    def __init__(
        self,
        program: str | Path,
        *,
        url: str,
        directory: Path,
        env: Mapping[str, str],
        ready: Callable[[Process], object],
        proxied: bool,
    ) -> None:
        self.program = Path(program).resolve()
        self.url = url
        self.directory = directory.resolve()
        self.ready = ready
        self.runners: list[Process] = []
        self._env = env
        self._proxied = proxied and not url.startswith("sqlite")
        self._tasks = Tasks("processes")

    def start(self, n: int = 1, *, env: Mapping[str, str] | None = None) -> Awaitable[Any]:
        """Start `n` more processes, optionally with environment variables of their own; done when they are ready."""
        names = [f"runner-{len(self.runners) + number}" for number in range(1, n + 1)]
        new = [Process(self, name, env or {}) for name in names]
        self.runners += new
        return asyncio.gather(*(process.start() for process in new))

    async def wait_until(self, condition: Callable[[], object], *, within: Duration = "2m") -> None:
        """Wait until a condition (a plain or a coroutine function) holds, at most `within`."""
        limit_s = to_seconds(within, what="within")
        deadline = time.monotonic() + limit_s
        while not await holds(condition):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{name_of(condition)} did not come true within {limit_s:g}s")
            await asyncio.sleep(POLL_S)

    def spawn(self, work: Any, *, name: str) -> Awaitable[Any]:
        """A task that ends with the cluster."""
        return self._tasks.spawn(work, name=name, report=False)  # asyncio reports unretrieved errors

    def environment(self, name: str, link: Proxy | None) -> dict[str, str]:
        """The environment of a process: that of the test run, but only our settings."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("COTERIE_")}
        ours = {
            "COTERIE_URL": self.url if link is None else _through(self.url, link.port),
            "COTERIE_RUNNER_NAME": name,
            "COTERIE_HTTP_LISTEN": "127.0.0.1:0",
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
        }
        return kept | ours | dict(self._env)

    def new_link(self) -> Proxy | None:
        """A working network for one process; None without a proxy."""
        if not self._proxied:
            return None
        place = urlsplit(self.url)
        link = Proxy(place.hostname or "127.0.0.1", place.port or 5432)
        link.start()
        return link

    def report(self) -> str:
        """The ends of all logs."""
        return "\n".join(
            f"── {process.name} (exit code {process.exit_code})\n{process.tail()}" for process in self.runners
        )

    async def close(self) -> None:
        """End everything, even if some of it fails."""
        with ExitStack() as last:  # without awaiting anything before: we may be cancelled
            for process in self.runners:
                last.callback(process.close)
        await self._tasks.stop()


@asynccontextmanager
async def processes(
    program: str | Path,
    *,
    runners: int = 3,
    url: str | None = None,
    env: Mapping[str, str] | None = None,
    ready: Callable[[Process], object] = lambda process: process.alive,
    directory: Path | None = None,
    proxied: bool = True,
) -> AsyncIterator[Processes]:
    """Run a program in several processes that share a database.

    Args:
        program: A Python file. It finds the database in COTERIE_URL and its name in COTERIE_RUNNER_NAME.
        runners: How many to start.
        url: The database; a SQLite file in `directory` if left out.
        env: More variables for the program.
        ready: Whether a process is up, as far as the test cares.
        directory: The working directory of the processes, where their logs go; a temporary one if left out.
        proxied: Whether a proxy stands between each process and PostgreSQL, so that `cut` works.

    Promise:
        Whatever the test does, no process that was started here runs after the block; on Linux not even when the test
        run itself is killed.
    """
    with tempfile.TemporaryDirectory(prefix="coterie-processes-", ignore_cleanup_errors=True) as temporary:
        folder = directory or Path(temporary)
        url = url or f"sqlite:///{folder}/coterie.db"
        cluster = Processes(program, url=url, directory=folder, env=env or {}, ready=ready, proxied=proxied)
        try:
            await cluster.start(runners)
            yield cluster
        except BaseException as error:
            error.add_note(cluster.report())
            raise
        finally:
            await cluster.close()


def _through(url: str, port: int) -> str:
    place = urlsplit(url)
    user = f"{place.netloc.rpartition('@')[0]}@" if "@" in place.netloc else ""
    return urlunsplit(place._replace(netloc=f"{user}127.0.0.1:{port}"))
