-- name: grant
-- The first lease of a runner. One that is there already is what a crash left of an earlier try.
insert into leases (cluster, id, counter, boot_id, expires_boot_ns)
values (:cluster, :id, 1, :boot_id, :expires_boot_ns)
on conflict (cluster, id) do update set counter = counter + 1, expires_boot_ns = excluded.expires_boot_ns;

-- name: renew
-- Prolong a lease; no row: evicted.
update leases set counter = counter + 1, boot_id = :boot_id, expires_boot_ns = :expires_boot_ns
where cluster = :cluster and id = :id
returning counter, leaving;

-- name: all
-- All leases: counter, whether it has expired, whether its runner leaves, whether it was renewed during another
-- boot. One of another boot has expired.
select
    id, counter, boot_id is not :boot_id or expires_boot_ns < :now_boot_ns, leaving,
    boot_id <> :boot_id and boot_id <> '' and :boot_id <> ''
from leases where cluster = :cluster;

-- name: leave
-- Mark a runner as leaving; no row: it has no lease.
update leases set leaving = 1 where cluster = :cluster and id = :id returning id;

-- name: end
-- Forget a lease.
delete from leases where cluster = :cluster and id = :id;
