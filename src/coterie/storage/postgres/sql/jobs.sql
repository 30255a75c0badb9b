-- Jobs: how they are stored, how they end, and what people do with them. What the holder of their queue's seat does stands in
-- queues.sql.
--
-- Whoever runs a job proves that it lives, by its own row, and that the claim is still its own, by the runner and the
-- claim's number in the job's row. Writes of that kind have the three steps of messages.sql: find, judge, write; nothing is
-- judged before `me` has returned its row. What is written by place is looked at once more, in a form (`state + 0`, `is not
-- distinct from`) that keeps the indexes of what is claimed, and a walk along them, out of the question. A job that was
-- cancelled while it ran ends as cancelled, whatever the write says.

-- name: insert_jobs
-- Store jobs with their tags, except those whose id or key exists already. They come in the order of their keys. $18 limits
-- the wait for a key, as in `insert_messages`.
with stored as (
    insert into coterie.jobs
        (cluster, id, seat, part, task, fingerprint, payload, key, digest, priority, trace_id, sent_at, due_at, rank_at, state)
    select
        $1, u.id, u.seat, u.part, u.task, u.fingerprint, u.payload, u.key, u.digest, u.priority, u.trace_id,
        statement_timestamp(), due.at, due.at - make_interval(secs => least(greatest(u.priority * u.age_s, -9e9), 9e9)),
        case when due.at <= statement_timestamp() then 1 else 0 end
    from unnest(
        $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::text[], $9::bytea[], $10::int[],
        $11::float8[], $12::text[], $13::timestamptz[], $14::float8[]
    ) as u (id, seat, part, task, fingerprint, payload, key, digest, priority, age_s, trace_id, due_at, delay_s)
        cross join lateral (
            select coalesce(u.due_at, statement_timestamp() + make_interval(secs => u.delay_s)) as at
        ) as due
    where u.key is null or $18::text is null or set_config('lock_timeout', $18, true) is not null
    on conflict do nothing
    returning id, state, due_at, extract(epoch from rank_at)::float8 as rank_s, sent_at
), tagged as (
    insert into coterie.job_tags (cluster, job, name, value)
    select $1, t.job, t.name, t.value
    from unnest($15::text[], $16::text[], $17::text[]) as t (job, name, value)
    where t.job in (select id from stored)
)
select * from stored;

-- name: insert_jobs_via
-- As `insert_jobs`, in a transaction of the user, like `insert_via`.
with /* include here */, stored as (
    insert into coterie.jobs
        (cluster, id, seat, part, task, fingerprint, payload, key, digest, priority, trace_id, sent_at, due_at, rank_at, state)
    select
        $1, u.id, u.seat, u.part, u.task, u.fingerprint, u.payload, u.key, u.digest, u.priority, u.trace_id,
        statement_timestamp(), due.at, due.at - make_interval(secs => least(greatest(u.priority * u.age_s, -9e9), 9e9)),
        case when due.at <= statement_timestamp() then 1 else 0 end
    from here cross join unnest(
        $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::text[], $9::bytea[], $10::int[],
        $11::float8[], $12::text[], $13::timestamptz[], $14::float8[]
    ) as u (id, seat, part, task, fingerprint, payload, key, digest, priority, age_s, trace_id, due_at, delay_s)
        cross join lateral (
            select coalesce(u.due_at, statement_timestamp() + make_interval(secs => u.delay_s)) as at
        ) as due
    where here.database = coalesce($18::text, here.database)
    on conflict do nothing
    returning id, state, due_at, rank_at, sent_at
), tagged as (
    insert into coterie.job_tags (cluster, job, name, value)
    select $1, t.job, t.name, t.value
    from unnest($15::text[], $16::text[], $17::text[]) as t (job, name, value)
    where t.job in (select id from stored)
)
select
    here.database, case when s.id is not null then pg_current_xact_id()::text end as transaction, s.id, s.state,
    extract(epoch from s.due_at)::float8 as due_s, extract(epoch from s.rank_at)::float8 as rank_s,
    extract(epoch from s.sent_at)::float8 as now_s
from here left join stored as s on true;

-- name: read_back_jobs
-- Read the jobs that exist instead of others, by number: found by id it is the sender's own, by key another one [M4].
select
    u.n, j.id, j.state, j.due_at, extract(epoch from j.rank_at)::float8 as rank_s, clock_timestamp() as now, j.digest,
    case when j.state >= 4 then j.reply end as reply
from unnest($2::text[], $3::text[], $4::text[]) with ordinality as u (id, task, key, n)
cross join lateral (
    select id, state, due_at, rank_at, digest, reply from coterie.jobs where cluster = $1 and id = u.id
    union all
    select id, state, due_at, rank_at, digest, reply from coterie.jobs
    where cluster = $1 and task = u.task and key = u.key
    limit 1
) as j;

-- name: find_job
-- Read the job that has a key.
select id, state, due_at, extract(epoch from rank_at)::float8 as rank_s, clock_timestamp() as now, digest,
    case when ended_at is not null then reply end as reply
from coterie.jobs
where cluster = $1 and task = $2 and key = $3;

-- name: look_at_jobs
-- Read jobs by their ids.
select /* include job_row */
from unnest($2::text[]) as u (id) cross join lateral (
    select * from coterie.jobs where cluster = $1 and id = u.id offset 0
) as j /* include its_progress */;

-- name: cancel_job
-- End a job that waits, or store that nothing of it may commit, with the reply that it has then. Returns what was done, and
-- the claim if it runs. Its key is free again.
with cancelled as (
    update coterie.jobs as j
    set state = case when j.state = 2 then 2 else 6 end,
        cancelling = j.state = 2,
        ended_at = case when j.state <> 2 then statement_timestamp() end,
        key = null,
        reply = case when j.cancelling then j.reply else $3 end
    where j.cluster = $1 and j.id = $2 and j.ended_at is null
    returning /* include running_job */
)
select case when cancelled.cancelling then 'cancelling' else 'cancelled' end as outcome, cancelled.*
from cancelled
union all
select 'over', id, null, null, null, null, null, null -- perhaps it has just ended: the rest is from before that
from coterie.jobs
where cluster = $1 and id = $2 and not exists (select from cancelled);

-- name: claimed_for
-- Read the jobs that are claimed for a runner.
select /* include running_job */
from coterie.jobs as j
where j.runner = $2 and j.cluster = $1;

-- name: fetch_jobs
-- Read jobs whose claim is still this one, and that are not cancelled.
select /* include job_delivery */
from unnest($2::text[], $3::bigint[]) as u (id, claim) cross join lateral (
    select * from coterie.jobs where cluster = $1 and id = u.id offset 0
) as j
where j.claim = u.claim and j.state = 2 and j.runner is not null and not j.cancelling;

-- name: end_jobs
-- End jobs with their replies. Returns the result of each member, by number.
with items as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::bytea[], $6::boolean[], $7::bytea[]) with ordinality
        as u (job, claim, reply, discarded, cancelled_reply, n)
), /* include me */, judged as materialized (
    select i.*, j.place, me.id is not null and j.cancelling as cancelling, case
        /* include job_end_outcome */
    end as outcome
    from items as i
        left join me on true
        /* include found_job */
    order by i.job
), /* include ended_jobs */
select j.n, case
    when j.outcome is not null and not (j.outcome = 'cancelled' and j.cancelling) then j.outcome
    when done.n is null then coterie.overtaken()
    else coalesce(j.outcome, 'written')
end as outcome
from judged as j left join done on done.n = j.n;

-- name: commit_jobs
-- As `end_jobs`, for those that send messages and jobs. One that was cancelled sends nothing.
with items as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::bytea[], $6::boolean[], $7::bytea[]) with ordinality
        as u (job, claim, reply, discarded, cancelled_reply, n)
), sends as materialized (
    select * from unnest(
        $8::bigint[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::bytea[], $15::text[],
        $16::bytea[], $17::text[], $18::timestamptz[], $19::float8[], $20::text[]
    ) as u (n, id, seat, entity_type, entity_id, method, payload, key, digest, trace_id, due_at, delay_s, tags)
), new_jobs as materialized (
    select * from unnest(
        $21::bigint[], $22::text[], $23::text[], $24::text[], $25::text[], $26::text[], $27::bytea[], $28::text[],
        $29::bytea[], $30::int[], $31::float8[], $32::text[], $33::timestamptz[], $34::float8[]
    ) as u (n, id, seat, part, task, fingerprint, payload, key, digest, priority, age_s, trace_id, due_at, delay_s)
), tags as materialized (
    select * from unnest($35::text[], $36::text[], $37::text[]) as u (job, name, value)
), /* include me */, taken as materialized (
    /* include taken_keys */
    union
    /* include taken_job_keys */
), judged as materialized (
    select i.*, j.place, me.id is not null and j.cancelling as cancelling, case
        /* include job_end_outcome */
        when taken.n is not null then 'taken'
    end as outcome
    from items as i
        left join me on true
        left join taken on taken.n = i.n
        /* include found_job */
    order by i.job
), /* include ended_jobs */, /* include sent_messages ($38) */, /* include stored_jobs ($38) */
select j.n, case
    when j.outcome is not null and not (j.outcome = 'cancelled' and j.cancelling) then j.outcome
    when done.n is null or unsent.n is not null or unstored.n is not null then coterie.overtaken()
    else coalesce(j.outcome, 'written')
end as outcome
from judged as j
    left join done on done.n = j.n
    left join unsent on unsent.n = j.n and j.outcome is null
    left join unstored on unstored.n = j.n and j.outcome is null;

-- name: end_job
-- End a job that is alone in its group, is not discarded and was not cancelled. No row: run `end_jobs`, which returns the
-- reason.
with me as materialized (
    select id from coterie.runners where id = $2 and cluster = $1 for key share
)
update coterie.jobs as j
set state = 4, ended_at = clock_timestamp(), reply = $5, runner = null
from me
where j.cluster = $1 and j.id = $3 and j.ended_at is null and j.claim = $4 and j.runner is not distinct from me.id
    and not j.cancelling
returning 'written' as outcome;

-- name: set_jobs_back
-- Count failed attempts, or put jobs off: due again later, or dead. Returns the result of each member, by number. A claim is
-- set back once.
with items as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::float8[], $6::text[], $7::bytea[]) with ordinality
        as u (job, claim, again_s, error, cancelled_reply, n)
), /* include me */, judged as materialized (
    select i.*, j.place, j.cancelling, case
        when j.put_back = i.claim and i.claim > 0 then 'written' -- by an earlier try
        when j.state = 6 and j.claim = i.claim and j.ran_by = $2 then 'cancelled' -- likewise
        when me.id is null then 'fenced'
        when j.state is distinct from 2 or j.runner is distinct from $2 or j.claim <> i.claim then 'gone'
    end as outcome
    from items as i
        left join me on true
        left join lateral (
            select ctid as place, state, runner, ran_by, claim, put_back, cancelling
            from coterie.jobs where cluster = $1 and id = i.job
            offset 0
        ) as j on true
    order by i.job
), done as (
    update coterie.jobs as j
    set put_back = case when i.cancelling then j.put_back else i.claim end,
        state = case when i.cancelling then 6 when i.again_s is null then 5 when i.again_s > 0 then 0 else 1 end,
        ended_at = case when i.cancelling or i.again_s is null then statement_timestamp() end,
        due_at = case when i.cancelling or i.again_s is null then j.due_at else again.at end,
        rank_at = case when i.cancelling or i.again_s is null then j.rank_at else again.at - (j.due_at - j.rank_at) end,
        reply = case when i.cancelling then coalesce(nullif(i.cancelled_reply, ''), j.reply) else j.reply end,
        failures = j.failures + case when i.cancelling or i.error is null then 0 else 1 end,
        errors = case when i.cancelling or i.error is null then j.errors else
            case when jsonb_array_length(j.errors) < 20 then j.errors else j.errors - 0 end
                || jsonb_build_object('number', j.failures + 1, 'at', statement_timestamp(), 'error', i.error)
        end,
        cancelling = false,
        runner = null
    from (
        select *, statement_timestamp() + make_interval(secs => coalesce(again_s, 0)) as at from judged offset 0
    ) as i cross join lateral (select i.at) as again
    where j.ctid = i.place and i.outcome is null
        and j.state + 0 = 2 and j.runner is not distinct from $2 and j.claim = i.claim and j.cancelling = i.cancelling
    returning i.n
)
select j.n, case
    when j.outcome is not null then j.outcome
    when done.n is null then coterie.overtaken()
    when j.cancelling then 'cancelled'
    else 'written'
end as outcome
from judged as j left join done on done.n = j.n;

-- name: give_jobs_back
-- Give jobs back that were not begun, or were stopped: ready again, or parked. Returns the number. If one of them was changed
-- since it was found, perhaps cancelled, it is run again.
with items as materialized (
    select * from unnest($3::text[], $4::bigint[]) as u (job, claim)
), /* include me */, found as materialized (
    select i.claim, me.id as runner, j.place
    from me cross join items as i cross join lateral (
        select ctid as place, state, runner, claim from coterie.jobs where cluster = $1 and id = i.job offset 0
    ) as j
    where j.state = 2 and j.runner = me.id and j.claim = i.claim
    order by i.job
), given as (
    update coterie.jobs as j
    set state = case when j.cancelling then 6 when $5::boolean then 3 else 1 end,
        ended_at = case when j.cancelling then statement_timestamp() end,
        cancelling = false,
        runner = null
    from found as f
    where j.ctid = f.place and j.state + 0 = 2 and j.runner is not distinct from f.runner and j.claim = f.claim
    returning 1
)
select case when found.count = given.count then given.count else coterie.overtaken()::bigint end as count
from (select count(*) from found) as found, (select count(*) from given) as given;

-- name: note_progress
-- Store how far a running job is, under the fence of its end. Returns a row if it was stored.
with /* include me */, held as materialized (
    select j.id
    from me cross join lateral (
        select id, state, runner, claim, cancelling from coterie.jobs where cluster = $1 and id = $3 offset 0 for key share
    ) as j
    where j.state = 2 and j.runner = me.id and j.claim = $4 and not j.cancelling
)
insert into coterie.job_progress as p (cluster, job, claim, at, done, total, note)
select $1, held.id, $4, clock_timestamp(), $5::float8, $6::float8, $7::text
from held
on conflict (cluster, job) do update
set claim = excluded.claim, at = excluded.at, done = excluded.done, total = excluded.total, note = excluded.note
where p.claim <= excluded.claim
returning p.claim;


-- name: list_jobs
-- Read jobs in the order of their ids, after one. Conditions that are null do not count.
select /* include job_row */
from (
    select * from coterie.jobs
    where cluster = $1 and id > $2 and state = coalesce($4, state) and seat = coalesce($5, seat) and task = coalesce($6, task)
        and ($7::float8 is null or coalesce(ended_at, sent_at) <= clock_timestamp() - make_interval(secs => $7))
    order by cluster, id
    limit $3
) as j /* include its_progress */
order by j.id;

-- name: list_newest_jobs
-- As `list_jobs`, from the newest one back.
select /* include job_row */
from (
    select * from coterie.jobs
    where cluster = $1 and id < $2 and state = coalesce($4, state) and seat = coalesce($5, seat) and task = coalesce($6, task)
        and ($7::float8 is null or coalesce(ended_at, sent_at) <= clock_timestamp() - make_interval(secs => $7))
    order by cluster desc, id desc
    limit $3
) as j /* include its_progress */
order by j.id desc;

-- name: list_few_jobs
-- As `list_jobs`, for a state that has an index; with $8 from the newest one back. If they are few, they are read and
-- sorted, and what has ended is not walked along. If they are many, some are found soon.
with /* include jobs_of_state */, few as materialized (
    select j.*
    from known cross join lateral (
        select * from coterie.jobs where cluster = $1 and id = known.id offset 0
    ) as j
    where (select count(*) from known) <= 10000 and case when $8::boolean then j.id < $2 else j.id > $2 end
), walked as materialized (
    select * from coterie.jobs
    where cluster = $1 and id > $2 and state + 0 = $4 and seat = coalesce($5, seat) and task = coalesce($6, task)
        and ($7::float8 is null or coalesce(ended_at, sent_at) <= clock_timestamp() - make_interval(secs => $7))
        and (select count(*) from known) > 10000 and not $8
    order by cluster, id
    limit $3
), walked_back as materialized (
    select * from coterie.jobs
    where cluster = $1 and id < $2 and state + 0 = $4 and seat = coalesce($5, seat) and task = coalesce($6, task)
        and ($7::float8 is null or coalesce(ended_at, sent_at) <= clock_timestamp() - make_interval(secs => $7))
        and (select count(*) from known) > 10000 and $8
    order by cluster desc, id desc
    limit $3
)
select /* include job_row */
from (
    select *
    from (select * from few union all select * from walked union all select * from walked_back) as found
    where state = $4 and seat = coalesce($5, seat) and task = coalesce($6, task)
        and ($7::float8 is null or coalesce(ended_at, sent_at) <= clock_timestamp() - make_interval(secs => $7))
    order by case when $8 then id end desc, id
    limit $3
) as j /* include its_progress */
order by case when $8 then j.id end desc, j.id;

-- name: list_tagged_jobs
-- As `list_jobs`, for jobs with a tag, along the index of its value.
select /* include job_row */
from (
    select j.*
    from (
        select job from coterie.job_tags
        where cluster = $1 and name <> '' and name = $8 and value = $9 and job > $2
        order by cluster, name, value, job
    ) as t cross join lateral (
        select * from coterie.jobs where cluster = $1 and id = t.job offset 0
    ) as j
    where j.state = coalesce($4, j.state) and j.seat = coalesce($5, j.seat) and j.task = coalesce($6, j.task)
        and ($7::float8 is null or coalesce(j.ended_at, j.sent_at) <= clock_timestamp() - make_interval(secs => $7))
    order by t.job
    limit $3
) as j /* include its_progress */
order by j.id;

-- name: list_newest_tagged_jobs
-- As `list_tagged_jobs`, from the newest one back.
select /* include job_row */
from (
    select j.*
    from (
        select job from coterie.job_tags
        where cluster = $1 and name <> '' and name = $8 and value = $9 and job < $2
        order by cluster desc, name desc, value desc, job desc
    ) as t cross join lateral (
        select * from coterie.jobs where cluster = $1 and id = t.job offset 0
    ) as j
    where j.state = coalesce($4, j.state) and j.seat = coalesce($5, j.seat) and j.task = coalesce($6, j.task)
        and ($7::float8 is null or coalesce(j.ended_at, j.sent_at) <= clock_timestamp() - make_interval(secs => $7))
    order by t.job desc
    limit $3
) as j /* include its_progress */
order by j.id desc;

-- name: count_jobs
-- Count the jobs that match, up to a bound.
select count(*) from (
    select id from coterie.jobs
    where cluster = $1 and state = coalesce($3, state) and seat = coalesce($4, seat) and task = coalesce($5, task)
        and ($6::float8 is null or coalesce(ended_at, sent_at) <= clock_timestamp() - make_interval(secs => $6))
    order by cluster, id
    limit $2
) as chosen;

-- name: count_few_jobs
-- As `count_jobs`, for a state that has an index.
select count(*) from (
    select from coterie.jobs
    where cluster = $1 and state = 0 and $3 = 0 and seat = coalesce($4, seat) and /* include filtered_jobs */
    union all
    select from coterie.jobs
    where cluster = $1 and state = 1 and $3 = 1 and seat = coalesce($4, seat) and /* include filtered_jobs */
    union all
    select from coterie.jobs
    where cluster = $1 and state = 2 and $3 = 2 and seat = coalesce($4, seat) and /* include filtered_jobs */
    union all
    select from coterie.jobs
    where cluster = $1 and state = 3 and $3 = 3 and seat = coalesce($4, seat) and /* include filtered_jobs */
    union all
    select from coterie.jobs
    where cluster = $1 and state = 5 and $3 = 5 and seat = coalesce($4, seat) and /* include filtered_jobs */
    limit $2
) as chosen;

-- name: count_tagged_jobs
-- As `count_jobs`, for jobs with a tag.
select count(*) from (
    select j.id
    from coterie.job_tags as t cross join lateral (
        select id, state, seat, task, ended_at, sent_at from coterie.jobs where cluster = $1 and id = t.job offset 0
    ) as j
    where t.cluster = $1 and t.name <> '' and t.name = $7 and t.value = $8
        and j.state = coalesce($3, j.state) and j.seat = coalesce($4, j.seat) and j.task = coalesce($5, j.task)
        and ($6::float8 is null or coalesce(j.ended_at, j.sent_at) <= clock_timestamp() - make_interval(secs => $6))
    limit $2
) as chosen;

-- name: revive_jobs
-- Make dead jobs ready, due now, without failures or losses. Their claims go on. Returns their number.
with chosen as materialized (
    select id from coterie.jobs
    where cluster = $1 and state = 5 and seat = coalesce($4, seat) and task = coalesce($5, task)
        and ($6::float8 is null or ended_at <= clock_timestamp() - make_interval(secs => $6))
        and ($3::text is null or id = $3)
        and ($7::text is null or exists (
            select from coterie.job_tags as t
            where t.cluster = $1 and t.job = id and t.name = $7 and t.value = $8
            offset 0
        ))
    limit $2
), revived as (
    update coterie.jobs
    set state = 1, ended_at = null, failures = 0, lost = 0, reply = null,
        due_at = statement_timestamp(), rank_at = statement_timestamp() - (due_at - rank_at)
    where cluster = $1 and id = any(array(select id from chosen order by id)) and state + 0 = 5
    returning 1
)
select count(*) from revived;

-- name: remove_jobs
-- Delete the first jobs that have ended and match. Returns the number.
with chosen as materialized (
    select id from coterie.jobs
    where cluster = $1 and ended_at is not null and state = coalesce($3, state) and seat = coalesce($4, seat)
        and task = coalesce($5, task)
        and ($6::float8 is null or ended_at <= clock_timestamp() - make_interval(secs => $6))
    order by cluster, id
    limit $2
), /* include removed_jobs */
select count(*) from gone;

-- name: remove_tagged_jobs
-- As `remove_jobs`, for jobs with a tag.
with chosen as materialized (
    select j.id
    from coterie.job_tags as t cross join lateral (
        select id, state, seat, task, ended_at from coterie.jobs where cluster = $1 and id = t.job offset 0
    ) as j
    where t.cluster = $1 and t.name <> '' and t.name = $7 and t.value = $8 and j.ended_at is not null
        and j.state = coalesce($3, j.state) and j.seat = coalesce($4, j.seat) and j.task = coalesce($5, j.task)
        and ($6::float8 is null or j.ended_at <= clock_timestamp() - make_interval(secs => $6))
    limit $2
), /* include removed_jobs */
select count(*) from gone;

-- name: purge_jobs
-- Delete jobs that ended long ago, among the next ids; dead ones stay. Returns the number deleted, the number of ids
-- examined, the last id, and whether that job was sent so late that it and all later ones cannot be old enough.
with span as materialized (
    select id, state, key, ended_at, sent_at
    from coterie.jobs
    where cluster = $1 and id > $2
    order by cluster, id
    limit $3
), gone as (
    delete from coterie.jobs
    where cluster = $1 and ended_at is not null and state <> 5 and id = any(array(
        select id from span
        where state <> 5 and ended_at
            <= clock_timestamp() - make_interval(secs => case when key is null then $4::float8 else $5::float8 end)
    ))
    returning id
), /* include gone_with_jobs */
select
    (select count(*) from gone) as gone,
    (select count(*) from span) as seen,
    (select max(id) from span) as last,
    (
        select sent_at > clock_timestamp() - make_interval(secs => least($4::float8, $5::float8))
        from span order by id desc limit 1
    ) as young;
