"""Writes of the holder of a queue's seat, in a SQLite file: plain functions to be run inside a transaction.

The fence, the queue and the count of what runs are read inside the same `BEGIN IMMEDIATE` as the write: the write lock
is held, so nothing can change between them [C1].
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.storage.contracts.jobs import JobsClaimed, LostJob, Matured, TakenBack
from coterie.storage.sqlite import states
from coterie.storage.sqlite.jobs.ends import end_cancelled
from coterie.storage.sqlite.jobs.queues import queue, refilled, spend
from coterie.storage.sqlite.jobs.rows import READY, SQL, delivery, head
from coterie.storage.sqlite.store import bindings, encoded, later_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from coterie.storage.contracts.jobs import JobClaim, JobDelivery, QueueRow
    from coterie.storage.interface import Claim
    from coterie.storage.sqlite.store import Scope

_LOST = "its runner died {count} times while it ran this job (the limit)"


def claim(connection: apsw.Connection, scope: Scope, write: JobClaim) -> JobsClaimed:
    """Claim jobs for runners, as many as the limits of their queue allow."""
    if not states.proven(connection, scope, write.claim, about="jobs"):
        return JobsClaimed("fenced")
    limits = queue(connection, scope, write.claim.seat)
    if limits is None or limits.stamp != write.stamp or limits.paused_at is not None:
        return JobsClaimed("changed")
    tokens = refilled(scope, limits)
    chosen = _chosen(connection, scope, write, room=_Room(connection, scope, limits, tokens=tokens))
    jobs = _begin(connection, scope, chosen)
    if tokens is not None:
        tokens -= len(jobs)
        spend(connection, scope, limits.seat, tokens=tokens)
    return JobsClaimed("claimed", jobs, tokens)


class _Room:
    """What the limits of a queue leave free."""

    def __init__(self, connection: apsw.Connection, scope: Scope, limits: QueueRow, *, tokens: float | None) -> None:
        self._limits = limits
        self._tokens = tokens
        is_limited = limits.concurrency is not None or limits.partition_concurrency is not None
        counts = connection.execute(SQL["room"], bindings(scope, seat=limits.seat)) if is_limited else ()
        self._running = Counter(dict(counts))
        self._all = self._running.total()

    def take(self, part: str) -> bool:
        """Whether another job of a partition may begin, which it then does."""
        limits = self._limits
        if limits.concurrency is not None and self._all >= limits.concurrency:
            return False
        if limits.partition_concurrency is not None and self._running[part] >= limits.partition_concurrency:
            return False
        if self._tokens is not None:
            if self._tokens < 1:
                return False
            self._tokens -= 1
        self._all += 1
        self._running[part] += 1
        return True


class _Candidate(NamedTuple):
    part: str
    state: int
    cancelling: int


def _chosen(connection: apsw.Connection, scope: Scope, write: JobClaim, *, room: _Room) -> list[tuple[str, str]]:
    """Those that are ready, on a runner that is there, within the limits."""
    names = bindings(scope, ids=encoded({runner for _, runner in write.jobs}))
    alive = {runner for (runner,) in connection.execute(SQL["alive"], names)}
    names = bindings(scope, seat=write.claim.seat, ids=encoded(job for job, _ in write.jobs))
    found = {job: _Candidate(*row) for job, *row in connection.execute(SQL["candidates"], names)}
    chosen: dict[str, str] = {}
    for job, runner in write.jobs:
        row = found.get(job)
        if row is None or row.state != READY or row.cancelling or runner not in alive or job in chosen:
            continue
        if room.take(row.part):
            chosen[job] = runner
    return list(chosen.items())


def _begin(connection: apsw.Connection, scope: Scope, chosen: Sequence[tuple[str, str]]) -> tuple[JobDelivery, ...]:
    begun: dict[str, JobDelivery] = {}
    for runner in {runner for _, runner in chosen}:
        ids = [job for job, whose in chosen if whose == runner]
        rows = connection.execute(SQL["claim"], bindings(scope, runner=runner, ids=encoded(ids)))
        begun |= {each.id: each for each in map(delivery, rows)}
    return tuple(begun[job] for job, _ in chosen)


def mature(connection: apsw.Connection, scope: Scope, claim: Claim, *, most: int) -> Matured:
    """Make jobs ready that are due."""
    if not states.proven(connection, scope, claim, about="jobs"):
        return Matured(True)
    names = bindings(scope, seat=claim.seat, most=most)
    heads = sorted(map(head, connection.execute(SQL["mature"], names)), key=lambda each: (each.rank_s, each.id))
    ((due_at_ns,),) = connection.execute(SQL["next_due"], names)
    return Matured(False, tuple(heads), _until_s(scope, due_at_ns))


def take_back(
    connection: apsw.Connection, scope: Scope, claim: Claim, *, takeover_delay_s: float, loss_limit: int, most: int
) -> TakenBack:
    """Make jobs of lost runners ready again, or end them."""
    if not states.proven(connection, scope, claim, about="jobs"):
        return TakenBack(True)
    names = bindings(scope, seat=claim.seat, most=most, until_ns=later_ns(scope, -takeover_delay_s))
    connection.execute(SQL["date_losses"], names)
    rows: list[Any] = connection.execute(SQL["lost"], names).fetchall()
    lost = tuple(_lose(connection, scope, *row, loss_limit=loss_limit) for row in rows)
    ((next_at_ns,),) = connection.execute(SQL["next_lost"], names)
    until_s = _until_s(scope, next_at_ns, later_s=takeover_delay_s)
    return TakenBack(False, lost, until_s)


def _lose(
    connection: apsw.Connection, scope: Scope, job: str, task: str, lost: int, cancelling: int, *, loss_limit: int
) -> LostJob:
    count = lost + 1
    if cancelling:
        connection.execute(SQL["count_lost"], bindings(scope, id=job))
        end_cancelled(connection, scope, job)
        return LostJob(job, task, count, "cancelled")
    is_dead = count >= loss_limit
    error = _LOST.format(count=count) if is_dead else None
    connection.execute(SQL["lose"], bindings(scope, id=job, error=error))
    return LostJob(job, task, count, "dead" if is_dead else "ready")


def _until_s(scope: Scope, at_ns: int | None, *, later_s: float = 0.0) -> float | None:
    return None if at_ns is None else max(0.0, (at_ns - later_ns(scope)) / 1e9 + later_s)


def park(connection: apsw.Connection, scope: Scope, claim: Claim, tasks: Sequence[str], *, most: int) -> int:
    """Set ready jobs of these tasks aside. Returns the number."""
    return _moved(connection, scope, "park", claim, tasks, most=most)


def unpark(connection: apsw.Connection, scope: Scope, claim: Claim, tasks: Sequence[str], *, most: int) -> int:
    """Make parked jobs of these tasks ready again. Returns the number."""
    return _moved(connection, scope, "unpark", claim, tasks, most=most)


def _moved(
    connection: apsw.Connection, scope: Scope, name: str, claim: Claim, tasks: Sequence[str], *, most: int
) -> int:
    if not states.proven(connection, scope, claim, about="jobs"):
        return 0
    connection.execute(SQL[name], bindings(scope, seat=claim.seat, tasks=encoded(tasks), most=most))
    return connection.changes()
