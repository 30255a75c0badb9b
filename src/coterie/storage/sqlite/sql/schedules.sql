-- Schedules and timers. `index schedules_due` has those that wait, and none that is paused or over.

-- name: due
-- The rows of a seat that are due.
select
    key, seat, life, definition, target, entity_type, entity_id, method, payload, since_at_ns, next_at_ns, stamp, last_at_ns,
    last_id, paused_at_ns, outcomes, exists (
        select 1 from messages as m where m.cluster = :cluster and m.id = r.last_id and m.status = 0
        union all
        select 1 from jobs as j where j.cluster = :cluster and j.id = r.last_id and j.ended_at_ns is null
    )
from schedules as r indexed by schedules_due
where cluster = :cluster and seat = :seat and next_at_ns <= :now_ns and paused_at_ns is null
    and key not in (select value from json_each(:without))
order by next_at_ns
limit :most;

-- name: later
-- When the first of the others is due.
select next_at_ns from schedules indexed by schedules_due
where cluster = :cluster and seat = :seat and next_at_ns > :now_ns and paused_at_ns is null
order by next_at_ns
limit 1;

-- name: get
-- One row.
select
    key, seat, life, definition, target, entity_type, entity_id, method, payload, since_at_ns, next_at_ns, stamp, last_at_ns,
    last_id, paused_at_ns, outcomes, exists (
        select 1 from messages as m where m.cluster = :cluster and m.id = r.last_id and m.status = 0
        union all
        select 1 from jobs as j where j.cluster = :cluster and j.id = r.last_id and j.ended_at_ns is null
    )
from schedules as r
where cluster = :cluster and key = :key;

-- name: list
-- The rows whose keys begin so, after a key.
select
    key, seat, life, definition, target, entity_type, entity_id, method, payload, since_at_ns, next_at_ns, stamp, last_at_ns,
    last_id, paused_at_ns, outcomes, 0
from schedules
where cluster = :cluster and key >= :prefix and key < :until and key > :after
order by key
limit :most;

-- name: add
-- A row, unless there is one with its key.
insert into schedules (
    cluster, key, seat, life, stamp, definition, target, entity_type, entity_id, method, payload, since_at_ns, next_at_ns,
    last_at_ns, last_id, paused_at_ns, outcomes, changed_at_ns
)
values (
    :cluster, :key, :seat, :life, 1, :definition, :target, :entity_type, :entity_id, :method, :payload, :since_at_ns,
    :next_at_ns, :last_at_ns, :last_id, :paused_at_ns, :outcomes, :now_ns
)
on conflict do nothing;

-- name: set
-- A timer, in place of the one that has its key.
insert or replace into schedules (
    cluster, key, seat, life, stamp, definition, target, entity_type, entity_id, method, payload, since_at_ns, next_at_ns,
    outcomes, changed_at_ns
)
values (
    :cluster, :key, :seat, :life, 1, :definition, :target, :entity_type, :entity_id, :method, :payload, :since_at_ns,
    :next_at_ns, '[]', :now_ns
);

-- name: swap
-- A row in place of the one that was read.
update schedules set
    seat = :seat, life = :life, stamp = stamp + 1, definition = :definition, target = :target, entity_type = :entity_type,
    entity_id = :entity_id, method = :method, payload = :payload, since_at_ns = :since_at_ns, next_at_ns = :next_at_ns,
    last_at_ns = :last_at_ns, last_id = :last_id, paused_at_ns = :paused_at_ns, outcomes = :outcomes,
    changed_at_ns = :now_ns
where cluster = :cluster and key = :key and life = :was_life and stamp = :was_stamp;

-- name: state
-- What decides about a fire.
select life, stamp, seat, paused_at_ns is not null from schedules where cluster = :cluster and key = :key;

-- name: busy
-- Whether a message or job is not over: one row if so.
select 1 from messages where cluster = :cluster and id = :id and status = 0
union all
select 1 from jobs where cluster = :cluster and id = :id and ended_at_ns is null;

-- name: fire
-- A row moves on.
update schedules set
    stamp = stamp + 1, next_at_ns = :next_at_ns, last_at_ns = :last_at_ns, last_id = :last_id, outcomes = :outcomes,
    changed_at_ns = :now_ns
where cluster = :cluster and key = :key;

-- name: pause
-- A row is not due any more.
update schedules set paused_at_ns = :now_ns, stamp = stamp + 1, changed_at_ns = :now_ns
where cluster = :cluster and key = :key and paused_at_ns is null;

-- name: remove
-- No row of this key.
delete from schedules where cluster = :cluster and key = :key;

-- name: purge
-- Delete rows that have been over for long.
delete from schedules where (cluster, key) in (
    select cluster, key from schedules indexed by schedules_over
    where cluster = :cluster and next_at_ns is null and changed_at_ns <= :before_ns
    order by changed_at_ns
    limit :most
);
