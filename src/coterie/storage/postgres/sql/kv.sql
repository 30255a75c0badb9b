-- Rows are found by the primary key whatever the planner believes about the table. A plain join of a table with the
-- group's arrays is not safe: on a table that looks empty the planner turns it around, walks the whole cluster, and
-- keeps that plan while the table grows. So either one lookup per key (`replace`: a subquery that locks is never merged
-- into the join), or `key = any(array)`, which goes in key order (before 17 such a plan, too, can be a walk while the
-- table looks empty: sessions plan anew every few seconds).

-- name: get
-- One live entry.
select key, value, stamp
from coterie.kv
where cluster = $1 and key = $2 and (expires_at is null or expires_at > clock_timestamp());

-- name: put
-- Set keys unconditionally. Keys come sorted and once each.
insert into coterie.kv as kv (cluster, key, value, stamp, expires_at)
select $1, u.key, u.value, u.stamp, clock_timestamp() + make_interval(secs => u.ttl_s)
from unnest($2::text[], $3::bytea[], $4::bigint[], $5::float8[]) as u (key, value, stamp, ttl_s)
on conflict (cluster, key) do update
set value = excluded.value, stamp = excluded.stamp, expires_at = excluded.expires_at;

-- name: insert
-- Set keys that are absent or expired. Keys come sorted and once each. Returns the new stamps of those that were set.
insert into coterie.kv as kv (cluster, key, value, stamp, expires_at)
select $1, u.key, u.value, u.stamp, clock_timestamp() + make_interval(secs => u.ttl_s)
from unnest($2::text[], $3::bytea[], $4::bigint[], $5::float8[]) as u (key, value, stamp, ttl_s)
on conflict (cluster, key) do update
set value = excluded.value, stamp = excluded.stamp, expires_at = excluded.expires_at
where kv.expires_at <= clock_timestamp()
returning kv.stamp;

-- name: replace
-- Set live keys whose stamp is still the expected one. Keys come sorted. Returns the new stamps of those that were
-- set.
with held as materialized (
    select u.key, u.value, u.stamp, u.ttl_s
    from unnest($2::text[], $3::bigint[], $4::bytea[], $5::bigint[], $6::float8[])
        as u (key, expected, value, stamp, ttl_s)
    cross join lateral (
        select from coterie.kv
        where kv.cluster = $1 and kv.key = u.key and kv.stamp = u.expected
            and (kv.expires_at is null or kv.expires_at > clock_timestamp())
        for no key update
    ) as found
)
insert into coterie.kv as kv (cluster, key, value, stamp, expires_at)
select $1, key, value, stamp, clock_timestamp() + make_interval(secs => ttl_s) from held
on conflict (cluster, key) do update -- always: the row is there, and locked
set value = excluded.value, stamp = excluded.stamp, expires_at = excluded.expires_at
returning kv.stamp;

-- name: discard
-- Remove live keys whose stamp is still the expected one. Returns their keys and stamps.
with held as materialized (
    select key, stamp from coterie.kv
    where cluster = $1 and key = any($2::text[]) and (expires_at is null or expires_at > clock_timestamp())
    for update
)
delete from coterie.kv
where cluster = $1 and key = any(array(
    select held.key
    from unnest($2::text[], $3::bigint[]) as u (key, expected)
    join held on held.key = u.key and held.stamp = u.expected
))
returning key, stamp;

-- name: present
-- Which of these keys are live.
select key
from coterie.kv
where cluster = $1 and key = any($2::text[]) and (expires_at is null or expires_at > clock_timestamp());

-- name: remove
-- Remove keys. Returns those that were live.
with gone as (
    delete from coterie.kv
    where cluster = $1 and key = any($2::text[])
    returning key, expires_at
)
select key from gone where expires_at is null or expires_at > clock_timestamp();

-- name: count
-- How many live keys lie in a range.
select count(*)
from coterie.kv
where cluster = $1 and key >= $2 and key < $3 and (expires_at is null or expires_at > clock_timestamp());

-- name: count_from
-- How many live keys lie at or past a key.
select count(*)
from coterie.kv
where cluster = $1 and key >= $2 and (expires_at is null or expires_at > clock_timestamp());

-- name: page
-- The first live entries of a range, in order.
select key, value, stamp
from coterie.kv
where cluster = $1 and key >= $3 and key < $4 and (expires_at is null or expires_at > clock_timestamp())
order by cluster, key
limit $2;

-- name: page_from
-- The first live entries at or past a key, in order.
select key, value, stamp
from coterie.kv
where cluster = $1 and key >= $3 and (expires_at is null or expires_at > clock_timestamp())
order by cluster, key
limit $2;

-- name: clear
-- Remove the first keys of a range. Returns the number of keys examined, the number of live ones removed, and the
-- last key.
with span as materialized (
    select key from coterie.kv
    where cluster = $1 and key >= $3 and key < $4
    order by cluster, key
    limit $2
), gone as (
    delete from coterie.kv
    where cluster = $1 and key = any(array(select key from span))
    returning expires_at
)
select
    (select count(*) from span) as seen,
    (select count(*) from gone where expires_at is null or expires_at > clock_timestamp()) as removed,
    (select max(key) from span) as last;

-- name: clear_from
-- The same for the first keys at or past a key.
with span as materialized (
    select key from coterie.kv
    where cluster = $1 and key >= $3
    order by cluster, key
    limit $2
), gone as (
    delete from coterie.kv
    where cluster = $1 and key = any(array(select key from span))
    returning expires_at
)
select
    (select count(*) from span) as seen,
    (select count(*) from gone where expires_at is null or expires_at > clock_timestamp()) as removed,
    (select max(key) from span) as last;

-- name: purge
-- Delete expired entries, in key order like every other write. Each is checked again once it is locked.
with gone as (
    delete from coterie.kv
    where cluster = $1 and expires_at <= clock_timestamp() and key = any(array(
        select key from coterie.kv
        where cluster = $1 and expires_at <= (select clock_timestamp())
        order by expires_at
        limit $2
    ))
    returning 1
)
select count(*) from gone;
