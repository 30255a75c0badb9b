-- Durable work: units, what is stored of their steps, and values that come from elsewhere.

-- Only workflows stay when they have ended. A step does not change the row of its unit: it adds one of its own.
create table coterie.units (
    cluster      text    collate "C" not null,
    unit         text    collate "C" not null,
    kind         text    collate "C" not null check (kind in ('workflow', 'tick', 'leader')),
    name         text    collate "C" not null,
    id           text    collate "C" not null,
    seat         text    collate "C" not null,
    status       text    collate "C" not null
        check (status in ('running', 'suspended', 'done', 'failed', 'interrupted')),
    interrupting boolean not null default false,
    started_at   timestamptz not null,
    changed_at   timestamptz not null,
    ended_at     timestamptz check ((ended_at is null) = (status in ('running', 'suspended'))),
    wake_at      timestamptz check (wake_at is null or status = 'suspended'),
    parent       text    collate "C",
    waited_as    text    not null default '',
    version      text    not null default '',
    digest       bytea   not null default '',
    payload      bytea   not null default '',
    value        bytea,
    error        bytea,
    primary key (cluster, unit)
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 1
);

create index units_running on coterie.units (cluster, seat, started_at, unit)
    where status = 'running' and kind = 'workflow';
create index units_due on coterie.units (cluster, seat, wake_at) where wake_at is not null;
create index units_ended on coterie.units (cluster, ended_at) where ended_at is not null;
create index units_others on coterie.units (cluster, changed_at) where kind <> 'workflow';

-- Without checks, as messages are.
create table coterie.steps (
    cluster  text    collate "C" not null,
    unit     text    collate "C" not null,
    branch   text    collate "C" not null,
    position bigint  not null,
    kind     text    collate "C" not null, -- step, sleep, deferred, child, patch, compensation
    name     text    not null,
    digest   bytea   not null,
    done     boolean not null,
    at       timestamptz not null,
    due_at   timestamptz,
    value    bytea,
    error    bytea,
    primary key (cluster, unit, branch, position)
) with (
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 1
);

-- A row without a time of resolution is what a unit waits for: it is there to be locked [M11]. One that came before its
-- unit had begun is early until that begins.
create table coterie.deferreds (
    cluster     text    collate "C" not null,
    unit        text    collate "C" not null,
    name        text    collate "C" not null,
    made_at     timestamptz not null,
    resolved_at timestamptz,
    early       boolean not null default false,
    error       text,
    value       bytea,
    primary key (cluster, unit, name)
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 1
);

create index deferreds_early on coterie.deferreds (cluster, made_at) where early;

-- All that belongs to units that are over. Whoever ends a unit has waited for those who were about to add to it, and does
-- not see what they have added: its statement had begun before. The statements of a function begin later.
-- One after another: for a table that looks empty, a plan for several at once may be a walk, and a function keeps its plans.
create function coterie.forget_units(of_cluster text, those text[]) returns integer language plpgsql as $$
declare
    each text;
begin
    foreach each in array those loop
        delete from coterie.steps where cluster = of_cluster and unit = each;
        delete from coterie.deferreds where cluster = of_cluster and unit = each;
    end loop;
    return cardinality(those);
end
$$;
