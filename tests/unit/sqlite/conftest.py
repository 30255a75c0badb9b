"""Storages on a fresh file, and child processes that misbehave on request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from coterie.kernel.clock import SystemClock
from coterie.kernel.random import Random
from coterie.settings import Settings
from coterie.storage.sqlite import SqliteStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from coterie.kernel.clock import Clock

CHILD = Path(__file__).with_name("child_process.py")
SOURCES = Path(__file__).parents[3] / "src"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the database of this test lies."""
    return tmp_path / "coterie.db"


@dataclass(frozen=True)
class Opener:
    """Makes storages (not started) on the test's file."""

    path: Path

    def __call__(
        self,
        *,
        url: str | None = None,
        name: str = "default",
        migrate: bool = True,
        clock: Clock | None = None,
        settings: Mapping[str, Any] = MappingProxyType({}),
        **options: Any,
    ) -> SqliteStorage:
        given = {"url": url or f"sqlite:///{self.path}", "name": name, "migrate": migrate, **settings}
        loaded = Settings.load(given, environ={})
        return SqliteStorage(loaded, incarnation="0" * 32, clock=clock or SystemClock(), chance=Random(), **options)


@pytest.fixture
def new(path: Path) -> Opener:
    """Make a storage on the test's file."""
    return Opener(path)


class Child(subprocess.Popen[str]):
    """A process that runs one command of `child_process.py`."""

    def __init__(self, *command: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(SOURCES)}
        super().__init__(
            [sys.executable, str(CHILD), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def line(self) -> str:
        """The next line that it says; pytest's time limit is the deadline."""
        assert self.stdout is not None
        return self.stdout.readline().strip()

    def told(self, order: str) -> str:
        """What it says to an order."""
        assert self.stdin is not None
        self.stdin.write(f"{order}\n")
        self.stdin.flush()
        return self.line()

    def freeze(self) -> None:
        """Stop it where it stands."""
        self.send_signal(signal.SIGSTOP)
        until(lambda: self.state() == "T")

    def state(self) -> str:
        """Its state letter in /proc."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def end(self) -> None:
        """Gone, whatever it was doing."""
        self.kill()
        self.wait()
        for stream in (self.stdin, self.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Start children that are gone when the test ends."""
    started: list[Child] = []

    def start(*command: str) -> Child:
        started.append(Child(*command))
        return started[-1]

    yield start
    for each in started:
        each.end()


def until(condition: Callable[[], bool], *, within_s: float = 120) -> None:
    """Wait for a condition, in a test without a loop or one that may block it."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.002)
