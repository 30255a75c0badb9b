-- Locks are taken in one order everywhere: lease, runner, seats by name. Another order makes deadlocks, each of which
-- costs `deadlock_timeout` [C4]. The database's clock decides, read at the moment of use.

-- name: register
-- A runner and its lease; refused if the incarnation was ever used here and is still there.
with runner as (
    insert into coterie.runners (
        cluster, id, name, address, host_id, groups, weight, version, knows, process, session_lock, credentials
    )
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $12, $13)
    returning id, cluster
)
insert into coterie.leases (id, cluster, expires_at, counter)
select id, cluster, clock_timestamp() + make_interval(secs => $11), 1 from runner
returning counter, expires_at;

-- name: renew
-- Extend the runner's lease. Returns the counters of all leases, a checksum of the seats that the table says this
-- runner holds, and the stamp of all seats, which changes with every seat [M1, M13]. No row: evicted. The stamp never
-- repeats: a grant raises the sum of epochs, between grants seats are only freed. It waits for no standby: a lease
-- that a failover takes back has expired anyway, and while a synchronous standby is away no runner could keep one.
-- Also returns how commits wait otherwise.
with usual as materialized (
    select current_setting('synchronous_commit') as synchronous_commit
), mine as (
    update coterie.leases
    set expires_at = clock_timestamp() + make_interval(secs => $3), counter = counter + 1
    from usual
    where id = $2 and cluster = $1
    returning counter, leaving, usual.synchronous_commit, set_config(
        'synchronous_commit', case usual.synchronous_commit when 'off' then 'off' else 'local' end, true
    )
), others as (
    select
        coalesce(array_agg(id), '{}') as ids,
        coalesce(array_agg(counter), '{}') as counters,
        coalesce(array_agg(expires_at < clock_timestamp()), '{}') as expired,
        coalesce(array_agg(leaving), '{}') as leaving
    from coterie.leases
    where cluster = $1 and id <> $2
), seats as (
    select
        concat_ws(' ', count(*), sum(epoch), count(holder), extract(epoch from max(effective_from)),
            sum(hashtext(concat(name, ' ', fingerprint) collate "C"))) as stamp,
        string_agg(epoch || ' ' || name, E'\n') filter (where holder = $2) as held
    from (select * from coterie.seats where cluster = $1 order by name) as ordered
)
select
    mine.counter, mine.leaving, others.ids, others.counters, others.expired, others.leaving as others_leaving,
    encode(sha256(convert_to(coalesce(seats.held, ''), 'UTF8')), 'hex') as checksum, seats.stamp,
    clock_timestamp() as now, (select generation from coterie.generations where cluster = $1) as generation,
    mine.synchronous_commit
from mine cross join others cross join seats;

-- name: leaving
-- Mark a runner as leaving: it is to release all seats. No row: there is no such runner.
update coterie.leases
set leaving = true
where id = $2 and cluster = $1
returning id;

-- name: agree
-- Store settings that are not stored yet. A second statement reads those that are [M4].
insert into coterie.agreements (cluster, name, value)
select $1, u.name, u.value
from unnest($2::text[], $3::text[]) as u (name, value)
order by u.name
on conflict (cluster, name) do nothing;

-- name: agreements
-- What is stored of these settings.
select name, value
from coterie.agreements
where cluster = $1 and name = any($2::text[]);

-- name: declare
-- Make seats known, in name order; those that were new. One that exists stays as it is.
insert into coterie.seats (cluster, name, "group", fingerprint)
select $1, u.name, u."group", u.fingerprint
from unnest($2::text[], $3::text[], $4::text[]) as u (name, "group", fingerprint)
order by u.name
on conflict (cluster, name) do nothing
returning name;

-- name: learn
-- Add definitions to what my program knows, which it made after I was registered. No row: evicted.
update coterie.runners
set knows = knows || $3::jsonb
where id = $2 and cluster = $1
returning id;

-- name: contest
-- Define seats, second statement: lock those whose current definition is another one, in name order. Only the next
-- statement sees what was decided while this one waited. A lookup each: with `any` over all names beside the join, each
-- of them was compared with all others.
select s.name
from unnest($2::text[], $3::text[]) as u (name, fingerprint)
    join coterie.seats as s on s.cluster = $1 and s.name = u.name and s.fingerprint <> u.fingerprint
order by s.name
for no key update of s;

-- name: redefine
-- Define seats, third statement: a definition never seen becomes the current one; one seen before only if no runner
-- has the current one [M8]. It takes effect now if its part before the first colon is another one: the rest does not say
-- when something is due. The names of those that changed.
with items as materialized (
    select * from unnest($2::text[], $3::text[], $4::text[]) as u (name, "group", fingerprint)
), known as materialized ( -- once for all seats, and only if one of them is to go back
    select k.key collate "C" as name, k.value as fingerprint
    from coterie.runners as r cross join lateral jsonb_each_text(r.knows) as k
    where r.cluster = $1
), redefined as (
    update coterie.seats as s
    set fingerprint = i.fingerprint, "group" = i."group", effective_from = case
        when split_part(s.fingerprint, ':', 1) = split_part(i.fingerprint, ':', 1) then s.effective_from
        else clock_timestamp()
    end
    from items as i
    where s.cluster = $1 and s.name = i.name and s.fingerprint <> i.fingerprint
        and (
            0 = ( -- a lookup each: `not exists` would read all that were ever seen
                select count(*) from coterie.fingerprints as f
                where f.cluster = $1 and f.seat = i.name and f.fingerprint = i.fingerprint
            ) or (s.name, s.fingerprint) not in (select name, fingerprint from known)
        )
    returning s.name
), remembered as (
    insert into coterie.fingerprints (cluster, seat, fingerprint)
    select $1, i.name, i.fingerprint from items as i order by i.name
    on conflict (cluster, seat, fingerprint) do nothing
)
select name from redefined;

-- name: same_server
-- Whether epochs were given out on this server and timeline [M13]. No row: on another one, or nowhere yet.
select g.generation
from coterie.generations as g join pg_control_system() as server using (system_identifier)
where g.cluster = $1 and g.timeline = ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;

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
-- Take the free ones of these seats, in name order; their new epochs, and whether the holder before gave it back [C5].
-- Nothing for an evicted runner, nor under a generation of another server: then `raise_generation` first.
with /* include me */, free as materialized (
    select s.name, s.epoch, s.epoch = s.released_epoch as clean
    from coterie.seats as s cross join me
    where s.cluster = $1 and s.name = any($3::text[]) and s.holder is null
    order by s.name
    for no key update of s
), era as materialized (
    select g.generation << 40 as least
    from coterie.generations as g join pg_control_system() as server using (system_identifier)
    where g.cluster = $1 and g.timeline = ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint
), granted as (
    update coterie.seats as s
    set holder = $2, epoch = greatest(s.epoch, era.least) + 1
    from era
    where s.cluster = $1 and s.name = any(array(select name from free))
)
select free.name, greatest(free.epoch, era.least) + 1 as epoch, free.clean
from free cross join era;

-- name: release
-- Release one seat. It waits for writes in flight under its fence [C1]. No row: the seat was not held. It does not
-- wait for the disk: the statement that acquires the seat does, and so does leaving. A release that a crash of the
-- server takes back is found by its holder, which releases again. The holder is compared in a way that no index
-- serves: on a table without statistics the planner would walk all seats of the holder instead of looking up one
-- name.
update coterie.seats
set holder = null, released_epoch = epoch
where cluster = $1 and name = $3 and holder is not distinct from $2 and epoch = $4
returning name, set_config('synchronous_commit', 'off', true);

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

-- name: date_losses
-- Evict and leave, third statement: when the seats that their holder did not give back were lost, and at which epoch. What
-- is stored later that holder cannot have begun [C5].
update coterie.seats as s
set lost_at = clock_timestamp(), lost_epoch = s.epoch
where s.cluster = $1 and s.holder is null and s.epoch <> s.released_epoch and s.epoch <> s.lost_epoch;

-- name: note
-- One row for each thing that happened, in the transaction in which it did (setting `audit`).
insert into coterie.audit (cluster, runner, kind, seat, epoch, note)
select $1, $2, $3, u.seat, u.epoch, $6
from unnest($4::text[], $5::bigint[]) as u (seat, epoch);

-- name: hold
-- Take a lock that goes with the session, beside other sessions of the same runner; and which session this is.
select pg_try_advisory_lock_shared($1) as held, pg_backend_pid() as pid;

-- name: presences
-- Which of these runners hold their lock in some session of this database, since which start of the server and for how
-- long; and their leases, as they were before the locks are looked at: who renews later is spared. Takes no lock [M2].
with found as materialized (
    select l.id, l.counter, l.expires_at < clock_timestamp() as expired, r.session_lock
    from coterie.leases as l join coterie.runners as r on r.id = l.id
    where l.cluster = $1 and l.id = any($2::text[])
)
select
    extract(epoch from pg_postmaster_start_time())::text as server,
    extract(epoch from clock_timestamp() - pg_postmaster_start_time())::float8 as up_s,
    array(
        select classid::bigint << 32 | objid::bigint
        from pg_locks
        where locktype = 'advisory' and objsubid = 1 and granted
            and database = (select oid from pg_database where datname = current_database())
        intersect
        select unnest($3::bigint[])
    ) as held,
    array(select id from found) as ids,
    array(select counter from found) as counters,
    array(select id from found where expired) as expired,
    array(select id from found where not session_lock) as unwitnessed;

-- name: blocking
-- The sessions that another session, the deleting one, is waiting for and that may be ended [M12]: those of the runner, and
-- those of ours that have waited for their client inside a transaction for longer than one may be open. Such a runner froze
-- while it evicted; the server's own limit does not see it between the messages of one statement.
select pid, application_name as name
from pg_stat_activity
where pid = any(pg_blocking_pids($1)) and (
    application_name = $2
    or (
        application_name like 'coterie/%' and wait_event = 'ClientRead'
        and state_change < clock_timestamp() - $3::float8 * interval '1 second'
    )
);

-- name: foreign_roles
-- The database roles of other processes of ours whose sessions this role could not end [M12].
select distinct a.usename::text as role
from pg_stat_activity as a
where a.datname = current_database() and a.application_name like 'coterie/%'
    and not pg_has_role(a.usesysid, 'member') and not pg_has_role('pg_signal_backend', 'member');

-- name: end_session
-- End a session of the same role, or of any for a member of pg_signal_backend, while it still has this name: a pooler
-- gives it to the next one when the transaction ends. No row: it did.
select pg_terminate_backend(pid)
from pg_stat_activity
where pid = $1 and application_name = $2;

-- name: view
-- All runners and all seats in one statement, so that they fit together; the stamp is that of `renew`.
with runners as (
    select coalesce(json_agg(json_build_object(
        'id', r.id, 'name', r.name, 'address', r.address, 'host_id', r.host_id, 'groups', r.groups, 'weight', r.weight,
        'version', r.version, 'knows', r.knows, 'process', r.process, 'credentials', r.credentials,
        'started_at', r.started_at, 'leaving', l.leaving
    ) order by r.id), '[]') as found
    from coterie.runners as r join coterie.leases as l on l.id = r.id
    where r.cluster = $1
), seats as (
    select
        concat_ws(' ', count(*), sum(epoch), count(holder), extract(epoch from max(effective_from)),
            sum(hashtext(concat(name, ' ', fingerprint) collate "C"))) as stamp,
        coalesce(array_agg(name), '{}') as names,
        coalesce(array_agg("group"), '{}') as groups,
        coalesce(array_agg(holder), '{}') as holders,
        coalesce(array_agg(epoch), '{}') as epochs,
        coalesce(array_agg(fingerprint), '{}') as fingerprints,
        coalesce(array_agg(effective_from), '{}') as effective_from,
        coalesce(array_agg(epoch = released_epoch), '{}') as clean
    from (select * from coterie.seats where cluster = $1 order by name) as ordered
)
select runners.found as runners, seats.*
from runners cross join seats;
