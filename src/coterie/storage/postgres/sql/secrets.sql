-- name: read
-- The cluster's secret, once somebody has drawn it.
select value from coterie.secrets where cluster = $1;

-- name: draw
-- Keep a secret unless there is one. Waits for whoever is about to; who was first is read in a second statement [M4].
insert into coterie.secrets (cluster, value) values ($1, $2) on conflict (cluster) do nothing;
