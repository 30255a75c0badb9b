"""Records what is committed about jobs, by triggers inside a SQLite database: it vanishes with its transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from coterie.storage.contracts.jobs import JOB_STATES
from tests.support.history.jobs import (
    End,
    JobClaimed,
    JobEnded,
    JobFreed,
    JobLeft,
    JobParked,
    JobReady,
    JobRevived,
    JobStored,
    QueueLimited,
    QueuePaused,
    QueueRefilled,
    RunnerLost,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import apsw

    from tests.support.history.ownership import Event

TRIGGERS = """
create temp table job_events (place integer, what text, a, b, c, d, e, f, g);
create temp trigger job_stored after insert on main.jobs begin
    insert into job_events values (
        job_place(), 'stored', new.id, new.seat, new.part, new.sent_at_ns, new.due_at_ns, new.rank_at_ns, new.priority
    );
end;
create temp trigger job_changed after update of state, claim on main.jobs
when new.state <> old.state or new.claim <> old.claim begin
    insert into job_events (place, what, a, b) select job_place(), 'freed', new.id, old.claim
    where old.state = 2;
    insert into job_events (place, what, a) select job_place(), 'revived', new.id
    where old.state = 5;
    insert into job_events (place, what, a, b, c, d)
    select job_place(), 'ready', new.id, job_clock(), new.rank_at_ns, new.lost where new.state = 1;
    insert into job_events (place, what, a, b, c, d)
    select job_place(), 'claimed', new.id, new.claim, new.runner, new.claimed_at_ns where new.state = 2;
    insert into job_events (place, what, a) select job_place(), 'parked', new.id where new.state = 3;
    insert into job_events (place, what, a, b, c) select job_place(), 'ended', new.id, new.state, new.claim
    where new.state > 3;
end;
create temp trigger job_queue_stored after insert on main.queues begin
    insert into job_events (place, what, a, b, c, d, e) values (
        job_place(), 'limited', new.seat, new.concurrency, new.partition_concurrency, new.rate, new.burst
    );
end;
create temp trigger job_queue_refilled before update of refilled_at_ns on main.queues begin
    insert into job_events (place, what, a, b) values (job_place(), 'refilled', new.seat, new.refilled_at_ns);
end;
create temp trigger job_queue_changed after update of stamp on main.queues begin
    insert into job_events (place, what, a, b, c, d, e) values (
        job_place(), 'limited', new.seat,
        iif(new.is_set, new.set_concurrency, new.concurrency),
        iif(new.is_set, new.set_partition_concurrency, new.partition_concurrency),
        iif(new.is_set, new.set_rate, new.rate),
        iif(new.is_set, new.set_burst, new.burst)
    );
    insert into job_events (place, what, a, b) values (job_place(), 'paused', new.seat, new.paused_at_ns is not null);
end;
create temp trigger job_runner_lost after delete on main.runners begin
    insert into job_events (place, what, a) values (job_place(), 'lost', old.id);
end;
"""


class JobRecorder:
    """What was committed in one database, and what others note beside it, in one order.

    Args:
        connection: The one connection through which all write.
        now_ns: The database's clock.
    """

    def __init__(self, connection: apsw.Connection, *, now_ns: Callable[[], int]) -> None:
        self._connection = connection
        self._places = 0
        self._noted: list[tuple[int, Event]] = []
        connection.create_scalar_function("job_place", lambda *_: self._place(), 0)
        connection.create_scalar_function("job_clock", lambda *_: now_ns(), 0)
        connection.execute(TRIGGERS)

    def note(self, event: Event) -> None:
        """Something that is not in the database happens just now: a body begins or ends, somebody is told."""
        self._noted.append((self._place(), event))

    def history(self) -> list[Event]:
        """All of it, in order; last what is left."""
        rows: list[Any] = self._connection.execute("select * from job_events").fetchall()
        committed = [(place, _event(*row)) for place, *row in rows]
        events = [event for _, event in sorted([*committed, *self._noted], key=lambda each: each[0])]
        left: list[Any] = self._connection.execute("select id, state from jobs").fetchall()
        return [*events, *(JobLeft(job, JOB_STATES[state]) for job, state in left)]

    def _place(self) -> int:
        self._places += 1
        return self._places


def _event(what: str, *row: Any) -> Event:
    if what == "stored":
        job, seat, part, at_ns, due_ns, rank_ns, priority = row
        return JobStored(job, seat, part, at_ns, due_ns, rank_ns, priority)
    if what == "ended":
        return JobEnded(row[0], cast("End", JOB_STATES[row[1]]), row[2])
    if what == "paused":
        return QueuePaused(row[0], bool(row[1]))
    kinds: dict[str, tuple[Callable[..., Event], int]] = {
        "freed": (JobFreed, 2),
        "revived": (JobRevived, 1),
        "ready": (JobReady, 4),
        "claimed": (JobClaimed, 4),
        "parked": (JobParked, 1),
        "limited": (QueueLimited, 5),
        "refilled": (QueueRefilled, 2),
        "lost": (RunnerLost, 1),
    }
    kind, fields = kinds[what]
    return kind(*row[:fields])
