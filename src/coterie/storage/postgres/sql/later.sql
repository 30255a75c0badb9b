-- Runs that begin later (W14). One that has not begun is suspended, and has `starts_at`. Its begin and a start that puts
-- it off change the same row: one of them wins. What is kept as the next life of a run begins once that run is over.

-- name: push_start
-- Put off a run that has not begun, and replace its payload. Its begin changes the same row: one of them wins.
with /* include begins */
update coterie.units as u
set life = $9::bigint, payload = $10, digest = $11, version = $12, changed_at = b.now,
    starts_at = least(b.at, u.latest_at), wake_at = least(b.at, u.latest_at), latest_at = least(u.latest_at, b.latest_at),
    timeout_s = b.timeout_s, tags = coalesce(b.tags, u.tags)
from begins as b
where u.cluster = $1 and u.unit = $8 and u.status = 'suspended' and u.starts_at is not null
returning u.*, 0::bigint as steps;

-- name: keep_start
-- Keep a payload and a time as the next life of a run that has begun and is not over; another one replaces them. Not by the
-- start that has begun this life: its answer was lost.
with /* include begins */
update coterie.units as u
set next_life = $9::bigint, next_payload = $10, next_digest = $11, next_version = $12, changed_at = b.now,
    next_at = least(b.at, u.next_latest_at), next_latest_at = least(u.next_latest_at, b.latest_at),
    next_timeout_s = b.timeout_s, next_tags = coalesce(b.tags, u.next_tags)
from begins as b
where u.cluster = $1 and u.unit = $8 and u.kind = 'workflow' and u.life <> $9::bigint and (u.ended_at is null or u.held)
    and not (u.status = 'suspended' and u.starts_at is not null)
returning u.*, (select count(*) from coterie.steps as t where t.cluster = $1 and t.unit = $8 and t.done) as steps;

-- name: begin_kept
-- Begin the next lives that are kept of workflows that are over, on seats that are held: they wait until they are due. Those
-- whose children are still to be asked to end wait for that.
with /* include me */, held as materialized (
    select s.name
    from unnest($3::text[], $4::bigint[]) as u (seat, epoch)
        join coterie.seats as s on s.name = u.seat and s.epoch = u.epoch
        cross join me
    where s.cluster = $1 and s.name = any($3::text[]) and s.holder = $2
    order by s.name
    for share of s
), found as materialized (
    select u.unit
    from held cross join lateral (
        select unit from coterie.units
        where cluster = $1 and seat = held.name and next_life is not null and ended_at is not null and not held
        order by ended_at limit $5
    ) as u
    order by u.unit
), over as materialized (
    select u.unit
    from found as f cross join lateral (
        select unit from coterie.units
        where cluster = $1 and unit = f.unit and next_life is not null and ended_at is not null and not held
            and not interrupts_children
        offset 0
        for update
    ) as u
), forgotten as materialized (
    select coterie.forget_units($1, array(select unit from over)) as units
)
update coterie.units as u
set life = u.next_life, payload = u.next_payload, digest = u.next_digest, version = u.next_version, status = 'suspended',
    interrupting = false, interrupted_for = '', parent = null, waited_as = '', value = null, error = null,
    failed_steps = '', retries = 0, ended_at = null, started_at = clock_timestamp(), changed_at = clock_timestamp(),
    starts_at = u.next_at, wake_at = u.next_at, latest_at = u.next_latest_at, timeout_s = u.next_timeout_s,
    times_out_at = null, tags = coalesce(u.next_tags, u.tags),
    next_life = null, next_at = null, next_latest_at = null, next_timeout_s = null, next_version = null,
    next_tags = null, next_digest = null, next_payload = null
where u.cluster = $1 and u.unit = any(array(select unit from over)) and (select units from forgotten) > 0
returning u.unit;

-- name: time_out_units
-- Ask workflows to end whose time is over, on seats that are held.
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
        where cluster = $1 and seat = held.name and times_out_at <= (select clock_timestamp())
        offset 0
    ) as u
    order by u.unit
), locked as materialized (
    select u.unit
    from due as d cross join lateral (
        select unit from coterie.units
        where cluster = $1 and unit = d.unit and ended_at is null and coalesce(times_out_at <= clock_timestamp(), false)
        offset 0
        for no key update
    ) as u
)
update coterie.units as u
set interrupting = true, times_out_at = null, wake_at = null, status = 'running', changed_at = clock_timestamp(),
    interrupted_for = case when u.interrupting then u.interrupted_for else 'timeout' end
where u.cluster = $1 and u.unit = any(array(select unit from locked))
returning u.unit;
