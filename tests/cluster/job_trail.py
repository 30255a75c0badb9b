"""What is committed about jobs, written down by triggers in the database of real processes, on each engine.

A row of the trail commits with what it tells of, or vanishes with it. Its place is drawn when the row of the job or
queue is changed, which is locked then: in the order of places a slot is never freed too late, so nothing is taken for
a violation that is none. The instants are those of the machine, as are those of the processes' journals.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw
import asyncpg

from coterie.storage.contracts.jobs import JOB_STATES
from tests.support.history.jobs import (
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
    RunnerLost,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.support.history.ownership import Event

_POSTGRES = """
create schema trail;
create table trail.events (
    place  bigint generated always as identity primary key,
    at_ns  bigint not null default (extract(epoch from clock_timestamp()) * 1000000000)::bigint,
    what   text   not null,
    fields jsonb  not null
);
create function trail.job_stored() returns trigger language plpgsql as $$
begin
    insert into trail.events (what, fields) values ('stored', jsonb_build_array(new.id, new.seat, new.part));
    return null;
end
$$;
create function trail.job_changed() returns trigger language plpgsql as $$
begin
    if old.state = 2 then
        insert into trail.events (what, fields) values ('freed', jsonb_build_array(new.id, old.claim));
    elsif old.state = 5 then
        insert into trail.events (what, fields) values ('revived', jsonb_build_array(new.id));
    end if;
    insert into trail.events (what, fields) values (
        case when new.state > 3 then 'ended' else (array['later', 'ready', 'claimed', 'parked'])[new.state + 1] end,
        jsonb_build_array(
            new.id, new.claim, new.ran_by, (extract(epoch from new.claimed_at) * 1000000000)::bigint, new.state
        )
    );
    return null;
end
$$;
create function trail.queue_changed() returns trigger language plpgsql as $$
begin
    insert into trail.events (what, fields) values
        ('limited', jsonb_build_array(new.seat, new.concurrency, new.partition_concurrency, new.rate, new.burst)),
        ('paused', jsonb_build_array(new.seat, new.paused_at is not null));
    return null;
end
$$;
create function trail.runner_lost() returns trigger language plpgsql as $$
begin
    insert into trail.events (what, fields) values ('lost', jsonb_build_array(old.id));
    return null;
end
$$;
create trigger trail after insert on coterie.jobs for each row execute function trail.job_stored();
create trigger trail_changed after update on coterie.jobs for each row
    when (new.state <> old.state or new.claim <> old.claim) execute function trail.job_changed();
create trigger trail after insert on coterie.queues for each row execute function trail.queue_changed();
create trigger trail_changed after update on coterie.queues for each row
    when (new.stamp <> old.stamp) execute function trail.queue_changed();
create trigger trail after delete on coterie.runners for each row execute function trail.runner_lost();
"""
_NOW = "cast((julianday('now') - 2440587.5) * 86400000 as integer) * 1000000"
_LIMITED = """
    insert into trail (what, fields) values ('limited', json_array(
        new.seat,
        iif(new.is_set, new.set_concurrency, new.concurrency),
        iif(new.is_set, new.set_partition_concurrency, new.partition_concurrency),
        iif(new.is_set, new.set_rate, new.rate),
        iif(new.is_set, new.set_burst, new.burst)
    ));
    insert into trail (what, fields) values ('paused', json_array(new.seat, new.paused_at_ns is not null));
"""
_SQLITE = f"""
create table trail (place integer primary key, at_ns integer default ({_NOW}), what text, fields text);
create trigger trail_stored after insert on jobs begin
    insert into trail (what, fields) values ('stored', json_array(new.id, new.seat, new.part));
end;
create trigger trail_changed after update of state, claim on jobs
when new.state <> old.state or new.claim <> old.claim begin
    insert into trail (what, fields) select 'freed', json_array(new.id, old.claim) where old.state = 2;
    insert into trail (what, fields) select 'revived', json_array(new.id) where old.state = 5;
    insert into trail (what, fields) values (
        iif(new.state > 3, 'ended', json_array('later', 'ready', 'claimed', 'parked') ->> new.state),
        json_array(new.id, new.claim, new.ran_by, new.claimed_at_ns, new.state)
    );
end;
create trigger trail_queue_stored after insert on queues begin {_LIMITED} end;
create trigger trail_queue_changed after update of stamp on queues when new.stamp <> old.stamp begin {_LIMITED} end;
create trigger trail_runner_lost after delete on runners begin
    insert into trail (what, fields) values ('lost', json_array(old.id));
end;
"""
_LEFT = """
select j.id, j.state, j.task, t.value from {schema}jobs as j
left join {schema}job_tags as t on t.cluster = j.cluster and t.job = j.id and t.name = 'number'
"""


class LeftJob(NamedTuple):
    """A row when everything was over."""

    id: str
    state: str
    task: str
    number: int | None


class Trail:
    """The trail in one database.

    Args:
        url: The database, whose tables are there.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._file = url.removeprefix("sqlite:///") if url.startswith("sqlite") else None

    async def begin(self) -> None:
        """Have all written down from now on."""
        await self._run(_POSTGRES if self._file is None else _SQLITE)

    async def committed(self) -> list[tuple[int, Event]]:
        """What was committed so far, with its instants, which only grow."""
        table = "trail.events" if self._file is None else "trail"
        rows = await self._run(f"select at_ns, what, fields from {table} order by place")
        found: list[tuple[int, Event]] = []
        last_ns = 0
        for at_ns, what, fields in rows:
            last_ns = max(last_ns, at_ns)
            found += ((last_ns, event) for event in _events(what, json.loads(fields), at_ns))
        return found

    async def left(self) -> list[LeftJob]:
        """The jobs that are there."""
        rows = await self._run(_LEFT.format(schema="coterie." if self._file is None else ""))
        return [
            LeftJob(id_, JOB_STATES[state], task, None if number is None else int(number))
            for id_, state, task, number in rows
        ]

    async def _run(self, sql: str) -> list[Any]:
        if self._file is not None:
            return await asyncio.to_thread(_run_in_file, self._file, sql)
        connection = await asyncpg.connect(self._url)
        try:
            if sql.lstrip().startswith("select"):
                return [tuple(row) for row in await connection.fetch(sql)]
            await connection.execute(sql)
            return []
        finally:
            await connection.close()


def _run_in_file(path: str, sql: str) -> list[Any]:
    connection = apsw.Connection(path)
    try:
        connection.set_busy_timeout(60_000)
        return list(connection.execute(sql))
    finally:
        connection.close()


def _events(what: str, fields: list[Any], at_ns: int) -> Iterable[Event]:
    if what == "claimed":
        job, claim, runner, claimed_ns, _ = fields
        return (JobClaimed(job, claim, runner, claimed_ns),)
    if what == "ended":
        return (JobEnded(fields[0], JOB_STATES[fields[4]], fields[1]),)
    if what == "ready":
        return (JobReady(fields[0], at_ns),)
    if what == "paused":
        return (QueuePaused(fields[0], bool(fields[1])),)
    if what == "later":
        return ()
    kinds: dict[str, tuple[Callable[..., Event], int]] = {
        "stored": (JobStored, 3),
        "freed": (JobFreed, 2),
        "revived": (JobRevived, 1),
        "parked": (JobParked, 1),
        "limited": (QueueLimited, 5),
        "lost": (RunnerLost, 1),
    }
    kind, count = kinds[what]
    return (kind(*fields[:count]),)


def rows_left(left: Iterable[LeftJob]) -> list[Event]:
    """The same, for the checkers."""
    return [JobLeft(each.id, each.state) for each in left]
