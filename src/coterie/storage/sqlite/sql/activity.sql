-- name: add
-- Record an act.
insert into activity (cluster, at_ns, who, origin, act, what, result)
values (:cluster, :now_ns, :who, :origin, :act, :what, :result);

-- name: list
-- Acts before one, the newest first.
select who, origin, act, what, result, id, at_ns
from activity
where cluster = :cluster and (:before is null or id < :before)
order by id desc
limit :most;

-- name: purge
-- Delete some acts that are older than that, the oldest first.
delete from activity where id in (
    select id from activity where cluster = :cluster and at_ns < :before_ns order by id limit :most
);
