"""Batching of the writes of jobs: the rows they touch, the statements' arrays, and their results. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeGuard, cast, get_args

from coterie.kernel.text import storable
from coterie.storage.contracts.jobs import JOB_STATES, JobEnd, JobInsert, JobReceipt, JobSetback
from coterie.storage.postgres.batch.sends import (
    job_columns,
    key_of_job,
    key_of_message,
    numbered_jobs,
    numbered_messages,
    tag_columns,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from coterie.storage.contracts.jobs import NewJob
    from coterie.storage.postgres.batch.single import Way

JobWrite = JobInsert | JobEnd | JobSetback
Shape = Literal["insert_jobs", "end_jobs", "commit_jobs", "set_jobs_back"]
"""The statement that carries a write; its name in jobs.sql."""

SingleShape = Literal["end_job"]
"""The statement that carries a write that is alone in its group."""

_SHAPES = frozenset(get_args(Shape))


def is_shape(shape: str) -> TypeGuard[Shape]:
    """Whether it is a statement of this module."""
    return shape in _SHAPES


def shape_of(write: JobWrite) -> Shape:
    """The statement that a write needs. Most jobs send nothing."""
    if isinstance(write, JobInsert):
        return "insert_jobs"
    if isinstance(write, JobSetback):
        return "set_jobs_back"
    return "commit_jobs" if write.sends or write.jobs else "end_jobs"


def single_shape_of(write: JobEnd) -> SingleShape | None:
    """The statement for a lone end; None: use the one for many."""
    return "end_job" if not write.discarded and shape_of(write) == "end_jobs" else None


def rows_of(write: JobWrite) -> list[Hashable]:
    """The rows that a write touches, to detect conflicts: jobs, and keys that must be free."""
    if isinstance(write, JobSetback):
        return [("job", write.job)]
    keys: list[Hashable] = [key_of_job(job) for job in write.jobs if job.key is not None]
    if isinstance(write, JobInsert):
        return keys
    return [("job", write.job), *keys, *(key_of_message(each) for each in write.sends if each.key is not None)]


def runner_of(write: JobWrite) -> str:
    """The runner whose row is the fence; empty for an insert."""
    return "" if isinstance(write, JobInsert) else write.runner


def values(shape: Shape, writes: Sequence[JobWrite]) -> list[Any]:
    """The values that the statement takes after the cluster's name."""
    if shape == "insert_jobs":
        return insertion([job for write in cast("Sequence[JobInsert]", writes) for job in write.jobs])
    (runner,) = {runner_of(write) for write in writes}
    if shape == "set_jobs_back":
        failed = cast("Sequence[JobSetback]", writes)
        errors = [None if write.error is None else storable(write.error) for write in failed]
        return [runner, *_columns(failed, "job", "claim", "again_s"), errors, *_columns(failed, "cancelled_reply")]
    ended = cast("Sequence[JobEnd]", writes)
    ends = [runner, *_columns(ended, "job", "claim", "reply", "discarded", "cancelled_reply")]
    return [*ends, *numbered_messages(ended), *numbered_jobs(ended), None] if shape == "commit_jobs" else ends


def insertion(jobs: Sequence[NewJob]) -> list[Any]:
    """The values that store jobs, in the order in which their keys are locked."""
    ordered = sorted(jobs, key=lambda job: ("", "") if job.key is None else (job.task, job.key))
    return [*job_columns(ordered), *tag_columns(ordered), None]


def sought(jobs: Sequence[NewJob]) -> list[list[Any]]:
    """The arrays that read back the jobs which exist instead of these."""
    return [[getattr(job, name) for job in jobs] for name in ("id", "task", "key")]


def results(shape: Shape, writes: Sequence[JobWrite], rows: Iterable[Sequence[Any]]) -> list[Any]:
    """One result per write, from the statement's rows; None for an insert of which a job is not stored."""
    if shape == "insert_jobs":
        stored = {row[0]: row for row in rows}
        return [stored_receipts(write.jobs, stored) for write in cast("Sequence[JobInsert]", writes)]
    told: dict[int, str] = dict(cast("Iterable[tuple[int, str]]", rows))
    return [told[number] for number in range(1, len(writes) + 1)]


def stored_receipts(jobs: Sequence[NewJob], stored: dict[str, Sequence[Any]]) -> tuple[JobReceipt, ...] | None:
    """The receipts of jobs that were just stored; None: one of them is not."""
    found = tuple(fresh(job, row) for job in jobs if (row := stored.get(job.id)) is not None)
    return found if len(found) == len(jobs) else None


def fresh(job: NewJob, row: Sequence[Any]) -> JobReceipt:
    """The receipt of a job that was just stored."""
    id_, state, due_at, rank_s, now = row
    return JobReceipt(id_, True, JOB_STATES[state], due_at, rank_s, now, job.digest)


def receipt(row: Iterable[Any], *, mine: str | None = None) -> JobReceipt:
    """The receipt of a stored job; fresh if it is the sender's own, from an earlier try."""
    id_, state, due_at, rank_s, now, digest, reply = row
    return JobReceipt(id_, id_ == mine, JOB_STATES[state], due_at, rank_s, now, bytes(digest), reply)


def _columns(writes: Sequence[JobWrite], *names: str) -> list[list[Any]]:
    return [[getattr(write, name) for write in writes] for name in names]


# The single form


def _end(write: JobEnd) -> tuple[Any, ...]:
    return write.runner, write.job, write.claim, write.reply


SINGLE: dict[str, Way] = {"end_job": (_end, lambda _, row: row[0])}
"""The values of the single form, and the reader of its result."""
