-- Writes of leaders: states with their history, and reports on their work. Fenced as in fragments.sql [C1, m14].

-- name: save_states
-- As `write_states`, and copies each state into its history. Returns per key, once each, whether the seat was held
-- and whether it was written.
with items as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::text[], $6::bytea[], $7::bigint[], $8::float8[], $9::int[])
        as u (seat, epoch, key, value, version, ttl_s, keep)
), /* include fence (s.name, s.epoch, me.name as runner) */, inserted as (
    insert into coterie.states (cluster, key, seat, value, version, epoch, runner, saved_at, expires_at)
    select $1, i.key, i.seat, i.value, 1, i.epoch, held.runner, clock_timestamp(),
        clock_timestamp() + make_interval(secs => i.ttl_s)
    from items as i join held on held.name = i.seat and held.epoch = i.epoch
    where i.version = 0
    order by i.key
    on conflict (cluster, key) do nothing
    returning key, version, saved_at
), updated as (
    insert into coterie.states as t (cluster, key, seat, value, version, epoch, runner, saved_at, expires_at)
    select $1, i.key, i.seat, i.value, i.version + 1, i.epoch, i.runner, clock_timestamp(),
        clock_timestamp() + make_interval(secs => i.ttl_s)
    from (
        select i.*, held.runner
        from items as i join held on held.name = i.seat and held.epoch = i.epoch
        where i.version > 0
        offset 0 -- keeps it apart from what follows: no state is locked before the fence has given its row
    ) as i
    cross join lateral ( -- one lookup per key, see kv.sql
        select from coterie.states as s
        where s.cluster = $1 and s.key = i.key and s.version = i.version and s.epoch <= i.epoch
        for no key update
    ) as found
    on conflict (cluster, key) do update -- always: the row is there, and locked
    set value = excluded.value, version = excluded.version, epoch = excluded.epoch, seat = excluded.seat,
        runner = excluded.runner, saved_at = excluded.saved_at, expires_at = excluded.expires_at
    returning t.key, t.version, t.saved_at
), written as (
    select * from inserted union all select * from updated
), kept as (
    insert into coterie.state_history as t (cluster, key, slot, version, epoch, runner, saved_at, value)
    select $1, i.key, written.version % nullif(i.keep, 0), written.version, i.epoch, held.runner, written.saved_at,
        i.value
    from items as i
        join held on held.name = i.seat and held.epoch = i.epoch
        join written on written.key = i.key
    where i.keep > 0
    order by i.key
    on conflict (cluster, key, slot) do update
    set version = excluded.version, epoch = excluded.epoch, runner = excluded.runner, saved_at = excluded.saved_at,
        value = excluded.value, reason = ''
)
select i.key, held.name is not null as held, written.key is not null as written
from items as i
    left join held on held.name = i.seat and held.epoch = i.epoch
    left join written on written.key = i.key;

-- name: save_state
-- As `save_states`, for one state that follows another: a leader's save is nearly always alone in its group.
with /* include fence_short (r.name as runner) */, written as (
    update coterie.states as t
    set value = $6, version = t.version + 1, epoch = $4, seat = $3, runner = held.runner, saved_at = clock_timestamp(),
        expires_at = clock_timestamp() + make_interval(secs => $8::float8)
    from held
    where t.cluster = $1 and t.key = $5 and t.version = $7 and t.epoch <= $4
    returning t.version, t.runner, t.saved_at
), kept as (
    insert into coterie.state_history as t (cluster, key, slot, version, epoch, runner, saved_at, value)
    select $1, $5, version % nullif($9::int, 0), version, $4, runner, saved_at, $6
    from written
    where $9::int > 0
    on conflict (cluster, key, slot) do update
    set version = excluded.version, epoch = excluded.epoch, runner = excluded.runner, saved_at = excluded.saved_at,
        value = excluded.value, reason = ''
)
select $5::text as key, exists (select from held) as held, exists (select from written) as written;

-- name: set_aside
-- Keep a copy of states before they are overwritten. Returns per key whether the seat was held.
with items as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::text[], $6::text[]) as u (seat, epoch, key, reason)
), /* include fence (s.name, s.epoch) */, kept as (
    insert into coterie.state_history as t (cluster, key, slot, version, epoch, runner, saved_at, reason, value)
    select $1, i.key, place.slot, s.version, s.epoch, coalesce(s.runner, ''), coalesce(s.saved_at, clock_timestamp()),
        i.reason, s.value
    from items as i
        join held on held.name = i.seat and held.epoch = i.epoch
        join coterie.states as s on s.cluster = $1 and s.key = i.key
        cross join lateral ( -- its present place, else the next free one, else that of the oldest
            select coalesce(
                min(h.slot) filter (where h.version = s.version),
                case when count(*) < $7 then -1 - count(*) else (array_agg(h.slot order by h.version))[1] end
            ) as slot
            from coterie.state_history as h
            where h.cluster = $1 and h.key = i.key and h.slot < 0
        ) as place
    order by i.key
    on conflict (cluster, key, slot) do update
    set version = excluded.version, epoch = excluded.epoch, runner = excluded.runner, saved_at = excluded.saved_at,
        reason = excluded.reason, value = excluded.value
)
select i.key, held.name is not null as held
from items as i left join held on held.name = i.seat and held.epoch = i.epoch;

-- name: peek_state
-- Read a state, unless it has expired.
select value, version, epoch, coalesce(runner, '') as runner, coalesce(saved_at, clock_timestamp()) as saved_at
from coterie.states
where cluster = $1 and key = $2 and (expires_at is null or expires_at > clock_timestamp());

-- name: history_of_state
-- Read the last states of a key and those set aside, the newest first.
select value, version, epoch, runner, saved_at, reason
from coterie.state_history
where cluster = $1 and key = $2
order by version desc, slot desc;

-- name: purge_states
-- Delete some expired states with their histories. Returns the number of states.
with expired as materialized (
    select key from coterie.states
    where cluster = $1 and expires_at <= (select clock_timestamp())
    order by expires_at limit $2
    for update skip locked
), gone as (
    delete from coterie.states where cluster = $1 and key = any(array(select key from expired)) returning key
), forgotten as (
    delete from coterie.state_history where cluster = $1 and key = any(array(select key from gone))
)
select count(*) from gone;

-- name: begin_execution
-- Record a new holder. Returns whether it holds the seat, and the row.
with items as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::text[], $6::float8[]) as u (seat, epoch, leader, expected_s)
), /* include fence (s.name, s.epoch) */, begun as (
    insert into coterie.executions as x (cluster, seat, epoch, leader, known_at, since_at, alive_at, expected_s)
    select $1, i.seat, i.epoch, i.leader, clock_timestamp(), clock_timestamp(), clock_timestamp(), i.expected_s
    from items as i join held on held.name = i.seat and held.epoch = i.epoch
    on conflict (cluster, seat) do update
    set epoch = excluded.epoch, leader = excluded.leader, expected_s = excluded.expected_s,
        since_at = case when x.epoch = excluded.epoch then x.since_at else excluded.since_at end,
        alive_at = excluded.alive_at
    returning x.*
)
select held.name is not null as held, begun.*, clock_timestamp() as now
from items as i
    left join held on held.name = i.seat and held.epoch = i.epoch
    left join begun on begun.seat = i.seat;

-- name: stamp_executions
-- Store reports of leaders on their work. Returns per seat, once each, whether it was held and whether it was
-- written.
with items as materialized (
    select * from unnest(
        $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::float8[], $8::float8[], $9::text[], $10::float8[],
        $11::text[], $12::bigint[], $13::bigint[]
    ) as u (seat, epoch, key, runs, ran_s, progress_s, error, error_s, note, done, total)
), /* include fence (s.name, s.epoch) */, written as (
    update coterie.executions as x
    set alive_at = clock_timestamp(), runs = i.runs, note = i.note, done = i.done, total = i.total,
        ran_at = coalesce(clock_timestamp() - make_interval(secs => i.ran_s), x.ran_at),
        progress_at = coalesce(clock_timestamp() - make_interval(secs => i.progress_s), x.progress_at),
        error = coalesce(i.error, x.error),
        error_at = coalesce(clock_timestamp() - make_interval(secs => i.error_s), x.error_at)
    from items as i join held on held.name = i.seat and held.epoch = i.epoch
    where x.cluster = $1 and x.seat = any($3::text[]) and x.seat = i.seat and x.epoch = i.epoch
    returning x.seat
)
select i.key, held.name is not null as held, written.seat is not null as written
from items as i
    left join held on held.name = i.seat and held.epoch = i.epoch
    left join written on written.seat = i.seat;

-- name: list_executions
-- Read the records of the seats whose names begin with $2.
select *, clock_timestamp() as now
from coterie.executions
where cluster = $1 and starts_with(seat, $2)
order by seat;
