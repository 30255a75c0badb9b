-- name: add
-- Record an act.
insert into coterie.activity (cluster, who, origin, act, what, result)
values ($1, $2, $3, $4, $5, $6);

-- name: list
-- Acts before one, the newest first.
select id, at, who, origin, act, what, result
from coterie.activity
where cluster = $1 and ($2::bigint is null or id < $2)
order by cluster desc, id desc
limit $3;

-- name: purge
-- Delete some acts that are older than that, the oldest first.
with gone as (
    delete from coterie.activity
    where id = any(array(
        select id from coterie.activity
        where cluster = $1 and at < clock_timestamp() - make_interval(secs => $2::float8)
        order by cluster, id
        limit $3
        for update skip locked
    ))
    returning 1
)
select count(*)::int from gone;
