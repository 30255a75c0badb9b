-- name: stock
-- Make the 1,024 rows of a cluster: free, with no mark.
with recursive ids (id) as (select 0 union all select id + 1 from ids where id < 1023)
insert into machines (cluster, id, holder, expires_at_ns, until_ms)
select :cluster, id, '', 0, 0 from ids where true
on conflict (cluster, id) do nothing;

-- name: free
-- The lowest free one whose mark has passed, else the one whose mark passes next: ids drawn from it begin after the
-- mark, and should not run ahead of time [M15].
select id, until_ms from machines
where cluster = :cluster and expires_at_ns <= :now_ns
order by max(until_ms, :now_ns / 1000000), id limit 1;

-- name: lease
-- Take one that is free, and raise its mark.
update machines set holder = :holder, expires_at_ns = :expires_at_ns, until_ms = max(until_ms, :until_ms)
where cluster = :cluster and id = :id;

-- name: extend
-- Extend a lease, also an expired one that is still free, and raise the mark. No change: the lease was lost.
update machines set expires_at_ns = :expires_at_ns, until_ms = max(until_ms, :until_ms)
where cluster = :cluster and id = :id and holder = :holder;

-- name: give_back
-- Free mine at once. The mark stays.
update machines set holder = '', expires_at_ns = 0
where cluster = :cluster and id = :id and holder = :holder;
