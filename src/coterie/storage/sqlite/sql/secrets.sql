-- name: read
-- The cluster's secret, once somebody has drawn it.
select value from secrets where cluster = :cluster;

-- name: draw
-- Keep a secret unless there is one.
insert into secrets (cluster, value) values (:cluster, :value) on conflict (cluster) do nothing;
