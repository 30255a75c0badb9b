-- Pauses of tasks, entity types and groups.

-- name: pauses
-- All pauses.
select kind, name, paused_at_ns from pauses where cluster = :cluster order by kind, name;

-- name: store
-- Store a pause, unless it is stored.
insert into pauses (cluster, kind, name, paused_at_ns) values (:cluster, :kind, :name, :now_ns) on conflict do nothing;

-- name: remove
-- Remove a pause.
delete from pauses where cluster = :cluster and kind = :kind and name = :name;

-- name: renew_stamps
-- Give every queue another stamp.
update queues set stamp = stamp + 1 where cluster = :cluster;
