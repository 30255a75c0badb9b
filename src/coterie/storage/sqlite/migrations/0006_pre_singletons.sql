-- Singletons: when a state was saved and expires, the last states of each, and what their leaders say of their work.

alter table states add column saved_at_ns integer;
alter table states add column runner text;
alter table states add column expires_at_ns integer;

create index states_expiring on states (cluster, expires_at_ns) where expires_at_ns is not null;

-- A ring: a state stands in the slot that its version gives, where the oldest one stood. What was set aside has the
-- slots below zero.
create table state_history (
    cluster text not null,
    key text not null,
    slot integer not null,
    version integer not null,
    epoch integer not null,
    runner text not null,
    saved_at_ns integer not null,
    reason text not null default '',
    value blob not null,
    primary key (cluster, key, slot)
) strict;

-- One row a seat: fenced, so that a former leader cannot say that all is well [m14].
create table executions (
    cluster text not null,
    seat text not null,
    epoch integer not null,
    leader text not null,
    known_at_ns integer not null,
    since_at_ns integer not null,
    runs integer not null default 0,
    ran_at_ns integer,
    progress_at_ns integer,
    alive_at_ns integer not null,
    error text,
    error_at_ns integer,
    note text not null default '',
    done integer,
    total integer,
    expected_s real,
    primary key (cluster, seat)
) strict, without rowid;
