-- Tasks, entity types and groups of which nothing is begun. Queues and crons have that in their own rows.
create table pauses (
    cluster text not null,
    kind text not null, -- entity, group, task
    name text not null,
    paused_at_ns integer not null,
    primary key (cluster, kind, name)
) strict, without rowid;
