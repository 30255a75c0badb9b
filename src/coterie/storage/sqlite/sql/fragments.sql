-- What statements share.

-- name: wanted_jobs
-- The conditions of a filter of jobs, but for their states and tags.
(:seat is null or seat = :seat)
and (:task is null or task = :task)
and (:before_ns is null or coalesce(ended_at_ns, sent_at_ns) <= :before_ns);

-- name: job_head
-- What the holder of a queue's seat keeps of a ready job.
id, part, task, fingerprint, rank_at_ns, lost, priority;

-- name: job_error
-- The errors of a job with another one, of which the last 20 are kept.
json_insert(
    iif(json_array_length(errors) < 20, errors, json_remove(errors, '$[0]')),
    '$[#]', json_object('number', failures + 1, 'at_ns', :now_ns, 'error', :error)
);
