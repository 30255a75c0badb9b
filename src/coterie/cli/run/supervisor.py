"""Supervises several workers of one program: starts them, restarts those that die, drains them together.

starting ──▶ all at work ──a worker dies──▶ it is restarted, after a pause that grows
                 │  ╲──a file changes──▶ drain all ──▶ starting                      (--reload)
                 └──SIGTERM, SIGINT──▶ drain all ──▶ exit code 0, or 1 if not all exited cleanly
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.cli.client import REPLACED, WRONG, settings_for
from coterie.cli.output import lasting
from coterie.cli.run.console import Console
from coterie.cli.run.worker import Worker, ending
from coterie.errors import CoterieError
from coterie.kernel.random import Random
from coterie.kernel.retry import Retry
from coterie.kernel.service import Tasks
from coterie.kernel.supervisor import Supervisor
from coterie.main import GRACE_S, ONE_S
from coterie.work.limits import set_within

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coterie.cli.run.load import Target

_PAUSES = Retry(attempts=20, base="500ms", max="30s")
"""Pauses between the end of a worker and its restart; the last one repeats."""
_WELL_S = 10.0
"""A worker that has run so long counts as healthy: the next pause is the first one again."""
_SPARE_S = 2.0
"""Added to what a worker itself needs to end tasks that hang: one that is frozen even then is killed."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
WATCH_S = 0.5
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}
_FILES_MOST = 10_000
"""A folder with more is not that of a program: further files are ignored."""


async def supervise(
    text: str, target: Target, *, workers: int, reload: bool, wait: bool, env: Callable[[int], Mapping[str, str]]
) -> int:
    """Run workers until a signal has ended them; returns the exit code.

    Args:
        text: The program, as on the command line.
        target: The same, parsed.
        workers: Their number.
        reload: Whether to restart when the program's files change.
        wait: Whether they wait for a database that cannot be reached yet.
        env: The variables of a worker, by its number.
    """
    crew = WorkerSupervisor(text, workers=workers, wait=wait, env=env)
    watched = Watched(target.folder) if reload else None
    loop = asyncio.get_running_loop()
    for each in _SIGNALS:
        loop.add_signal_handler(each, crew.on_signal, each)
    try:
        return await (crew.run() if watched is None else crew.run_again_and_again(watched))
    finally:
        for each in _SIGNALS:
            loop.remove_signal_handler(each)


class WorkerSupervisor:
    """The workers of one command."""

    def __init__(self, text: str, *, workers: int, wait: bool, env: Callable[[int], Mapping[str, str]]) -> None:
        self.console = Console(workers=workers, as_json=_wants_json())
        self._workers = [
            Worker(text, number=number, on_event=self.console.on_event, wait=wait, env=env(number))
            for number in range(1, workers + 1)
        ]
        self._chance = Random()
        self._asked: signal.Signals | None = None
        self._asked_s = 0.0
        self._stopping = asyncio.Event()
        self._hopeless = 0

    def on_signal(self, number: signal.Signals) -> None:
        """The first one drains, the second one ends at once, as in `main`."""
        now_s = asyncio.get_running_loop().time()
        if self._asked is not None and now_s - self._asked_s < ONE_S:
            return
        if self._asked is not None:
            self.console.line("a second signal: ending at once")
            self._kill()
        else:
            self._asked, self._asked_s = number, now_s
        self._stopping.set()

    async def run(self) -> int:
        """Run until a signal, or until it is clear that no worker can work."""
        tasks = Tasks("crew")
        try:
            codes = [tasks.spawn(self._keep(each), name=each.name, report=False) for each in self._workers]
            ended = asyncio.gather(*codes)
            await self._drain_when_asked(ended)
            return self._verdict(await ended)
        finally:
            await tasks.stop()

    async def run_again_and_again(self, watched: Watched) -> int:
        """The same, restarting with each change of a file."""
        while True:
            tasks = Tasks("reload")
            watch = functools.partial(self._stop_when_changed, watched)
            changes = tasks.supervise(watch, name="watch files", supervisor=Supervisor(self._chance))
            try:
                code = await self.run()
                if not self._was_asked() and not changes.done():  # it cannot work as it is
                    self._stopping.clear()
                    self.console.line("waiting for its files to change")
                    await self._stopping.wait()
            finally:
                await tasks.stop()
            if self._was_asked():
                return code
            self._stopping.clear()
            self._hopeless = 0

    def _was_asked(self) -> bool:
        return self._asked is not None

    async def _stop_when_changed(self, watched: Watched) -> None:
        self.console.line(f"{await watched.changed()} changed: draining and starting again")
        self._stopping.set()

    async def _keep(self, worker: Worker) -> int:
        """Run and restart one worker; returns its last exit code."""
        loop, failures, has_worked = asyncio.get_running_loop(), 0, False
        while True:
            began_s = loop.time()
            try:
                code = await worker.live()
            except OSError as error:  # no process, no pipe, no memory: as if it had died at once
                self.console.line(f"{worker.name} could not be started: {error}")
                code = 1
            has_worked = has_worked or worker.joined is not None
            if self._stopping.is_set():
                had_begun = worker.found is not None or code != -signal.SIGTERM
                return code if had_begun else 0  # one that was still being loaded holds nothing
            # A worker that is restarted after `REPLACED` would start an empty database.
            if code == REPLACED or (not has_worked and (code == WRONG or not self._anybody_works())):
                self._hopeless = code if code > 0 else 1  # the program or its database is at fault, and was reported
                self._stopping.set()
                return code
            failures = 1 if loop.time() - began_s > _WELL_S else min(failures + 1, _PAUSES.attempts - 1)
            pause_s = _PAUSES.delay_s(failures, self._chance) or 0.0
            self.console.line(f"{worker.name} {ending(code)}: restarting it in {lasting(pause_s)}")
            if await set_within(self._stopping, pause_s):
                return 0  # it was not restarted, and holds nothing

    def _anybody_works(self) -> bool:
        return any(each.joined is not None for each in self._workers)

    async def _drain_when_asked(self, ended: asyncio.Future[list[int]]) -> None:
        await self._stopping.wait()
        loop = asyncio.get_running_loop()
        began_s, limit_s = loop.time(), self._drain_s()
        is_said = any(each.lives and each.joined is not None for each in self._workers)
        if is_said:
            self.console.begin_drain(limit_s)
        for each in self._workers:
            each.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(limit_s + GRACE_S + _SPARE_S):
                codes = await asyncio.shield(ended)
        except TimeoutError:
            self._kill()
            codes = await asyncio.shield(ended)
        if is_said:
            failed = [
                f"{worker.name} {ending(code)}" for worker, code in zip(self._workers, codes, strict=True) if code
            ]
            self.console.end_drain(loop.time() - began_s, failed=failed)

    def _drain_s(self) -> float:
        return max((each.found.drain_s for each in self._workers if each.found is not None), default=0.0)

    def _kill(self) -> None:
        for each in self._workers:
            each.send(signal.SIGKILL)

    def _verdict(self, codes: list[int]) -> int:
        if self._asked is not None and any(code == -signal.SIGKILL for code in codes):
            return 128 + self._asked
        return self._hopeless or (1 if any(codes) else 0)


def _wants_json() -> bool:
    """The setting of the environment, until a worker reports that of its program."""
    try:
        return settings_for(None).log_format == "json"
    except CoterieError:
        return False  # the workers report what is wrong


class Watched:
    """The Python files under a folder. Polled: `--reload` is for development, and needs no dependency for that.

    Args:
        folder: The folder of the program. Hidden folders in it and virtual environments are left out.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._read()

    async def changed(self) -> str:
        """Wait until files were changed, added or deleted since the last call; returns one, and how many more."""
        while (now := self._read()) == self._seen:  # noqa: ASYNC110 polls on purpose
            await asyncio.sleep(WATCH_S)
        changes = sorted(str(path.relative_to(self._folder)) for path, _ in now.items() ^ self._seen.items())
        names = list(dict.fromkeys(changes))
        self._seen = now
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"

    def _read(self) -> dict[Path, int]:
        found: dict[Path, int] = {}
        for folder, inner, files in os.walk(self._folder):
            here = Path(folder)
            inner[:] = [name for name in inner if _is_watched(here / name)]
            for name in files:
                if name.endswith(".py") and len(found) < _FILES_MOST:
                    try:
                        found[here / name] = (here / name).stat().st_mtime_ns
                    except OSError:
                        continue  # deleted meanwhile
        return found


def _is_watched(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name in _SKIPPED
    return not hidden and not (folder / "pyvenv.cfg").exists()
