-- Durable work. A holder's writes are fenced as in fragments.sql [C1].
--
-- A statement that changes a unit, or adds rows to it, locks the unit's row first, several units in their order: so
-- no row is added to a unit that has ended [W5], and no two statements wait for each other [M3]. Steps only share
-- that lock; the statement that ends a unit waits for them. The rows of a workflow stay until it is purged, those of
-- other units go with its end. A statement does not see rows that were added while it waited, so deletions use
-- `forget_units`, which does.
--
-- No wake-up is lost [M11]: the statement that suspends a unit also locks the deferreds that it waits for, or inserts
-- their rows, before it reads whether they are resolved; the statement that resolves one makes the unit running. A
-- statement that saw no unit, but finds a row where it stores the value, is run again: the unit has begun meanwhile,
-- and may wait.

-- name: write_steps
-- Store steps, once each. Returns per key whether the seat was held, whether its unit is running, whether it was
-- written, and the row.
with items as materialized (
    select * from unnest(
        $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::text[], $10::text[], $11::bytea[],
        $12::boolean[], $13::bytea[], $14::bytea[], $15::float8[], $16::timestamptz[], $17::int[], $18::text[], $19::bigint[]
    ) as u (
        seat, epoch, key, unit, branch, position, kind, name, digest, done, value, error, due_s, began_at, attempts, runner,
        life
    )
), /* include fence (s.name, s.epoch) */, clock as materialized (
    select clock_timestamp() as now from (select count(*) from held) as fence -- not while that one waits
), judged as materialized (
    select i.*, clock.now
    from items as i
        join held on held.name = i.seat and held.epoch = i.epoch
        cross join clock
        cross join lateral (
            select from coterie.units
            where cluster = $1 and unit = i.unit and seat = i.seat and ended_at is null and life = coalesce(i.life, life)
            offset 0
            for key share
        ) as u
    order by i.unit, i.branch, i.position
), written as (
    insert into coterie.steps as t (
        cluster, unit, branch, position, kind, name, digest, done, at, due_at, value, error, began_at, attempts, runner
    )
    select
        $1, j.unit, j.branch, j.position, j.kind, j.name, j.digest, j.done, j.now,
        j.now + make_interval(secs => j.due_s), j.value, j.error, least(j.began_at, j.now), j.attempts, j.runner
    from judged as j
    on conflict (cluster, unit, branch, position) do update -- what was waited for is done; nothing else ever changes
    set done = true, at = excluded.at, value = excluded.value, error = excluded.error,
        began_at = coalesce(t.began_at, t.at), runner = excluded.runner
    where not t.done and excluded.done and t.kind = excluded.kind and t.name = excluded.name
    returning t.*
)
select
    i.key, held.name is not null as held, j.unit is not null as goes_on, w.unit is not null as written,
    coalesce(j.now, clock.now) as now,
    coalesce(w.branch, t.branch) as branch, coalesce(w.position, t.position) as position,
    case
        when w.unit is not null then w.kind
        when t.unit is null and j.unit is not null then coterie.overtaken()
        when not t.done and i.done and t.kind = i.kind and t.name = i.name then coterie.overtaken()
        else t.kind
    end as kind,
    coalesce(w.name, t.name) as name, coalesce(w.digest, t.digest) as digest, coalesce(w.done, t.done) as done,
    case when w.unit is null then t.value else w.value end as value,
    case when w.unit is null then t.error else w.error end as error,
    case when w.unit is null then t.due_at else w.due_at end as due_at
from items as i
    cross join clock
    left join held on held.name = i.seat and held.epoch = i.epoch
    left join judged as j on j.key = i.key
    left join written as w on w.unit = i.unit and w.branch = i.branch and w.position = i.position
    left join lateral (
        select * from coterie.steps
        where cluster = $1 and unit = j.unit and branch = j.branch and position = j.position
        offset 0
    ) as t on w.unit is null;

-- name: add_steps
-- Store steps at free positions, of running units, on seats that are held: what nearly all of them need. For those
-- that it leaves out run `write_steps`, which returns the reason. It locks no unit against its next status, only
-- against its deletion.
with items as materialized (
    select * from unnest(
        $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::text[], $10::text[], $11::bytea[],
        $12::boolean[], $13::bytea[], $14::bytea[], $15::float8[], $16::timestamptz[], $17::int[], $18::text[], $19::bigint[]
    ) as u (
        seat, epoch, key, unit, branch, position, kind, name, digest, done, value, error, due_s, began_at, attempts, runner,
        life
    )
), /* include fence (s.name, s.epoch) */, clock as materialized (
    select clock_timestamp() as now from (select count(*) from held) as fence -- not while that one waits
)
insert into coterie.steps (
    cluster, unit, branch, position, kind, name, digest, done, at, due_at, value, error, began_at, attempts, runner
)
select
    $1, i.unit, i.branch, i.position, i.kind, i.name, i.digest, i.done, clock.now,
    clock.now + make_interval(secs => i.due_s), i.value, i.error, least(i.began_at, clock.now), i.attempts, i.runner
from (select * from items order by unit, branch, position) as i
    join held on held.name = i.seat and held.epoch = i.epoch
    cross join clock
    cross join lateral (
        select from coterie.units
        where cluster = $1 and unit = i.unit and seat = i.seat and ended_at is null and life = coalesce(i.life, life)
        offset 0
        for key share
    ) as u
on conflict (cluster, unit, branch, position) do nothing
returning unit, branch, position, at, due_at;

-- name: add_step
-- As `add_steps`, for one that has succeeded: a step of a unit that runs alone is alone in its group. Without arrays
-- it takes half the time. Its only row comes through the lock of the fence. If the position is taken it fails, which
-- is rare; a check would take longer. So it is not for transactions that do more.
insert into coterie.steps (
    cluster, unit, branch, position, kind, name, digest, done, at, value, began_at, attempts, runner
)
select $1, $5, $6, $7::bigint, 'step', $8, $9, true, now, $10::bytea, least($11::timestamptz, now), $12::int, $13
from (
    select clock_timestamp() as now -- not while the fence waits
    from (
        select from coterie.runners as r cross join coterie.seats as s cross join coterie.units as u
        where r.id = $2 and r.cluster = $1 and s.cluster = $1 and s.name = $3 and s.epoch = $4 and s.holder = $2
            and u.cluster = $1 and u.unit = $5 and u.seat = $3 and u.ended_at is null
            and u.life = coalesce($14::bigint, u.life)
        for key share of r for share of s for key share of u
    ) as fence
    offset 0
) as held
returning at;

-- name: end_units
-- End units, once each, and resolve the deferreds of their parents. Returns per unit whether the seat was held,
-- whether it was running until now, and the seat of its parent.
with items as materialized (
    select * from unnest(
        $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bytea[], $8::bytea[], $9::bytea[], $10::bigint[],
        $11::int[], $12::boolean[], $13::text[]
    ) as u (seat, epoch, unit, status, value, error, outcome, of_life, of_retries, held, failed_steps)
), /* include fence (s.name, s.epoch) */, found as materialized (
    select i.*, u.kind, u.parent, u.waited_as, u.place
    from items as i
        join held on held.name = i.seat and held.epoch = i.epoch
        cross join lateral (
            select kind, parent, waited_as, ctid as place from coterie.units
            where cluster = $1 and unit = i.unit and seat = i.seat
            offset 0
        ) as u
), locked as materialized ( -- with those who wait for them
    select u.*
    from (
        select unit from found
        union
        select parent from found where parent is not null
        order by unit offset 0
    ) as f
    cross join lateral (
        select unit, seat, life, retries, ended_at from coterie.units
        where cluster = $1 and unit = f.unit offset 0 for update
    ) as u
), clock as materialized (
    select clock_timestamp() as now from (select count(*) from locked) as fence -- not while that one waits
), ending as materialized (
    select f.*, clock.now
    from found as f join locked as l on l.unit = f.unit cross join clock
    where l.ended_at is null and l.life = coalesce(f.of_life, l.life) and l.retries = coalesce(f.of_retries, l.retries)
    order by f.unit
), kept as (
    insert into coterie.units as u (
        cluster, unit, kind, name, id, seat, status, started_at, changed_at, ended_at, value, error, interrupts_children,
        held, failed_steps
    )
    select
        $1, e.unit, e.kind, '', '', e.seat, e.status, e.now, e.now, e.now, e.value, e.error,
        e.status <> 'done' and not e.held, e.held, e.failed_steps
    from ending as e
    where e.kind = 'workflow'
    on conflict (cluster, unit) do update -- always: the row is there, and locked, see kv.sql
    set status = excluded.status, value = excluded.value, error = excluded.error, ended_at = excluded.ended_at,
        changed_at = excluded.changed_at, wake_at = null, starts_at = null, times_out_at = null, stuck = null,
        interrupts_children = excluded.interrupts_children, held = excluded.held, failed_steps = excluded.failed_steps
    returning u.unit
), gone as (
    delete from coterie.units as u
    where u.ctid = any(array(select place from ending where kind <> 'workflow'))
    returning u.unit
), over as materialized (
    select unit from kept union all select unit from gone
), forgotten as materialized (
    select coterie.forget_units($1, array(select unit from gone)) as units
), waiting as materialized (
    select e.parent, e.waited_as, e.outcome, e.now, p.life
    from ending as e
        join locked as p on p.unit = e.parent and p.ended_at is null -- else its value would wait for the next of its name
    where e.parent <> all(array(select unit from over)) -- one whose end is refused goes on
    order by e.parent, e.waited_as
), told as (
    insert into coterie.deferreds as d (cluster, unit, name, life, made_at, resolved_at, value)
    select $1, w.parent, w.waited_as, w.life, w.now, w.now, w.outcome from waiting as w
    on conflict (cluster, unit, name) do update
    set resolved_at = excluded.resolved_at, value = excluded.value, life = excluded.life
    where d.resolved_at is null or d.life <> excluded.life
    returning d.unit
), woken as (
    insert into coterie.units as u (cluster, unit, kind, name, id, seat, status, started_at, changed_at)
    select distinct $1, p.unit, 'workflow', '', '', p.seat, 'running', clock.now, clock.now
    from told join locked as p on p.unit = told.unit cross join clock
    on conflict (cluster, unit) do update -- always, as above
    set status = case when u.status = 'suspended' and u.starts_at is null then 'running' else u.status end,
        wake_at = u.starts_at, changed_at = excluded.changed_at
    returning u.unit, u.seat
)
select
    i.unit, held.name is not null as held, case
        when over.unit is not null then true
        when e.unit is not null then coterie.overtaken() is null -- it is not in its place any more
        else false
    end as written,
    coalesce(w.seat, case when over.unit is null then p.seat end) as wake
from items as i
    left join held on held.name = i.seat and held.epoch = i.epoch
    left join found as f on f.unit = i.unit
    left join ending as e on e.unit = i.unit
    left join over on over.unit = i.unit
    left join woken as w on w.unit = f.parent
    left join locked as p on p.unit = f.parent and p.ended_at is null
where (select units from forgotten) >= 0; -- a part that is not read is not run

-- name: open_unit
-- Begin or continue a unit of a leader or a tick. Returns whether the seat is held.
with /* include fence_of_one (s.name) */, begun as (
    insert into coterie.units as u (cluster, unit, kind, name, id, seat, status, started_at, changed_at, life)
    select $1, $5, $6, $7, $8, $3, 'running', clock_timestamp(), clock_timestamp(), $9::bigint from held
    on conflict (cluster, unit) do update set changed_at = excluded.changed_at where u.seat = excluded.seat
    returning u.life
), expected as (
    update coterie.deferreds set early = false -- by its unit: the index of what is early must not fit
    where cluster = $1 and unit = $5 and coalesce(early, false) and life = (select life from begun)
)
select exists (select from held) as held;

-- name: look_at_unit
-- Read a unit of a seat that is held.
select
    u.*, (select count(*) from coterie.steps as t where t.cluster = u.cluster and t.unit = u.unit and t.done) as steps,
    clock_timestamp() as now
from coterie.seats as s
    join coterie.units as u on u.cluster = $1 and u.unit = $5 and u.seat = s.name
where s.cluster = $1 and s.name = $3 and s.epoch = $4 and s.holder = $2;

-- name: steps_of_unit
-- Its steps, in order.
select branch, position, kind, name, digest, done, value, error, due_at
from coterie.steps where cluster = $1 and unit = $2 order by branch, position;

-- name: records_of_unit
-- Its steps for people, in order: with their times, and with values that have come and are not stored as results yet.
select
    s.branch, s.position, s.kind, s.name, s.digest, s.done or o.at is not null as done,
    case when o.at is null then s.value else o.value end as value, coalesce(s.error, o.error) as error, s.due_at,
    coalesce(s.began_at, case when not s.done then s.at end) as began_at,
    case when s.done then s.at else o.at end as ended_at, s.attempts, s.runner, o.rejection
from coterie.units as u
    join coterie.steps as s on s.cluster = $1 and s.unit = u.unit
    left join lateral (
        select d.resolved_at as at, d.value, null::bytea as error, d.error as rejection
        from coterie.deferreds as d
        where d.cluster = $1 and d.unit = u.unit and d.name = s.name and d.life = u.life and s.kind = 'deferred'
        union all
        select c.ended_at, c.value, c.error, null
        from coterie.units as c
        where c.cluster = $1 and c.unit = 'workflow:' || s.name and s.kind = 'child'
    ) as o on not s.done
where u.cluster = $1 and u.unit = $2
order by s.branch, s.position;

-- name: deferreds_of_unit
-- The values that came for it in this life, in order.
select name, value, error from coterie.deferreds
where cluster = $1 and unit = $2 and life = $3 and resolved_at is not null order by name;

-- name: look_for_units
-- Read the workflows to run on those of these seats that are held, a row for each (at least one for each seat), when
-- the next one is due by itself (it is suspended, its time is over, or its next life is kept), and the clock. Locks nothing.
select
    s.name as held_seat, least(w.wake_at, o.times_out_at, k.ended_at) as due_at, clock_timestamp() as now, u.*,
    (select count(*) from coterie.steps as t where t.cluster = u.cluster and t.unit = u.unit and t.done) as steps
from unnest($3::text[], $4::bigint[]) as i (seat, epoch)
    cross join lateral (
        select name from coterie.seats where cluster = $1 and name = i.seat and holder = $2 and epoch = i.epoch offset 0
    ) as s
    left join lateral (
        select wake_at from coterie.units
        where cluster = $1 and seat = i.seat and wake_at is not null
        order by wake_at limit 1
    ) as w on true
    left join lateral (
        select times_out_at from coterie.units
        where cluster = $1 and seat = i.seat and times_out_at is not null
        order by times_out_at limit 1
    ) as o on true
    left join lateral (
        select ended_at from coterie.units
        where cluster = $1 and seat = i.seat and next_life is not null and ended_at is not null and not held
        order by ended_at limit 1
    ) as k on true
    left join lateral (
        select * from coterie.units
        where cluster = $1 and seat = i.seat and status = 'running' and kind = 'workflow'
        order by started_at, unit limit $5
    ) as u on true
order by s.name, u.started_at, u.unit;

-- name: wake_due_units
-- Make suspended units running that are due, on seats that are held. One that was to begin later begins.
with /* include me */, held as materialized (
    select s.name
    from unnest($3::text[], $4::bigint[]) as u (seat, epoch)
        join coterie.seats as s on s.name = u.seat and s.epoch = u.epoch
        cross join me
    where s.cluster = $1 and s.name = any($3::text[]) and s.holder = $2
    order by s.name
    for share of s
), due as materialized (
    select u.unit
    from held cross join lateral (
        select unit from coterie.units
        where cluster = $1 and seat = held.name and wake_at <= (select clock_timestamp()) -- once: else all are looked at
        offset 0
    ) as u
    order by u.unit
)
update coterie.units as u
set status = 'running', wake_at = null, changed_at = clock_timestamp(), starts_at = null,
    started_at = case when u.starts_at is null then u.started_at else clock_timestamp() end,
    times_out_at = case
        when u.starts_at is null then u.times_out_at else clock_timestamp() + make_interval(secs => u.timeout_s)
    end
where u.cluster = $1 and u.unit = any(array(select unit from due)) and u.status = 'suspended'
    and coalesce(u.wake_at <= clock_timestamp(), false) -- by its key: the index of what is due must not fit
returning u.unit;

-- name: units_after_jobs
-- Read the suspended workflows of these seats that wait for jobs of a map which are all over, or of which one has failed. Locks
-- nothing: that a job is over stays so, and what is read too early is read again. The name of the step is the task, its
-- place is in the keys of the jobs.
select u.unit, u.seat
from (select unit, branch, position, name from coterie.steps where cluster = $1 and kind = 'map' and not done) as s
    cross join lateral (
        select unit, seat, status, life from coterie.units where cluster = $1 and unit = s.unit offset 0
    ) as u
    cross join lateral (
        select 'map:' || s.unit || ':' || u.life || ':' || s.branch || ':' || s.position as key offset 0
    ) as k
    cross join lateral (
        select count(*) filter (where ended_at is null) as open, count(*) filter (where state in (5, 7)) as failed
        from (
            select ended_at, state from coterie.jobs
            where u.status = 'suspended' and u.seat = any($2::text[])
                and cluster = $1 and task = s.name and key >= k.key || ':' and key < k.key || ';'
            order by cluster, task, key -- else any index fits an empty table
            offset 0
        ) as its
        offset 0
    ) as j
where u.status = 'suspended' and u.seat = any($2::text[]) and (j.open = 0 or j.failed > 0)
order by u.unit;

-- name: retry_stuck_units
-- Make units running that are stuck, on seats that are held: their new holder may have other code.
with /* include me */, held as materialized (
    select s.name
    from unnest($3::text[], $4::bigint[]) as u (seat, epoch)
        join coterie.seats as s on s.name = u.seat and s.epoch = u.epoch
        cross join me
    where s.cluster = $1 and s.name = any($3::text[]) and s.holder = $2
    order by s.name
    for share of s
), stuck as materialized (
    select u.unit
    from held cross join lateral (
        select unit from coterie.units where cluster = $1 and seat = held.name and stuck is not null offset 0
    ) as u
    order by u.unit
)
update coterie.units as u
set status = 'running', wake_at = null, stuck_times = 0, changed_at = clock_timestamp()
where u.cluster = $1 and u.unit = any(array(select unit from stuck)) and u.status = 'suspended' and u.stuck_times > 0
returning u.unit;

-- name: suspend_unit
-- Unload a workflow, unless one of the deferreds it waits for is resolved, or something is in one of its inboxes [M11].
with /* include fence_of_one (s.name) */, goes_on as materialized (
    select u.unit, u.life from held join coterie.units as u on u.seat = held.name
    where u.cluster = $1 and u.unit = $5 and u.ended_at is null
    for no key update of u
), made as (
    insert into coterie.deferreds as d (cluster, unit, name, life, made_at)
    select $1, g.unit, w.name, g.life, clock_timestamp()
    from goes_on as g cross join unnest($6::text[]) as w (name)
    order by w.name
    on conflict (cluster, unit, name) do update -- what came for another life is none of this one's
    set life = excluded.life, made_at = excluded.made_at, resolved_at = null, early = false, value = null, error = null
    where d.life <> excluded.life
    returning d.name
), locked as materialized (
    select d.name from coterie.deferreds as d
    where d.cluster = $1 and d.unit = $5 and d.name = any($6::text[]) and d.resolved_at is null
        and d.life = (select life from goes_on)
    order by d.name
    for share
), empty as materialized ( -- and the inboxes, which sends write
    select i.name from goes_on cross join lateral (
        select name from coterie.run_inboxes
        where cluster = $1 and unit = $5 and name = any($8::text[]) and waiting = 0 and (select count(*) from locked) >= 0
        order by name
        for share
    ) as i
), suspended as (
    update coterie.units as u
    set status = 'suspended', changed_at = clock_timestamp(), stuck = $9::bytea, stuck_times = $10::int,
        wake_at = clock_timestamp() + make_interval(secs => $7::float8)
    where u.cluster = $1 and u.unit = $5 and exists (select from goes_on) and u.ended_at is null and not u.interrupting
        and (select count(*) from made) + (select count(*) from locked) = cardinality($6::text[])
        and (select count(*) from empty) = cardinality($8::text[])
    returning u.unit
)
select case
    when not exists (select from held) then 'fenced'
    when not exists (select from goes_on) then 'over'
    when exists (select from suspended) then 'suspended'
    else 'ready'
end as told;

-- name: start_unit
-- Store a new workflow, unless there is one of its name; a child only while its parent is running. The statement that
-- ends the parent waits for this one, and so finds the child. One whose end is told to nobody is left to itself.
with parent as materialized (
    select from coterie.units where cluster = $1 and unit = $15::text and ended_at is null for key share
), /* include begins */
insert into coterie.units as u (
    cluster, unit, kind, name, id, seat, status, started_at, changed_at, starts_at, wake_at, latest_at, timeout_s,
    times_out_at, tags, payload, digest, version, parent, waited_as, life
)
select
    $1, $8, 'workflow', $9, $10, $11, b.status, b.now, b.now, b.later, b.later, b.latest_at, b.timeout_s,
    b.times_out_at, b.tags, $12, $13, $14, case when $16 <> '' then $15::text end, $16, $17::bigint
from begins as b
where $15::text is null or exists (select from parent)
on conflict (cluster, unit) do nothing
returning u.*, 0::bigint as steps;

-- name: start_via
-- As `start_unit` without a parent, in a transaction of the user, on the user's connection: see `insert_via`.
with /* include here */, /* include begins */, begun as (
    insert into coterie.units (
        cluster, unit, kind, name, id, seat, status, started_at, changed_at, starts_at, wake_at, timeout_s, times_out_at,
        tags, payload, digest, version, life
    )
    select
        $1::text, $8::text, 'workflow', $9::text, $10::text, $11::text, b.status, b.now, b.now, b.later, b.later,
        b.timeout_s, b.times_out_at, b.tags, $12::bytea, $13::bytea, $14::text, $15::bigint
    from here cross join begins as b
    where here.database = coalesce($16::text, here.database)
    on conflict (cluster, unit) do nothing
    returning unit
)
select here.database, case when b.unit is not null then pg_current_xact_id()::text end as transaction
from here left join begun as b on true;

-- name: digest_of_unit
-- The digest of a unit's payload, for a start that finds the run there.
select digest from coterie.units where cluster = $1::text and unit = $2::text;

-- name: get_unit
-- A unit.
select u.*, (select count(*) from coterie.steps as t where t.cluster = u.cluster and t.unit = u.unit and t.done) as steps
from coterie.units as u where u.cluster = $1 and u.unit = $2;

-- name: resolve_deferred
-- Store the value of a deferred of one life of a unit, unless it has one. Returns the result, and the seat of its
-- unit. Only a tick may have issued a token before its unit began: then the tick must be open, and claimed at the
-- same time.
with unit as materialized (
    select unit, seat, life, ended_at from coterie.units where cluster = $1 and unit = $2 for no key update
), going as materialized (
    select from unit where ended_at is null and life = $6::bigint
), tick as materialized (
    select from coterie.ticks
    where cluster = $1 and name = $7::text and kind = $8::text and at = $9::timestamptz and seq = $10::integer
        and claimed_at = $11::timestamptz and outcome is null and not exists (select from unit)
), resolved as (
    insert into coterie.deferreds as d (cluster, unit, name, life, made_at, resolved_at, early, value, error)
    select
        $1, $2, $3, $6::bigint, clock_timestamp(), clock_timestamp(), not exists (select from unit), $4::bytea, $5::text
    where exists (select from going) or exists (select from tick)
    on conflict (cluster, unit, name) do update
    set resolved_at = excluded.resolved_at, value = excluded.value, error = excluded.error, life = excluded.life
    where d.resolved_at is null or d.life <> excluded.life
    returning d.unit, d.early
), woken as (
    update coterie.units as u
    set status = case when u.status = 'suspended' and u.starts_at is null then 'running' else u.status end,
        wake_at = u.starts_at, changed_at = clock_timestamp() -- one that has not begun waits until then
    where u.cluster = $1 and u.unit = $2 and u.life = $6::bigint and exists (select from resolved) and u.ended_at is null
    returning u.seat
)
select
    case
        when exists (select from woken) or exists (select from resolved where early) then 'resolved'
        when exists (select from resolved) then coterie.overtaken() -- its unit has begun since
        when exists (select from going) or exists (select from tick) then 'already'
        else 'over'
    end as told,
    coalesce((select seat from woken), (select seat from unit where ended_at is null and life = $6::bigint)) as wake;

-- name: interrupt_unit
-- Request the interruption of a workflow. One that has failed and is held goes on, to undo what it has done.
update coterie.units
set interrupting = true, changed_at = clock_timestamp(), wake_at = null, status = 'running', ended_at = null,
    retries = retries + held::int, held = false
where cluster = $1 and unit = $2 and kind = 'workflow'
    and (held or (ended_at is null and (not interrupting or status = 'suspended')));

-- name: interrupt_children
-- Request the interruption of some children of workflows on these seats that failed or were interrupted. Returns them
-- and their seats.
with parents as materialized (
    select p.unit
    from unnest($2::text[]) as s (seat) cross join lateral (
        select unit from coterie.units where cluster = $1 and seat = s.seat and interrupts_children limit $3
    ) as p
), children as materialized (
    select c.unit
    from parents as p cross join lateral (
        select unit from coterie.units
        where cluster = $1 and parent = p.unit and ended_at is null and not interrupting
        order by unit limit $3
    ) as c
    order by c.unit limit $3
), locked as materialized (
    select u.unit
    from children as c cross join lateral (
        select unit from coterie.units
        where cluster = $1 and unit = c.unit and ended_at is null and not interrupting
        offset 0
        for no key update
    ) as u
)
update coterie.units as u
set interrupting = true, changed_at = clock_timestamp(), wake_at = null, status = 'running'
where u.cluster = $1 and u.unit = any(array(select unit from locked))
returning u.unit, u.seat;

-- name: forget_children
-- Unmark those of these workflows whose children are all requested to end. Returns the number.
with parents as materialized (
    select p.unit
    from unnest($2::text[]) as s (seat) cross join lateral (
        select unit from coterie.units where cluster = $1 and seat = s.seat and interrupts_children limit $3
    ) as p
    where not exists (
        select from coterie.units as c
        where c.cluster = $1 and c.parent = p.unit and c.ended_at is null and not c.interrupting
        offset 0
    )
    order by p.unit
), locked as materialized (
    select u.unit
    from parents as p cross join lateral (
        select unit from coterie.units where cluster = $1 and unit = p.unit offset 0 for no key update skip locked
    ) as u
), told as (
    update coterie.units as u set interrupts_children = false
    where u.cluster = $1 and u.unit = any(array(select unit from locked))
    returning u.unit
)
select count(*) from told;

-- name: resume_unit
-- Make a suspended workflow running, unless it has not begun.
update coterie.units
set status = 'running', wake_at = null, changed_at = clock_timestamp()
where cluster = $1 and unit = $2 and kind = 'workflow' and status = 'suspended' and starts_at is null;

-- name: list_units
-- Read units, the last changed first.
select
    u.*, (select count(*) from coterie.steps as t where t.cluster = u.cluster and t.unit = u.unit and t.done) as steps
from coterie.units as u
where cluster = $1 and ($2::text is null or status = $2) and ($3::text is null or name = $3)
    and ($4::float8 is null or started_at < clock_timestamp() - make_interval(secs => $4))
order by changed_at desc, unit
limit $5;

-- name: list_tagged_units
-- As `list_units`, for runs with a tag.
select
    u.*, (select count(*) from coterie.steps as t where t.cluster = u.cluster and t.unit = u.unit and t.done) as steps
from coterie.unit_tags as g
    join coterie.units as u on u.cluster = g.cluster and u.unit = g.unit
where g.cluster = $1 and g.name = $6 and g.value = $7 and ($2::text is null or u.status = $2)
    and ($3::text is null or u.name = $3)
    and ($4::float8 is null or u.started_at < clock_timestamp() - make_interval(secs => $4))
order by u.changed_at desc, u.unit
limit $5;

-- name: purge_units
-- Delete some ended and abandoned units, each with all its rows (W5), and values whose units never began. Returns the
-- names of the abandoned ones, and the largest number deleted of a kind.
with edge as materialized (
    select clock_timestamp() - make_interval(secs => $2::float8) as at
), old as materialized (
    select unit, kind from coterie.units
    where cluster = $1 and ended_at <= (select at from edge) and not held and next_life is null -- else it goes on
    order by ended_at limit $3
    for update skip locked
), abandoned as materialized ( -- what makes steps is not, nor what sleeps for a week
    select unit, kind from coterie.units as u
    where cluster = $1 and kind <> 'workflow' and changed_at <= (select at from edge)
        and not exists (
            select from coterie.steps as s
            where s.cluster = $1 and s.unit = u.unit
                and (s.at > (select at from edge) or (not s.done and coalesce(s.due_at > (select at from edge), true)))
            offset 0 -- one lookup for each
        )
    order by changed_at limit $3
    for update skip locked
), gone as (
    delete from coterie.units
    where cluster = $1 and unit = any(array(select unit from old union all select unit from abandoned))
    returning unit
), forgotten as materialized (
    select coterie.forget_units($1, u.units) + coterie.forget_runs($1, u.units) as units
    from (select array(select unit from gone) as units) as u
), early as (
    delete from coterie.deferreds as d
    where d.ctid = any(array(
        select ctid from coterie.deferreds
        where cluster = $1 and early and made_at <= (select at from edge)
            and not exists ( -- one that came just while its unit began
                select from coterie.units as u where u.cluster = $1 and u.unit = deferreds.unit offset 0
            )
        order by made_at limit $3
        for update skip locked
    ))
    returning 1
)
select
    array(select unit from abandoned order by unit) as abandoned,
    greatest((select count(*) from old), (select count(*) from abandoned), (select count(*) from early)) as most
where (select units from forgotten) >= 0; -- a part that is not read is not run
