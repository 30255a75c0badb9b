"""New jobs in a SQLite file: plain functions to be run inside a transaction, for many jobs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.kernel.clock import to_datetime, to_ns
from coterie.storage.contracts.jobs import JOB_STATES, JobReceipt
from coterie.storage.sqlite.jobs.rows import LATER, READY, SQL, find, receipt, seconds
from coterie.storage.sqlite.store import LAST_NS, later_ns, write_rows
from coterie.storage.user_transaction import overtaken

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import apsw

    from coterie.storage.contracts.jobs import JobInsert, NewJob
    from coterie.storage.sqlite.store import Scope

_LONGEST_NS = LAST_NS // 2
"""What a priority is worth at most, either way."""


def insert(connection: apsw.Connection, scope: Scope, writes: Sequence[JobInsert]) -> list[tuple[JobReceipt, ...]]:
    """Store jobs, except those whose id or key exists already."""
    jobs = [job for write in writes for job in write.jobs]
    receipts = iter(_insert(connection, scope, jobs))
    return [tuple(next(receipts) for _ in write.jobs) for write in writes]


def _insert(connection: apsw.Connection, scope: Scope, jobs: Sequence[NewJob]) -> list[JobReceipt]:
    rows = [_Row(scope, job) for job in jobs]
    if write_rows(connection, SQL["insert"], _same(scope), [row.values for row in rows]) == len(rows):
        receipts = [row.receipt for row in rows]
    else:  # an id or a key existed; the jobs stored now are found by their ids, as if by an earlier try
        receipts = [_found(connection, scope, job) for job in jobs]
    tags = [(job.id, *tag) for job, told in zip(jobs, receipts, strict=True) if told.id == job.id for tag in job.tags]
    write_rows(connection, SQL["tag"], (scope.cluster,), tags)
    return receipts


class _Row:
    """A new job, and what its sender is told of it."""

    __slots__ = ("receipt", "values")

    def __init__(self, scope: Scope, job: NewJob) -> None:
        now_ns = later_ns(scope)
        due_at_ns = later_ns(scope, job.delay_s) if job.due_at is None else min(max(to_ns(job.due_at), 0), LAST_NS)
        lift_ns = min(max(int(job.priority * min(job.age_s, 1e9) * 1e6) * 1000, -_LONGEST_NS), _LONGEST_NS)
        rank_at_ns = min(max(due_at_ns - lift_ns, -LAST_NS), LAST_NS)
        state = LATER if due_at_ns > now_ns else READY
        self.values = (
            job.id,
            job.seat,
            job.part,
            job.task,
            job.fingerprint,
            state,
            job.key,
            job.digest,
            job.priority,
            job.trace_id,
            due_at_ns,
            rank_at_ns,
            job.payload,
        )
        due_at, now = to_datetime(due_at_ns), to_datetime(scope.now_ns)
        self.receipt = JobReceipt(job.id, True, JOB_STATES[state], due_at, seconds(rank_at_ns), now, job.digest)


def require_stored(connection: apsw.Connection, scope: Scope, jobs: Sequence[NewJob]) -> None:
    """Store the jobs that a user's transaction sends.

    Raises:
        PersistenceError: One of them has a key that is taken.
    """
    if is_taken(connection, scope, jobs):
        raise overtaken()
    store(connection, scope, jobs)


def is_taken(connection: apsw.Connection, scope: Scope, jobs: Iterable[NewJob]) -> bool:
    """Whether a key is in use by another job, including one of these."""
    ids: dict[tuple[str, str], str] = {}
    for job in jobs:
        if job.key is None:
            continue
        found = find(connection, scope, job.task, job.key)
        if ids.setdefault((job.task, job.key), job.id if found is None else found.id) != job.id:
            return True
    return False


def store(connection: apsw.Connection, scope: Scope, jobs: Sequence[NewJob]) -> None:
    """Store jobs whose keys are free."""
    if jobs:
        _insert(connection, scope, jobs)


def are_there(connection: apsw.Connection, scope: Scope, jobs: Iterable[NewJob]) -> bool:
    """Whether all of these jobs are stored."""
    return all(receipt(connection, scope, job.id) for job in jobs)


def _same(scope: Scope) -> tuple[Any, ...]:
    return scope.cluster, later_ns(scope)


def _found(connection: apsw.Connection, scope: Scope, job: NewJob) -> JobReceipt:
    found = receipt(connection, scope, job.id)
    if found is None and job.key is not None:
        found = find(connection, scope, job.task, job.key)
    assert found is not None, f"{job.id} is neither stored nor there"
    return found
