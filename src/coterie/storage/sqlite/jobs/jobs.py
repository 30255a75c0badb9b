"""Jobs in a SQLite file: plain functions that read, list, revive and remove them, and the store."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.storage.contracts.jobs import (
    JOB_STATES,
    JobDelivery,
    JobRow,
    Partition,
    QueueBacklog,
    RunningJob,
)
from coterie.storage.group_commit import JobWriter
from coterie.storage.sqlite.jobs import claims, ends, queues
from coterie.storage.sqlite.jobs.rows import ENDED, SQL, delivery, find, head, job_row, running_job, seconds
from coterie.storage.sqlite.store import (
    LAST_NS,
    PAST_ALL,
    SqliteStore,
    bindings,
    encoded,
    later_ns,
    purged,
    reads,
    writes,
)
from coterie.storage.unreadable_rows import readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import apsw

    from coterie.storage.contracts.jobs import JobFilter
    from coterie.storage.sqlite.store import Scope

_OWN_INDEX = ("later", "ready", "claimed", "parked", "dead")
"""States in which few jobs are among many."""


def look(connection: apsw.Connection, scope: Scope, ids: Sequence[str]) -> list[JobRow]:
    """Read these jobs."""
    rows = connection.execute(SQL["look"], bindings(scope, ids=encoded(ids)))
    return readable(rows, job_row, table="jobs", key=itemgetter(0))


_Head = tuple[str, str, str, str, int, int, int]
_HEADS = msgspec.json.Decoder(list[list[_Head]])


def sweep(
    connection: apsw.Connection, scope: Scope, seat: str, *, after: str | None, parts: int, each: int
) -> list[Partition]:
    """The next partitions with ready jobs, each with its first ones."""
    names = bindings(scope, seat=seat, after=after, parts=parts, each=each + 1)
    return _partitions(connection.execute(SQL["sweep"], names).get, each=each)


def refill(connection: apsw.Connection, scope: Scope, seat: str, parts: Sequence[str], *, each: int) -> list[Partition]:
    """The first ready jobs of these partitions."""
    names = bindings(scope, seat=seat, parts=encoded(parts), each=each + 1)
    return _partitions(connection.execute(SQL["refill"], names).get, each=each)


def _partitions(text: str, *, each: int) -> list[Partition]:
    return [
        Partition(rows[0][1], tuple(map(head, rows[:each])), more=len(rows) > each)
        for rows in _HEADS.decode(text)
        if rows
    ]


def running(connection: apsw.Connection, scope: Scope, seat: str) -> list[RunningJob]:
    """The claimed jobs of a seat."""
    return [running_job(row) for row in connection.execute(SQL["running"], bindings(scope, seat=seat))]


def claimed(connection: apsw.Connection, scope: Scope, runner: str) -> list[RunningJob]:
    """The jobs that are claimed for a runner."""
    return [running_job(row) for row in connection.execute(SQL["claimed"], bindings(scope, runner=runner))]


def fetch(connection: apsw.Connection, scope: Scope, claims: Mapping[str, int]) -> list[JobDelivery]:
    """Those of these jobs whose claim is still this one, and that are not cancelled."""
    rows = connection.execute(SQL["fetch"], bindings(scope, ids=encoded(claims)))
    found = map(delivery, rows)
    return [each for each in found if each.claim == claims[each.id]]


def parked(connection: apsw.Connection, scope: Scope, seat: str) -> list[str]:
    """The tasks of the parked jobs of a seat."""
    return [task for (task,) in connection.execute(SQL["parked"], bindings(scope, seat=seat))]


def backlog(connection: apsw.Connection, scope: Scope, seats: Sequence[str], *, most: int) -> list[QueueBacklog]:
    """How much waits and runs at seats."""
    return [_backlog(connection, scope, seat, most=most) for seat in seats]


def _backlog(connection: apsw.Connection, scope: Scope, seat: str, *, most: int) -> QueueBacklog:
    names = bindings(scope, seat=seat, most=most)
    ((ready, later, parked, claimed, dead),) = connection.execute(SQL["backlog"], names)
    ((due_at_ns,),) = connection.execute(SQL["oldest"], names)
    oldest_s = None if due_at_ns is None else seconds(names["now_ns"] - due_at_ns)
    return QueueBacklog(seat, ready, later, parked, claimed, dead, oldest_s)


def listed(
    connection: apsw.Connection,
    scope: Scope,
    chosen: JobFilter,
    *,
    after: str | None = None,
    most: int = 100,
    newest: bool = False,
) -> list[JobRow]:
    """The next jobs, in the order of their ids, or in the reverse order."""
    ids = _chosen(connection, scope, chosen, after=after or (PAST_ALL if newest else ""), most=most, newest=newest)
    return sorted(look(connection, scope, ids), key=lambda row: row.id, reverse=newest)


def count(connection: apsw.Connection, scope: Scope, chosen: JobFilter, *, most: int) -> int:
    """Count jobs, up to a limit."""
    return len(_chosen(connection, scope, chosen, after="", most=most))


def revive(connection: apsw.Connection, scope: Scope, chosen: JobFilter, *, id: str | None = None, most: int) -> int:
    """Make dead jobs ready. Returns the number."""
    if chosen.state not in (None, "dead"):
        return 0
    ids = [id] if id is not None else []
    ids = ids or _chosen(connection, scope, msgspec.structs.replace(chosen, state="dead"), after="", most=most)
    return _changed(connection, "revive", bindings(scope, ids=encoded(ids), last_ns=LAST_NS))


def remove(connection: apsw.Connection, scope: Scope, chosen: JobFilter, *, most: int) -> int:
    """Delete some jobs that have ended. Returns the number deleted."""
    ids = _chosen(connection, scope, chosen, after="", most=most, ended=True)
    return _changed(connection, "remove", bindings(scope, ids=encoded(ids)))


def purge(
    connection: apsw.Connection, scope: Scope, *, after: str, retention_s: float, key_retention_s: float, most: int
) -> tuple[int, str]:
    """Delete jobs that ended long ago among the next ones. Returns the number and where to continue."""
    kept = {"retention_s": retention_s, "key_retention_s": key_retention_s}
    return purged(connection, scope, SQL, after=after, **kept, most=most)


def _chosen(
    connection: apsw.Connection,
    scope: Scope,
    chosen: JobFilter,
    *,
    after: str,
    most: int,
    ended: bool = False,
    newest: bool = False,
) -> list[str]:
    before_ns = None if chosen.older_than_s is None else later_ns(scope, -chosen.older_than_s)
    tag, value = chosen.tag or (None, None)
    state = None if chosen.state is None else JOB_STATES.index(chosen.state)
    if ended and state is not None and state < ENDED:
        return []
    names = bindings(scope, after=after, most=most, ended=ended, newest=newest, before_ns=before_ns)
    names |= {"seat": chosen.seat, "task": chosen.task, "tag": tag, "value": value, "state": state}
    if tag is None and chosen.state in _OWN_INDEX:
        name = f"chosen_{chosen.state}"
    else:
        name = "chosen" + ("" if tag is None else "_tagged") + ("_newest" if newest else "")
    return [job for (job,) in connection.execute(SQL[name], names)]


def _changed(connection: apsw.Connection, name: str, names: dict[str, Any]) -> int:
    connection.execute(SQL[name], names)
    return connection.changes()


class SqliteJobs(SqliteStore, JobWriter):
    """The jobs and queues of one cluster. See `storage.contracts.jobs.JobStore`."""

    find = reads(find, "read jobs")
    look = reads(look, "read jobs")
    cancel = writes(ends.cancel, "cancel {id!r}")
    define_queue = writes(queues.define, "define the queue of {claim.seat!r}")
    queue = reads(queues.queue, "read the queue of {seat!r}")
    sweep = reads(sweep, "read jobs")
    refill = reads(refill, "read jobs")
    mature = writes(claims.mature, "write jobs")
    claim = writes(claims.claim, "claim jobs")
    running = reads(running, "read jobs")
    take_back = writes(claims.take_back, "take back jobs")
    park = writes(claims.park, "park jobs")
    unpark = writes(claims.unpark, "write jobs")
    parked = reads(parked, "read jobs")
    claimed = reads(claimed, "read jobs")
    fetch = reads(fetch, "read jobs")
    give_back = writes(ends.give_back, "give back jobs")
    progress = writes(ends.progress, "note the progress of {job!r}")
    set_limits = writes(queues.set_limits, "limit the queue of {seat!r}")
    pause = writes(queues.pause, "pause the queue of {seat!r}")
    backlog = reads(backlog, "read jobs")
    count = reads(count, "read jobs")
    revive = writes(revive, "write jobs")
    remove = writes(remove, "write jobs")
    purge = writes(purge, "write jobs")
    queues = reads(queues.queues, "read queues")
    list = reads(listed, "read jobs")
