-- Runs that begin later (W14). One that has not begun is suspended, and has `starts_at_ns`.

-- name: push_start
-- A run that has not begun begins later, with another payload.
update units
set life = :life, payload = :payload, digest = :digest, version = :version, changed_at_ns = :now_ns,
    starts_at_ns = min(:at_ns, ifnull(latest_at_ns, :at_ns)), wake_at_ns = min(:at_ns, ifnull(latest_at_ns, :at_ns)),
    latest_at_ns = min(ifnull(latest_at_ns, :latest_ns), ifnull(:latest_ns, latest_at_ns)), timeout_s = :timeout_s,
    tags = ifnull(:tags, tags)
where cluster = :cluster and unit = :unit and status = 'suspended' and starts_at_ns is not null;

-- name: keep_start
-- The next life of one that has begun and is not over; not by the start that has begun this life.
update units
set next_life = :life, next_payload = :payload, next_digest = :digest, next_version = :version, changed_at_ns = :now_ns,
    next_at_ns = min(:at_ns, ifnull(next_latest_at_ns, :at_ns)),
    next_latest_at_ns = min(ifnull(next_latest_at_ns, :latest_ns), ifnull(:latest_ns, next_latest_at_ns)),
    next_timeout_s = :timeout_s, next_tags = ifnull(:tags, next_tags)
where cluster = :cluster and unit = :unit and kind = 'workflow' and life <> :life and (ended_at_ns is null or held);

-- name: kept
-- Workflows on these seats that are over and have a next life.
select json_group_array(unit) from (
    select unit from units
    where cluster = :cluster and seat in (select value from json_each(:seats)) and next_life is not null
        and ended_at_ns is not null and not held
    limit :most
);

-- name: begin_kept
-- It begins, and waits until it is due.
update units
set life = next_life, payload = next_payload, digest = next_digest, version = next_version, status = 'suspended',
    interrupting = 0, interrupted_for = '', parent = null, waited_as = '', value = null, error = null, failed_steps = '',
    retries = 0, ended_at_ns = null, interrupts_children = 0, started_at_ns = :now_ns, changed_at_ns = :now_ns,
    starts_at_ns = next_at_ns, wake_at_ns = next_at_ns, latest_at_ns = next_latest_at_ns, timeout_s = next_timeout_s,
    times_out_at_ns = null, tags = ifnull(next_tags, tags), next_life = null, next_at_ns = null,
    next_latest_at_ns = null, next_timeout_s = null, next_version = null, next_tags = null, next_digest = null,
    next_payload = null
where cluster = :cluster and unit in (select value from json_each(:units));

-- name: time_out
-- Workflows whose time is over are asked to end.
update units
set interrupting = 1, times_out_at_ns = null, wake_at_ns = null, status = 'running', changed_at_ns = :now_ns,
    interrupted_for = iif(interrupting, interrupted_for, 'timeout')
where cluster = :cluster and seat in (select value from json_each(:seats)) and times_out_at_ns <= :now_ns
    and ended_at_ns is null;

-- name: list_tagged
-- Units with a tag, those that changed last first.
select u.unit, u.kind, u.name, u.id, u.seat, u.status, u.payload, u.version, u.interrupting, u.parent, u.value, u.error,
    u.started_at_ns, u.changed_at_ns, u.ended_at_ns, u.wake_at_ns,
    (select count(*) from steps as t where t.cluster = u.cluster and t.unit = u.unit and t.done), u.life, u.digest,
    u.waited_as, u.retries, u.held, u.failed_steps, u.starts_at_ns, u.times_out_at_ns, u.interrupted_for, u.next_life,
    u.next_at_ns, u.tags, u.stuck, u.stuck_times
from unit_tags as g cross join units as u on u.cluster = g.cluster and u.unit = g.unit
where g.cluster = :cluster and g.name = :tag and g.value = :tag_value and (:status is null or u.status = :status)
    and (:name is null or u.name = :name) and (:before_ns is null or u.started_at_ns < :before_ns)
order by u.changed_at_ns desc limit :most;
