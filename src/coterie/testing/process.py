"""One real process of a cluster under test, with the verbs that break it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from coterie.kernel.durations import to_seconds
from coterie.testing.launching import end, halt, launch, left_behind
from coterie.testing.simulation import holds

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Awaitable, Mapping
    from pathlib import Path

    from coterie.kernel.durations import Duration
    from coterie.testing.database import Way
    from coterie.testing.processes import Processes
    from coterie.testing.proxy import Proxy

POLL_S = 0.01
_READY_S = 30.0
_TAIL = 20
"""Lines of each log that a failing test shows."""


class Process:
    """One process of the program. It may die and start again under the same name.

    Attributes:
        name: What it is called, as COTERIE_RUNNER_NAME tells it too.
        link: The network between it and PostgreSQL; None on SQLite, or if no proxy was asked for.
    """

    def __init__(self, cluster: Processes, name: str, env: Mapping[str, str]) -> None:
        self.name = name
        self.link: Proxy | None = None
        self._cluster = cluster
        self._env = env
        self._log = cluster.directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: list[int] = []  # of all its lives: each may have left children behind
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
        """How it ended, negative by a signal; None while it runs, or before."""
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> list[str]:
        """What it has written to stdout and stderr so far, in all its lives."""
        return self._log.read_text(errors="replace").splitlines() if self._log.exists() else []

    def start(self) -> Awaitable[None]:
        """Start it, or start it again; done when it is ready."""
        assert not self.alive, f"{self.name} runs already"
        if self.link is None:
            self.link = self._cluster.new_link()
        with self._log.open("ab") as log:
            env = {**self._cluster.environment(self.name, self.link), **self._env}
            folder = self._cluster.directory
            command: list[str | Path] = [sys.executable, self._cluster.program]
            self._process = launch(command, death=signal.SIGKILL, output=log, env=env, cwd=folder)
        self._sessions.append(self._process.pid)
        self._frozen = False
        return self._cluster.spawn(self._becomes_ready(), name=f"start of {self.name}")

    def kill(self) -> Awaitable[None]:
        """End it by SIGKILL."""
        end(self._started, signal.SIGKILL)
        return _done()

    def stop(self, *, within: Duration = "30s") -> Awaitable[int]:
        """Ask it by SIGTERM to leave in good order; its exit code when it is gone."""
        self.send(signal.SIGTERM)
        return self._cluster.spawn(self._gone(to_seconds(within, what="within")), name=f"stop of {self.name}")

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing if it is gone."""
        if self.alive:
            self._started.send_signal(number)

    def freeze(self) -> Awaitable[None]:
        """Stop it by SIGSTOP; none of its threads runs when this returns (Linux)."""
        assert self.alive, f"{self.name} does not run"
        halt(self.pid)
        self._frozen = True
        return _done()

    def thaw(self) -> Awaitable[None]:
        """Let it go on, by SIGCONT."""
        self.send(signal.SIGCONT)
        self._frozen = False
        return _done()

    def cut(self, peer: Literal["storage"], *ways: Way) -> Awaitable[None]:
        """Cut it off from storage, silently; with `ways` only one direction. `link` has more to offer."""
        assert peer == "storage", "there is no network of ours between processes"
        assert self.link is not None, f"no proxy stands between {self.name} and its storage"
        self.link.cut(*ways)
        return _done()

    def heal(self) -> Awaitable[None]:
        """Mend everything that was cut."""
        if self.link is not None:
            self.link.heal()
        return _done()

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    async def _becomes_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        while not await holds(lambda: self._cluster.ready(self)):
            if not self.alive:
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
    """What a verb returns that has acted already."""
    done = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done
