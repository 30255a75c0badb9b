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
    where cluster = $1 and unit = $2 and kind = 'workflow' and ended_at is not null and not held
        and not interrupts_children
    for update
), forgotten as materialized (
    select coterie.forget_units($1, array(select unit from over)) as units
)
update coterie.units as u
set life = $3::bigint, payload = $4, digest = $5, version = $6, status = 'running', interrupting = false, parent = null,
    waited_as = '', value = null, error = null, failed_steps = '', retries = 0, ended_at = null,
    started_at = clock_timestamp(), changed_at = clock_timestamp()
where u.cluster = $1 and u.unit = $2 and exists (select from over) and (select units from forgotten) > 0
returning u.*, 0::bigint as steps;
