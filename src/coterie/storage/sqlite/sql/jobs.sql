-- Jobs. A job is found by its id alone and its state judged outside of the lookup: a state in the condition would take a
-- partial index instead, and walk along it.

-- name: insert
-- New jobs; touches nothing of those whose id or key is there. `or rollback` spares copies of pages, see store.py.
insert or rollback into jobs (
    cluster, sent_at_ns, id, seat, part, task, fingerprint, state, key, digest, priority, trace_id, due_at_ns,
    rank_at_ns, payload
)
values
    (?1, ?2, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) -- each
on conflict do nothing;

-- name: tag
-- The tags of new jobs.
insert or rollback into job_tags (cluster, job, name, value)
values
    (?1, ?, ?, ?) -- each
on conflict do nothing;

-- name: receipt
-- What a sender learns of the job with an id.
select id, state, due_at_ns, rank_at_ns, digest, iif(state < 4, null, reply) from jobs
where cluster = :cluster and id = :id;

-- name: find
-- What a sender learns of the job that has a key.
select id, state, due_at_ns, rank_at_ns, digest, iif(state < 4, null, reply) from jobs
where cluster = :cluster and task = :task and key = :key;

-- name: alive
-- Those of these runners that are there.
select id from runners where id in (select value from json_each(:ids)) and cluster = :cluster;

-- name: judged
-- What decides about the writes of those who run these jobs.
select id, state, claim, settled, runner, cancelling from jobs
where cluster = :cluster and id in (select value from json_each(:ids));

-- name: end
-- Jobs have ended, by those who ran them.
update or rollback jobs set
    state = ended.column2, reply = ended.column3, runner = null, settled = claim, ended_at_ns = ?2
from (
    values
        (?, ?, ?) -- each
) as ended
where cluster = ?1 and id = ended.column1;

-- name: end_cancelled
-- A job has ended as cancelled: its key is free.
update jobs set
    state = 6, reply = coalesce(:reply, reply), key = null, runner = null, settled = claim, ended_at_ns = :now_ns
where cluster = :cluster and id = :id;

-- name: set_back
-- An attempt has failed, or is put off: the next one is due later, or there is none.
update jobs set
    state = iif(:again_at_ns is null, 5, iif(:again_at_ns > :now_ns, 0, 1)),
    due_at_ns = coalesce(:again_at_ns, due_at_ns),
    rank_at_ns = max(min(coalesce(:again_at_ns, due_at_ns) - (due_at_ns - rank_at_ns), :last_ns), -:last_ns),
    runner = null,
    settled = claim,
    ended_at_ns = iif(:again_at_ns is null, :now_ns, null),
    failures = iif(:error is null, failures, failures + 1),
    errors = iif(:error is null, errors, /* include job_error */)
where cluster = :cluster and id = :id;

-- name: give_back
-- A job that was not begun, or was stopped by a drain, waits again.
update jobs set state = :state, runner = null where cluster = :cluster and id = :id;

-- name: note_progress
-- How far a job is.
insert into job_progress (cluster, job, done, total, note, at_ns)
values (:cluster, :id, :done, :total, :note, :now_ns)
on conflict (cluster, job) do update set
    done = excluded.done, total = excluded.total, note = excluded.note, at_ns = excluded.at_ns;

-- name: cancelling
-- Nothing that a running job does may commit any more. Its key is free; the first reply stays.
update jobs set cancelling = 1, key = null, reply = coalesce(reply, :reply) where cluster = :cluster and id = :id;

-- name: running
-- The claimed jobs of a seat.
select id, seat, part, task, claim, runner, cancelling from jobs indexed by jobs_claimed
where cluster = :cluster and seat = :seat and state = 2;

-- name: claimed
-- The jobs that are claimed for a runner.
select id, seat, part, task, claim, runner, cancelling from jobs indexed by jobs_runner
where runner = :runner and cluster = :cluster;

-- name: run
-- One job, as those see it who look after claims.
select id, seat, part, task, claim, runner, cancelling, state from jobs where cluster = :cluster and id = :id;

-- name: fetch
-- Those of these jobs that run, as whoever runs them needs them.
select id, seat, part, task, fingerprint, payload, key, claim, runner, failures, lost, due_at_ns, trace_id from jobs
where cluster = :cluster and id in (select value from json_each(:ids))
and +state = 2 and +runner is not null and not cancelling;

-- name: look
-- All about these jobs.
select
    id, seat, part, task, fingerprint, state, key, priority, sent_at_ns, due_at_ns, claimed_at_ns, ended_at_ns, claim, runner,
    ran_by, failures, lost, cancelling, errors, payload, iif(state < 4, null, reply),
    (select json_group_object(t.name, t.value) from job_tags as t where t.cluster = :cluster and t.job = jobs.id),
    (
        select json_array(p.done, p.total, p.note, p.at_ns) from job_progress as p
        where p.cluster = :cluster and p.job = jobs.id
    ),
    trace_id
from jobs
where cluster = :cluster and id in (select value from json_each(:ids));

-- name: sweep
-- The next partitions of a seat with ready jobs, each with its first ones, as one text: each row is a step, see `holdings` in
-- ownership.sql. From partition to partition along the index.
with recursive parts (part, place) as (
    select
        iif(
            :after is null,
            (
                select min(part) from jobs indexed by jobs_ready
                where cluster = :cluster and seat = :seat and state = 1
            ),
            (
                select min(part) from jobs indexed by jobs_ready
                where cluster = :cluster and seat = :seat and state = 1 and part > :after
            )
        ),
        1
    union all
    select
        (
            select min(j.part) from jobs as j indexed by jobs_ready
            where j.cluster = :cluster and j.seat = :seat and j.state = 1 and j.part > parts.part
        ),
        place + 1
    from parts where part is not null and place < :parts
)
select json_group_array(
    json(
        (
            select json_group_array(json_array(/* include job_head */)) from (
                select /* include job_head */ from jobs as j indexed by jobs_ready
                where j.cluster = :cluster and j.seat = :seat and j.state = 1 and j.part = parts.part
                order by j.rank_at_ns, j.id limit :each
            )
        )
    ) order by place
)
from parts where part is not null;

-- name: refill
-- The first ready jobs of these partitions of a seat, as one text.
select json_group_array(
    json(
        (
            select json_group_array(json_array(/* include job_head */)) from (
                select /* include job_head */ from jobs as j indexed by jobs_ready
                where j.cluster = :cluster and j.seat = :seat and j.state = 1 and j.part = parts.value
                order by j.rank_at_ns, j.id limit :each
            )
        )
    )
)
from json_each(:parts) as parts;

-- name: mature
-- Jobs become ready, those due first first.
update jobs set state = 1
where rowid in (
    select rowid from jobs indexed by jobs_later
    where cluster = :cluster and seat = :seat and state = 0 and due_at_ns <= :now_ns
    order by due_at_ns, id limit :most
)
returning /* include job_head */;

-- name: next_due
-- When the next job of a seat is due.
select min(due_at_ns) from jobs indexed by jobs_later where cluster = :cluster and seat = :seat and state = 0;

-- name: room
-- How many jobs of each partition of a seat are claimed.
select part, count(*) from jobs indexed by jobs_claimed
where cluster = :cluster and seat = :seat and state = 2 group by part;

-- name: candidates
-- These jobs, as a claim judges them.
select id, part, state, cancelling from jobs
where cluster = :cluster and seat = :seat and id in (select value from json_each(:ids));

-- name: claim
-- Jobs begin, for one runner.
update jobs set state = 2, runner = :runner, ran_by = :runner, claim = claim + 1, claimed_at_ns = :now_ns
where cluster = :cluster and id in (select value from json_each(:ids))
returning id, seat, part, task, fingerprint, payload, key, claim, runner, failures, lost, due_at_ns, trace_id;

-- name: date_losses
-- The runners of these claimed jobs were lost since the last look, or just now.
update jobs indexed by jobs_claimed set lost_at_ns = :now_ns
where cluster = :cluster and seat = :seat and state = 2 and runner is null and lost_at_ns is null;

-- name: lost
-- The claimed jobs of a seat whose runners were lost long enough ago.
select id, task, lost, cancelling from jobs indexed by jobs_claimed
where cluster = :cluster and seat = :seat and state = 2 and runner is null and lost_at_ns <= :until_ns
order by lost_at_ns, id limit :most;

-- name: next_lost
-- When the runner of the next one was lost.
select min(lost_at_ns) from jobs indexed by jobs_claimed
where cluster = :cluster and seat = :seat and state = 2 and runner is null;

-- name: lose
-- The runner of a job was lost, once more: it is ready again, or it was the last time.
update jobs set
    lost = lost + 1,
    lost_at_ns = null,
    state = iif(:error is null, 1, 5),
    ended_at_ns = iif(:error is null, null, :now_ns),
    errors = iif(:error is null, errors, /* include job_error */)
where cluster = :cluster and id = :id;

-- name: count_lost
-- The same of a cancelled one, before it ends.
update jobs set lost = lost + 1, lost_at_ns = null where cluster = :cluster and id = :id;

-- name: park
-- Ready jobs of these tasks are set aside.
update jobs set state = 3
where rowid in (
    select rowid from jobs indexed by jobs_ready
    where cluster = :cluster and seat = :seat and state = 1 and task in (select value from json_each(:tasks))
    order by part, rank_at_ns, id limit :most
);

-- name: unpark
-- Parked jobs of these tasks are ready again.
update jobs set state = 1
where rowid in (
    select rowid from jobs indexed by jobs_parked
    where cluster = :cluster and seat = :seat and state = 3 and task in (select value from json_each(:tasks))
    order by rank_at_ns, id limit :most
);

-- name: parked
-- The tasks of the parked jobs of a seat, from task to task along the index.
with recursive tasks (task) as (
    select min(task) from jobs indexed by jobs_parked where cluster = :cluster and seat = :seat and state = 3
    union all
    select (
        select min(j.task) from jobs as j indexed by jobs_parked
        where j.cluster = :cluster and j.seat = :seat and j.state = 3 and j.task > tasks.task
    )
    from tasks where task is not null
)
select task from tasks where task is not null;

-- name: backlog
-- How many jobs of a seat wait and run, each up to a bound.
select
    (
        select count(*) from (
            select 1 from jobs indexed by jobs_ready
            where cluster = :cluster and seat = :seat and state = 1 limit :most
        )
    ),
    (
        select count(*) from (
            select 1 from jobs indexed by jobs_later
            where cluster = :cluster and seat = :seat and state = 0 limit :most
        )
    ),
    (
        select count(*) from (
            select 1 from jobs indexed by jobs_parked
            where cluster = :cluster and seat = :seat and state = 3 limit :most
        )
    ),
    (
        select count(*) from (
            select 1 from jobs indexed by jobs_claimed
            where cluster = :cluster and seat = :seat and state = 2 limit :most
        )
    ),
    (
        select count(*) from (
            select 1 from jobs indexed by jobs_dead
            where cluster = :cluster and seat = :seat and state = 5 limit :most
        )
    );

-- name: oldest
-- The earliest due time of the heads of a seat's partitions, of as many as the bound says.
with recursive parts (part, place) as (
    select min(part), 1 from jobs indexed by jobs_ready where cluster = :cluster and seat = :seat and state = 1
    union all
    select
        (
            select min(j.part) from jobs as j indexed by jobs_ready
            where j.cluster = :cluster and j.seat = :seat and j.state = 1 and j.part > parts.part
        ),
        place + 1
    from parts where part is not null and place < :most
)
select min(
    (
        select j.due_at_ns from jobs as j indexed by jobs_ready
        where j.cluster = :cluster and j.seat = :seat and j.state = 1 and j.part = parts.part
        order by j.rank_at_ns, j.id limit 1
    )
)
from parts where part is not null;

-- name: chosen
-- The next ids of jobs that are wanted, in order; of those that have ended only, if so asked.
select id from jobs
where cluster = :cluster and id > :after
and (:state is null or state = :state)
and (not :ended or state >= 4)
and /* include wanted_jobs */
order by id limit :most;

-- name: chosen_newest
-- The same in the reverse order.
select id from jobs
where cluster = :cluster and id < :after
and (:state is null or state = :state)
and (not :ended or state >= 4)
and /* include wanted_jobs */
order by id desc limit :most;

-- name: chosen_tagged
-- The same of those with a tag.
select id from job_tags as tag cross join jobs on jobs.cluster = tag.cluster and jobs.id = tag.job
where tag.cluster = :cluster and tag.name = :tag and tag.value = :value and tag.job > :after
and (:state is null or state = :state)
and (not :ended or state >= 4)
and /* include wanted_jobs */
order by tag.job limit :most;

-- name: chosen_tagged_newest
-- The same in the reverse order.
select id from job_tags as tag cross join jobs on jobs.cluster = tag.cluster and jobs.id = tag.job
where tag.cluster = :cluster and tag.name = :tag and tag.value = :value and tag.job < :after
and (:state is null or state = :state)
and (not :ended or state >= 4)
and /* include wanted_jobs */
order by tag.job desc limit :most;

-- name: chosen_later
-- The same of jobs in a state in which few are among many, in either order: the planner would walk along all ids.
select id from jobs indexed by jobs_later
where cluster = :cluster and iif(:newest, id < :after, id > :after) and state = 0
and /* include wanted_jobs */
order by iif(:newest, id, '') desc, id limit :most;

-- name: chosen_ready
-- The same of ready ones.
select id from jobs indexed by jobs_ready
where cluster = :cluster and iif(:newest, id < :after, id > :after) and state = 1
and /* include wanted_jobs */
order by iif(:newest, id, '') desc, id limit :most;

-- name: chosen_claimed
-- The same of claimed ones.
select id from jobs indexed by jobs_claimed
where cluster = :cluster and iif(:newest, id < :after, id > :after) and state = 2
and /* include wanted_jobs */
order by iif(:newest, id, '') desc, id limit :most;

-- name: chosen_parked
-- The same of parked ones.
select id from jobs indexed by jobs_parked
where cluster = :cluster and iif(:newest, id < :after, id > :after) and state = 3
and /* include wanted_jobs */
order by iif(:newest, id, '') desc, id limit :most;

-- name: chosen_dead
-- The same of dead ones.
select id from jobs indexed by jobs_dead
where cluster = :cluster and iif(:newest, id < :after, id > :after) and state = 5
and /* include wanted_jobs */
order by iif(:newest, id, '') desc, id limit :most;

-- name: revive
-- Dead jobs are ready again, and due.
update jobs set
    state = 1, ended_at_ns = null, failures = 0, lost = 0, due_at_ns = :now_ns,
    rank_at_ns = max(min(:now_ns - (due_at_ns - rank_at_ns), :last_ns), -:last_ns)
where cluster = :cluster and id in (select value from json_each(:ids)) and +state = 5;

-- name: remove
-- Delete jobs that have ended.
delete from jobs where cluster = :cluster and id in (select value from json_each(:ids)) and +state >= 4;

-- name: last_of
-- The last one of the next so many jobs in the order of their ids; no row: they are fewer.
select id, sent_at_ns from jobs where cluster = :cluster and id > :after order by id limit 1 offset :most - 1;

-- name: purge
-- Delete what ended long ago in a range of ids; what is dead stays.
delete from jobs
where cluster = :cluster and id > :after and id <= :last and +state in (4, 6, 7)
and ended_at_ns <= iif(key is null, :before_ns, :keys_before_ns);
