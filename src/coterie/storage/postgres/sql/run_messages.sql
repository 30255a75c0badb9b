-- What is sent to runs of workflows, and what they publish [M11].
--
-- Locks go from the row of the unit to that of the inbox. The row of the inbox is written by each send, and locked by
-- each receive and suspension, so that these see what was sent just before: a statement does not see rows that were
-- added while it waited, but it sees the row that it waited for. Where the two disagree, it is run again.

-- name: send_to_run
-- Store a message for a run that has not ended, once for each id, and make the run running. One that saw no run, but
-- finds an inbox at which a run has waited, is run again.
with unit as materialized (
    select unit, seat, status, ended_at from coterie.units where cluster = $1 and unit = $2 for no key update
), there as materialized (
    select m.digest from coterie.run_messages as m
    where m.cluster = $1 and m.unit = $2 and m.name = $3 and m.id = $4 and (select count(*) from unit) >= 0 -- after it
), inbox as (
    insert into coterie.run_inboxes as i (cluster, unit, name, sent, waiting, begun, made_at)
    select $1, $2, $3, 1, 1, exists (select from unit), clock_timestamp()
    where not exists (select from there) and not exists (select from unit where ended_at is not null)
    on conflict (cluster, unit, name) do update
    set sent = i.sent + 1, waiting = i.waiting + 1, begun = i.begun or excluded.begun, made_at = excluded.made_at
    returning i.sent, i.begun
), stored as (
    insert into coterie.run_messages (cluster, unit, name, id, seq, sent_at, digest, value)
    select $1, $2, $3, $4, inbox.sent, clock_timestamp(), $5::bytea, $6::bytea from inbox
    on conflict (cluster, unit, name, id) do nothing
    returning id
), woken as (
    update coterie.units as u
    set status = case when u.status = 'suspended' and u.starts_at is null then 'running' else u.status end,
        wake_at = u.starts_at, changed_at = clock_timestamp() -- one that has not begun waits until then
    where u.cluster = $1 and u.unit = $2 and exists (select from stored) and u.ended_at is null
    returning u.seat
)
select
    case
        when not exists (select from unit) and exists (select from coterie.units where cluster = $1 and unit = $2)
            then coterie.overtaken() -- it was purged meanwhile
        when exists (select from there) then 'there'
        when exists (select from unit where ended_at is not null) then 'over'
        when not exists (select from stored) then coterie.overtaken()
        when exists (select from inbox where begun) and not exists (select from woken) then coterie.overtaken()
        else 'sent'
    end as told,
    (select digest from there) as digest,
    (select seat from unit where ended_at is null) as wake,
    (select status from unit where ended_at is not null) as status;

-- name: receive_message
-- Take the oldest message of a name into a step; without one, store its time-out if it is due, else that it waits.
with /* include fence_of_one (s.name) */, goes_on as materialized (
    select u.unit, u.life from held join coterie.units as u on u.seat = held.name
    where u.cluster = $1 and u.unit = $5 and u.ended_at is null and u.life = coalesce($12::bigint, u.life)
    for no key update of u
), there as materialized (
    select t.* from goes_on cross join lateral (
        select * from coterie.steps where cluster = $1 and unit = $5 and branch = $6 and position = $7::bigint
        offset 0 for no key update
    ) as t
), open as materialized (
    select unit, life from goes_on where not exists (select from there where done or kind <> 'receive' or name <> $8)
), known as materialized (
    select i.waiting from open cross join lateral (
        select waiting from coterie.run_inboxes where cluster = $1 and unit = $5 and name = $8 offset 0 for no key update
    ) as i
), first as materialized (
    select m.id, m.value from known cross join lateral (
        select id, value from coterie.run_messages
        where cluster = $1 and unit = $5 and name = $8 and received_at is null and known.waiting > 0
        order by seq limit 1
    ) as m
), taken as (
    update coterie.run_messages as m
    set received_at = clock_timestamp(), value = null, life = open.life, branch = $6, position = $7::bigint
    from open
    where m.cluster = $1 and m.unit = $5 and m.name = $8 and m.id = (select id from first) and m.received_at is null
    returning m.id
), inbox as (
    insert into coterie.run_inboxes as i (cluster, unit, name, sent, waiting, begun, made_at)
    select $1, $5, $8, 0, 0, true, clock_timestamp() from open
    on conflict (cluster, unit, name) do update
    set waiting = i.waiting - (select count(*) from taken), begun = true
    returning i.waiting
), clock as materialized (
    select clock_timestamp() as now from (select count(*) from inbox) as locked -- not while that one waits
), decided as materialized (
    select
        clock.now, exists (select from taken) as is_taken,
        not exists (select from taken) and coalesce(t.due_at <= clock.now, false) as is_late,
        t.unit is null as is_new
    from open cross join clock left join there as t on true
), written as (
    insert into coterie.steps as t (
        cluster, unit, branch, position, kind, name, digest, done, at, due_at, value, error, began_at, runner
    )
    select
        $1, $5, $6, $7::bigint, 'receive', $8, '', d.is_taken or d.is_late, d.now,
        d.now + make_interval(secs => $9::float8), case when d.is_taken then (select value from first) end,
        case when d.is_late then $10::bytea end, d.now, $11
    from decided as d
    where d.is_taken or d.is_late or d.is_new
    on conflict (cluster, unit, branch, position) do update -- it waited
    set done = true, at = excluded.at, value = excluded.value, error = excluded.error,
        began_at = coalesce(t.began_at, t.at), runner = excluded.runner
    where not t.done and excluded.done and t.kind = excluded.kind and t.name = excluded.name
    returning t.*
)
select
    case
        when not exists (select from held) then 'fenced'
        when not exists (select from goes_on) then 'over'
        when w.unit is not null then 'written'
        when d.is_taken or d.is_late or d.is_new then coterie.overtaken()
        else 'there'
    end as told,
    case when d.is_taken or (select waiting from inbox) = 0 or d.now is null then clock.now
         else coterie.overtaken()::timestamptz -- what is waiting was not seen
    end as now,
    coalesce(w.branch, t.branch) as branch, coalesce(w.position, t.position) as position,
    coalesce(w.kind, t.kind) as kind, coalesce(w.name, t.name) as name, coalesce(w.digest, t.digest) as digest,
    coalesce(w.done, t.done) as done, case when w.unit is null then t.value else w.value end as value,
    case when w.unit is null then t.error else w.error end as error,
    case when w.unit is null then t.due_at else w.due_at end as due_at
from clock
    left join decided as d on true
    left join written as w on true
    left join there as t on true;

-- name: publish_value
-- Store a value under the next number of its name, and its step, unless the step is stored. Old values of the name go.
with /* include fence_of_one (s.name) */, goes_on as materialized (
    select u.unit from held join coterie.units as u on u.seat = held.name
    where u.cluster = $1 and u.unit = $5 and u.ended_at is null and u.life = coalesce($12::bigint, u.life)
    for no key update of u
), there as materialized (
    select t.* from goes_on cross join lateral (
        select * from coterie.steps where cluster = $1 and unit = $5 and branch = $6 and position = $7::bigint offset 0
    ) as t
), next as materialized (
    select coalesce(max(p.seq), 0) + 1 as seq
    from goes_on left join coterie.published as p on p.cluster = $1 and p.unit = $5 and p.name = $8
), clock as materialized (
    select clock_timestamp() as now from (select count(*) from goes_on) as locked -- not while that one waits
), stored as (
    insert into coterie.published (cluster, unit, name, seq, at, value)
    select $1, g.unit, $8, next.seq, clock.now, $9::bytea
    from goes_on as g cross join next cross join clock
    where not exists (select from there)
    on conflict (cluster, unit, name, seq) do nothing
    returning seq
), written as (
    insert into coterie.steps (
        cluster, unit, branch, position, kind, name, digest, done, at, began_at, runner
    )
    select $1, g.unit, $6, $7::bigint, 'publish', $8, '', true, clock.now, clock.now, $10
    from goes_on as g cross join clock
    where not exists (select from there)
    on conflict (cluster, unit, branch, position) do nothing
    returning *
), trimmed as (
    delete from coterie.published
    where cluster = $1 and unit = $5 and name = $8 and seq <= (select seq from stored) - $11::bigint
)
select
    case
        when not exists (select from held) then 'fenced'
        when not exists (select from goes_on) then 'over'
        when t.unit is not null then 'there'
        when w.unit is null or not exists (select from stored) then coterie.overtaken()
        else 'written'
    end as told,
    clock.now, coalesce(w.branch, t.branch) as branch, coalesce(w.position, t.position) as position,
    coalesce(w.kind, t.kind) as kind, coalesce(w.name, t.name) as name, coalesce(w.digest, t.digest) as digest,
    coalesce(w.done, t.done) as done, coalesce(w.value, t.value) as value, coalesce(w.error, t.error) as error,
    coalesce(w.due_at, t.due_at) as due_at
from clock
    left join written as w on true
    left join there as t on true;

-- name: give_back_messages
-- Store who has won a race, unless that is stored, and let the messages that these steps have received wait again.
with /* include fence_of_one (s.name) */, goes_on as materialized (
    select u.unit, u.life from held join coterie.units as u on u.seat = held.name
    where u.cluster = $1 and u.unit = $5 and u.ended_at is null and u.life = coalesce($13::bigint, u.life)
    for no key update of u
), there as materialized (
    select t.* from goes_on cross join lateral (
        select * from coterie.steps where cluster = $1 and unit = $5 and branch = $6 and position = $7::bigint
        offset 0 for no key update
    ) as t
), received as materialized (
    select t.name, t.branch, t.position, t.value
    from goes_on cross join unnest($11::text[], $12::bigint[]) as i (branch, position)
        cross join lateral (
            select name, branch, position, value from coterie.steps
            where cluster = $1 and unit = $5 and branch = i.branch and position = i.position and kind = 'receive'
            offset 0
        ) as t
    where not exists (select from there) and exists ( -- else it was purged
        select from coterie.run_messages as m
        where m.cluster = $1 and m.unit = $5 and m.name = t.name and m.life = goes_on.life and m.branch = t.branch
            and m.position = t.position and m.received_at is not null
    )
), inboxes as (
    update coterie.run_inboxes as i set waiting = i.waiting + r.count
    from (select name, count(*) as count from received group by name order by name) as r
    where i.cluster = $1 and i.unit = $5 and i.name = r.name
    returning i.name
), given as (
    update coterie.run_messages as m
    set received_at = null, value = r.value, life = null, branch = null, position = null
    from received as r cross join goes_on as g
    where m.cluster = $1 and m.unit = $5 and m.name = r.name and m.life = g.life and m.branch = r.branch
        and m.position = r.position and m.received_at is not null and (select count(*) from inboxes) >= 0
    returning m.id
), clock as materialized (
    select clock_timestamp() as now from (select count(*) from goes_on) as locked -- not while that one waits
), written as (
    insert into coterie.steps (
        cluster, unit, branch, position, kind, name, digest, done, at, value, began_at, runner
    )
    select $1, g.unit, $6, $7::bigint, 'first', $8, '', true, clock.now, $9::bytea, clock.now, $10
    from goes_on as g cross join clock
    where not exists (select from there)
    on conflict (cluster, unit, branch, position) do nothing
    returning *
)
select
    case
        when not exists (select from held) then 'fenced'
        when not exists (select from goes_on) then 'over'
        when t.unit is not null then 'there'
        when w.unit is null or (select count(*) from given) <> (select count(*) from received) then coterie.overtaken()
        else 'written'
    end as told,
    clock.now, coalesce(w.branch, t.branch) as branch, coalesce(w.position, t.position) as position,
    coalesce(w.kind, t.kind) as kind, coalesce(w.name, t.name) as name, coalesce(w.digest, t.digest) as digest,
    coalesce(w.done, t.done) as done, coalesce(w.value, t.value) as value, coalesce(w.error, t.error) as error,
    coalesce(w.due_at, t.due_at) as due_at
from clock
    left join written as w on true
    left join there as t on true;

-- name: published_after
-- Values of a name after a number, in order.
select seq, value, at from coterie.published
where cluster = $1 and unit = $2 and name = $3 and seq > $4::bigint order by seq limit $5;

-- name: last_published
-- The last value of a name.
select seq, value, at from coterie.published where cluster = $1 and unit = $2 and name = $3 order by seq desc limit 1;

-- name: published_names
-- The names under which a run has published, with the last value of each.
select n.name, l.seq, l.value, l.at
from (
    select distinct name from coterie.published where cluster = $1 and unit = $2 order by name limit $3
) as n cross join lateral (
    select seq, value, at from coterie.published where cluster = $1 and unit = $2 and name = n.name
    order by seq desc limit 1
) as l
order by n.name;

-- name: waiting_messages
-- How many messages to a run wait, by name, and since when.
select name, count(*) as count, min(sent_at) as since_at from coterie.run_messages
where cluster = $1 and unit = $2 and received_at is null group by name order by name limit $3;

-- name: purge_run_messages
-- Delete some messages that were received long ago, and some inboxes of runs that never began, with what was sent there.
-- Returns the larger number.
with edge as materialized (
    select clock_timestamp() - make_interval(secs => $2::float8) as at
), early as materialized (
    select unit, name from coterie.run_inboxes as i
    where cluster = $1 and not begun and made_at <= (select at from edge)
        and not exists ( -- one whose run has just begun
            select from coterie.units as u where u.cluster = $1 and u.unit = i.unit offset 0
        )
    order by made_at limit $3
    for update skip locked
), forgotten as (
    delete from coterie.run_inboxes as i using early as e where i.cluster = $1 and i.unit = e.unit and i.name = e.name
    returning 1
), unread as (
    delete from coterie.run_messages as m using early as e where m.cluster = $1 and m.unit = e.unit and m.name = e.name
), received as (
    delete from coterie.run_messages as m
    where m.ctid = any(array(
        select ctid from coterie.run_messages
        where cluster = $1 and received_at <= (select at from edge)
        order by received_at limit $3
        for update skip locked
    ))
    returning 1
)
select greatest((select count(*) from forgotten), (select count(*) from received)) as most;
