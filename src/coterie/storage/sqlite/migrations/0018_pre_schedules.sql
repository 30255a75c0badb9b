-- Schedules made at run time, and timers of entities: rows on shards, fired by the shard's holder (docs/schedules.md).

create table schedules (
    cluster text not null,
    key text not null,
    seat text not null,
    life integer not null,
    stamp integer not null,
    definition text not null,
    target text not null,
    entity_type text not null,
    entity_id text not null,
    method text not null,
    payload blob not null,
    since_at_ns integer not null,
    next_at_ns integer,
    last_at_ns integer,
    last_id text,
    paused_at_ns integer,
    outcomes text not null,
    changed_at_ns integer not null,
    primary key (cluster, key)
) strict, without rowid;

create index schedules_due on schedules (cluster, seat, next_at_ns) where next_at_ns is not null and paused_at_ns is null;
create index schedules_over on schedules (cluster, changed_at_ns) where next_at_ns is null;
