"""Writes of those who run jobs or cancel them, in a SQLite file: plain functions to be run inside a transaction.

The write lock is held: nothing changes between the read of what a member needs and its writes. So all is read first,
and a refused member has written nothing, while its neighbours commit [M3].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.kernel.text import storable
from coterie.storage.contracts.jobs import JobEnd
from coterie.storage.sqlite import message_writes
from coterie.storage.sqlite.jobs import inserts
from coterie.storage.sqlite.jobs.rows import CANCELLED, CLAIMED, DISCARDED, DONE, ENDED, PARKED, READY, SQL, running_job
from coterie.storage.sqlite.store import LAST_NS, bindings, encoded, later_ns, write_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from coterie.storage.contracts.jobs import (
        GiveBack,
        JobCancelled,
        JobEnded,
        JobProgress,
        JobSetback,
        RunningJob,
    )
    from coterie.storage.sqlite.store import Scope


class _Judge:
    """Judges the writes of those who run jobs: they must live, and the claims must still be theirs."""

    def __init__(self, connection: apsw.Connection, scope: Scope, writes: Sequence[JobEnd | JobSetback]) -> None:
        names = bindings(scope, ids=encoded({write.runner for write in writes}))
        self._alive = {runner for (runner,) in connection.execute(SQL["alive"], names)}
        names = bindings(scope, ids=encoded(write.job for write in writes))
        self._rows = {job: row for job, *row in connection.execute(SQL["judged"], names)}

    def __call__(self, write: JobEnd | JobSetback) -> tuple[JobEnded, bool]:
        """The result, and whether anything is to be written: otherwise an earlier try was, or it is refused."""
        row = self._rows.get(write.job)
        state, claim, settled, runner, cancelling = (None,) * 5 if row is None else row
        if settled == write.claim:
            return _earlier(write, state), False
        if write.runner not in self._alive:
            return "fenced", False
        if runner != write.runner or claim != write.claim:
            return "gone", False
        return ("cancelled" if cancelling else "written"), True


def _earlier(write: JobEnd | JobSetback, state: int | None) -> JobEnded:
    """What an earlier try of a write has done, which has settled its claim."""
    if state == CANCELLED:
        return "cancelled"
    return "written" if isinstance(write, JobEnd) == (state in (DONE, DISCARDED)) else "gone"


def end(connection: apsw.Connection, scope: Scope, writes: Sequence[JobEnd]) -> list[JobEnded]:
    """End jobs, each with what it sends, or nothing of it."""
    judge = _Judge(connection, scope, writes)
    results: list[JobEnded] = []
    ended: list[JobEnd] = []
    for write in writes:
        told, is_new = judge(write)
        if is_new and told == "cancelled":
            end_cancelled(connection, scope, write.job, reply=write.cancelled_reply)
        elif is_new and _overtaken(connection, scope, write):
            told = "taken"
        elif is_new:
            ended.append(write)
        results.append(told)
    rows = [(write.job, DISCARDED if write.discarded else DONE, write.reply) for write in ended]
    write_rows(connection, SQL["end"], (scope.cluster, later_ns(scope)), rows)
    message_writes.store(connection, scope, [message for write in ended for message in write.sends])
    inserts.store(connection, scope, [job for write in ended for job in write.jobs])
    return results


def _overtaken(connection: apsw.Connection, scope: Scope, write: JobEnd) -> bool:
    return message_writes.is_taken(connection, scope, write.sends) or inserts.is_taken(connection, scope, write.jobs)


def setback(connection: apsw.Connection, scope: Scope, write: JobSetback) -> JobEnded:
    """Count a failed attempt, or put the job off."""
    told, is_new = _Judge(connection, scope, [write])(write)
    if is_new and told == "cancelled":
        end_cancelled(connection, scope, write.job, reply=write.cancelled_reply)
    elif is_new:
        names = bindings(scope, id=write.job, last_ns=LAST_NS, error=_storable(write.error))
        names["again_at_ns"] = None if write.again_s is None else later_ns(scope, write.again_s)
        connection.execute(SQL["set_back"], names)
    return told


def _storable(text: str | None) -> str | None:
    return None if text is None else storable(text)


def end_cancelled(connection: apsw.Connection, scope: Scope, job: str, *, reply: bytes = b"") -> None:
    """End a job as cancelled: with this reply, or with the one that whoever cancelled it gave."""
    connection.execute(SQL["end_cancelled"], bindings(scope, id=job, reply=reply or None))


def give_back(connection: apsw.Connection, scope: Scope, write: GiveBack) -> int:
    """Give jobs back without a failure. Returns the number."""
    claims = dict(write.jobs)
    rows: list[Any] = connection.execute(SQL["judged"], bindings(scope, ids=encoded(claims))).fetchall()
    given = 0
    for job, _, claim, _, runner, cancelling in rows:
        if runner != write.runner or claim != claims[job]:
            continue
        if cancelling:
            end_cancelled(connection, scope, job)
        else:
            names = bindings(scope, id=job, state=PARKED if write.park else READY)
            connection.execute(SQL["give_back"], names)
        given += 1
    return given


def progress(
    connection: apsw.Connection, scope: Scope, runner: str, job: str, claim: int, progress: JobProgress
) -> bool:
    """Store how far a job is. Returns False if whoever runs it may not write any more."""
    rows: list[Any] = connection.execute(SQL["judged"], bindings(scope, ids=encoded([job]))).fetchall()
    for _, _, current, _, holder, cancelling in rows:
        if holder == runner and current == claim and not cancelling:
            names = {"done": progress.done, "total": progress.total, "note": _storable(progress.note)}
            connection.execute(SQL["note_progress"], bindings(scope, id=job, **names))
            return True
    return False


def cancel(
    connection: apsw.Connection, scope: Scope, id: str, *, reply: bytes
) -> tuple[JobCancelled, RunningJob | None]:
    """End a job that waits, or store that nothing of it may commit."""
    rows: list[Any] = connection.execute(SQL["run"], bindings(scope, id=id)).fetchall()
    for *fields, state in rows:
        if state >= ENDED:
            return "over", None
        if state != CLAIMED:
            end_cancelled(connection, scope, id, reply=reply)
            return "cancelled", None
        connection.execute(SQL["cancelling"], bindings(scope, id=id, reply=reply))
        return "cancelling", running_job((*fields[:-1], True))
    return "unknown", None
