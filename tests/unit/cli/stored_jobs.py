"""A file with a queue and jobs in all states, as nobody who runs has left them, for the commands that look at them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from coterie.kernel.serialization.codec import PLAIN
from coterie.storage.contracts.jobs import GiveBack, JobInsert, JobProgress, JobRow
from tests.contract.conftest import opened
from tests.contract.jobs import ONE, TWO, A, end, id_of, job, opened_desk, setback

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from coterie.storage.interface import Storage

WAITS, RUNS, LATER, PARKED, DEAD, DONE, OTHER = range(1, 8)
"""Numbers of the jobs; `OTHER` is dead in another way."""


async def fill(storage: Storage) -> None:
    """Queue `one` allows two at once; runner `a…` runs one job of it."""
    async with opened_desk(storage, concurrency=2, rate=50.0, burst=5.0, expected_wait_s=3_600.0) as desk:
        await storage.jobs.insert(JobInsert(tuple(_job(number) for number in (RUNS, DEAD, DONE, PARKED))))
        await storage.jobs.insert(JobInsert((_job(OTHER, task="resize", key=None),)))
        dead, done = await desk.started(DEAD, DONE)
        await storage.jobs.setback(setback(dead, None, "SmtpError: no such mailbox\nTraceback: …"))
        await storage.jobs.end(end(done, PLAIN.encode("sent")))
        (other,) = await desk.started(OTHER)
        await storage.jobs.setback(setback(other, None, "TimeoutError: after 30s"))
        running, parked = await desk.started(RUNS, PARKED)
        await storage.jobs.give_back(GiveBack(A, ((parked.id, parked.claim),), park=True))
        await storage.jobs.progress(A, running.id, running.claim, JobProgress(5_000, 12_000, "rows"))
        await storage.jobs.insert(JobInsert((_job(WAITS), _job(LATER, delay_s=3_600.0))))


def _job(number: int, **more: Any) -> Any:
    options = {"task": "send_email", "key": f"t:m-{number}", "tags": (("order", str(number)),)}
    return job(number, payload=PLAIN.encode({"tenant": "acme", "mail": f"m-{number}"}), **options | more)


class StoredJobs:
    """The file.

    Args:
        url: Where it is.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.do(fill)

    def do(self, work: Callable[[Storage], Awaitable[Any]]) -> Any:
        """Have something done to the storage."""

        async def run() -> Any:
            async with opened(self.url) as storage:
                return await work(storage)

        return asyncio.run(run())

    def look(self, number: int) -> JobRow | None:
        """A job by its number; None: it is gone."""

        async def read(storage: Storage) -> Sequence[JobRow]:
            return await storage.jobs.look([id_of(number)])

        return next(iter(self.do(read)), None)


__all__ = ["DEAD", "DONE", "LATER", "ONE", "OTHER", "PARKED", "RUNS", "TWO", "WAITS", "StoredJobs", "fill", "id_of"]
