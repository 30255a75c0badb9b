-- name: read
-- The cluster's secret, if it is drawn.
select value from coterie.secrets where cluster = $1;

-- name: draw
-- Store a secret unless there is one. Waits for a concurrent one; a second statement reads which was first [M4].
insert into coterie.secrets (cluster, value) values ($1, $2) on conflict (cluster) do nothing;
