-- Writes of states and keys in the name of seats, fenced as in fragments.sql [C1].

-- name: verify
-- Returns those of these (seat, epoch) that the runner holds.
with /* include me */
select s.name, s.epoch
from unnest($3::text[], $4::bigint[]) as u (seat, epoch)
    join coterie.seats as s on s.name = u.seat and s.epoch = u.epoch
    cross join me
where s.cluster = $1 and s.name = any($3::text[]) and s.holder = $2
order by s.name
for share of s;

-- name: write_states
-- Write states whose version is still the expected one (0: none yet). Returns per key, once each, whether the seat
-- was held and whether it was written. Held and not written: another version is stored [M4].
with items as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::text[], $6::bytea[], $7::bigint[])
        as u (seat, epoch, key, value, version)
), /* include fence (s.name, s.epoch) */, inserted as (
    insert into coterie.states (cluster, key, seat, value, version, epoch)
    select $1, i.key, i.seat, i.value, 1, i.epoch
    from items as i join held on held.name = i.seat and held.epoch = i.epoch
    where i.version = 0
    order by i.key
    on conflict (cluster, key) do nothing
    returning key
), updated as (
    insert into coterie.states as t (cluster, key, seat, value, version, epoch)
    select $1, i.key, i.seat, i.value, i.version + 1, i.epoch
    from (
        select i.*
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
    set value = excluded.value, version = excluded.version, epoch = excluded.epoch, seat = excluded.seat
    returning t.key
)
select i.key, held.name is not null as held, written.key is not null as written
from items as i
    left join held on held.name = i.seat and held.epoch = i.epoch
    left join (select key from inserted union all select key from updated) as written on written.key = i.key;

-- name: claim_states
-- Load states for a new holder, and mark the rows with its epoch. Returns per key whether the seat is held, value and
-- version (null and 0: none yet), and whether it has expired.
with items as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::text[]) as u (seat, epoch, key)
), /* include fence (s.name, s.epoch) */, claimed as (
    update coterie.states as t
    set epoch = i.epoch, seat = i.seat
    from items as i join held on held.name = i.seat and held.epoch = i.epoch
    where t.cluster = $1 and t.key = any($5::text[]) and t.key = i.key and t.epoch <= i.epoch
    returning t.key, t.value, t.version, coalesce(t.expires_at <= clock_timestamp(), false) as expired
)
select i.key, held.name is not null as held, claimed.value, coalesce(claimed.version, 0) as version,
    coalesce(claimed.expired, false) as expired
from items as i
    left join held on held.name = i.seat and held.epoch = i.epoch
    left join claimed on claimed.key = i.key;

-- name: put_kv
-- Set keys of the key-value store unconditionally. Each key occurs once. Returns per key whether the seat was held
-- and whether it was written.
with items as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::text[], $6::bytea[], $7::bigint[], $8::float8[])
        as u (seat, epoch, key, value, stamp, ttl_s)
), /* include fence (s.name, s.epoch) */, written as (
    insert into coterie.kv as kv (cluster, key, value, stamp, expires_at)
    select $1, i.key, i.value, i.stamp, clock_timestamp() + make_interval(secs => i.ttl_s)
    from items as i join held on held.name = i.seat and held.epoch = i.epoch
    order by i.key
    on conflict (cluster, key) do update
    set value = excluded.value, stamp = excluded.stamp, expires_at = excluded.expires_at
    returning kv.key
)
select i.key, held.name is not null as held, written.key is not null as written
from items as i
    left join held on held.name = i.seat and held.epoch = i.epoch
    left join written on written.key = i.key;

-- name: swap_kv
-- Change keys whose stamp is still the expected one (null: absent or expired); a value of null removes the key. Each
-- key occurs once. Returns per key whether the seat was held and whether the change took effect (null for null:
-- whether the key is absent).
with items as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::bytea[], $8::bigint[], $9::float8[])
        as u (seat, epoch, key, expected, value, stamp, ttl_s)
), /* include fence (s.name, s.epoch) */, inserted as (
    insert into coterie.kv as kv (cluster, key, value, stamp, expires_at)
    select $1, i.key, i.value, i.stamp, clock_timestamp() + make_interval(secs => i.ttl_s)
    from items as i join held on held.name = i.seat and held.epoch = i.epoch
    where i.expected is null and i.value is not null
    order by i.key
    on conflict (cluster, key) do update
    set value = excluded.value, stamp = excluded.stamp, expires_at = excluded.expires_at
    where kv.expires_at <= clock_timestamp()
    returning kv.key
), replaced as (
    insert into coterie.kv as kv (cluster, key, value, stamp, expires_at)
    select $1, i.key, i.value, i.stamp, clock_timestamp() + make_interval(secs => i.ttl_s)
    from (
        select i.*
        from items as i join held on held.name = i.seat and held.epoch = i.epoch
        where i.expected is not null and i.value is not null
        offset 0 -- keeps it apart from what follows: no key is locked before the fence has given its row
    ) as i
    cross join lateral ( -- one lookup per key, see kv.sql
        select from coterie.kv
        where kv.cluster = $1 and kv.key = i.key and kv.stamp = i.expected
            and (kv.expires_at is null or kv.expires_at > clock_timestamp())
        for no key update
    ) as found
    on conflict (cluster, key) do update -- always: the row is there, and locked
    set value = excluded.value, stamp = excluded.stamp, expires_at = excluded.expires_at
    returning kv.key
), discarded as (
    delete from coterie.kv
    where cluster = $1 and key = any(array(
        select i.key
        from (
            select i.*
            from items as i join held on held.name = i.seat and held.epoch = i.epoch
            where i.expected is not null and i.value is null
            offset 0
        ) as i
        cross join lateral (
            select from coterie.kv
            where kv.cluster = $1 and kv.key = i.key and kv.stamp = i.expected
                and (kv.expires_at is null or kv.expires_at > clock_timestamp())
            for update
        ) as found
    ))
    returning key
)
select i.key, held.name is not null as held,
    case when i.expected is null and i.value is null then not exists (
        select from coterie.kv
        where kv.cluster = $1 and kv.key = i.key and (kv.expires_at is null or kv.expires_at > clock_timestamp())
    ) else written.key is not null end as written
from items as i
    left join held on held.name = i.seat and held.epoch = i.epoch
    left join (
        select key from inserted union all select key from replaced union all select key from discarded
    ) as written on written.key = i.key;

-- name: remove_kv
-- Remove keys. Each key occurs once. Returns per key whether the seat was held and whether a live key was removed.
with items as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::text[]) as u (seat, epoch, key)
), /* include fence (s.name, s.epoch) */, gone as (
    delete from coterie.kv
    where cluster = $1 and key = any(array(
        select i.key from items as i join held on held.name = i.seat and held.epoch = i.epoch
    ))
    returning key, expires_at
)
select i.key, held.name is not null as held,
    gone.key is not null and (gone.expires_at is null or gone.expires_at > clock_timestamp()) as written
from items as i
    left join held on held.name = i.seat and held.epoch = i.epoch
    left join gone on gone.key = i.key;
