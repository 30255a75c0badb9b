-- Machine ids of snowflakes. All 1,024 rows of a cluster are made at the first lease, so that leasing is one update of
-- a row that it has locked: two lessees never get the same one, and none waits for another.

-- name: stock
-- Make the rows of a cluster: free, with no mark.
insert into coterie.machines (cluster, id, holder, expires_at, until_ms)
select $1, id, '', '-infinity', 0 from generate_series(0, 1023) as id
on conflict (cluster, id) do nothing;

-- name: lease
-- Lease the lowest free id whose mark has passed, else the one whose mark passes next: ids drawn from it begin after
-- the mark, and should not run ahead of time. Returns the previous mark [M15]. No row: none is free.
with free as materialized (
    select id, until_ms
    from coterie.machines
    where cluster = $1 and expires_at <= clock_timestamp()
    order by greatest(until_ms, extract(epoch from statement_timestamp()) * 1000), id
    limit 1
    for update skip locked
)
update coterie.machines as m
set holder = $2,
    expires_at = clock_timestamp() + make_interval(secs => $3),
    until_ms = greatest(m.until_ms, $4)
from free
where m.cluster = $1 and m.id = free.id
returning m.id, free.until_ms as after_ms;

-- name: extend
-- Extend the lease, also an expired one that no other process has leased since, and raise the mark. No row: the lease
-- was lost.
update coterie.machines
set expires_at = clock_timestamp() + make_interval(secs => $4),
    until_ms = greatest(until_ms, $5)
where cluster = $1 and id = $2 and holder = $3
returning id;

-- name: give_back
-- Free mine at once. The mark stays.
update coterie.machines
set holder = '', expires_at = '-infinity'
where cluster = $1 and id = $2 and holder = $3;
