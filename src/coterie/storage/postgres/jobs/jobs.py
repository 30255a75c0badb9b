"""Jobs and queues on PostgreSQL: inserts, ends and setbacks go to the group writer, the rest to the pool."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import msgspec

from coterie.kernel.text import storable
from coterie.storage.contracts.jobs import (
    JOB_STATES,
    JobDelivery,
    JobProgress,
    JobRow,
    RunningJob,
)
from coterie.storage.contracts.messages import Attempt
from coterie.storage.group_commit import JobWriter
from coterie.storage.postgres.batch.jobs import receipt
from coterie.storage.postgres.jobs.queues import PostgresQueues, running_jobs
from coterie.storage.unreadable_rows import readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import asyncpg

    from coterie.storage.contracts.jobs import GiveBack, JobCancelled, JobFilter, JobReceipt, JobState

_errors = msgspec.json.Decoder(tuple[Attempt, ...]).decode
_tags = msgspec.json.Decoder(dict[str, str]).decode

_PAST_ALL = "\U0010ffff"
"""Sorts after every id."""
_FEW: frozenset[JobState] = frozenset({"later", "ready", "claimed", "parked", "dead"})
"""States that have an index: few rows among all that have ended."""


class PostgresJobs(PostgresQueues, JobWriter):
    """The jobs and queues of one cluster. See `storage.contracts.jobs.JobStore`."""

    # Senders

    async def find(self, task: str, key: str) -> JobReceipt | None:
        """Return the job that has a key, or None."""
        rows = await self._read("find_job", task, key)
        return receipt(rows[0]) if rows else None

    async def look(self, ids: Sequence[str]) -> Sequence[JobRow]:
        """Return these jobs."""
        return _rows(await self._read("look_at_jobs", ids))

    async def cancel(self, id: str, *, reply: bytes) -> tuple[JobCancelled, RunningJob | None]:
        """End a job that waits, with this reply, or store that nothing of it may commit."""
        rows = await self._write("cancel_job", id, reply)
        if not rows:
            return "unknown", None
        outcome, *row = rows[0]
        return outcome, RunningJob(*row) if outcome == "cancelling" else None

    # Who runs jobs

    async def claimed(self, runner: str) -> Sequence[RunningJob]:
        """Return the jobs that are claimed for a runner."""
        return running_jobs(await self._read("claimed_for", runner))

    async def fetch(self, claims: Mapping[str, int]) -> Sequence[JobDelivery]:
        """Return those of these jobs whose claim is still this one, and that are not cancelled."""
        return [JobDelivery(*row) for row in await self._read("fetch_jobs", list(claims), list(claims.values()))]

    async def give_back(self, write: GiveBack) -> int:
        """Give jobs back: ready again, or parked, without a failure. Returns the number given back."""
        ids, claims = [job for job, _ in write.jobs], [claim for _, claim in write.jobs]
        return cast("int", (await self._write("give_jobs_back", write.runner, ids, claims, write.park))[0][0])

    async def progress(self, runner: str, job: str, claim: int, progress: JobProgress) -> bool:
        """Store how far a job is."""
        given = progress.done, progress.total, progress.note and storable(progress.note)
        return bool(await self._read("note_progress", runner, job, claim, *given))  # the same when it is repeated

    # Operators

    async def list(
        self, chosen: JobFilter, *, after: str | None = None, most: int = 100, newest: bool = False
    ) -> Sequence[JobRow]:
        """Return jobs after the id `after`, in order of their ids; with `newest` in the reverse order."""
        given = after or (_PAST_ALL if newest else ""), most, *_asked(chosen)
        if chosen.tag is not None:
            name = "list_newest_tagged_jobs" if newest else "list_tagged_jobs"
            return _rows(await self._read(name, *given, *chosen.tag))
        if chosen.state in _FEW:
            return _rows(await self._read("list_few_jobs", *given, newest))
        return _rows(await self._read("list_newest_jobs" if newest else "list_jobs", *given))

    async def count(self, chosen: JobFilter, *, most: int) -> int:
        """Count the jobs, up to `most`."""
        if chosen.tag is not None:
            rows = await self._read("count_tagged_jobs", most, *_asked(chosen), *chosen.tag)
        elif chosen.state in _FEW:
            rows = await self._read("count_few_jobs", most, *_asked(chosen))
        else:
            rows = await self._read("count_jobs", most, *_asked(chosen))
        return cast("int", rows[0][0])

    async def revive(self, chosen: JobFilter, *, id: str | None = None, most: int) -> int:
        """Make dead jobs ready, due now, without failures or losses. Returns the number."""
        if chosen.state not in (None, "dead"):
            return 0
        _, *asked = _asked(chosen)
        rows = await self._write("revive_jobs", most, id, *asked, *(chosen.tag or (None, None)))
        return cast("int", rows[0][0])

    async def remove(self, chosen: JobFilter, *, most: int) -> int:
        """Delete up to `most` jobs that have ended. Returns the number deleted."""
        name, tag = ("remove_jobs", ()) if chosen.tag is None else ("remove_tagged_jobs", chosen.tag)
        return cast("int", (await self._write(name, most, *_asked(chosen), *tag))[0][0])

    async def purge(self, *, after: str, retention_s: float, key_retention_s: float, most: int) -> tuple[int, str]:
        """Delete jobs that ended longer ago than that, among the next `most` ids after `after`; dead ones stay."""
        (row,) = await self._write("purge_jobs", after, most, retention_s, key_retention_s)
        return row["gone"], row["last"] if row["seen"] == most and not row["young"] else ""


def _rows(rows: Sequence[asyncpg.Record]) -> list[JobRow]:
    return readable(rows, _row, table="jobs", key=itemgetter("id"))


def _row(row: asyncpg.Record) -> JobRow:
    columns = dict(row)
    done, total, note, at = (columns.pop(name) for name in ("done", "total", "note", "at"))
    columns["state"] = JOB_STATES[columns["state"]]
    columns["errors"] = _errors(columns["errors"])
    columns["tags"] = _tags(columns["tags"]) if columns["tags"] is not None else {}
    return JobRow(**columns, progress=None if at is None else JobProgress(done, total, note, at))


def _asked(chosen: JobFilter) -> tuple[Any, ...]:
    state = None if chosen.state is None else JOB_STATES.index(chosen.state)
    return state, chosen.seat, chosen.task, chosen.older_than_s
