"""Queues on PostgreSQL: what the holder of a queue's seat does, and who looks at queues or changes their limits."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, cast

from coterie.storage.contracts.jobs import (
    JOB_STATES,
    JobDelivery,
    JobHead,
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
from coterie.storage.postgres.store import PostgresStore
from coterie.storage.unreadable_rows import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import asyncpg

    from coterie.storage.contracts.jobs import JobClaim
    from coterie.storage.interface import Claim

_LIMITS = ("concurrency", "partition_concurrency", "rate", "burst")
_NO_DEFINITION = QueueDefinition(seat="", group="", fingerprint="")


class PostgresQueues(PostgresStore):
    """The queues of one cluster. See `storage.contracts.jobs.JobStore`."""

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
        return running_jobs(await self._read("running_jobs", seat))

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


def running_jobs(rows: Iterable[asyncpg.Record]) -> list[RunningJob]:
    return [RunningJob(*row) for row in rows]


def _limits(limits: QueueLimits) -> tuple[Any, ...]:
    return tuple(getattr(limits, name) for name in _LIMITS)


def _queue(rows: Sequence[asyncpg.Record]) -> QueueRow | None:
    return _to_queue(rows[0]) if rows else None


def _to_queue(row: asyncpg.Record) -> QueueRow:
    columns = dict(row)
    defined = QueueLimits(**{name: columns.pop(f"defined_{name}") for name in _LIMITS})
    paused = tuple(columns.pop("paused_tasks"))
    return QueueRow(**columns, defined=defined, paused_tasks=paused)
