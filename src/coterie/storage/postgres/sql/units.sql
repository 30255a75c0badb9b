-- Durable work. What a holder writes is fenced as in fence.sql [C1].
--
-- No wake-up is lost [M11]: who suspends a unit locks what it waits for, or makes its row, before it looks whether that has
-- come; who resolves writes that row first, and then the unit, whatever its status was when the statement began: a row that
-- was changed meanwhile is looked at once more.

-- name: write_steps
-- Store steps, once each. Per key: whether the seat was held, whether its unit goes on, whether it was written, the row.
with items as materialized (
    select * from unnest(
        $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::text[], $10::text[], $11::bytea[],
        $12::boolean[], $13::bytea[], $14::bytea[], $15::float8[]
    ) as u (seat, epoch, key, unit, branch, position, kind, name, digest, done, value, error, due_s)
), me as materialized (
    select id from coterie.runners where id = $2 and cluster = $1 for key share
), held as materialized (
    select s.name, s.epoch
    from (select distinct seat, epoch from items) as u
        join coterie.seats as s on s.name = u.seat and s.epoch = u.epoch
        cross join me
    where s.cluster = $1 and s.name = any($3::text[]) and s.holder = $2
    order by s.name
    for share of s
), clock as materialized (
    select clock_timestamp() as now from (select count(*) from held) as fence -- not while that one waits
), judged as materialized (
    select i.*, clock.now, u.place
    from items as i
        join held on held.name = i.seat and held.epoch = i.epoch
        cross join clock
        cross join lateral (
            select ctid as place from coterie.units
            where cluster = $1 and unit = i.unit and seat = i.seat and ended_at is null
            offset 0
        ) as u
    order by i.unit, i.branch, i.position
), written as (
    insert into coterie.steps as t (
        cluster, unit, branch, position, kind, name, digest, done, at, due_at, value, error
    )
    select
        $1, j.unit, j.branch, j.position, j.kind, j.name, j.digest, j.done, j.now,
        j.now + make_interval(secs => j.due_s), j.value, j.error
    from judged as j
    on conflict (cluster, unit, branch, position) do update -- what was waited for is done; nothing else ever changes
    set done = true, at = excluded.at, value = excluded.value, error = excluded.error
    where not t.done and excluded.done and t.kind = excluded.kind and t.name = excluded.name
    returning t.*
), counted as (
    update coterie.units as u
    set steps = u.steps + n.steps, changed_at = n.now
    from (
        select j.place, max(j.now) as now, count(*) filter (where w.done) as steps
        from judged as j join written as w on w.unit = j.unit and w.branch = j.branch and w.position = j.position
        group by j.place
    ) as n
    where u.ctid = n.place
)
select
    i.key, held.name is not null as held, j.unit is not null as goes_on, w.unit is not null as written,
    coalesce(j.now, clock.now) as now,
    coalesce(w.branch, t.branch) as branch, coalesce(w.position, t.position) as position, coalesce(w.kind, t.kind) as kind,
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

-- name: write_step
-- As `write_steps`, for one: a step of a unit that runs alone is alone in its group.
with me as materialized (
    select id from coterie.runners where id = $2 and cluster = $1 for key share
), held as materialized (
    select s.name
    from coterie.seats as s cross join me
    where s.cluster = $1 and s.name = $3 and s.epoch = $4 and s.holder = $2
    for share of s
), clock as materialized (
    select clock_timestamp() as now from (select count(*) from held) as fence
), goes_on as materialized (
    select u.ctid as place
    from held cross join coterie.units as u
    where u.cluster = $1 and u.unit = $6 and u.seat = $3 and u.ended_at is null
), written as (
    insert into coterie.steps as t (
        cluster, unit, branch, position, kind, name, digest, done, at, due_at, value, error
    )
    select
        $1, $6, $7, $8::bigint, $9, $10, $11, $12::boolean, clock.now, clock.now + make_interval(secs => $15::float8),
        $13::bytea, $14::bytea
    from goes_on cross join clock
    on conflict (cluster, unit, branch, position) do update
    set done = true, at = excluded.at, value = excluded.value, error = excluded.error
    where not t.done and excluded.done and t.kind = excluded.kind and t.name = excluded.name
    returning t.*
), counted as (
    update coterie.units as u
    set steps = u.steps + w.done::int, changed_at = w.at
    from goes_on as g cross join written as w
    where u.ctid = g.place
)
select
    $5::text as key, exists (select from held) as held, exists (select from goes_on) as goes_on,
    w.unit is not null as written, clock.now,
    coalesce(w.branch, t.branch) as branch, coalesce(w.position, t.position) as position, coalesce(w.kind, t.kind) as kind,
    coalesce(w.name, t.name) as name, coalesce(w.digest, t.digest) as digest, coalesce(w.done, t.done) as done,
    case when w.unit is null then t.value else w.value end as value,
    case when w.unit is null then t.error else w.error end as error,
    case when w.unit is null then t.due_at else w.due_at end as due_at
from clock
    left join written as w on true
    left join lateral (
        select * from coterie.steps where cluster = $1 and unit = $6 and branch = $7 and position = $8::bigint offset 0
    ) as t on w.unit is null;

-- name: end_units
-- End units, once each, and tell those that wait for them. Per unit: whether the seat was held, whether it went on until
-- now, and the seat of its parent.
with items as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::text[], $6::text[], $7::bytea[], $8::bytea[], $9::bytea[])
        as u (seat, epoch, unit, status, value, error, outcome)
), me as materialized (
    select id from coterie.runners where id = $2 and cluster = $1 for key share
), held as materialized (
    select s.name, s.epoch
    from (select distinct seat, epoch from items) as u
        join coterie.seats as s on s.name = u.seat and s.epoch = u.epoch
        cross join me
    where s.cluster = $1 and s.name = any($3::text[]) and s.holder = $2
    order by s.name
    for share of s
), clock as materialized (
    select clock_timestamp() as now from (select count(*) from held) as fence
), found as materialized (
    select i.*, clock.now, u.kind, u.parent, u.waited_as, u.ended_at is null as goes_on
    from items as i
        join held on held.name = i.seat and held.epoch = i.epoch
        cross join clock
        cross join lateral (
            select kind, parent, waited_as, ended_at from coterie.units
            where cluster = $1 and unit = i.unit and seat = i.seat
            offset 0
        ) as u
    order by i.unit
), kept as (
    update coterie.units as u
    set status = f.status, value = f.value, error = f.error, ended_at = f.now, changed_at = f.now, wake_at = null,
        steps = 0
    from found as f
    where f.goes_on and f.kind = 'workflow' and u.cluster = $1 and u.unit = any($5::text[]) and u.unit = f.unit
    returning u.unit
), gone as (
    delete from coterie.units as u
    using found as f
    where f.goes_on and f.kind <> 'workflow' and u.cluster = $1 and u.unit = any($5::text[]) and u.unit = f.unit
    returning u.unit
), over as materialized (
    select unit from kept union all select unit from gone
), forgotten as (
    delete from coterie.steps where cluster = $1 and unit = any(array(select unit from over))
), unresolved as (
    delete from coterie.deferreds where cluster = $1 and unit = any(array(select unit from over))
), waiting as materialized (
    select f.parent, f.waited_as, f.outcome, f.now
    from found as f
        join over on over.unit = f.unit
        cross join lateral ( -- if it is gone, its value would wait for the next one of its name
            select from coterie.units where cluster = $1 and unit = f.parent and ended_at is null offset 0
        ) as p
    where f.parent <> all(array(select unit from over)) -- one whose end is refused goes on
    order by f.parent, f.waited_as
), told as (
    insert into coterie.deferreds as d (cluster, unit, name, made_at, resolved_at, value)
    select $1, w.parent, w.waited_as, w.now, w.now, w.outcome from waiting as w
    on conflict (cluster, unit, name) do update
    set resolved_at = excluded.resolved_at, value = excluded.value
    where d.resolved_at is null
    returning d.unit
), woken as (
    update coterie.units as u
    set status = case u.status when 'suspended' then 'running' else u.status end, wake_at = null,
        changed_at = clock_timestamp()
    from (select distinct unit from told) as t
    where u.cluster = $1 and u.unit = t.unit and u.ended_at is null
    returning u.unit, u.seat
)
select
    i.unit, held.name is not null as held, over.unit is not null as written,
    coalesce(w.seat, case when over.unit is null then p.seat end) as wake
from items as i
    left join held on held.name = i.seat and held.epoch = i.epoch
    left join found as f on f.unit = i.unit
    left join over on over.unit = i.unit
    left join woken as w on w.unit = f.parent
    left join lateral (
        select seat from coterie.units where cluster = $1 and unit = f.parent and ended_at is null offset 0
    ) as p on true;

-- name: open_unit
-- Begin a unit of a leader or a tick, unless it is there. Whether the seat is held.
with me as materialized (
    select id from coterie.runners where id = $2 and cluster = $1 for key share
), held as materialized (
    select s.name
    from coterie.seats as s cross join me
    where s.cluster = $1 and s.name = $3 and s.epoch = $4 and s.holder = $2
    for share of s
), begun as (
    insert into coterie.units (cluster, unit, kind, name, id, seat, status, started_at, changed_at)
    select $1, $5, $6, $7, $8, $3, 'running', clock_timestamp(), clock_timestamp() from held
    on conflict (cluster, unit) do nothing
), expected as (
    update coterie.deferreds set early = false where cluster = $1 and unit = $5 and early and exists (select from held)
)
select exists (select from held) as held;

-- name: look_at_unit
-- A unit of a seat that is held.
select u.*, clock_timestamp() as now
from coterie.seats as s
    join coterie.units as u on u.cluster = $1 and u.unit = $5 and u.seat = s.name
where s.cluster = $1 and s.name = $3 and s.epoch = $4 and s.holder = $2;

-- name: steps_of_unit
-- Its steps, in order.
select branch, position, kind, name, digest, done, value, error, due_at
from coterie.steps where cluster = $1 and unit = $2 order by branch, position;

-- name: deferreds_of_unit
-- The values that came for it, in order.
select name, value, error from coterie.deferreds
where cluster = $1 and unit = $2 and resolved_at is not null order by name;

-- name: look_for_units
-- What is to be run on those of these seats that are held, a row for each workflow (one for each seat at least), when the next
-- one that is suspended is due by itself, and the clock. Locks nothing.
select s.name as held_seat, w.wake_at as next_at, clock_timestamp() as now, u.*
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
        select * from coterie.units
        where cluster = $1 and seat = i.seat and status = 'running' and kind = 'workflow'
        order by started_at, unit limit $5
    ) as u on true
order by s.name, u.started_at, u.unit;

-- name: wake_due_units
-- Suspended units that are due go on, on seats that are held.
with me as materialized (
    select id from coterie.runners where id = $2 and cluster = $1 for key share
), held as materialized (
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
        where cluster = $1 and seat = held.name and wake_at <= clock_timestamp()
        offset 0
    ) as u
    order by u.unit
)
update coterie.units as u
set status = 'running', wake_at = null, changed_at = clock_timestamp()
from due
where u.cluster = $1 and u.unit = due.unit and u.status = 'suspended' and u.wake_at <= clock_timestamp()
returning u.unit;

-- name: suspend_unit
-- Have nobody keep a workflow in memory, unless one of what it waits for has come [M11].
with me as materialized (
    select id from coterie.runners where id = $2 and cluster = $1 for key share
), held as materialized (
    select s.name
    from coterie.seats as s cross join me
    where s.cluster = $1 and s.name = $3 and s.epoch = $4 and s.holder = $2
    for share of s
), goes_on as materialized (
    select u.unit from held join coterie.units as u on u.seat = held.name
    where u.cluster = $1 and u.unit = $5 and u.ended_at is null
), made as (
    insert into coterie.deferreds (cluster, unit, name, made_at)
    select $1, g.unit, w.name, clock_timestamp()
    from goes_on as g cross join unnest($6::text[]) as w (name)
    order by w.name
    on conflict (cluster, unit, name) do nothing
    returning name
), locked as materialized (
    select d.name from coterie.deferreds as d
    where d.cluster = $1 and d.unit = $5 and d.name = any($6::text[]) and d.resolved_at is null
        and exists (select from goes_on)
    order by d.name
    for share
), suspended as (
    update coterie.units as u
    set status = 'suspended', changed_at = clock_timestamp(),
        wake_at = clock_timestamp() + make_interval(secs => $7::float8)
    from goes_on as g
    where u.cluster = $1 and u.unit = g.unit and u.ended_at is null and not u.interrupting
        and (select count(*) from made) + (select count(*) from locked) = cardinality($6::text[])
    returning u.unit
)
select case
    when not exists (select from held) then 'fenced'
    when not exists (select from goes_on) then 'over'
    when exists (select from suspended) then 'suspended'
    else 'ready'
end as told;

-- name: start_unit
-- A new workflow, unless there is one of its name.
with begun as (
    insert into coterie.units (
        cluster, unit, kind, name, id, seat, status, started_at, changed_at, payload, digest, version, parent, waited_as
    )
    values ($1, $2, 'workflow', $3, $4, $5, 'running', clock_timestamp(), clock_timestamp(), $6, $7, $8, $9, $10)
    on conflict (cluster, unit) do nothing
    returning *
), expected as (
    update coterie.deferreds set early = false where cluster = $1 and unit = $2 and early
)
select * from begun;

-- name: get_unit
-- A unit.
select * from coterie.units where cluster = $1 and unit = $2;

-- name: resolve_deferred
-- The value of a deferred, unless it has one. What became of it, and the seat of its unit.
with unit as materialized (
    select unit, seat, ended_at from coterie.units where cluster = $1 and unit = $2
), resolved as (
    insert into coterie.deferreds as d (cluster, unit, name, made_at, resolved_at, early, value, error)
    select $1, $2, $3, clock_timestamp(), clock_timestamp(), not exists (select from unit), $4::bytea, $5::text
    where not exists (select from unit where ended_at is not null)
    on conflict (cluster, unit, name) do update
    set resolved_at = excluded.resolved_at, value = excluded.value, error = excluded.error
    where d.resolved_at is null
    returning d.unit
), woken as (
    update coterie.units as u
    set status = case u.status when 'suspended' then 'running' else u.status end, wake_at = null,
        changed_at = clock_timestamp()
    from resolved as r
    where u.cluster = $1 and u.unit = r.unit and u.ended_at is null
    returning u.seat
)
select
    case
        when exists (select from resolved) then 'resolved'
        when exists (select from unit where ended_at is not null) then 'over'
        else 'already'
    end as told,
    coalesce((select seat from woken), (select seat from unit where ended_at is null)) as wake;

-- name: interrupt_unit
-- Ask for the end of a workflow.
update coterie.units
set interrupting = true, changed_at = clock_timestamp(), wake_at = null, status = 'running'
where cluster = $1 and unit = $2 and kind = 'workflow' and ended_at is null and (not interrupting or status = 'suspended');

-- name: resume_unit
-- Have a suspended workflow go on.
update coterie.units
set status = 'running', wake_at = null, changed_at = clock_timestamp()
where cluster = $1 and unit = $2 and kind = 'workflow' and status = 'suspended';

-- name: list_units
-- Units, those that changed last first.
select * from coterie.units
where cluster = $1 and ($2::text is null or status = $2) and ($3::text is null or name = $3)
    and ($4::float8 is null or started_at < clock_timestamp() - make_interval(secs => $4))
order by changed_at desc, unit
limit $5;

-- name: purge_units
-- Delete some units that nobody needs any more, each with all its rows (W5), and values whose units never began. The names of
-- those that were abandoned.
with edge as materialized (
    select clock_timestamp() - make_interval(secs => $2::float8) as at
), old as materialized (
    select unit, kind from coterie.units
    where cluster = $1 and ended_at <= (select at from edge)
    order by ended_at limit $3
    for update skip locked
), abandoned as materialized ( -- what sleeps for a week is not
    select unit, kind from coterie.units as u
    where cluster = $1 and kind <> 'workflow' and changed_at <= (select at from edge)
        and not exists (
            select from coterie.steps as s
            where s.cluster = $1 and s.unit = u.unit and not s.done
                and (s.due_at is null or s.due_at > (select at from edge))
        )
    order by unit limit $3
    for update skip locked
), gone as (
    delete from coterie.units
    where cluster = $1 and unit = any(array(select unit from old union all select unit from abandoned))
    returning unit
), forgotten as (
    delete from coterie.steps where cluster = $1 and unit = any(array(select unit from gone))
), unresolved as (
    delete from coterie.deferreds where cluster = $1 and unit = any(array(select unit from gone))
), early as (
    delete from coterie.deferreds as d
    where d.ctid = any(array(
        select ctid from coterie.deferreds
        where cluster = $1 and early and made_at <= (select at from edge)
        order by made_at limit $3
        for update skip locked
    ))
)
select unit from abandoned order by unit;
