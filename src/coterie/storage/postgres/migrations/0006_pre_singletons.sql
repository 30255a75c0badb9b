-- Singletons: when a state was saved and expires, the last states of each, and what their leaders say of their work.

alter table coterie.states add column saved_at timestamptz;
alter table coterie.states add column runner text;
alter table coterie.states add column expires_at timestamptz;

create index states_expiring on coterie.states (cluster, expires_at) where expires_at is not null;

-- A ring: a state stands in the slot that its version gives, where the oldest one stood. What was set aside has the
-- slots below zero.
create table coterie.state_history (
    cluster  text   collate "C" not null,
    key      text   collate "C" not null,
    slot     integer not null,
    version  bigint not null,
    epoch    bigint not null,
    runner   text   not null,
    saved_at timestamptz not null,
    reason   text   not null default '',
    value    bytea  not null,
    primary key (cluster, key, slot)
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 1
);

-- One row a seat: fenced, so that a former leader cannot say that all is well [m14].
create table coterie.executions (
    cluster     text   collate "C" not null,
    seat        text   collate "C" not null,
    epoch       bigint not null,
    leader      text   not null,
    known_at    timestamptz not null,
    since_at    timestamptz not null,
    runs        bigint not null default 0,
    ran_at      timestamptz,
    progress_at timestamptz,
    alive_at    timestamptz not null,
    error       text,
    error_at    timestamptz,
    note        text   not null default '',
    done        bigint,
    total       bigint,
    expected_s  double precision,
    primary key (cluster, seat)
) with (fillfactor = 50);
