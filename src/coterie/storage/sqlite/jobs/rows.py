"""What the rows of jobs in a SQLite file mean, and the statements about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from coterie.kernel.clock import to_datetime
from coterie.storage import statements
from coterie.storage.contracts.jobs import (
    JOB_STATES,
    JobDelivery,
    JobHead,
    JobProgress,
    JobReceipt,
    JobRow,
    RunningJob,
)
from coterie.storage.contracts.messages import Attempt
from coterie.storage.sqlite.store import bindings, to_fields, to_struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import apsw

    from coterie.storage.sqlite.store import Scope

SQL = dict(statements.load("coterie.storage.sqlite.sql", "jobs.sql"))

LATER, READY, CLAIMED, PARKED, DONE, DEAD, CANCELLED, DISCARDED = range(len(JOB_STATES))

ENDED = DONE
"""From this number on a state is an end."""


class _Error(msgspec.Struct, frozen=True):
    """A failed attempt, as stored."""

    number: int
    at_ns: int
    error: str


_ERRORS = msgspec.json.Decoder(tuple[_Error, ...])
_TAGS = msgspec.json.Decoder(dict[str, str])
_PROGRESS = msgspec.json.Decoder(tuple[float, float | None, str | None, int])


def receipt(connection: apsw.Connection, scope: Scope, id: str) -> JobReceipt | None:
    """The receipt of a job that exists already: it is the sender's own."""
    return _receipt(connection.execute(SQL["receipt"], bindings(scope, id=id)), scope, fresh=True)


def find(connection: apsw.Connection, scope: Scope, task: str, key: str) -> JobReceipt | None:
    """The receipt of the job that has a key."""
    return _receipt(connection.execute(SQL["find"], bindings(scope, task=task, key=key)), scope, fresh=False)


def _receipt(rows: Iterable[Sequence[Any]], scope: Scope, *, fresh: bool) -> JobReceipt | None:
    for job, state, due_at_ns, rank_at_ns, digest, reply in rows:
        now = to_datetime(scope.now_ns)
        due_at, rank_s = to_datetime(due_at_ns), seconds(rank_at_ns)
        return JobReceipt(job, fresh, JOB_STATES[state], due_at, rank_s, now, digest, reply)
    return None


def seconds(at_ns: int) -> float:
    """An instant in seconds since 1970: ranks may lie beyond what a datetime can hold."""
    return at_ns / 1e9


def job_row(row: Sequence[Any]) -> JobRow:
    """A job with all its columns, from a row."""
    fields = to_fields(JobRow, row)
    fields["state"] = JOB_STATES[fields["state"]]
    errors = _ERRORS.decode(fields["errors"])
    fields["errors"] = tuple(Attempt(each.number, to_datetime(each.at_ns), each.error) for each in errors)
    fields["tags"] = _TAGS.decode(fields["tags"])
    if fields["progress"] is not None:
        done, total, note, at_ns = _PROGRESS.decode(fields["progress"])
        fields["progress"] = JobProgress(done, total, note, to_datetime(at_ns))
    return JobRow(**fields)


def head(row: Sequence[Any]) -> JobHead:
    """A ready job, from a row."""
    job, part, task, fingerprint, rank_at_ns, lost, priority = row
    return JobHead(job, part, task, fingerprint, seconds(rank_at_ns), lost, priority)


def running_job(row: Sequence[Any]) -> RunningJob:
    """A claimed job, from a row."""
    return to_struct(RunningJob, row)


def delivery(row: Sequence[Any]) -> JobDelivery:
    """A claimed job with all that is needed to run it, from a row."""
    fields = to_fields(JobDelivery, row)
    return JobDelivery(**fields | {"due_s": to_datetime(fields["due_s"]).timestamp()})
