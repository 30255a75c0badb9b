-- Schedules and timers. Handlers set and cancel timers in `commit_handlers` (messages.sql).
--
-- A fire finds each row by its key, judges it by life and stamp, and writes it by its place, as the ends of messages are
-- written (see messages.sql): its messages are stored and the row moves on, or nothing of it happens. Two fires of one
-- row, or a fire and a change, meet at the row: the second finds another stamp.

-- name: due_schedules
-- Read the rows of seats that are due, and of each seat when the first of the others is. Returns the clock and the seats
-- even if there are none.
with clock as materialized (
    select clock_timestamp() as now
), seats as materialized (
    select seat from unnest($2::text[]) as u (seat)
)
select clock.now, seats.seat as of_seat, (
    select next_at from coterie.schedules
    where cluster = $1 and seat = seats.seat and next_at is not null and paused_at is null and next_at > clock.now
    order by next_at
    limit 1
) as later_at, r.*, exists (
    select from coterie.messages as m where m.cluster = $1 and m.id = r.last_id and m.status = 0
    union all
    select from coterie.jobs as j where j.cluster = $1 and j.id = r.last_id and j.ended_at is null
) as is_busy
from clock cross join seats left join lateral (
    select
        key, seat, life, definition, target, entity_type, entity_id, method, payload, since_at, next_at, stamp, last_at,
        last_id, paused_at, outcomes
    from coterie.schedules
    where cluster = $1 and seat = seats.seat and next_at is not null and paused_at is null and next_at <= clock.now
        and key <> all($3::text[])
    order by next_at
    limit $4
) as r on true
order by r.next_at, r.key;

-- name: fire_schedules
-- Store the messages and jobs of rows that are due, and move the rows on. Returns the result of each member, by number.
with items as materialized (
    select * from unnest(
        $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[], $8::timestamptz[], $9::timestamptz[],
        $10::timestamptz[], $11::text[], $12::text[], $13::boolean[], $14::text[]
    ) with ordinality as u (
        seat, epoch, key, life, stamp, due_at, next_at, last_at, last_id, outcomes, is_over, asks, n
    )
), sends as materialized (
    select * from unnest(
        $15::bigint[], $16::text[], $17::text[], $18::text[], $19::text[], $20::text[], $21::bytea[], $22::text[],
        $23::bytea[], $24::text[], $25::timestamptz[], $26::float8[], $27::text[]
    ) as u (n, id, seat, entity_type, entity_id, method, payload, key, digest, trace_id, due_at, delay_s, tags)
), new_jobs as materialized (
    select * from unnest(
        $28::bigint[], $29::text[], $30::text[], $31::text[], $32::text[], $33::text[], $34::bytea[], $35::text[],
        $36::bytea[], $37::int[], $38::float8[], $39::text[], $40::timestamptz[], $41::float8[]
    ) as u (n, id, seat, part, task, fingerprint, payload, key, digest, priority, age_s, trace_id, due_at, delay_s)
), /* include fence (s.name, s.epoch) */, judged as materialized (
    select i.*, r.place, case
        when held.name is null then 'fenced'
        when r.place is null or r.life <> i.life or r.stamp <> i.stamp or r.seat <> i.seat or r.paused_at is not null
            then 'changed'
        when i.due_at > clock_timestamp() then 'early'
        when m.status = 0 or b.is_open then 'busy'
    end as outcome
    from items as i
        left join held on held.name = i.seat and held.epoch = i.epoch
        left join lateral (
            select ctid as place, life, stamp, seat, paused_at
            from coterie.schedules where cluster = $1 and key = i.key offset 0
        ) as r on true
        left join lateral (
            select status from coterie.messages where i.asks is not null and cluster = $1 and id = i.asks offset 0
        ) as m on true
        left join lateral (
            select ended_at is null as is_open
            from coterie.jobs where i.asks is not null and cluster = $1 and id = i.asks offset 0
        ) as b on true
    order by i.key
), moved as (
    update coterie.schedules as r
    set stamp = r.stamp + 1, next_at = j.next_at, last_at = j.last_at, last_id = j.last_id, outcomes = j.outcomes,
        changed_at = statement_timestamp()
    from judged as j
    where r.ctid = j.place and j.outcome is null and not j.is_over and r.life = j.life and r.stamp = j.stamp
    returning j.n
), ended as (
    delete from coterie.schedules as r
    using judged as j
    where r.ctid = j.place and j.outcome is null and j.is_over and r.life = j.life and r.stamp = j.stamp
    returning j.n
), sent as (
    insert into coterie.messages
        (cluster, id, seat, entity_type, entity_id, method, payload, key, digest, trace_id, sent_at, due_at, tags)
    select
        $1, s.id, s.seat, s.entity_type, s.entity_id, s.method, s.payload, s.key, s.digest, s.trace_id,
        statement_timestamp(), statement_timestamp(), s.tags::jsonb
    from sends as s join judged as j on j.n = s.n
    where j.outcome is null
    order by s.id
    on conflict do nothing -- what an earlier try has sent [M4]
), sent_jobs as (
    insert into coterie.jobs
        (cluster, id, seat, part, task, fingerprint, payload, digest, priority, sent_at, due_at, rank_at, state)
    select
        $1, s.id, s.seat, s.part, s.task, s.fingerprint, s.payload, s.digest, s.priority, statement_timestamp(),
        statement_timestamp(),
        statement_timestamp() - make_interval(secs => least(greatest(s.priority * s.age_s, -9e9), 9e9)), 1
    from new_jobs as s join judged as j on j.n = s.n
    where j.outcome is null
    order by s.id
    on conflict do nothing
)
select j.n, case
    when j.outcome is not null then j.outcome
    when moved.n is not null or ended.n is not null then 'written'
    else coterie.overtaken()
end as outcome
from judged as j left join moved on moved.n = j.n left join ended on ended.n = j.n;

-- name: get_schedule
-- One row.
select
    key, seat, life, definition, target, entity_type, entity_id, method, payload, since_at, next_at, stamp, last_at,
    last_id, paused_at, outcomes, exists (
        select from coterie.messages as m where m.cluster = $1 and m.id = r.last_id and m.status = 0
        union all
        select from coterie.jobs as j where j.cluster = $1 and j.id = r.last_id and j.ended_at is null
    ) as is_busy
from coterie.schedules as r
where cluster = $1 and key = $2;

-- name: list_schedules
-- Read the rows whose keys begin so, after a key.
select
    key, seat, life, definition, target, entity_type, entity_id, method, payload, since_at, next_at, stamp, last_at,
    last_id, paused_at, outcomes
from coterie.schedules
where cluster = $1 and key >= $2 and key < $3 and key > $4
order by key
limit $5;

-- name: add_schedule
-- Store a row unless there is one with its key.
insert into coterie.schedules (
    cluster, key, seat, life, definition, target, entity_type, entity_id, method, payload, since_at, next_at, last_at, last_id,
    paused_at, outcomes, stamp, changed_at
)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, 1, statement_timestamp())
on conflict (cluster, key) do nothing
returning key;

-- name: swap_schedule
-- Write a row in place of the one that was read.
update coterie.schedules
set seat = $3, life = $4, definition = $5, target = $6, entity_type = $7, entity_id = $8, method = $9, payload = $10,
    since_at = $11, next_at = $12, last_at = $13, last_id = $14, paused_at = $15, outcomes = $16, stamp = stamp + 1,
    changed_at = statement_timestamp()
where cluster = $1 and key = $2 and life = $17 and stamp = $18
returning key;

-- name: pause_schedule
-- Pause a row that is not paused. Returns whether it is there, and whether it was not.
with found as materialized (
    select key from coterie.schedules where cluster = $1 and key = $2 for no key update
), paused as (
    update coterie.schedules
    set paused_at = statement_timestamp(), stamp = stamp + 1, changed_at = statement_timestamp()
    where cluster = $1 and key = (select key from found) and paused_at is null
    returning key
)
select exists (select from found) as there, exists (select from paused) as changed;

-- name: remove_schedule
-- Delete a row, and return it.
delete from coterie.schedules
where cluster = $1 and key = $2
returning
    key, seat, life, definition, target, entity_type, entity_id, method, payload, since_at, next_at, stamp, last_at,
    last_id, paused_at, outcomes;

-- name: purge_schedules
-- Delete rows that have been over for long. Returns the number.
with chosen as materialized (
    select key from coterie.schedules
    where cluster = $1 and next_at is null and changed_at <= clock_timestamp() - make_interval(secs => $2::float8)
    order by changed_at
    limit $3
    for update skip locked
), gone as (
    delete from coterie.schedules
    where cluster = $1 and key = any(array(select key from chosen)) and next_at is null
    returning 1
)
select count(*) from gone;
