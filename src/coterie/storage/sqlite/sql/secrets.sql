-- name: read
-- The cluster's secret, if it is drawn.
select value from secrets where cluster = :cluster;

-- name: draw
-- Keep a secret unless there is one.
insert into secrets (cluster, value) values (:cluster, :value) on conflict (cluster) do nothing;
