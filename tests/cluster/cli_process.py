"""The `coterie` command as a process of its own, with or without a terminal, and everything that it has said."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

LIMIT_S = 120.0  # for what takes a second or ten on an idle machine


class Command:
    """A command that runs."""

    def __init__(self, process: subprocess.Popen[bytes], said: Callable[[], str], keys: int | None) -> None:
        self.process = process
        self._said = said
        self._keys = keys

    @property
    def said(self) -> str:
        """On stdout and stderr, so far."""
        return self._said()

    def wait_for(self, text: str, *, times: int = 1) -> None:
        """Wait until it has said something, so many times."""
        self.wait_until(lambda: self.said.count(text) >= times, f"it has not said {text!r} {times} times")

    def wait_until(self, condition: Callable[[], object], problem: str) -> None:
        """Wait until a condition holds."""
        until = time.monotonic() + LIMIT_S
        while not condition():
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.said}"
            assert time.monotonic() < until, f"{problem}:\n{self.said}"
            time.sleep(0.02)

    def ends_with(self, code: int) -> None:
        """Wait until it has ended, with this exit code."""
        with suppress(subprocess.TimeoutExpired):
            until = time.monotonic() + LIMIT_S
            while self.process.poll() is None and time.monotonic() < until:
                _ = self.said  # a terminal that nobody reads holds it up
                time.sleep(0.02)
        assert self.process.poll() == code, f"exit code {self.process.poll()}:\n{self.said}"

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def press(self, key: str) -> None:
        """Press a key of its terminal."""
        assert self._keys is not None, "it has no terminal"
        os.write(self._keys, key.encode())


@contextmanager
def command(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Command]:
    """Run `coterie …` in a folder, without a terminal; it is gone when the block is left."""
    log = folder / f"said-{time.monotonic_ns()}"
    with log.open("wb") as output:
        process = _start(folder, arguments, env, stdin=subprocess.DEVNULL, output=output.fileno())
    with _ended(process):
        yield Command(process, lambda: log.read_text(errors="replace"), None)


@contextmanager
def command_at_terminal(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Command]:
    """The same, at a terminal."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    process = _start(folder, arguments, env, stdin=theirs, output=theirs)
    os.close(theirs)
    heard: list[bytes] = []

    def said() -> str:
        with suppress(OSError):  # nothing new, or it is gone
            while data := os.read(ours, 65536):
                heard.append(data)
        return b"".join(heard).decode(errors="replace").replace("\r\n", "\n")

    try:
        with _ended(process):
            yield Command(process, said, ours)
    finally:
        os.close(ours)


def _start(
    folder: Path, arguments: tuple[str, ...], env: Mapping[str, str] | None, *, stdin: int, output: int
) -> subprocess.Popen[bytes]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("COTERIE_")}
    ours = {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1", "NO_COLOR": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "coterie.cli", *arguments],
        cwd=folder,
        env={**kept, **ours, **(env or {})},
        stdin=stdin,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """However the block ends, neither the command runs on nor, soon, its workers: they notice that it is gone."""
    try:
        yield
    finally:
        process.kill()
        process.wait()
