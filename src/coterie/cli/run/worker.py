"""One worker: a process of `coterie run` that a supervisor starts, reads events from, and ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from coterie.cli.run.events import Event, ProgramLoaded, RunnerJoined, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_LINE_MOST_BYTES = 1 << 20


class Worker:
    """A process with a runner of a program.

    Args:
        target: The program, as on the command line.
        number: Its number, from 1 on.
        on_event: Called with each event.
        wait: Whether it waits for a database that cannot be reached yet.
        env: Variables of its own.
        output: Where its stdout and stderr go; None: where ours do.

    Promise:
        It does not outlive the process that started it: when that is gone, it drains and exits.
    """

    def __init__(
        self,
        target: str,
        *,
        number: int,
        on_event: Callable[[Event], None],
        wait: bool = True,
        env: Mapping[str, str] | None = None,
        output: int | None = None,
    ) -> None:
        self.number = number
        self.found: ProgramLoaded | None = None
        self.joined: RunnerJoined | None = None
        """Events of its current process."""
        self._target = target
        self._on_event = on_event
        self._options = () if wait else ("--no-wait",)
        self._env = env or {}
        self._output = output
        self._process: asyncio.subprocess.Process | None = None

    @property
    def name(self) -> str:
        """Its display name."""
        return f"worker {self.number}" if self.found is None else self.found.runner

    @property
    def pid(self) -> int | None:
        """Id of its current process; None: there is none."""
        return self._process.pid if self.lives and self._process is not None else None

    @property
    def lives(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.returncode is None

    async def live(self) -> int:
        """Run it until it exits; returns its exit code, negative if ended by a signal."""
        ours, theirs = socket.socketpair()
        self.found, self.joined = None, None
        with theirs:
            line = theirs.fileno()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # else a file in the current directory could shadow any module of ours
                *("-m", "coterie.cli", "run", self._target, "--worker", f"{self.number}:{line}", *self._options),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[line],
                env={**os.environ, **self._env},
                start_new_session=True,  # a Ctrl-C in the terminal is for us: we drain them all
            )
        try:
            await self._listen(ours)
            return await self._process.wait()
        finally:
            if self.lives:  # we are cancelled
                self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal; does nothing if it has exited."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _listen(self, line: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=line, limit=_LINE_MOST_BYTES)
        try:
            while text := await reader.readline():
                event = decode(text)
                if isinstance(event, ProgramLoaded):
                    self.found = event
                elif isinstance(event, RunnerJoined):
                    self.joined = event
                self._on_event(event)
        except ConnectionError:
            pass  # it was killed
        finally:
            writer.close()


def ending(code: int) -> str:
    """How a process has ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
