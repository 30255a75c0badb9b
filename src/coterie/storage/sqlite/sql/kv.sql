-- name: get
-- The live entry of a key.
select value, stamp from kv
where cluster = :cluster and key = :key and (expires_at_ns is null or expires_at_ns > :now_ns);

-- name: put
-- Set a key unconditionally.
insert into kv (cluster, key, value, stamp, expires_at_ns)
values (:cluster, :key, :value, :stamp, :expires_at_ns)
on conflict (cluster, key) do update
set value = excluded.value, stamp = excluded.stamp, expires_at_ns = excluded.expires_at_ns;

-- name: insert_absent
-- Set a key that is absent or expired; touches nothing otherwise.
insert into kv (cluster, key, value, stamp, expires_at_ns)
values (:cluster, :key, :value, :stamp, :expires_at_ns)
on conflict (cluster, key) do update
set value = excluded.value, stamp = excluded.stamp, expires_at_ns = excluded.expires_at_ns
where kv.expires_at_ns <= :now_ns;

-- name: replace
-- Set a live key whose stamp is the expected one; touches nothing otherwise.
update kv set value = :value, stamp = :stamp, expires_at_ns = :expires_at_ns
where cluster = :cluster and key = :key and stamp = :expected
and (expires_at_ns is null or expires_at_ns > :now_ns);

-- name: remove_expected
-- Remove a live key whose stamp is the expected one.
delete from kv
where cluster = :cluster and key = :key and stamp = :expected
and (expires_at_ns is null or expires_at_ns > :now_ns);

-- name: remove
-- Remove a live key.
delete from kv
where cluster = :cluster and key = :key and (expires_at_ns is null or expires_at_ns > :now_ns);

-- name: count
-- How many live keys lie in a range. The end is bytes, since it need not be valid text.
select count(*) from kv
where cluster = :cluster and key >= :start and key < cast(:end as text)
and (expires_at_ns is null or expires_at_ns > :now_ns);

-- name: page
-- The first live entries of a range, leaving out the one that it starts after.
select key, value, stamp from kv
where cluster = :cluster and key >= :start and key < cast(:end as text) and key is not :after
and (expires_at_ns is null or expires_at_ns > :now_ns)
order by key limit :most;

-- name: clear
-- Remove a range, expired keys too.
delete from kv where cluster = :cluster and key >= :start and key < cast(:end as text);

-- name: purge
-- Delete some expired entries for good, the oldest first.
delete from kv where cluster = :cluster and key in (
    select key from kv
    where cluster = :cluster and expires_at_ns is not null and expires_at_ns <= :now_ns
    order by expires_at_ns limit :most
);
