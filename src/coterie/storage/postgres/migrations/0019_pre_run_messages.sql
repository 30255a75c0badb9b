-- What is sent to a run of a workflow, and what it publishes: both stay until the run's row goes.

-- One for each name to which something was sent, or at which a run has waited: what a send and a suspension both write [M11].
create table coterie.run_inboxes (
    cluster text        collate "C" not null,
    unit    text        collate "C" not null,
    name    text        collate "C" not null,
    sent    bigint      not null, -- all messages so far
    waiting bigint      not null, -- those that nobody has received
    begun   boolean     not null, -- whether the run has begun, as far as was seen
    made_at timestamptz not null,
    primary key (cluster, unit, name)
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 1
);

create index run_inboxes_early on coterie.run_inboxes (cluster, made_at) where not begun;

create table coterie.run_messages (
    cluster     text        collate "C" not null,
    unit        text        collate "C" not null,
    name        text        collate "C" not null,
    id          text        collate "C" not null,
    seq         bigint      not null,
    sent_at     timestamptz not null,
    received_at timestamptz,
    digest      bytea       not null,
    value       bytea, -- null: the step that received it has it
    life        bigint, -- which step received it
    branch      text        collate "C",
    position    bigint,
    primary key (cluster, unit, name, id)
) with (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 1
);

create index run_messages_waiting on coterie.run_messages (cluster, unit, name, seq) where received_at is null;
create index run_messages_received on coterie.run_messages (cluster, received_at) where received_at is not null;

create table coterie.published (
    cluster text        collate "C" not null,
    unit    text        collate "C" not null,
    name    text        collate "C" not null,
    seq     bigint      not null,
    at      timestamptz not null,
    value   bytea       not null,
    primary key (cluster, unit, name, seq)
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 1
);

-- All that belongs to runs whose rows go. As `forget_units`.
create function coterie.forget_runs(of_cluster text, those text[]) returns integer language plpgsql as $$
declare
    each text;
begin
    foreach each in array those loop
        delete from coterie.run_inboxes where cluster = of_cluster and unit = each;
        delete from coterie.run_messages where cluster = of_cluster and unit = each;
        delete from coterie.published where cluster = of_cluster and unit = each;
    end loop;
    return cardinality(those);
end
$$;
