-- Tasks, entity types and groups of which nothing is begun. Queues and crons have that in their own rows.
create table coterie.pauses (
    cluster   text        collate "C" not null,
    kind      text        collate "C" not null, -- entity, group, task
    name      text        collate "C" not null,
    paused_at timestamptz not null default clock_timestamp(),
    primary key (cluster, kind, name)
);
