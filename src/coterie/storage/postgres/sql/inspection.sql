-- name: server
-- What this server is, how many connections it has, and how many of them are coterie's.
select
    split_part(current_setting('server_version'), ' ', 1) as version,
    current_setting('max_connections')::int as most,
    count(*)::int as taken,
    (count(*) filter (where application_name like 'coterie/%'))::int as ours
from pg_stat_activity
where backend_type = 'client backend';

-- name: audit
-- The next rows of the audit, in order.
select id, at, kind, runner, seat, epoch, note
from coterie.audit
where cluster = $1 and id > $2
order by id
limit $3;

-- name: states
-- The next states, each after what is kept of its history.
with s as materialized (
    select key, seat, version, epoch
    from coterie.states
    where cluster = $1 and key > $2
    order by cluster, key
    limit $3
)
select key, seat, version, epoch, null::timestamptz as at from s
union all
select s.key, s.seat, h.version, h.epoch, h.saved_at
from s join coterie.state_history as h on h.cluster = $1 and h.key = s.key and h.slot >= 0
order by key, version, at nulls last;

-- name: endings
-- The next messages that have ended.
select
    id, entity_type, entity_id, method, seat, epoch, completed_at, status = 2 as is_dead,
    reply is not null as has_reply, attempts
from coterie.messages
where cluster = $1 and id > $2 and completed_at is not null
order by cluster, id
limit $3;
