-- name: renew
-- The next life of a workflow begins.
update units
set life = :next, payload = :payload, version = :version, status = 'running', wake_at_ns = null, retries = 0,
    started_at_ns = :now_ns, changed_at_ns = :now_ns
where cluster = :cluster and unit = :unit;

-- name: start_again
-- So does that of one that is over, with another payload.
update units
set life = :life, payload = :payload, digest = :digest, version = :version,
    status = iif(:later_ns is null, 'running', 'suspended'), interrupting = 0, interrupted_for = '', parent = null,
    waited_as = '', value = null, error = null, failed_steps = '', retries = 0, ended_at_ns = null,
    interrupts_children = 0, started_at_ns = :now_ns, changed_at_ns = :now_ns, starts_at_ns = :later_ns,
    wake_at_ns = :later_ns, latest_at_ns = :latest_ns, timeout_s = :timeout_s, times_out_at_ns = :times_out_ns,
    tags = ifnull(:tags, tags), next_life = null, next_at_ns = null, next_latest_at_ns = null, next_timeout_s = null,
    next_version = null, next_tags = null, next_digest = null, next_payload = null
where cluster = :cluster and unit = :unit;

-- name: undone
-- Whether a compensation of a run is stored.
select exists (select 1 from steps where cluster = :cluster and unit = :unit and kind = 'compensation');

-- name: retry
-- A run that has failed goes on.
update units
set status = 'running', ended_at_ns = null, value = null, error = null, failed_steps = '', held = 0, interrupting = 0,
    interrupted_for = '', interrupts_children = 0, retries = retries + 1, changed_at_ns = :now_ns,
    times_out_at_ns = :now_ns + cast(timeout_s * 1e9 as integer) -- anew
where cluster = :cluster and unit = :unit;

-- name: forget_step
-- A step is gone.
delete from steps where cluster = :cluster and unit = :unit and branch = :branch and position = :position;

-- name: forget_value
-- So is a value that had come.
delete from deferreds where cluster = :cluster and unit = :unit and name = :name;

-- name: copy
-- The steps of another run, which a new one begins with.
insert or rollback into steps (
    cluster, unit, branch, position, kind, name, digest, done, at_ns, value, error, began_at_ns, attempts, runner
)
values
    (?1, ?2, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?) -- each
;
