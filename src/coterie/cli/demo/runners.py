"""The runners of the demo: real processes of `coterie run`, each with a network of its own that can be cut."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from coterie.cli.demo.cluster_view import DemoFailed
from coterie.cli.run.worker import Worker, ending
from coterie.kernel.service import Tasks
from coterie.testing.proxy import Proxy, free_port

if TYPE_CHECKING:
    from coterie.cli.run.events import Event

NAME = "coterie-demo"
"""Name of the cluster, which keeps it apart from others in the same database."""
_TAIL_BYTES = 2_000
_LEFT_WITHIN_S = 60.0
"""Twice what a runner needs to end tasks that hang."""


class DemoRunner:
    """One runner, in one process after another under the same name.

    On SQLite a proxy stands before its address, so that others can be cut off from it; on PostgreSQL it stands between
    the runner and its database.

    Args:
        program: The file that it runs.
        url: The database.
        number: Its number, from 1 on.
    """

    def __init__(self, program: str, url: str, *, number: int) -> None:
        self.name = f"demo-{number}"
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 open while the runner runs
        self._env, self._network = _network(url)
        self._env |= {"COTERIE_NAME": NAME, "COTERIE_RUNNER_NAME": self.name}
        output, place = self._output.fileno(), number + 1  # the first address is that of the demo's page
        self._worker = Worker(program, number=place, on_event=self._on_event, env=self._env, output=output)
        self._joined = asyncio.Event()
        self._tasks = Tasks(self.name)
        self._life: asyncio.Task[int] | None = None

    @property
    def lives(self) -> bool:
        """Whether its process runs."""
        return self._worker.lives

    async def start(self) -> None:
        """Start or restart it; return when it has joined.

        Raises:
            DemoFailed: It exited instead; with the end of its output.
        """
        self._joined.clear()
        self._network.heal()
        self._life = self._tasks.spawn(self._live(), name="life", report=False)
        joining = self._tasks.spawn(self._joined.wait(), name="joining", report=False)
        await asyncio.wait([self._life, joining], return_when=asyncio.FIRST_COMPLETED)  # noqa: TID251 either will do
        if not self._joined.is_set():
            raise DemoFailed(f"{self.name} {ending(self._life.result())} before it had joined:\n{self.tail()}")

    async def kill(self) -> None:
        """End it by SIGKILL."""
        self._worker.send(signal.SIGKILL)
        await self.gone()

    async def stop(self) -> int:
        """Have it drain and exit, whatever was done to it before, or kill it if it does not; returns its exit code."""
        self._network.heal()
        self.thaw()
        self._worker.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(_LEFT_WITHIN_S):
                return await self.gone()
        except TimeoutError:
            self._worker.send(signal.SIGKILL)
            return await self.gone()

    async def gone(self) -> int:
        """Wait until its process has exited; returns its exit code."""
        assert self._life is not None, "it was started"
        return await asyncio.shield(self._life)

    def freeze(self) -> None:
        """Stop it by SIGSTOP: it holds its connections, its locks and its memory, and does nothing."""
        self._worker.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume it."""
        self._worker.send(signal.SIGCONT)

    def cut(self) -> None:
        """Cut its network, silently: nothing is refused, nothing arrives."""
        self._network.cut()

    def heal(self) -> None:
        """Heal its network."""
        self._network.heal()

    async def close(self) -> None:
        """End it, whatever state it is in."""
        self._worker.send(signal.SIGKILL)
        await self._tasks.stop()
        self._network.close()
        self._output.close()

    def tail(self) -> str:
        """The end of its output."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), _TAIL_BYTES, max(size - _TAIL_BYTES, 0)).decode(errors="replace")

    async def _live(self) -> int:
        code = await self._worker.live()
        self._network.refuse()  # as the port of a dead process does
        return code

    def _on_event(self, _: Event) -> None:
        if self._worker.joined is not None:
            self._joined.set()


def _network(url: str) -> tuple[dict[str, str], Proxy]:
    """A proxy for one runner, and the environment variables that lead through it."""
    place = urlsplit(url)
    if place.scheme == "sqlite":
        port = free_port()
        proxy = Proxy("127.0.0.1", port)
        proxy.start()
        ways = {"COTERIE_LISTEN": f"127.0.0.1:{port}", "COTERIE_ADVERTISE": f"127.0.0.1:{proxy.port}"}
        return {"COTERIE_URL": url, **ways}, proxy
    proxy = Proxy(place.hostname or "127.0.0.1", place.port or 5432)
    proxy.start()
    user = f"{place.netloc.rpartition('@')[0]}@" if "@" in place.netloc else ""
    through = urlunsplit(place._replace(netloc=f"{user}127.0.0.1:{proxy.port}"))
    return {"COTERIE_URL": through}, proxy
