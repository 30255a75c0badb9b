-- Schedules made at run time, and timers of entities: rows on shards, fired by the shard's holder (docs/schedules.md).

create table coterie.schedules (
    cluster     text        collate "C" not null,
    key         text        collate "C" not null, -- schedule/nightly, timer/Account/alice/expire
    seat        text        collate "C" not null, -- the shard whose holder fires it
    life        bigint      not null,
    stamp       bigint      not null,
    definition  text        not null, -- when it is due, as JSON
    target      text        collate "C" not null, -- the seat of its message
    entity_type text        collate "C" not null,
    entity_id   text        collate "C" not null,
    method      text        collate "C" not null,
    payload     bytea       not null,
    since_at    timestamptz not null,
    next_at     timestamptz, -- null: it is over
    last_at     timestamptz,
    last_id     text        collate "C",
    paused_at   timestamptz,
    outcomes    text        not null, -- the last verdicts, as JSON
    changed_at  timestamptz not null,
    primary key (cluster, key)
) with (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);

create index schedules_due on coterie.schedules (cluster, seat, next_at) where next_at is not null and paused_at is null;
create index schedules_over on coterie.schedules (cluster, changed_at) where next_at is null;
