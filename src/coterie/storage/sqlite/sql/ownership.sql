-- name: register
-- A runner; refused if the incarnation is there already.
insert into runners (id, cluster, name, address, host_id, groups, weight, version, knows, started_at_ns)
values (:id, :cluster, :name, :address, :host_id, :groups, :weight, :version, :knows, :now_ns);

-- name: runner
-- Whether a runner is there.
select count(*) from runners where id = :id and cluster = :cluster;

-- name: unregister
-- Delete a runner; the foreign key frees its seats.
delete from runners where id = :id and cluster = :cluster;

-- name: grant_lease
-- The first lease of a runner.
insert into leases (cluster, id, counter, boot_id, expires_boot_ns)
values (:cluster, :id, 1, :boot_id, :expires_boot_ns);

-- name: renew_lease
-- Prolong a lease; no row: evicted.
update leases set counter = counter + 1, expires_boot_ns = :expires_boot_ns
where cluster = :cluster and id = :id
returning counter;

-- name: leases
-- Everybody's counters, and who has expired. A lease of another boot has.
select id, counter, boot_id is not :boot_id or expires_boot_ns < :now_boot_ns from leases
where cluster = :cluster order by id;

-- name: still_lease
-- Whether a runner has not renewed since it was seen; with :expired only if its lease has run out.
select count(*) from leases
where cluster = :cluster and id = :id and counter = :counter
and (not :expired or boot_id is not :boot_id or expires_boot_ns < :now_boot_ns);

-- name: end_lease
-- Forget a lease.
delete from leases where cluster = :cluster and id = :id;

-- name: declare
-- Make a seat known; one that exists stays as it is.
insert into seats (cluster, name, "group", fingerprint, effective_from_ns)
values (:cluster, :name, :group, :fingerprint, :now_ns)
on conflict (cluster, name) do nothing;

-- name: acquire
-- Take a free seat, for a runner that is there; its new epoch.
update seats set holder = :id, epoch = epoch + 1
where cluster = :cluster and name = :name and holder is null
and exists (select 1 from runners where id = :id and cluster = :cluster)
returning epoch;

-- name: release
-- Give a seat back; no row: it was not mine any more.
update seats set holder = null
where cluster = :cluster and name = :name and holder = :id and epoch = :epoch
returning name;

-- name: held
-- The fence: whether a seat is held by a runner at an epoch.
select count(*) from seats s join runners r on r.id = s.holder and r.cluster = s.cluster
where s.cluster = :cluster and s.name = :seat and s.holder = :id and s.epoch = :epoch;

-- name: holdings
-- What a runner holds.
select name, epoch from seats where holder = :id and cluster = :cluster order by name;

-- name: insert_state
-- The first state of a key.
insert into states (cluster, key, seat, value, version, epoch)
values (:cluster, :key, :seat, :value, 1, :epoch)
on conflict (cluster, key) do nothing;

-- name: update_state
-- The next state of a key, if its version is the expected one and nobody newer has claimed it.
update states set value = :value, version = version + 1, epoch = :epoch, seat = :seat
where cluster = :cluster and key = :key and version = :version and epoch <= :epoch;

-- name: claim_state
-- The state of a key for a new holder, marked with its epoch.
update states set epoch = :epoch, seat = :seat
where cluster = :cluster and key = :key and epoch <= :epoch
returning value, version;

-- name: seats_without_runner
-- Seats whose holder is no runner of this cluster. There must be none.
select s.name, s.holder from seats s
where s.cluster = :cluster and s.holder is not null
and not exists (select 1 from runners r where r.id = s.holder and r.cluster = s.cluster)
order by s.name;
