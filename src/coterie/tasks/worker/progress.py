"""Stores how far jobs are: what they report last, at most once a second."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from coterie.errors import CoterieError
from coterie.kernel.text import storable
from coterie.storage.contracts.jobs import JobProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.kernel.service import Tasks
    from coterie.storage.contracts.jobs import JobStore
    from coterie.tasks.worker.attempt import JobRun

log = logging.getLogger("coterie.tasks")

_PAUSE_S = 1.0
_NOTE_MOST = 2_000
"""Characters of a note that are stored."""
_running_loop = asyncio._get_running_loop  # noqa: SLF001 documented; unlike its sister it does not raise without a loop


class ProgressNotes:
    """Stores the progress of the jobs of one runner.

    Args:
        store: Where jobs are stored.
        tasks: Runs the writes.
    """

    def __init__(self, store: JobStore, tasks: Tasks) -> None:
        self._store = store
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._latest: dict[JobRun, JobProgress] = {}
        """What each job that is being written has reported last."""

    def reporter(self, run: JobRun) -> Callable[[float, float | None, str], None]:
        """What `current().progress` of a job calls, in any thread."""
        return partial(self._report, run)

    def _report(self, run: JobRun, done: float, total: float | None, note: str) -> None:
        progress = JobProgress(done, total, storable(note[:_NOTE_MOST]) or None)
        if _running_loop() is self._loop:
            self._note(run, progress)
        else:
            self._loop.call_soon_threadsafe(self._note, run, progress)

    def _note(self, run: JobRun, progress: JobProgress) -> None:
        if run.is_over:
            return
        is_written = run in self._latest
        self._latest[run] = progress
        if not is_written:
            self._tasks.spawn(self._write(run), name=f"progress of {run}")

    async def _write(self, run: JobRun) -> None:
        """Write what is new each second, until nothing is or the body has ended."""
        job, claim = run.claim
        written: JobProgress | None = None
        try:
            while not run.is_over and (latest := self._latest[run]) is not written:
                try:
                    await self._store.progress(run.delivery.runner, job, claim, latest)
                except CoterieError as error:
                    log.info("the progress of %s could not be stored: %s", run, error)
                written = latest
                await asyncio.sleep(_PAUSE_S)
        finally:
            del self._latest[run]
