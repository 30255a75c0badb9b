-- name: audit
-- The next rows of the audit, in order.
select id, at_ns, kind, runner, seat, epoch, note
from audit
where cluster = :cluster and id > :after
order by id
limit :most;

-- name: states
-- The next states, each after what is kept of its history.
with s as materialized (
    select key, seat, version, epoch
    from states
    where cluster = :cluster and key > :after
    order by key
    limit :most
)
select key, seat, version, epoch, null as at_ns from s
union all
select s.key, s.seat, h.version, h.epoch, h.saved_at_ns
from s join state_history as h on h.cluster = :cluster and h.key = s.key and h.slot >= 0
order by key, version, at_ns nulls last;

-- name: endings
-- The next messages that have ended.
select
    id, entity_type, entity_id, method, seat, epoch, completed_at_ns, status = 2, reply is not null, attempts
from messages
where cluster = :cluster and id > :after and completed_at_ns is not null
order by id
limit :most;
