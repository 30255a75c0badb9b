-- Further lives of workflows. A statement that begins one locks the unit's row, so that it waits for steps that are
-- being added, and then forgets what belongs to the life that is over [W5]. A step names its life, so that one that is
-- late is not added to the next [W12].

-- name: renew_unit
-- End one life of a running workflow and begin the next in its place. Repeated, it returns the same.
with /* include fence_of_one (s.name) */, going as materialized (
    select u.unit, u.life from held join coterie.units as u on u.seat = held.name
    where u.cluster = $1 and u.unit = $5 and u.kind = 'workflow' and u.ended_at is null
    for update of u
), forgotten as materialized (
    select coterie.forget_units($1, array(select unit from going where life = $6::bigint)) as units
), renewed as (
    update coterie.units as u
    set life = $7::bigint, payload = $8, version = $9, status = 'running', wake_at = null, retries = 0,
        started_at = clock_timestamp(), changed_at = clock_timestamp()
    where u.cluster = $1 and u.unit = $5 and exists (select from going where life = $6::bigint)
        and (select units from forgotten) > 0
    returning u.unit
)
select case
    when not exists (select from held) then 'fenced'
    when exists (select from renewed) or exists (select from going where life = $7::bigint) then 'renewed'
    else 'over'
end as told;

-- name: start_again
-- Begin the next life of a workflow that is over, once its children need not be asked to end any more.
with over as materialized (
    select unit from coterie.units
    where cluster = $1 and unit = $8 and kind = 'workflow' and ended_at is not null and not held
        and not interrupts_children
    for update
), forgotten as materialized (
    select coterie.forget_units($1, array(select unit from over)) as units
), /* include begins */
update coterie.units as u
set life = $9::bigint, payload = $10, digest = $11, version = $12, status = b.status, interrupting = false,
    interrupted_for = '', parent = null, waited_as = '', value = null, error = null, failed_steps = '', retries = 0,
    ended_at = null, started_at = b.now, changed_at = b.now, starts_at = b.later, wake_at = b.later,
    latest_at = b.latest_at, timeout_s = b.timeout_s, times_out_at = b.times_out_at, tags = coalesce(b.tags, u.tags),
    next_life = null, next_at = null, next_latest_at = null, next_timeout_s = null, next_version = null,
    next_tags = null, next_digest = null, next_payload = null
from begins as b
where u.cluster = $1 and u.unit = $8 and exists (select from over) and (select units from forgotten) > 0
returning u.*, 0::bigint as steps;

-- name: retry_units
-- Have runs go on that have failed: a run, and the children whose failures have ended it. The steps whose errors have
-- ended them go, with the values that had come for them; all else stays, and so does the life. All of them, or none: if
-- one was retried meanwhile, or a compensation of one is stored, which is complete once a run is seen to be over [W9].
with items as materialized (
    select * from unnest($2::text[], $3::bigint[], $4::int[]) as u (unit, of_life, of_retries)
), found as materialized (
    select i.unit, exists (
        select from coterie.steps as t where t.cluster = $1 and t.unit = i.unit and t.kind = 'compensation'
    ) as undone
    from items as i cross join lateral (
        select from coterie.units
        where cluster = $1 and unit = i.unit and life = i.of_life and retries = i.of_retries
            and status in ('failed', 'interrupted')
        offset 0
    ) as u
), locked as materialized (
    select u.unit, u.life, u.retries, u.status
    from (select unit from items order by unit offset 0) as i cross join lateral (
        select unit, life, retries, status from coterie.units
        where cluster = $1 and unit = i.unit
        offset 0
        for update
    ) as u
), good as materialized (
    select i.unit
    from items as i
        join found as f on f.unit = i.unit and not f.undone
        join locked as l on l.unit = i.unit and l.life = i.of_life and l.retries = i.of_retries
    where l.status in ('failed', 'interrupted')
), chosen as materialized (
    select unit from good where (select count(*) from good) = (select count(*) from items)
), steps_gone as (
    delete from coterie.steps as t
    using unnest($5::text[], $6::text[], $7::bigint[]) as p (unit, branch, position)
    where t.cluster = $1 and t.unit = p.unit and t.branch = p.branch and t.position = p.position
        and p.unit = any(array(select unit from chosen))
    returning t.unit
), values_gone as (
    delete from coterie.deferreds as d
    using unnest($8::text[], $9::text[]) as p (unit, name)
    where d.cluster = $1 and d.unit = p.unit and d.name = p.name and p.unit = any(array(select unit from chosen))
    returning d.unit
), retried as (
    update coterie.units as u
    set status = 'running', ended_at = null, value = null, error = null, failed_steps = '', held = false,
        interrupting = false, interrupted_for = '', interrupts_children = false, retries = u.retries + 1,
        changed_at = clock_timestamp(), times_out_at = clock_timestamp() + make_interval(secs => u.timeout_s) -- anew
    where u.cluster = $1 and u.unit = any(array(select unit from chosen))
    returning u.unit
)
select case
    when exists (select from retried) then 'retried'
    when exists (select from found where undone) then 'undone'
    else 'changed'
end as told;

-- name: fork_unit
-- Store a new workflow with steps of another, unless there is one of its name, or the other has begun to undo them [W9].
with source as materialized (
    select from coterie.units where cluster = $1 and unit = $2 and life = $3::bigint and kind = 'workflow' for share
), undone as materialized (
    select from coterie.steps where cluster = $1 and unit = $2 and kind = 'compensation' limit 1
), begun as (
    insert into coterie.units as u (
        cluster, unit, kind, name, id, seat, status, started_at, changed_at, payload, digest, version, life
    )
    select
        $1, $4, 'workflow', $5, $6, $7, 'running', clock_timestamp(), clock_timestamp(), $8::bytea, $9::bytea, $10,
        $11::bigint
    from source
    where not exists (select from undone)
    on conflict (cluster, unit) do nothing
    returning u.unit
), copied as (
    insert into coterie.steps (
        cluster, unit, branch, position, kind, name, digest, done, at, value, error, began_at, attempts, runner
    )
    select $1, b.unit, s.branch, s.position, s.kind, s.name, s.digest, true, s.at, s.value, s.error, s.began_at,
        s.attempts, s.runner
    from begun as b cross join unnest(
        $12::text[], $13::bigint[], $14::text[], $15::text[], $16::bytea[], $17::timestamptz[], $18::bytea[],
        $19::bytea[], $20::timestamptz[], $21::int[], $22::text[]
    ) as s (branch, position, kind, name, digest, at, value, error, began_at, attempts, runner)
    order by s.branch, s.position
    returning unit
)
select case
    when exists (select from begun) then 'started'
    when not exists (select from source) then 'gone'
    when exists (select from undone) then 'undone'
    else 'there'
end as told;
