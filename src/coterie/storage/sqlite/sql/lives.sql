-- name: renew
-- The next life of a workflow begins.
update units
set life = :next, payload = :payload, version = :version, status = 'running', wake_at_ns = null, retries = 0,
    started_at_ns = :now_ns, changed_at_ns = :now_ns
where cluster = :cluster and unit = :unit;

-- name: start_again
-- So does that of one that is over, with another payload.
update units
set life = :life, payload = :payload, digest = :digest, version = :version, status = 'running', interrupting = 0,
    parent = null, waited_as = '', value = null, error = null, failed_steps = '', retries = 0, ended_at_ns = null,
    interrupts_children = 0, started_at_ns = :now_ns, changed_at_ns = :now_ns
where cluster = :cluster and unit = :unit;
