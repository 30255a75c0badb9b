-- Jobs: calls of tasks, from their insert to their end; and the queues that limit them.

-- A row that has not ended has no time of it: statements that must find rows by their id ask for `ended_at is null` or for
-- nothing else, so that the indexes of what waits and runs do not come into question for them. `runner` is set only while
-- the job is claimed: the deletion of a runner must not rewrite what it has ever run. `rank_at - due_at` never changes.
-- No foreign keys and no checks, as with messages.
create table coterie.jobs (
    cluster     text        collate "C" not null,
    id          text        collate "C" not null,
    seat        text        collate "C" not null,
    part        text        collate "C" not null,
    task        text        collate "C" not null,
    fingerprint text        collate "C" not null,
    key         text        collate "C",
    runner      text        collate "C", -- for which it is claimed
    ran_by      text        collate "C", -- for which it was claimed last
    trace_id    text,
    sent_at     timestamptz not null,
    due_at      timestamptz not null,
    rank_at     timestamptz not null, -- due_at - priority x age: the order within a partition
    claimed_at  timestamptz,
    lost_at     timestamptz, -- when its runner was deleted, while it is claimed
    ended_at    timestamptz,
    claim       bigint      not null default 0, -- grows with each claim, never falls
    put_back    bigint      not null default 0, -- the last claim that ended in a setback
    priority    integer     not null,
    failures    integer     not null default 0,
    lost        integer     not null default 0,
    state       smallint    not null, -- later, ready, claimed, parked; done, dead, cancelled, discarded: with ended_at
    cancelling  boolean     not null default false,
    digest      bytea       not null,
    payload     bytea       not null,
    reply       bytea,
    errors      jsonb       not null default '[]',
    primary key (cluster, id)
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);

create unique index jobs_key on coterie.jobs (cluster, task, key) where key is not null;
create index jobs_ready on coterie.jobs (cluster, seat, part, rank_at, id) where state = 1;
create index jobs_later on coterie.jobs (cluster, seat, due_at, id) where state = 0;
create index jobs_claimed on coterie.jobs (cluster, seat, part) where state = 2;
create index jobs_runner on coterie.jobs (runner) where runner is not null;
create index jobs_parked on coterie.jobs (cluster, seat, task, id) where state = 3;
create index jobs_dead on coterie.jobs (cluster, seat, id) where state = 5;

-- Written once, with their job.
create table coterie.job_tags (
    cluster text collate "C" not null,
    job     text collate "C" not null,
    name    text collate "C" not null,
    value   text collate "C" not null,
    primary key (cluster, job, name)
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 1
);

-- For statements that say so. Those that look for the tags of a job do not, and so never walk along it while the table looks
-- empty.
create index job_tags_value on coterie.job_tags (cluster, name, value, job) where name <> '';

create table coterie.job_progress (
    cluster text             collate "C" not null,
    job     text             collate "C" not null,
    claim   bigint           not null,
    at      timestamptz      not null,
    done    double precision not null,
    total   double precision,
    note    text,
    primary key (cluster, job)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 1
);

-- The limits in force, and those of the definition. A queue with a rate changes with each claim: half of each page is room,
-- and no index on what changes.
create table coterie.queues (
    cluster                       text    collate "C" not null,
    seat                          text    collate "C" not null,
    "group"                       text    not null,
    fingerprint                   text    not null,
    age_s                         double precision not null,
    takeover_delay_s              double precision not null,
    expected_wait_s               double precision,
    stamp                         bigint  not null,
    concurrency                   integer,
    partition_concurrency         integer,
    rate                          double precision,
    burst                         double precision,
    defined_concurrency           integer,
    defined_partition_concurrency integer,
    defined_rate                  double precision,
    defined_burst                 double precision,
    is_set                        boolean not null default false,
    paused_at                     timestamptz,
    tokens                        double precision, -- as of refilled_at; null without a rate
    refilled_at                   timestamptz not null,
    primary key (cluster, seat)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 1
);

-- What a bucket holds at an instant. A clock that was set back fills nothing.
create function coterie.bucket_at(
    tokens double precision, rate double precision, burst double precision, refilled_at timestamptz, at timestamptz
) returns double precision language sql immutable as $$
    select least(burst, tokens + rate * greatest(extract(epoch from at - refilled_at)::double precision, 0))
$$;

-- How many jobs of a seat are claimed, by partition: of all, or of some. The caller has locked the queue: a statement counts
-- with a snapshot from before it waited for that lock, and does not see what was claimed meanwhile. Those of a volatile
-- function begin later. One partition after another: for a table that looks empty, a plan for several at once may be a walk.
create function coterie.claimed_jobs(of_cluster text, of_seat text, all_parts boolean, parts text[])
returns table (part text, running bigint) language plpgsql volatile rows 10 as $$
declare
    each text;
begin
    if all_parts then
        return query
            select j.part, count(*) from coterie.jobs as j
            where j.cluster = of_cluster and j.seat = of_seat and j.state = 2 group by j.part;
        return;
    end if;
    foreach each in array parts loop
        return query
            select each, count(*) from coterie.jobs as j
            where j.cluster = of_cluster and j.seat = of_seat and j.part = each and j.state = 2;
    end loop;
end
$$;

-- Whoever deletes a runner takes its name from the jobs that are claimed for it. They count as running until they are taken
-- back. A foreign key instead would lock the runner with every claim: of one runner that is gone, a whole batch would fail.
create function coterie.lose_jobs() returns trigger language plpgsql as $$
begin
    update coterie.jobs set runner = null, lost_at = clock_timestamp() where runner = old.id;
    return null;
end
$$;

create trigger lose_jobs after delete on coterie.runners for each row execute function coterie.lose_jobs();
