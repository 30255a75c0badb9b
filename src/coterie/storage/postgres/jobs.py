"""Jobs and queues on PostgreSQL: inserts, ends and setbacks go to the group writer, the rest to the pool."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, cast

import msgspec

from coterie.kernel.text import storable
from coterie.storage.contracts.jobs import (
    JOB_STATES,
    JobDelivery,
    JobHead,
    JobProgress,
    JobRow,
    JobsClaimed,
    LostJob,
    Matured,
    Partition,
    QueueBacklog,
    QueueDefinition,
    QueueLimits,
    QueueRow,
    RunningJob,
    TakenBack,
)
from coterie.storage.contracts.messages import Attempt
from coterie.storage.group_commit import JobWriter
from coterie.storage.postgres.batch.jobs import receipt
from coterie.storage.postgres.store import PostgresStore
from coterie.storage.unreadable_rows import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import asyncpg

    from coterie.storage.contracts.jobs import GiveBack, JobCancelled, JobClaim, JobFilter, JobReceipt, JobState
    from coterie.storage.interface import Claim

_errors = msgspec.json.Decoder(tuple[Attempt, ...]).decode
_tags = msgspec.json.Decoder(dict[str, str]).decode

_PAST_ALL = "\U0010ffff"
"""Sorts after every id."""
_FEW: frozenset[JobState] = frozenset({"later", "ready", "claimed", "parked", "dead"})
"""States that have an index: few rows among all that have ended."""
_LIMITS = ("concurrency", "partition_concurrency", "rate", "burst")
_NO_DEFINITION = QueueDefinition(seat="", group="", fingerprint="")


class PostgresJobs(PostgresStore, JobWriter):
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

    # The holder of a queue's seat

    async def define_queue(self, claim: Claim, definition: QueueDefinition | None) -> QueueRow | None:
        """Store what the program defines, unless it is stored already, and return the row."""
        given = definition or _NO_DEFINITION
        # What is stored already stays, so it is repeated like a read when the answer was lost.
        held = await self._read(
            "define_queue",
            claim.runner,
            claim.seat,
            claim.epoch,
            definition is not None,
            definition and definition.group,
            given.fingerprint,
            given.age_s,
            given.takeover_delay_s,
            given.expected_wait_s,
            *_limits(given),
        )
        return await self.queue(claim.seat) if held else None

    async def queue(self, seat: str) -> QueueRow | None:
        """Return a queue."""
        return _queue(await self._read("queue", seat))

    async def sweep(self, seat: str, *, after: str | None, parts: int, each: int) -> Sequence[Partition]:
        """Of the next `parts` partitions with ready jobs, in order of their names after `after`, the first `each`."""
        return _partitions(await self._read("sweep_jobs", seat, after, parts, each + 1), each=each)

    async def refill(self, seat: str, parts: Sequence[str], *, each: int) -> Sequence[Partition]:
        """Return the first `each` ready jobs of these partitions, those without any left out."""
        return _partitions(await self._read("refill_jobs", seat, list(parts), each + 1), each=each)

    async def mature(self, claim: Claim, *, most: int) -> Matured:
        """Make up to `most` jobs ready that are due, under the fence."""
        # What is ready is found by a sweep as well, so it is repeated like a read.
        rows = await self._read("mature_jobs", claim.runner, claim.seat, claim.epoch, most)
        fenced, next_in_s = not rows[0][0], rows[0][1]  # there is always one row
        heads = tuple(JobHead(*row[2:]) for row in rows if row[2] is not None)
        return Matured(fenced, heads, None if fenced else _wait(next_in_s))

    async def claim(self, write: JobClaim) -> JobsClaimed:
        """Claim jobs for runners, under the fence of their queue's seat."""
        claim = write.claim
        runners = dict(reversed(write.jobs))  # of a job that is named twice the first one counts
        ids = [*dict.fromkeys(job for job, _ in write.jobs)]
        given = write.stamp, ids, [runners[job] for job in ids]
        rows = await self._write("claim_jobs", claim.runner, claim.seat, claim.epoch, *given)
        jobs = {row[2]: JobDelivery(*row[2:]) for row in rows if row[2] is not None}
        # There is always one row; those of jobs come in no order.
        return JobsClaimed(rows[0][0], tuple(jobs[job] for job in ids if job in jobs), rows[0][1])

    async def running(self, seat: str) -> Sequence[RunningJob]:
        """Return the claimed jobs of a seat."""
        return _running(await self._read("running_jobs", seat))

    async def take_back(self, claim: Claim, *, takeover_delay_s: float, loss_limit: int, most: int) -> TakenBack:
        """Make jobs of lost runners ready again, or end them, under the fence of the seat."""
        given = claim.runner, claim.seat, claim.epoch, takeover_delay_s, loss_limit, most
        rows = await self._write("take_back_jobs", *given)
        held, next_in_s = rows[0][0], rows[0][1]  # there is always one row
        lost = tuple(LostJob(row[2], row[3], row[4], JOB_STATES[row[5]]) for row in rows if row[2] is not None)
        return TakenBack(not held, lost, _wait(next_in_s) if held else None)

    async def park(self, claim: Claim, tasks: Sequence[str], *, most: int) -> int:
        """Set aside ready jobs of these tasks, under the fence. Returns the number."""
        return await self._counted("park_jobs", claim, tasks, most)

    async def unpark(self, claim: Claim, tasks: Sequence[str], *, most: int) -> int:
        """Make parked jobs of these tasks ready again, under the fence. Returns the number."""
        return await self._counted("unpark_jobs", claim, tasks, most)

    async def parked(self, seat: str) -> Sequence[str]:
        """Return the tasks of which jobs are parked at a seat."""
        return [row[0] for row in await self._read("parked_tasks", seat)]

    # Who runs jobs

    async def claimed(self, runner: str) -> Sequence[RunningJob]:
        """Return the jobs that are claimed for a runner."""
        return _running(await self._read("claimed_for", runner))

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

    async def queues(self) -> Sequence[QueueRow]:
        """Return all queues, in order of their seats."""
        return readable(await self._read("queues"), _to_queue, table="queues", key=itemgetter("seat"), is_whole=True)

    async def set_limits(self, seat: str, limits: QueueLimits | None) -> QueueRow | None:
        """Set limits that beat the definition; None: the definition's again."""
        given = _limits(limits or QueueLimits())
        return _queue(await self._write("set_limits", seat, limits is not None, *given))

    async def pause(self, seat: str, *, paused: bool) -> QueueRow | None:
        """Once it has returned nothing is claimed, or may be again."""
        return _queue(await self._write("pause_queue", seat, paused))

    async def backlog(self, seats: Sequence[str], *, most: int) -> Sequence[QueueBacklog]:
        """Return how much waits and runs at seats; each number counts up to `most`."""
        return [QueueBacklog(*row) for row in await self._read("backlog_of_queues", list(seats), most)]

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

    async def _counted(self, name: str, claim: Claim, tasks: Sequence[str], most: int) -> int:
        rows = await self._write(name, claim.runner, claim.seat, claim.epoch, list(tasks), most)
        return cast("int", rows[0][0])


def _wait(seconds: float | None) -> float | None:
    """None: there is nothing to wait for."""
    return None if seconds is None else max(seconds, 0.0)


def _partitions(rows: Iterable[asyncpg.Record], *, each: int) -> list[Partition]:
    """Of each partition one job more than asked for was read."""
    heads = (JobHead(*row) for row in rows)
    found = [(part, tuple(group)) for part, group in groupby(heads, key=attrgetter("part"))]
    return [Partition(part, group[:each], len(group) > each) for part, group in found]


def _running(rows: Iterable[asyncpg.Record]) -> list[RunningJob]:
    return [RunningJob(*row) for row in rows]


def _limits(limits: QueueLimits) -> tuple[Any, ...]:
    return tuple(getattr(limits, name) for name in _LIMITS)


def _queue(rows: Sequence[asyncpg.Record]) -> QueueRow | None:
    return _to_queue(rows[0]) if rows else None


def _to_queue(row: asyncpg.Record) -> QueueRow:
    columns = dict(row)
    defined = QueueLimits(**{name: columns.pop(f"defined_{name}") for name in _LIMITS})
    return QueueRow(**columns, defined=defined)


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
