"""Three runners of `page_program`, each a process with a page of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.testing.proxy import free_port
from tests.cluster.cli_process import Command, command
from tests.cluster.seat_cluster import STEADY

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(__file__).with_name("page_program.py")
ROOT = Path(__file__).parents[2]


class PageCluster:
    """The runners by name.

    Args:
        folder: Where the database is.
        stack: Ends the runners.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._env = {**STEADY, "COTERIE_URL": f"sqlite:///{folder}/page.db", "COTERIE_SHARDS": "30"}
        self._ports: dict[str, int] = {}
        self._runners: dict[str, Command] = {}

    def start(self, name: str) -> None:
        """Start a runner, or one again that was killed: at the same address."""
        port = self._ports.setdefault(name, free_port())
        env = {**self._env, "COTERIE_RUNNER_NAME": name, "COTERIE_HTTP_LISTEN": f"127.0.0.1:{port}"}
        self._runners[name] = self._stack.enter_context(command(self._folder, "run", str(PROGRAM), env=env))

    def wait_for(self, name: str) -> None:
        """Wait until a runner has joined."""
        self._runners[name].wait_for("joined")

    def url(self, name: str) -> str:
        """The address of the page of a runner."""
        return f"http://127.0.0.1:{self._ports[name]}/"

    def kill(self, name: str) -> None:
        """Kill a runner without a warning."""
        self._runners[name].send(signal.SIGKILL)

    def host(self) -> str:
        """Start an application that mounts the page and has that of a runner behind a prefix; returns its address."""
        env = {**self._env, "COTERIE_RUNNER_NAME": "host", "COTERIE_HTTP_LISTEN": "off", "BEHIND": self.url("web-1")}
        return self._stack.enter_context(hosted(self._folder, env))

    def fill(self) -> None:
        """Have a client send messages and start workflows."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("COTERIE_")}
        subprocess.run([sys.executable, str(PROGRAM)], env={**kept, **self._env}, cwd=self._folder, check=True)


@contextmanager
def started(folder: Path) -> Iterator[PageCluster]:
    """Three runners, with something to show; they are gone when the block is left."""
    with ExitStack() as stack:
        cluster = PageCluster(folder, stack)
        cluster.start("web-1")
        cluster.wait_for("web-1")  # it sets up the database
        cluster.start("web-2")
        cluster.start("web-3")
        cluster.fill()
        cluster.wait_for("web-2")
        cluster.wait_for("web-3")
        yield cluster


@contextmanager
def hosted(folder: Path, env: dict[str, str]) -> Iterator[str]:
    """An application of its own; it is gone when the block is left."""
    port, log = free_port(), folder / "host.log"
    kept = {key: value for key, value in os.environ.items() if not key.startswith("COTERIE_")}
    here = ["--app-dir", str(ROOT), "tests.cluster.page_host:application"]
    line = [sys.executable, "-m", "uvicorn", "--port", str(port), *here]
    with log.open("wb") as output:
        process = subprocess.Popen(line, env={**kept, **env}, cwd=folder, stdout=output, stderr=output)
    try:
        host = Command(process, log.read_text, None)
        host.wait_for("Uvicorn running")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
