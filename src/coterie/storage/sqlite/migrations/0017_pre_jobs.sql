-- Jobs: calls of tasks, from their insert to their end, and the queues that limit them.

-- States: later, ready, claimed, parked; from 4 on it has ended: done, dead, cancelled, discarded. `rank_at_ns` is the due
-- time less what the priority is worth: a static order in which waiting counts. The runner is null unless it is claimed: the
-- end of a runner rewrites no history; who ran it is `ran_by`. `settled`: the last claim whose end or setback is stored, so
-- that a repeated write of unknown outcome is known again. What is large comes last.
create table jobs (
    cluster text not null,
    id text not null,
    seat text not null,
    part text not null,
    task text not null,
    fingerprint text not null,
    state integer not null check (state between 0 and 7),
    key text,
    digest blob not null,
    priority integer not null,
    trace_id text,
    sent_at_ns integer not null,
    due_at_ns integer not null,
    rank_at_ns integer not null,
    claimed_at_ns integer,
    ended_at_ns integer check ((ended_at_ns is null) = (state < 4)),
    claim integer not null default 0,
    settled integer,
    runner text check (runner is null or state = 2),
    ran_by text,
    failures integer not null default 0,
    lost integer not null default 0,
    lost_at_ns integer,
    cancelling integer not null default 0,
    errors text not null default '[]',
    payload blob not null,
    reply blob,
    primary key (cluster, id)
) strict;

create unique index jobs_key on jobs (cluster, task, key) where key is not null;

-- The first ones of each partition, in the order in which they start.
create index jobs_ready on jobs (cluster, seat, part, rank_at_ns, id) where state = 1;

create index jobs_later on jobs (cluster, seat, due_at_ns, id) where state = 0;

-- What counts against the limits.
create index jobs_claimed on jobs (cluster, seat, part) where state = 2;

-- What a runner looks after, and what its end leaves behind.
create index jobs_runner on jobs (runner) where runner is not null;

create index jobs_parked on jobs (cluster, seat, task) where state = 3;

create index jobs_dead on jobs (cluster, seat, id) where state = 5;

-- A deleted runner has no jobs. When it was lost the trigger does not know: in a simulation the time is not SQLite's. Who
-- takes its jobs back dates that.
create trigger jobs_of_deleted_runners after delete on runners begin
    update jobs set runner = null, lost_at_ns = null where runner = old.id;
end;

-- Definitions of queues, what was set at run time, and the bucket of tokens. The stamp changes with all that a claim
-- depends on.
create table queues (
    cluster text not null,
    seat text not null,
    "group" text not null,
    fingerprint text not null,
    age_s real not null,
    takeover_delay_s real not null,
    expected_wait_s real,
    concurrency integer,
    partition_concurrency integer,
    rate real,
    burst real,
    is_set integer not null default 0,
    set_concurrency integer,
    set_partition_concurrency integer,
    set_rate real,
    set_burst real,
    paused_at_ns integer,
    stamp integer not null,
    tokens real,
    refilled_at_ns integer not null,
    primary key (cluster, seat)
) strict, without rowid;

-- Written once, with their job.
create table job_tags (
    cluster text not null,
    job text not null,
    name text not null,
    value text not null,
    primary key (cluster, job, name),
    foreign key (cluster, job) references jobs (cluster, id) on delete cascade
) strict, without rowid;

create index job_tags_value on job_tags (cluster, name, value, job);

create table job_progress (
    cluster text not null,
    job text not null,
    done real not null,
    total real,
    note text,
    at_ns integer not null,
    primary key (cluster, job),
    foreign key (cluster, job) references jobs (cluster, id) on delete cascade
) strict, without rowid;
