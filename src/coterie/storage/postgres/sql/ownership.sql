-- Locks are taken in one order everywhere: lease, runner, seats by name. Whoever breaks it makes deadlocks, each
-- of which costs `deadlock_timeout` [C4]. The database's clock decides, read at the moment of use.

-- name: register
-- A runner and its lease; refused if the incarnation was ever used here and is still there.
with runner as (
    insert into coterie.runners (cluster, id, name, address, host_id, groups, weight, version, knows)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
    returning id, cluster
)
insert into coterie.leases (id, cluster, expires_at, counter, ids_until)
select id, cluster, clock_timestamp() + make_interval(secs => $10), 1, $11 from runner
returning counter, expires_at;

-- name: renew
-- Prolong my lease; everybody's counters, and a checksum of what the table says I hold [M1, M13]. No row: evicted.
with mine as (
    update coterie.leases
    set expires_at = clock_timestamp() + make_interval(secs => $3),
        counter = counter + 1,
        ids_until = greatest(ids_until, $4)
    where id = $2 and cluster = $1
    returning counter, ids_until
), others as (
    select
        coalesce(array_agg(id order by id), '{}') as ids,
        coalesce(array_agg(counter order by id), '{}') as counters,
        coalesce(array_agg(expires_at < clock_timestamp() order by id), '{}') as expired
    from coterie.leases
    where cluster = $1 and id <> $2
), held as (
    select
        count(*) as seats,
        encode(sha256(convert_to(coalesce(string_agg(epoch || ' ' || name, E'\n' order by name), ''), 'UTF8')), 'hex')
            as checksum
    from coterie.seats
    where holder = $2 and cluster = $1
)
select mine.counter, mine.ids_until, others.ids, others.counters, others.expired, held.seats, held.checksum
from mine cross join others cross join held;

-- name: declare
-- Make seats known, in name order; those that were new. One that exists stays as it is.
insert into coterie.seats (cluster, name, "group", fingerprint)
select $1, u.name, u."group", u.fingerprint
from unnest($2::text[], $3::text[], $4::text[]) as u (name, "group", fingerprint)
order by u.name
on conflict (cluster, name) do nothing
returning name;

-- name: raise_generation
-- Take note of another server or timeline: later epochs are greater than any given out there [M13]. No row: the same.
insert into coterie.generations as g (cluster, generation, system_identifier, timeline)
select $1, 0, server.system_identifier,
    ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint
from pg_control_system() as server
on conflict (cluster) do update
set generation = g.generation + 1,
    system_identifier = excluded.system_identifier,
    timeline = excluded.timeline
where (g.system_identifier, g.timeline) is distinct from (excluded.system_identifier, excluded.timeline)
returning generation;

-- name: acquire
-- Take the free ones of these seats, in name order; their new epochs. Nothing for an evicted runner, nor under a
-- generation of another server: then `raise_generation` first.
with me as materialized (
    select id from coterie.runners where id = $2 and cluster = $1 for key share
), free as materialized (
    select s.name
    from coterie.seats as s cross join me
    where s.cluster = $1 and s.name = any($3::text[]) and s.holder is null
    order by s.name
    for no key update of s
), era as materialized (
    select g.generation << 40 as least
    from coterie.generations as g join pg_control_system() as server using (system_identifier)
    where g.cluster = $1 and g.timeline = ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint
)
update coterie.seats as s
set holder = $2, epoch = greatest(s.epoch, era.least) + 1
from free cross join era
where s.cluster = $1 and s.name = any($3::text[]) and s.name = free.name
returning s.name, s.epoch;

-- name: release
-- Give one seat back. It waits for writes in flight under its fence [C1]. No row: it was not mine any more.
update coterie.seats
set holder = null
where cluster = $1 and name = $3 and holder = $2 and epoch = $4
returning name;

-- name: lock_expired_lease
-- Evict, first statement, by lease: the victim has not renewed since it was seen, and is expired [C4]. No row: spared.
select counter
from coterie.leases
where id = $2 and cluster = $1 and counter = $3 and expires_at < clock_timestamp()
for update;

-- name: lock_still_lease
-- Evict, first statement, by witnesses or after twice the TTL: it has not renewed since it was seen. No row: spared.
select counter
from coterie.leases
where id = $2 and cluster = $1 and counter = $3
for update;

-- name: lock_own_lease
-- Leave, first statement: no renewal of mine comes after it.
select counter
from coterie.leases
where id = $2 and cluster = $1
for update;

-- name: evict
-- Evict and leave, second statement of the same transaction: the lease goes with the runner, its seats are free.
delete from coterie.runners
where id = $2 and cluster = $1
returning id;

-- name: seats
-- Every seat with its holder.
select name, "group", holder, epoch, fingerprint, effective_from
from coterie.seats
where cluster = $1
order by name;

-- name: seats_without_runner
-- Seats whose holder is no runner of this cluster. There must be none [C4].
select s.name, s.holder
from coterie.seats as s
where s.cluster = $1 and s.holder is not null and not exists (
    select from coterie.runners as r where r.id = s.holder and r.cluster = s.cluster
)
order by s.name;
