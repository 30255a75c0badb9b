-- Pauses of tasks, entity types and groups. A pause is stored first, in a transaction of its own, and the stamps are renewed
-- in the next one: a queue that this one does not see is stored later, so that the pause is read with it.

-- name: pauses
-- Read all pauses.
select kind, name, paused_at
from coterie.pauses
where cluster = $1
order by cluster, kind, name;

-- name: store_pause
-- Store a pause, unless it is stored.
insert into coterie.pauses (cluster, kind, name) values ($1, $2, $3) on conflict do nothing returning kind;

-- name: remove_pause
-- Remove a pause.
delete from coterie.pauses where cluster = $1 and kind = $2 and name = $3 returning kind;

-- name: renew_stamps
-- Give every queue another stamp. Waits for the claims in flight: those that come after it have to read their queue, and
-- the pauses with it. Queues are locked in order of their seats.
with chosen as materialized (
    select seat from coterie.queues where cluster = $1 order by cluster, seat for no key update
)
update coterie.queues as q
set stamp = q.stamp + 1
from chosen as c
where q.cluster = $1 and q.seat = c.seat
returning q.seat;
