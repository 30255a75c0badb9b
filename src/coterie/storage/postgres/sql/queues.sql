-- Queues, and what the holder of a queue's seat does with its jobs: it claims them for runners, makes them ready when they
-- are due, takes them back from runners that are gone. Fenced as in fragments.sql [C1].
--
-- Locks are taken in the order: the runner's own row, the seat, the queue, the runners of a batch, jobs. Runners of a batch
-- are locked with `skip locked`: one that is being evicted gets nothing, and nobody waits for it. Who deletes a runner
-- waits for the claims in flight, and its trigger finds what they have claimed.
--
-- What is written by place is looked at once more: `state + 0` keeps the index of that state, and a walk along it, out of
-- the question.

-- name: claim_jobs
-- Claim jobs for runners: those that are ready, in the order given, as far as the limits of the queue go (T2). Returns the
-- outcome and the tokens that are left, even if there are no jobs.
-- What runs is counted once the queue is locked, with a later snapshot (`claimed_jobs`). Jobs are looked up by their id
-- alone, and judged outside of the lookup: with `state = 1` in it, the index of what is ready would be walked. `now` is one
-- instant after the lock: with a second reading tokens would be lost. It may be earlier than the one before, where the
-- clock was set back: then nothing is refilled, and the next step counts from it.
with items as materialized (
    select * from unnest($6::text[], $7::text[]) with ordinality as u (id, runner, n)
), /* include fence_of_one (s.name) */, queue as materialized (
    select q.*
    from coterie.queues as q cross join held
    where q.cluster = $1 and q.seat = $3 and q.stamp = $5 and q.paused_at is null
    for no key update of q
), bucket as materialized (
    select *, coterie.bucket_at(tokens, rate, burst, refilled_at, now) as filled
    from (select *, clock_timestamp() as now from queue) as q
), targets as materialized (
    select t.id
    from bucket cross join (select distinct runner from items) as i cross join lateral (
        select id from coterie.runners where id = i.runner and cluster = bucket.cluster offset 0 for key share skip locked
    ) as t
), found as materialized (
    select i.n, i.runner, j.place, j.part
    from bucket cross join items as i join targets as t on t.id = i.runner cross join lateral (
        select ctid as place, seat, part, state
        from coterie.jobs where cluster = bucket.cluster and id = i.id
        offset 0
    ) as j
    where j.state = 1 and j.seat = bucket.seat
), running as materialized (
    select r.part, r.running
    from bucket cross join lateral coterie.claimed_jobs(
        bucket.cluster, bucket.seat, bucket.concurrency is not null, array(select distinct part from found)
    ) as r
    where bucket.concurrency is not null or bucket.partition_concurrency is not null
), fitting as materialized (
    select f.*, row_number() over (order by f.n) as place_in_queue
    from (
        select found.*, row_number() over (partition by part order by n) as place_in_part from found
    ) as f
        cross join bucket
        left join running as r on r.part = f.part
    where bucket.partition_concurrency is null
        or f.place_in_part <= bucket.partition_concurrency - coalesce(r.running, 0)
), claimed as (
    update coterie.jobs as j
    set state = 2, runner = f.runner, ran_by = f.runner, claim = j.claim + 1, claimed_at = bucket.now, lost_at = null
    from fitting as f cross join bucket
    where j.ctid = f.place and j.state + 0 = 1
        and (
            bucket.concurrency is null
            or f.place_in_queue <= bucket.concurrency - (select coalesce(sum(running), 0) from running)
        )
        and (bucket.rate is null or f.place_in_queue <= bucket.filled)
    returning /* include job_delivery */
), spent as (
    update coterie.queues as q
    set tokens = bucket.filled - (select count(*) from claimed), refilled_at = bucket.now
    from bucket
    where q.cluster = $1 and q.seat = bucket.seat and bucket.rate is not null
    returning q.tokens
)
select
    case
        when not exists (select from held) then 'fenced'
        when not exists (select from queue) then 'changed'
        else 'claimed'
    end as outcome, spent.tokens, claimed.*
from (select 1) as always left join spent on true left join claimed on true;

-- name: define_queue
-- Store what the program defines, unless it is stored already. Limits that were set at run time and a pause stay. Returns
-- whether the seat is held. What the bucket holds stays: a new definition does not fill it.
with /* include fence_of_one (s.name, s."group") */, clock as materialized (
    select clock_timestamp() as now from (select count(*) from held) as fence -- not while that one waits
), written as (
    insert into coterie.queues as q (
        cluster, seat, "group", fingerprint, age_s, takeover_delay_s, expected_wait_s, stamp,
        concurrency, partition_concurrency, rate, burst,
        defined_concurrency, defined_partition_concurrency, defined_rate, defined_burst, tokens, refilled_at
    )
    select
        $1, $3, coalesce($6, held."group"), $7, $8::float8, $9::float8, $10::float8, 1,
        $11::int, $12::int, $13::float8, $14::float8, $11, $12, $13, $14, case when $13 is not null then $14 end, clock.now
    from held cross join clock
    on conflict (cluster, seat) do update
    set "group" = excluded."group", fingerprint = excluded.fingerprint, age_s = excluded.age_s,
        takeover_delay_s = excluded.takeover_delay_s, expected_wait_s = excluded.expected_wait_s, stamp = q.stamp + 1,
        defined_concurrency = excluded.concurrency, defined_partition_concurrency = excluded.partition_concurrency,
        defined_rate = excluded.rate, defined_burst = excluded.burst,
        concurrency = case when q.is_set then q.concurrency else excluded.concurrency end,
        partition_concurrency = case when q.is_set then q.partition_concurrency else excluded.partition_concurrency end,
        rate = case when q.is_set then q.rate else excluded.rate end,
        burst = case when q.is_set then q.burst else excluded.burst end,
        tokens = case
            when q.is_set then q.tokens
            when excluded.rate is null then null
            when q.rate is null then excluded.burst
            else least(excluded.burst, coterie.bucket_at(q.tokens, q.rate, q.burst, q.refilled_at, excluded.refilled_at))
        end,
        refilled_at = case when q.is_set then q.refilled_at else greatest(q.refilled_at, excluded.refilled_at) end
    where $5::boolean and (
        q."group", q.fingerprint, q.age_s, q.takeover_delay_s, q.expected_wait_s,
        q.defined_concurrency, q.defined_partition_concurrency, q.defined_rate, q.defined_burst
    ) is distinct from (
        excluded."group", excluded.fingerprint, excluded.age_s, excluded.takeover_delay_s, excluded.expected_wait_s,
        excluded.concurrency, excluded.partition_concurrency, excluded.rate, excluded.burst
    )
    returning q.seat
)
select held.name from held left join written on true;

-- name: queue
-- Read a queue.
select /* include queue_row */
from coterie.queues as q
where q.cluster = $1 and q.seat = $2;

-- name: queues
-- Read all queues.
select /* include queue_row */
from coterie.queues as q
where q.cluster = $1
order by q.cluster, q.seat;

-- name: set_limits
-- Set limits that beat the definition; without $3 those of the definition are in force again. Waits for the claim in
-- flight. What the bucket holds stays; only with a first rate is it full.
update coterie.queues as q
set is_set = $3::boolean, stamp = q.stamp + 1,
    concurrency = case when $3 then $4::int else q.defined_concurrency end,
    partition_concurrency = case when $3 then $5::int else q.defined_partition_concurrency end,
    rate = case when $3 then $6::float8 else q.defined_rate end,
    burst = case when $3 then $7::float8 else q.defined_burst end,
    tokens = case
        when case when $3 then $6 else q.defined_rate end is null then null
        when q.rate is null then case when $3 then $7 else q.defined_burst end
        else least(
            case when $3 then $7 else q.defined_burst end,
            coterie.bucket_at(q.tokens, q.rate, q.burst, q.refilled_at, clock.now)
        )
    end,
    refilled_at = greatest(q.refilled_at, clock.now) -- a claim may have come first that read the clock later
from (select clock_timestamp() as now) as clock
where q.cluster = $1 and q.seat = $2
returning /* include queue_row */;

-- name: pause_queue
-- Pause a queue, or let it go on. Waits for the claim in flight: nothing is claimed after it. What is so already keeps its
-- stamp.
update coterie.queues as q
set stamp = q.stamp + case when (q.paused_at is not null) = $3::boolean then 0 else 1 end,
    paused_at = case when $3 then coalesce(q.paused_at, clock_timestamp()) end
where q.cluster = $1 and q.seat = $2
returning /* include queue_row */;

-- name: sweep_jobs
-- Read the next partitions of a seat with ready jobs, and the first jobs of each. It goes from partition to partition along
-- the index of what is ready.
with recursive parts as (
    (
        select part, 1 as n from coterie.jobs
        where cluster = $1 and seat = $2 and state = 1
            and (part, rank_at) > (coalesce($3::text, ''), case when $3 is null then timestamptz '-infinity' else 'infinity' end)
        order by cluster, seat, part, rank_at, id
        limit 1
    )
    union all
    select (
        select j.part from coterie.jobs as j
        where j.cluster = $1 and j.seat = $2 and j.state = 1 and j.part > p.part
        order by j.cluster, j.seat, j.part, j.rank_at, j.id
        limit 1
    ), p.n + 1
    from parts as p
    where p.part is not null and p.n < $4::int
)
select /* include job_head */
from parts as p cross join lateral (
    select * from coterie.jobs
    where cluster = $1 and seat = $2 and part = p.part and state = 1
    order by rank_at, id
    limit $5
) as j
where p.part is not null
order by p.part, j.rank_at, j.id;

-- name: refill_jobs
-- Read the first ready jobs of partitions.
select /* include job_head */
from unnest($3::text[]) as p (part) cross join lateral (
    select * from coterie.jobs
    where cluster = $1 and seat = $2 and part = p.part and state = 1
    order by rank_at, id
    limit $4
) as j
order by j.part, j.rank_at, j.id;

-- name: mature_jobs
-- Make jobs ready that are due. Returns whether the seat is held and how long until the next one is due, even if there are
-- none.
with /* include fence_of_one (s.name) */, clock as materialized (
    select clock_timestamp() as now from (select count(*) from held) as fence
), due as materialized (
    select j.ctid as place, j.due_at, j.id
    from held join coterie.jobs as j on j.seat = held.name
    where j.cluster = $1 and j.seat = $3 and j.state = 0 and j.due_at <= (select now from clock)
    order by j.due_at, j.id
    limit $5
), matured as (
    update coterie.jobs as j
    set state = 1
    from due
    where j.ctid = due.place and j.state + 0 = 0
    returning /* include job_head */
), next as materialized (
    select j.due_at
    from coterie.jobs as j
    where j.cluster = $1 and j.seat = $3 and j.state = 0
        and (j.due_at, j.id) > (
            coalesce((select max(due_at) from due), '-infinity'),
            coalesce((select id from due order by due_at desc, id desc limit 1), '')
        )
    order by j.due_at, j.id
    limit 1
)
select
    exists (select from held) as held, extract(epoch from next.due_at - clock.now)::float8 as next_in_s, matured.*
from clock left join next on true left join matured on true;

-- name: running_jobs
-- Read the claimed jobs of a seat.
select /* include running_job */
from coterie.jobs as j
where j.cluster = $1 and j.seat = $2 and j.state = 2;

-- name: take_back_jobs
-- Take jobs back from runners that are gone, once the takeover delay is over: ready again, or cancelled, or dead at the
-- limit of losses. Returns whether the seat is held and how long until the next one, even if there are none. If one of them was
-- changed since it was found, perhaps cancelled, it is run again.
with /* include fence_of_one (s.name) */, clock as materialized (
    select clock_timestamp() as now from (select count(*) from held) as fence
), gone as materialized (
    select j.ctid as place, j.id, j.lost_at + make_interval(secs => $5::float8) as at
    from held join coterie.jobs as j on j.seat = held.name
    where j.cluster = $1 and j.seat = $3 and j.state = 2 and j.runner is null
), chosen as materialized (
    select * from gone where at <= (select now from clock) order by at, id limit $7
), taken as (
    update coterie.jobs as j
    set lost = j.lost + 1, lost_at = null,
        state = case when j.cancelling then 6 when j.lost + 1 >= $6::bigint then 5 else 1 end,
        cancelling = false,
        ended_at = case when j.cancelling or j.lost + 1 >= $6 then clock.now end,
        errors = case when j.cancelling or j.lost + 1 < $6 then j.errors else
            case when jsonb_array_length(j.errors) < 20 then j.errors else j.errors - 0 end
                || jsonb_build_object('number', j.failures + 1, 'at', clock.now, 'error', format(
                    'its runner died %s times', j.lost + 1
                ))
        end
    from chosen as c cross join clock
    where j.ctid = c.place and j.state + 0 = 2 and j.runner is null
        and j.lost_at + make_interval(secs => $5) <= clock.now
    returning j.id, j.task, j.lost, j.state
)
select exists (select from held) as held, (
    select extract(epoch from min(g.at) - (select now from clock))::float8
    from gone as g left join chosen as c on c.place = g.place
    where c.place is null
) as next_in_s, taken.*
from (
    select case when chosen.count > taken.count then coterie.overtaken() end as overtaken
    from (select count(*) from chosen) as chosen, (select count(*) from taken) as taken
    offset 0
) as always left join taken on true;

-- name: park_jobs
-- Set aside ready jobs of these tasks.
with /* include fence_of_one (s.name) */, chosen as materialized (
    select j.ctid as place
    from held join coterie.jobs as j on j.seat = held.name
    where j.cluster = $1 and j.seat = $3 and j.state = 1 and j.task = any($5::text[])
    order by j.cluster, j.seat, j.part, j.rank_at, j.id
    limit $6
), parked as (
    update coterie.jobs as j set state = 3 from chosen as c where j.ctid = c.place and j.state + 0 = 1 returning 1
)
select count(*) from parked;

-- name: unpark_jobs
-- Make parked jobs of these tasks ready again.
with /* include fence_of_one (s.name) */, chosen as materialized (
    select j.place
    from held cross join unnest($5::text[]) as t (task) cross join lateral (
        select ctid as place from coterie.jobs
        where cluster = $1 and seat = held.name and state = 3 and task = t.task
        order by id
        limit $6
    ) as j
    limit $6
), ready as (
    update coterie.jobs as j set state = 1 from chosen as c where j.ctid = c.place and j.state + 0 = 3 returning 1
)
select count(*) from ready;

-- name: parked_tasks
-- Read the tasks of which jobs are parked at a seat, from task to task along their index.
with recursive tasks as (
    (
        select task from coterie.jobs
        where cluster = $1 and seat = $2 and state = 3
        order by cluster, seat, task, id
        limit 1
    )
    union all
    select (
        select j.task from coterie.jobs as j
        where j.cluster = $1 and j.seat = $2 and j.state = 3 and j.task > t.task
        order by j.cluster, j.seat, j.task, j.id
        limit 1
    )
    from tasks as t
    where t.task is not null
)
select task from tasks where task is not null;

-- name: backlog_of_queues
-- Count what waits and runs at seats, each number up to a bound; and how long the head of a partition waits that has been
-- due longest, of as many partitions.
select
    s.seat,
    (
        select count(*) from (
            select from coterie.jobs where cluster = $1 and seat = s.seat and state = 1 limit $3
        ) as j
    ) as ready,
    (
        select count(*) from (
            select from coterie.jobs where cluster = $1 and seat = s.seat and state = 0 limit $3
        ) as j
    ) as later,
    (
        select count(*) from (
            select from coterie.jobs where cluster = $1 and seat = s.seat and state = 3 limit $3
        ) as j
    ) as parked,
    (
        select count(*) from (
            select from coterie.jobs where cluster = $1 and seat = s.seat and state = 2 limit $3
        ) as j
    ) as claimed,
    (
        select count(*) from (
            select from coterie.jobs where cluster = $1 and seat = s.seat and state = 5 limit $3
        ) as j
    ) as dead,
    (
        with recursive heads as (
            (
                select part, due_at, 1 as n from coterie.jobs
                where cluster = $1 and seat = s.seat and state = 1
                order by cluster, seat, part, rank_at, id
                limit 1
            )
            union all
            select j.part, j.due_at, h.n + 1
            from heads as h cross join lateral (
                select part, due_at from coterie.jobs
                where cluster = $1 and seat = s.seat and state = 1 and part > h.part
                order by cluster, seat, part, rank_at, id
                limit 1
            ) as j
            where h.n < $3
        )
        select extract(epoch from clock_timestamp() - min(due_at))::float8 from heads
    ) as oldest_s
from unnest($2::text[]) with ordinality as s (seat, n)
order by s.n;
