"""Planted bugs of jobs and queues, each with the workload that finds it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec

from coterie.storage.contracts.jobs import JobEnd
from coterie.storage.sqlite.jobs import claims, ends, queues, rows
from coterie.storage.sqlite.jobs.jobs import SqliteJobs
from coterie.storage.sqlite.store import bindings, writes
from tests.simulation.workloads import jobs as workload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    import apsw

    from coterie.storage.contracts.jobs import JobClaim, JobEnded, JobsClaimed, JobSetback, QueueRow
    from coterie.storage.sqlite.store import Scope

    Planted = tuple[str, Callable[[], Any], Callable[[], Coroutine[Any, Any, object]], tuple[str, ...]]


@contextmanager
def _statement(name: str, right: str, wrong: str) -> Iterator[None]:
    """One of the statements about jobs has a mistake."""
    changed = rows.SQL[name].replace(right, wrong)
    assert changed != rows.SQL[name], f"{name} has no {right!r} any more"
    with patch.dict(rows.SQL, {name: changed}):
        yield


_claims_numbered_anew = partial(_statement, "lose", "lost_at_ns = null,", "lost_at_ns = null, claim = 0,")
_taken_back_while_they_run = partial(_statement, "lost", "runner is null and lost_at_ns <= :until_ns", "true")
_claimed_for_runners_that_are_gone = partial(
    _statement, "alive", "from runners where id in (select value from json_each(:ids)) and cluster = :cluster",
    "from (select value as id from json_each(:ids)) where :cluster is not null",
)  # fmt: skip


@contextmanager
def _lost_not_counted() -> Iterator[None]:
    with ExitStack() as both:  # by the statement that claims, and by the holder, who tries no more than it allows
        for name in ("room", "running"):
            both.enter_context(_statement(name, "state = 2", "state = 2 and runner is not null"))
        yield


@contextmanager
def _one_more_than_allowed() -> Iterator[None]:
    right = claims._Room.__init__

    def wider(self: Any, connection: Any, scope: Any, limits: QueueRow, **more: Any) -> None:
        if limits.concurrency is not None:
            limits = msgspec.structs.replace(limits, concurrency=limits.concurrency + 1)
        right(self, connection, scope, limits, **more)

    with patch.object(claims._Room, "__init__", wider):
        yield


@contextmanager
def _paused_queues_claim() -> Iterator[None]:
    right = queues.queue

    def awake(*args: Any) -> QueueRow | None:
        row = right(*args)
        return row if row is None else msgspec.structs.replace(row, paused_at=None)

    def whatever_its_stamp(connection: apsw.Connection, scope: Scope, write: JobClaim) -> JobsClaimed:
        row = awake(connection, scope, write.claim.seat)
        stamp = write.stamp if row is None else row.stamp
        return claims.claim(connection, scope, msgspec.structs.replace(write, stamp=stamp))

    with (
        patch.object(claims, "queue", awake),
        patch.object(SqliteJobs, "claim", writes(whatever_its_stamp, "claim jobs")),
    ):
        yield


@contextmanager
def _ended_without_the_fence() -> Iterator[None]:
    right = ends._Judge.__call__

    def careless(self: Any, write: JobEnd | JobSetback) -> tuple[JobEnded, bool]:
        told = right(self, write)
        row = self._rows.get(write.job)
        is_running = row is not None and row[0] == rows.CLAIMED
        return ("written", True) if told[0] in ("gone", "fenced") and is_running and isinstance(write, JobEnd) else told

    with patch.object(ends._Judge, "__call__", careless):
        yield


@contextmanager
def _cancel_forgotten() -> Iterator[None]:
    right = ends._Judge.__call__

    def forgetful(self: Any, write: JobEnd | JobSetback) -> tuple[JobEnded, bool]:
        told, is_new = right(self, write)
        return ("written" if is_new and told == "cancelled" else told), is_new

    with patch.object(ends._Judge, "__call__", forgetful):
        yield


@contextmanager
def _slot_free_at_the_cancel() -> Iterator[None]:
    right = ends.cancel

    def at_once(connection: apsw.Connection, scope: Scope, id: str, *, reply: bytes) -> Any:
        told = right(connection, scope, id, reply=reply)
        if told[0] == "cancelling":
            ends.end_cancelled(connection, scope, id, reply=reply)
        return told

    with patch.object(SqliteJobs, "cancel", writes(at_once, "cancel {id!r}")):
        yield


@contextmanager
def _bucket_full_after_a_takeover() -> Iterator[None]:
    seen: dict[str, int] = {}
    right = claims.claim

    def anew(connection: apsw.Connection, scope: Scope, write: JobClaim) -> JobsClaimed:
        if seen.get(write.claim.seat) != write.claim.epoch:
            seen[write.claim.seat] = write.claim.epoch
            sql = "update queues set tokens = null where cluster = :cluster and seat = :seat"
            connection.execute(sql, bindings(scope, seat=write.claim.seat))
        return right(connection, scope, write)

    with patch.object(SqliteJobs, "claim", writes(anew, "claim jobs")):
        yield


PLANTED: tuple[Planted, ...] = (
    ("jobs of lost runners not counted", _lost_not_counted, workload.main, ("T2",)),
    ("one job more than allowed", _one_more_than_allowed, workload.main, ("T2",)),
    ("claim numbers begin anew", _claims_numbered_anew, workload.main, ("T1",)),
    ("jobs taken back while they run", _taken_back_while_they_run, workload.main, ("T1", "T2")),
    ("claimed for runners that are gone", _claimed_for_runners_that_are_gone, workload.main, ("T1", "T2")),
    ("paused queues claim", _paused_queues_claim, workload.main, ("T9",)),
    ("ended without the fence", _ended_without_the_fence, workload.main, ("T1", "T2", "T6")),
    ("a cancel is forgotten at the end", _cancel_forgotten, workload.main, ("T6",)),
    ("a slot is free at the cancel", _slot_free_at_the_cancel, workload.main, ("T1", "T2", "T6")),
    ("the bucket is full after a takeover", _bucket_full_after_a_takeover, workload.main, ("T2",)),
)
SAMPLE = {"claim numbers begin anew", "paused queues claim", "a slot is free at the cancel"}
"""Looked for each time; the others every night."""
