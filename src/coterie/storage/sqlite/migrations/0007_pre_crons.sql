-- Crons: which ticks have their verdict, how each run went, and when a cron was paused.

-- One row a cron, since somebody first held it: what must outlive its history.
create table crons (
    cluster text not null,
    name text not null,
    definition text not null default '',
    last_at_ns integer,
    runs integer not null default 0,
    ran_at_ns integer,
    error text,
    error_at_ns integer,
    failures integer not null default 0,
    failed_at_ns integer,
    primary key (cluster, name)
) strict, without rowid;

create table cron_pauses (
    cluster text not null,
    name text not null,
    since_at_ns integer not null,
    until_at_ns integer,
    primary key (cluster, name, since_at_ns)
) strict, without rowid;

create unique index cron_pauses_open on cron_pauses (cluster, name) where until_at_ns is null;

-- Claim, history and proof: whose key is there is not claimed again [M9]. Instants are in whole microseconds. Of each
-- kind the history of a cron lies in the order of its instants: no index of its own.
create table ticks (
    cluster text not null,
    name text not null,
    kind text not null check (kind in ('scheduled', 'manual')),
    at_ns integer not null,
    seq integer not null,
    until_at_ns integer not null,
    count integer not null default 1,
    epoch integer not null,
    attempt integer not null,
    outcome text check (outcome in ('ran', 'failed', 'skipped')),
    reason text not null default '',
    errors text not null default '[]',
    runner text not null default '',
    claimed_at_ns integer not null,
    ended_at_ns integer check ((ended_at_ns is null) = (outcome is null)),
    late_s real,
    took_s real,
    note text not null default '',
    done integer,
    total integer,
    noted_at_ns integer,
    primary key (cluster, name, kind, at_ns, seq)
) strict, without rowid;

create index ticks_open on ticks (cluster, name) where outcome is null;
create index ticks_ended on ticks (cluster, ended_at_ns) where ended_at_ns is not null;

-- The last one that ran: there may be any number of skipped ones after it.
create index ticks_latest on ticks (cluster, name, ended_at_ns) where outcome in ('ran', 'failed');
