-- Durable work: units, what is stored of their steps, and values that come from elsewhere.

-- Only workflows stay when they have ended. What is large comes last, so that it is not read for what is small. With a
-- rowid, as messages: a payload may be large.
create table units (
    cluster text not null,
    unit text not null,
    kind text not null check (kind in ('workflow', 'tick', 'leader')),
    name text not null,
    id text not null,
    seat text not null,
    status text not null check (status in ('running', 'suspended', 'done', 'failed', 'interrupted')),
    interrupting integer not null default 0,
    started_at_ns integer not null,
    changed_at_ns integer not null,
    ended_at_ns integer check ((ended_at_ns is null) = (status in ('running', 'suspended'))),
    wake_at_ns integer check (wake_at_ns is null or status = 'suspended'),
    parent text,
    waited_as text not null default '',
    version text not null default '',
    digest blob not null default x'',
    payload blob not null default x'',
    value blob,
    error blob,
    primary key (cluster, unit)
) strict;

-- What a holder takes: the oldest first, and when the next one is due by itself.
create index units_running on units (cluster, seat, started_at_ns, unit) where status = 'running' and kind = 'workflow';
create index units_due on units (cluster, seat, wake_at_ns) where wake_at_ns is not null;

-- For lists. What they choose by is there, so that the rows of others need not be looked at.
create index units_changed on units (cluster, changed_at_ns, status, name, started_at_ns);

-- For the purge.
create index units_ended on units (cluster, ended_at_ns) where ended_at_ns is not null;
create index units_abandoned on units (cluster, changed_at_ns) where kind <> 'workflow';

create table steps (
    cluster text not null,
    unit text not null,
    branch text not null,
    position integer not null,
    kind text not null check (kind in ('step', 'sleep', 'deferred', 'child', 'patch', 'compensation')),
    name text not null,
    digest blob not null,
    done integer not null,
    at_ns integer not null,
    due_at_ns integer,
    value blob,
    error blob,
    primary key (cluster, unit, branch, position)
) strict;

-- Those that have a value or were rejected: while writers take turns nothing needs to stand for the others. One whose unit
-- had not begun is expected until that begins.
create table deferreds (
    cluster text not null,
    unit text not null,
    name text not null,
    resolved_at_ns integer not null,
    early integer not null default 0,
    error text,
    value blob,
    primary key (cluster, unit, name)
) strict;

create index deferreds_early on deferreds (cluster, resolved_at_ns) where early;
