-- name: held
-- The fence: whether a seat is held by a runner at an epoch.
select count(*) from seats s join runners r on r.id = s.holder and r.cluster = s.cluster
where s.cluster = :cluster and s.name = :seat and s.holder = :runner and s.epoch = :epoch;

-- name: all_held
-- The fence for many at once: who holds these seats, at which epochs, in one row.
select json_group_object(s.name, json_array(s.holder, s.epoch))
from json_each(:seats) as asked
    cross join seats s on s.cluster = :cluster and s.name = asked.value
    join runners r on r.id = s.holder and r.cluster = s.cluster;

-- name: insert
-- The first state of a key.
insert into states (cluster, key, seat, value, version, epoch)
values (:cluster, :key, :seat, :value, 1, :epoch)
on conflict (cluster, key) do nothing;

-- name: update
-- The next state of a key, if its version is the expected one and no newer epoch has claimed it.
update states set value = :value, version = version + 1, epoch = :epoch, seat = :seat
where cluster = :cluster and key = :key and version = :version and epoch <= :epoch;

-- name: update_all
-- The same for many at once: key, version, epoch, seat and value of each.
update or rollback states
set value = next.column6, version = states.version + 1, epoch = next.column4, seat = next.column5
from (
    values
        (?1, ?, ?, ?, ?, ?) -- each
) as next
where cluster = next.column1 and key = next.column2 and version = next.column3 and epoch <= next.column4;

-- name: claim
-- The state of a key for a new holder, marked with its epoch.
update states set epoch = :epoch, seat = :seat
where cluster = :cluster and key = :key and epoch <= :epoch
returning value, version, coalesce(expires_at_ns <= :now_ns, 0);

-- name: delete
-- No state any more, if its version is the expected one and no newer epoch has claimed it.
delete from states where cluster = :cluster and key = :key and version = :version and epoch <= :epoch;

-- name: version
-- Which version a key has, and the epoch that wrote or claimed it last.
select version, epoch from states where cluster = :cluster and key = :key;

-- name: current
-- The state of a key as it is.
select version, epoch, value from states where cluster = :cluster and key = :key;
