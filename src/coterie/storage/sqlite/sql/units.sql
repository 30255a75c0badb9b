-- name: step_looks
-- What decides about steps: whether their units go on, on these seats, and what stands at their places (0: it is waited for).
select json_group_array(json_array(
    u.unit is not null,
    iif(s.kind = asked.value ->> 'kind' and s.name = asked.value ->> 'name', s.done, iif(s.unit is null, null, 1))
) order by asked.key)
from json_each(:rows) as asked
    left join units as u on u.cluster = :cluster and u.unit = asked.value ->> 'unit'
        and u.seat = asked.value ->> 'seat' and u.ended_at_ns is null
        and u.life = ifnull(asked.value ->> 'life', u.life)
    left join steps as s on s.cluster = :cluster and s.unit = u.unit and s.branch = asked.value ->> 'branch'
        and s.position = asked.value ->> 'position';

-- name: step_insert
-- New steps.
insert or rollback into steps (
    cluster, at_ns, unit, branch, position, kind, name, digest, done, due_at_ns, value, error, began_at_ns, attempts, runner
)
values
    (?1, ?2, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) -- each
;

-- name: step_complete
-- Steps that were waited for are done.
update or rollback steps
set done = 1, at_ns = ?2, value = said.column4, error = said.column5, runner = said.column6,
    began_at_ns = coalesce(began_at_ns, at_ns)
from (
    values
        (?, ?, ?, ?, ?, ?) -- each
) as said
where steps.cluster = ?1 and steps.unit = said.column1 and steps.branch = said.column2
    and steps.position = said.column3;

-- name: step
-- A step.
select branch, position, kind, name, digest, done, value, error, due_at_ns
from steps where cluster = :cluster and unit = :unit and branch = :branch and position = :position;

-- name: end_looks
-- What decides about the ends of units: whether they go on, on these seats; who waits for them, and where, if that goes on.
select json_group_array(json_array(
    u.unit is not null and u.ended_at_ns is null and u.life = ifnull(asked.value ->> 'life', u.life)
        and u.retries = ifnull(asked.value ->> 'retries', u.retries), u.kind = 'workflow', p.unit, u.waited_as, p.seat, p.life
) order by asked.key)
from json_each(:rows) as asked
    left join units as u on u.cluster = :cluster and u.unit = asked.value ->> 'unit'
        and u.seat = asked.value ->> 'seat'
    left join units as p on p.cluster = :cluster and p.unit = u.parent and p.ended_at_ns is null;

-- name: end
-- Workflows are over.
update or rollback units
set status = said.column2, value = said.column3, error = said.column4, ended_at_ns = ?2, changed_at_ns = ?2,
    wake_at_ns = null, starts_at_ns = null, times_out_at_ns = null, stuck = null,
    interrupts_children = said.column2 <> 'done' and not said.column5, held = said.column5,
    failed_steps = said.column6
from (
    values
        (?, ?, ?, ?, ?, ?) -- each
) as said
where units.cluster = ?1 and units.unit = said.column1;

-- name: tell
-- Values for the parents of those that are over, unless they have one.
insert or rollback into deferreds (cluster, resolved_at_ns, unit, name, life, value)
values
    (?1, ?2, ?, ?, ?, ?) -- each
on conflict (cluster, unit, name) do update
set resolved_at_ns = excluded.resolved_at_ns, life = excluded.life, early = 0, error = null, value = excluded.value
where deferreds.life <> excluded.life;

-- name: forget
-- Units are gone.
delete from units where cluster = :cluster and unit in (select value from json_each(:units));

-- name: forget_steps
-- So are their steps.
delete from steps where cluster = :cluster and unit in (select value from json_each(:units));

-- name: forget_deferreds
-- And the values that came for them.
delete from deferreds where cluster = :cluster and unit in (select value from json_each(:units));

-- name: forget_run_messages
-- What was sent to runs whose rows go.
delete from run_messages where cluster = :cluster and unit in (select value from json_each(:units));

-- name: forget_published
-- And what they have published.
delete from published where cluster = :cluster and unit in (select value from json_each(:units));

-- name: wake
-- What has happened to units changes them, and has those go on that are suspended. One that has not begun waits until then.
update units
set status = iif(status = 'suspended' and starts_at_ns is null, 'running', status), wake_at_ns = starts_at_ns,
    changed_at_ns = :now_ns
where cluster = :cluster and unit in (select value from json_each(:units)) and ended_at_ns is null;

-- name: row
-- A unit.
select unit, kind, name, id, seat, status, payload, version, interrupting, parent, value, error, started_at_ns,
    changed_at_ns, ended_at_ns, wake_at_ns, (select count(*) from steps as t where t.cluster = u.cluster and t.unit = u.unit and t.done),
    life, digest, waited_as, retries, held, failed_steps,
    starts_at_ns, times_out_at_ns, interrupted_for, next_life, next_at_ns, tags, stuck, stuck_times
from units as u where cluster = :cluster and unit = :unit;

-- name: steps
-- The steps of a unit, in order.
select branch, position, kind, name, digest, done, value, error, due_at_ns
from steps where cluster = :cluster and unit = :unit order by branch, position;

-- name: records
-- The steps of a unit for people, in order: with their times, and with values that have come and are not stored as results yet.
select s.branch, s.position, s.kind, s.name, s.digest, s.done or d.unit is not null or c.ended_at_ns is not null,
    iif(d.unit is not null, d.value, iif(c.ended_at_ns is not null, c.value, s.value)), coalesce(s.error, c.error),
    s.due_at_ns, coalesce(s.began_at_ns, iif(s.done, null, s.at_ns)),
    iif(s.done, s.at_ns, coalesce(d.resolved_at_ns, c.ended_at_ns)), s.attempts, s.runner, d.error
from units as u
    join steps as s on s.cluster = u.cluster and s.unit = u.unit
    left join deferreds as d on d.cluster = u.cluster and d.unit = u.unit and d.life = u.life and d.name = s.name
        and s.kind = 'deferred' and not s.done
    left join units as c on c.cluster = u.cluster and c.unit = 'workflow:' || s.name and s.kind = 'child' and not s.done
where u.cluster = :cluster and u.unit = :unit
order by s.branch, s.position;

-- name: deferreds
-- The values that came for a unit in this life, in order.
select name, value, error from deferreds where cluster = :cluster and unit = :unit and life = :life order by name;

-- name: begin
-- A unit begins, unless it is there.
insert into units (
    cluster, unit, kind, name, id, seat, status, started_at_ns, changed_at_ns, parent, waited_as, version, digest,
    payload, life, starts_at_ns, wake_at_ns, latest_at_ns, timeout_s, times_out_at_ns, tags
)
values (
    :cluster, :unit, :kind, :name, :id, :seat, iif(:later_ns is null, 'running', 'suspended'), :now_ns, :now_ns, :parent,
    :waited_as, :version, :digest, :payload, :life, :later_ns, :later_ns, :latest_ns, :timeout_s, :times_out_ns, :tags
)
on conflict (cluster, unit) do nothing;

-- name: reopen
-- Note that a unit is continued: it is not abandoned.
update units set changed_at_ns = :now_ns where cluster = :cluster and unit = :unit and seat = :seat;

-- name: expect
-- What came for a unit before it began is its own now.
update deferreds set early = 0 where cluster = :cluster and unit = :unit and life = :life and early;

-- name: wakes
-- When the next unit of each seat is due by itself: it is suspended, its time is over, or its next life is kept.
select json_group_object(asked.value, (
    select min(at_ns) from (
        select min(u.wake_at_ns) as at_ns from units as u
        where u.cluster = :cluster and u.seat = asked.value and u.wake_at_ns is not null
        union all
        select min(u.times_out_at_ns) from units as u
        where u.cluster = :cluster and u.seat = asked.value and u.times_out_at_ns is not null
        union all
        select min(u.ended_at_ns) from units as u
        where u.cluster = :cluster and u.seat = asked.value and u.next_life is not null and u.ended_at_ns is not null
            and not u.held
    )
))
from json_each(:seats) as asked;

-- name: wake_due
-- Suspended units that are due go on. One that was to begin later begins.
update units
set status = 'running', wake_at_ns = null, changed_at_ns = :now_ns, starts_at_ns = null,
    started_at_ns = iif(starts_at_ns is null, started_at_ns, :now_ns),
    times_out_at_ns = iif(starts_at_ns is null, times_out_at_ns, :now_ns + cast(timeout_s * 1e9 as integer))
where cluster = :cluster and seat in (select value from json_each(:seats)) and wake_at_ns <= :now_ns;

-- name: after_jobs
-- Suspended workflows that wait for jobs of a map which are all over, or of which one has failed. The name of the step is
-- the task, its place is in the keys of the jobs.
select u.unit, u.seat
from steps as s indexed by steps_maps
    cross join units as u on u.cluster = s.cluster and u.unit = s.unit
where s.cluster = :cluster and s.kind = 'map' and not s.done
    and u.status = 'suspended' and u.seat in (select value from json_each(:seats))
    and (
        not exists (
            select 1 from jobs as j
            where j.cluster = s.cluster and j.task = s.name
                and j.key >= 'map:' || s.unit || ':' || u.life || ':' || s.branch || ':' || s.position || ':'
                and j.key < 'map:' || s.unit || ':' || u.life || ':' || s.branch || ':' || s.position || ';'
                and j.ended_at_ns is null
        ) or exists (
            select 1 from jobs as j
            where j.cluster = s.cluster and j.task = s.name
                and j.key >= 'map:' || s.unit || ':' || u.life || ':' || s.branch || ':' || s.position || ':'
                and j.key < 'map:' || s.unit || ':' || u.life || ':' || s.branch || ':' || s.position || ';'
                and j.state in (5, 7)
        )
    )
order by s.unit;

-- name: taken
-- Of each seat the oldest workflows that are to be run.
select u.unit, u.kind, u.name, u.id, u.seat, u.status, u.payload, u.version, u.interrupting, u.parent, u.value, u.error,
    u.started_at_ns, u.changed_at_ns, u.ended_at_ns, u.wake_at_ns,
    (select count(*) from steps as t where t.cluster = u.cluster and t.unit = u.unit and t.done), u.life, u.digest, u.waited_as,
    u.retries, u.held, u.failed_steps,
    u.starts_at_ns, u.times_out_at_ns, u.interrupted_for, u.next_life, u.next_at_ns, u.tags, u.stuck, u.stuck_times
from json_each(:seats) as asked
    cross join units as u on u.rowid in (
        select rowid from units
        where cluster = :cluster and seat = asked.value and status = 'running' and kind = 'workflow'
        order by started_at_ns, unit limit :most
    )
order by asked.key, u.started_at_ns, u.unit;

-- name: ready
-- Whether one of these values has come, or something is in one of these inboxes.
select exists (
    select 1 from deferreds
    where cluster = :cluster and unit = :unit and life = :life and name in (select value from json_each(:names))
) or exists (
    select 1 from run_messages
    where cluster = :cluster and unit = :unit and name in (select value from json_each(:inboxes)) and received_at_ns is null
);

-- name: stuck
-- Whether there are units on these seats that are stuck.
select exists (
    select 1 from units
    where cluster = :cluster and seat in (select value from json_each(:seats)) and stuck is not null
        and status = 'suspended'
);

-- name: retry_stuck
-- They are tried again: their new holder may have other code.
update units set status = 'running', wake_at_ns = null, stuck_times = 0, changed_at_ns = :now_ns
where cluster = :cluster and seat in (select value from json_each(:seats)) and stuck is not null
    and status = 'suspended';

-- name: suspend
-- Suspend a unit until it is due.
update units
set status = 'suspended', wake_at_ns = :wake_at_ns, changed_at_ns = :now_ns, stuck = :stuck, stuck_times = :stuck_times
where cluster = :cluster and unit = :unit;

-- name: resolve
-- The value of a deferred, unless it has one.
insert into deferreds (cluster, unit, name, life, resolved_at_ns, early, error, value)
values (:cluster, :unit, :name, :life, :now_ns, :early, :error, :value)
on conflict (cluster, unit, name) do update
set life = excluded.life, resolved_at_ns = excluded.resolved_at_ns, early = excluded.early, error = excluded.error,
    value = excluded.value
where deferreds.life <> excluded.life;

-- name: tick
-- When a tick that is not over was claimed.
select claimed_at_ns from ticks
where cluster = :cluster and name = :cron and kind = :kind and at_ns = :at_ns and seq = :seq and outcome is null;

-- name: interrupt
-- Ask for the end of a workflow. One that has failed and is held goes on, to undo what it has done.
update units
set interrupting = 1, changed_at_ns = :now_ns, wake_at_ns = null, status = 'running', ended_at_ns = null,
    retries = retries + held, held = 0
where cluster = :cluster and unit = :unit and kind = 'workflow' and (held or (ended_at_ns is null and not interrupting));

-- name: interrupts_children
-- Whether the children of workflows on these seats are to be asked to end.
select exists (
    select 1 from units
    where cluster = :cluster and interrupts_children and seat in (select value from json_each(:seats))
);

-- name: children
-- Some children of such workflows that are not asked to end yet, and their seats.
select json_group_array(json_array(unit, seat)) from (
    select c.unit, c.seat
    from units as p cross join units as c on c.cluster = p.cluster and c.parent = p.unit
    where p.cluster = :cluster and p.interrupts_children and p.seat in (select value from json_each(:seats))
        and c.parent is not null and c.ended_at_ns is null and not c.interrupting
    limit :most
);

-- name: interrupt_children
-- Ask for their end.
update units set interrupting = 1, changed_at_ns = :now_ns, wake_at_ns = null, status = 'running'
where cluster = :cluster and unit in (select value from json_each(:units)) and ended_at_ns is null and not interrupting;

-- name: forget_children
-- Workflows on these seats whose children are all asked to end need not be looked at again.
update units set interrupts_children = 0
where cluster = :cluster and interrupts_children and seat in (select value from json_each(:seats))
    and not exists (
        select 1 from units as c
        where c.cluster = units.cluster and c.parent = units.unit and c.parent is not null and c.ended_at_ns is null
            and not c.interrupting
    );

-- name: resume
-- Have a suspended workflow go on, unless it has not begun.
update units set status = 'running', wake_at_ns = null, changed_at_ns = :now_ns
where cluster = :cluster and unit = :unit and kind = 'workflow' and status = 'suspended' and starts_at_ns is null;

-- name: list
-- Units, those that changed last first.
select unit, kind, name, id, seat, status, payload, version, interrupting, parent, value, error, started_at_ns,
    changed_at_ns, ended_at_ns, wake_at_ns, (select count(*) from steps as t where t.cluster = u.cluster and t.unit = u.unit and t.done),
    life, digest, waited_as, retries, held, failed_steps,
    starts_at_ns, times_out_at_ns, interrupted_for, next_life, next_at_ns, tags, stuck, stuck_times
from units as u
where cluster = :cluster and (:status is null or status = :status) and (:name is null or name = :name)
    and (:before_ns is null or started_at_ns < :before_ns)
order by changed_at_ns desc limit :most;

-- name: ended
-- Some workflows that ended long ago.
select json_group_array(unit) from (
    select unit from units
    where cluster = :cluster and ended_at_ns < :before_ns and not held and next_life is null -- else it goes on
    order by ended_at_ns limit :most
);

-- name: abandoned
-- Some units of leaders and ticks that have not changed for long, made no steps, and wait for nothing: what sleeps for a
-- week is not abandoned.
select json_group_array(unit) from (
    select unit from units as u
    where cluster = :cluster and kind <> 'workflow' and changed_at_ns < :before_ns
        and not exists (
            select 1 from steps as s
            where s.cluster = :cluster and s.unit = u.unit
                and (s.at_ns >= :before_ns or (not s.done and ifnull(s.due_at_ns >= :before_ns, 1)))
        )
    order by changed_at_ns limit :most
);

-- name: purge_early
-- Delete some values whose units have not begun for long.
delete from deferreds where rowid in (
    select rowid from deferreds
    where cluster = :cluster and early and resolved_at_ns < :before_ns order by resolved_at_ns limit :most
);
