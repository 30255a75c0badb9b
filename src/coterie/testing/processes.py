"""A cluster of real processes, with the verbs of the simulator: slower, in real time, and with nothing left out.

    async with processes("app.py", runners=3, url=server.url(database)) as cluster:
        cluster.runners[0].freeze()
        await cluster.wait_until(lambda: …)

Every verb acts at once; what it returns may be awaited and need not be.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from coterie.kernel.durations import to_seconds
from coterie.kernel.service import Tasks
from coterie.testing.process import POLL_S, Process
from coterie.testing.proxy import Proxy
from coterie.testing.simulation import holds, name_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from coterie.kernel.durations import Duration


class Processes:
    """What `processes` gives: the processes of one cluster and the verbs of the whole.

    Attributes:
        runners: All processes, dead ones too.
        url: The database, past all proxies: for the test's own eyes.
        directory: Where the processes work and their logs are.
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
        """Start `n` more processes, with variables of their own if so wished; done when they are ready."""
        names = [f"runner-{len(self.runners) + number}" for number in range(1, n + 1)]
        new = [Process(self, name, env or {}) for name in names]
        self.runners += new
        return asyncio.gather(*(process.start() for process in new))

    async def wait_until(self, condition: Callable[[], object], *, within: Duration = "30s") -> None:
        """Wait until a condition (a plain or a coroutine function) holds, for so long at most."""
        limit_s = to_seconds(within, what="within")
        deadline = time.monotonic() + limit_s
        while not await holds(condition):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{name_of(condition)} did not come true within {limit_s:g}s")
            await asyncio.sleep(POLL_S)

    def spawn(self, work: Any, *, name: str) -> Awaitable[Any]:
        """A task that ends with the cluster."""
        return self._tasks.spawn(work, name=name, report=False)  # asyncio itself reports errors nobody asked for

    def environment(self, name: str, link: Proxy | None) -> dict[str, str]:
        """The variables of a process: those of the test run, but only our settings."""
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
        """A network for one process, working."""
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
        """End everything, whatever fails on the way."""
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
        directory: Where the processes work and their logs go; a temporary one if left out.
        proxied: Whether a proxy stands between each process and PostgreSQL, so that `cut` works.

    Promise:
        Whatever the test does, no process that was started here runs when the block is left; on Linux not even
        when the test run itself is killed.
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
