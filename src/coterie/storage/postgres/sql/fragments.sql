-- Parts of statements. `/* include fence (s.name, s.epoch) */` in a statement stands for the fragment `fence` with these
-- columns in place of `/* columns */`.
--
-- The fence [C1]: a write in the name of a seat proves the seat in the same statement. It locks the runner's own row
-- `for key share`, then the rows of the seats `for share` in name order, with holder and epoch. Every statement that
-- moves a seat waits for these locks. Every part that writes joins `held`: a part that does not is not fenced [M3].
-- Three statements write it out in a form of their own, since no fragment fits: `verify` (fenced_writes.sql), `add_step` and
-- `wake_due_units` (units.sql). A change to the fence concerns them too.

-- name: me
-- The runner's own row.
me as materialized (
    select id, name from coterie.runners where id = $2 and cluster = $1 for key share
)

-- name: fence
-- The seats of `items` that the runner holds with these epochs. The sort below the lock makes `me` end before the first
-- seat is locked, in every plan.
/* include me */, held as materialized (
    select /* columns */
    from (select distinct seat, epoch from items) as u
        join coterie.seats as s on s.name = u.seat and s.epoch = u.epoch
        cross join me
    where s.cluster = $1 and s.name = any($3::text[]) and s.holder = $2
    order by s.name
    for share of s
)

-- name: fence_without_epochs
-- As `fence`, for hundreds of seats: a join in here would be a walk for each, so those that join `held` compare epochs.
/* include me */, held as materialized (
    select /* columns */
    from coterie.seats as s cross join me
    where s.cluster = $1 and s.name = any($3::text[]) and s.holder = $2
    order by s.name
    for share of s
)

-- name: fence_of_one
-- As `fence`, for one seat.
/* include me */, held as materialized (
    select /* columns */
    from coterie.seats as s cross join me
    where s.cluster = $1 and s.name = $3 and s.epoch = $4 and s.holder = $2
    for share of s
)

-- name: fence_short
-- As `fence_of_one`, both rows in one select: the shortest form, for writes that are alone in their group.
held as materialized (
    select /* columns */
    from coterie.runners as r cross join coterie.seats as s
    where r.id = $2 and r.cluster = $1 and s.cluster = $1 and s.name = $3 and s.epoch = $4 and s.holder = $2
    for key share of r for share of s
)

-- name: here
-- Which database this is, wherever it is asked: on a connection of a user it must be the cluster's own.
here as materialized (
    select (select system_identifier from pg_catalog.pg_control_system())::text || '/' ||
        (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())::text as database
)

-- name: begins
-- When a run begins that is started now: at $2, or in $3 seconds, but no later than $4, or in $5 seconds; $6 is how long
-- it may take, $7 are its tags.
instant as materialized (
    select clock_timestamp() as now
), times as materialized (
    select
        now, coalesce($2::timestamptz, now + make_interval(secs => $3::float8)) as at,
        coalesce($4::timestamptz, now + make_interval(secs => $5::float8)) as latest_at
    from instant
), begins as materialized (
    select
        now, coalesce(least(at, latest_at), now) as at, latest_at,
        case when least(at, latest_at) > now then 'suspended' else 'running' end as status,
        case when least(at, latest_at) > now then least(at, latest_at) end as later,
        case when least(at, latest_at) > now then null else now + make_interval(secs => $6::float8) end as times_out_at,
        $6::float8 as timeout_s, $7::text::jsonb as tags
    from times
)

-- name: job_head
-- The columns of a `JobHead`.
j.id, j.part, j.task, j.fingerprint, extract(epoch from j.rank_at)::float8 as rank_s, j.lost, j.priority

-- name: running_job
-- The columns of a `RunningJob`.
j.id, j.seat, j.part, j.task, j.claim, j.runner, j.cancelling

-- name: job_delivery
-- The columns of a `JobDelivery`.
j.id, j.seat, j.part, j.task, j.fingerprint, j.payload, j.key, j.claim, j.runner, j.failures, j.lost,
    extract(epoch from j.due_at)::float8 as due_s, j.trace_id

-- name: queue_row
-- The columns of a `QueueRow`.
q.seat, q."group", q.fingerprint, q.age_s, q.takeover_delay_s, q.expected_wait_s, q.stamp, q.concurrency,
    q.partition_concurrency, q.rate, q.burst, q.defined_concurrency, q.defined_partition_concurrency, q.defined_rate,
    q.defined_burst, q.is_set, q.paused_at, q.tokens, q.refilled_at, clock_timestamp() as now, array(
        select p.name from coterie.pauses as p where p.cluster = $1 and p.kind = 'task' order by p.name
    ) as paused_tasks, exists (
        select from coterie.pauses as p where p.cluster = $1 and p.kind = 'group' and p.name = q."group"
    ) as is_group_paused

-- name: job_row
-- The columns of a `JobRow`, with its tags and its progress.
j.id, j.seat, j.part, j.task, j.fingerprint, j.state, j.key, j.priority, j.sent_at, j.due_at, j.claimed_at, j.ended_at,
    j.claim, j.runner, j.ran_by, j.failures, j.lost, j.cancelling, j.errors, j.payload,
    case when j.ended_at is not null then j.reply end as reply, j.trace_id, (
        select jsonb_object_agg(t.name, t.value) from coterie.job_tags as t where t.cluster = $1 and t.job = j.id
    ) as tags, p.done, p.total, p.note, p.at

-- name: its_progress
-- The progress of the job `j`, for `job_row`.
left join lateral (
    select done, total, note, at from coterie.job_progress where cluster = $1 and job = j.id offset 0
) as p on true

-- name: taken_keys
-- Members of a group that send a message whose key another one has.
select s.n
    from sends as s cross join lateral (
        select from coterie.messages as m
        where m.cluster = $1 and m.entity_type = s.entity_type and m.entity_id = s.entity_id and m.method = s.method
            and m.key = s.key and m.id <> s.id
        offset 0
    ) as other
    union -- or by another send of the same handler
    select n from sends where key is not null group by n, entity_type, entity_id, method, key having count(*) > 1

-- name: judged_handlers
-- What becomes of the members of `commit_handlers`; and the ends of messages and changes of states of those of which all is
-- written.
judged as materialized (
    select i.*, m.place as message_place, s.place as state_place, case
        when m.status = 1 and m.epoch = i.epoch then 'written' -- by an earlier try of this commit
        when held.name is null then 'fenced'
        when i.message is not null and m.status is distinct from 0 then 'gone'
        when i.key is null or (i.version = 0 and s.place is null) or (s.version = i.version and s.epoch <= i.epoch)
            then case when taken.n is not null then 'taken' end
        when i.message is not null then 'stale'
        when i.value is null and s.place is null then 'written' -- likewise
        when s.version = i.version + 1 and s.epoch = i.epoch and s.value = i.value then 'written'
        else 'stale'
    end as outcome
    from items as i
        left join held on held.name = i.seat and held.epoch = i.epoch
        left join taken on taken.n = i.n
        left join lateral (
            select ctid as place, status, epoch from coterie.messages where cluster = $1 and id = i.message offset 0
        ) as m on true
        left join lateral (
            select ctid as place, version, epoch, value from coterie.states where cluster = $1 and key = i.key offset 0
        ) as s on true
    order by i.message, i.key
), done as (
    update coterie.messages as m
    set status = 1, completed_at = clock_timestamp(), reply = j.reply, epoch = j.epoch
    from judged as j
    where m.ctid = j.message_place and j.outcome is null and m.completed_at is null
    returning j.n
), first as (
    insert into coterie.states (cluster, key, seat, value, version, epoch)
    select $1, j.key, j.seat, j.value, 1, j.epoch
    from judged as j
    where j.outcome is null and j.key is not null and j.version = 0 and j.value is not null
    order by j.key
    on conflict (cluster, key) do nothing
    returning key
), next as (
    update coterie.states as s
    set value = j.value, version = j.version + 1, epoch = j.epoch, seat = j.seat
    from judged as j
    where s.ctid = j.state_place and j.outcome is null and j.value is not null
        and s.version = j.version and s.epoch <= j.epoch
    returning s.key
), dropped as (
    delete from coterie.states as s
    using judged as j
    where s.ctid = j.state_place and j.outcome is null and j.value is null
        and s.version = j.version and s.epoch <= j.epoch
    returning s.key
)

-- name: sent_messages
-- The messages that members send of which all is written; and those members of which something was not sent.
sent as (
    insert into coterie.messages
        (cluster, id, seat, entity_type, entity_id, method, payload, key, digest, trace_id, sent_at, due_at, tags)
    select
        $1, s.id, s.seat, s.entity_type, s.entity_id, s.method, s.payload, s.key, s.digest, s.trace_id,
        statement_timestamp(), coalesce(s.due_at, statement_timestamp() + make_interval(secs => s.delay_s)), s.tags::jsonb
    from sends as s join judged as j on j.n = s.n
    where j.outcome is null
        and (s.key is null or /* columns */::text is null or set_config('lock_timeout', /* columns */, true) is not null) -- see above
    order by s.entity_type, s.entity_id, s.method, s.key, s.id
    on conflict do nothing
    returning id
), unsent as (
    select distinct s.n
    from sends as s
        left join sent on sent.id = s.id
        left join lateral ( -- by an earlier try of this commit
            select true as there from coterie.messages where sent.id is null and cluster = $1 and id = s.id offset 0
        ) as m on true
    where sent.id is null and m.there is null
)

-- name: set_timers
-- The timers that members set, and cancel, of which all is written.
timed as (
    insert into coterie.schedules (
        cluster, key, seat, life, stamp, definition, target, entity_type, entity_id, method, payload, since_at, next_at,
        outcomes, changed_at
    )
    select
        $1, t.key, j.seat, t.life, 1, t.definition, t.target, t.entity_type, t.entity_id, t.method, t.payload, t.since_at,
        t.next_at, '[]', statement_timestamp()
    from timers as t join judged as j on j.n = t.n
    where j.outcome is null and t.life is not null
    order by t.key
    on conflict (cluster, key) do update
    set seat = excluded.seat, life = excluded.life, stamp = 1, definition = excluded.definition, target = excluded.target,
        entity_type = excluded.entity_type, entity_id = excluded.entity_id, method = excluded.method,
        payload = excluded.payload, since_at = excluded.since_at, next_at = excluded.next_at, last_at = null, last_id = null,
        paused_at = null, outcomes = '[]', changed_at = excluded.changed_at
), untimed as (
    delete from coterie.schedules
    where cluster = $1 and key = any(array(
        select t.key from timers as t join judged as j on j.n = t.n where j.outcome is null and t.life is null
    ))
)

-- name: taken_job_keys
-- Members of a group that send a job whose key another one has.
select s.n
    from new_jobs as s cross join lateral (
        select from coterie.jobs as j
        where j.cluster = $1 and j.task = s.task and j.key = s.key and j.id <> s.id
        offset 0
    ) as other
    union -- or another job of the same member
    select n from new_jobs where key is not null group by n, task, key having count(*) > 1

-- name: stored_jobs
-- The jobs that members send of which all is written; and those members of which something was not stored.
stored as (
    insert into coterie.jobs
        (cluster, id, seat, part, task, fingerprint, payload, key, digest, priority, trace_id, sent_at, due_at, rank_at, state)
    select
        $1, s.id, s.seat, s.part, s.task, s.fingerprint, s.payload, s.key, s.digest, s.priority, s.trace_id,
        statement_timestamp(), due.at, due.at - make_interval(secs => least(greatest(s.priority * s.age_s, -9e9), 9e9)),
        case when due.at <= statement_timestamp() then 1 else 0 end
    from new_jobs as s join judged as j on j.n = s.n cross join lateral (
        select coalesce(s.due_at, statement_timestamp() + make_interval(secs => s.delay_s)) as at
    ) as due
    where j.outcome is null
        and (s.key is null or /* columns */::text is null or set_config('lock_timeout', /* columns */, true) is not null)
    order by s.task, s.key, s.id
    on conflict do nothing
    returning id
), tagged as (
    insert into coterie.job_tags (cluster, job, name, value)
    select $1, t.job, t.name, t.value from tags as t join stored on stored.id = t.job
), unstored as (
    select distinct s.n
    from new_jobs as s
        left join stored on stored.id = s.id
        left join lateral ( -- by an earlier try of this commit
            select true as there from coterie.jobs where stored.id is null and cluster = $1 and id = s.id offset 0
        ) as j on true
    where stored.id is null and j.there is null
)

-- name: found_job
-- The job of a member `i`, by its id alone.
left join lateral (
            select ctid as place, state, runner, ran_by, claim, cancelling
            from coterie.jobs where cluster = $1 and id = i.job
            offset 0
        ) as j on true

-- name: job_end_outcome
-- Why a member `i` does not end its job `j` with all that it writes; null: it does.
when j.claim = i.claim and j.ran_by = $2 and j.state in (4, 7) then 'written' -- by an earlier try
        when j.claim = i.claim and j.ran_by = $2 and j.state = 6 then 'cancelled' -- likewise
        when me.id is null then 'fenced'
        when j.state is distinct from 2 or j.runner is distinct from $2 or j.claim <> i.claim then 'gone'
        when j.cancelling then 'cancelled'

-- name: ended_jobs
-- The ends of jobs that were judged so: with their replies, or as cancelled; and the results of all members.
done as (
    update coterie.jobs as j
    set state = case when i.cancelling then 6 when i.discarded then 7 else 4 end,
        ended_at = clock_timestamp(),
        reply = case when i.cancelling then coalesce(nullif(i.cancelled_reply, ''), j.reply) else i.reply end,
        cancelling = false,
        runner = null
    from judged as i
    where j.ctid = i.place and (i.outcome is null or i.cancelling)
        and j.state + 0 = 2 and j.runner is not distinct from $2 and j.claim = i.claim and j.cancelling = i.cancelling
    returning i.n
)

-- name: jobs_of_state
-- The ids of jobs in the state $4, of a seat, if one is given: not more than can be sorted soon, and one.
known as materialized (
    select id from coterie.jobs where cluster = $1 and state = 0 and $4 = 0 and seat = coalesce($5, seat)
    union all
    select id from coterie.jobs where cluster = $1 and state = 1 and $4 = 1 and seat = coalesce($5, seat)
    union all
    select id from coterie.jobs where cluster = $1 and state = 2 and $4 = 2 and seat = coalesce($5, seat)
    union all
    select id from coterie.jobs where cluster = $1 and state = 3 and $4 = 3 and seat = coalesce($5, seat)
    union all
    select id from coterie.jobs where cluster = $1 and state = 5 and $4 = 5 and seat = coalesce($5, seat)
    limit 10001
)

-- name: removed_jobs
-- Those of `chosen` that are deleted, each checked again once it is locked: it may have been revived, and ended since.
gone as (
    delete from coterie.jobs
    where cluster = $1 and id = any(array(select id from chosen)) and ended_at is not null
        and state + 0 = coalesce($3, state)
        and ($6::float8 is null or ended_at <= clock_timestamp() - make_interval(secs => $6))
    returning id
), /* include gone_with_jobs */

-- name: gone_with_jobs
-- What belongs to jobs that are `gone`.
untagged as (
    delete from coterie.job_tags where cluster = $1 and job = any(array(select id from gone))
), forgotten as (
    delete from coterie.job_progress where cluster = $1 and job = any(array(select id from gone))
)

-- name: filtered_jobs
-- The rest of a filter, for `count_few_jobs`.
task = coalesce($5, task) and ($6::float8 is null or coalesce(ended_at, sent_at) <= clock_timestamp() - make_interval(secs => $6))
