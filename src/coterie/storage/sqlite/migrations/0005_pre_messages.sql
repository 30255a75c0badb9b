-- Messages: stored calls, from their insert to their end. Who holds the seat of a message's shard may run it.

-- A message that is not pending has ended: done (1) or dead (2). The epoch is the one that ended it, or suspected it
-- last [C5]. What is large comes last, so that it is not read for what is small. With a rowid: without it rows of a
-- kilobyte and more are written half as fast.
create table messages (
    cluster text not null,
    id text not null,
    seat text not null,
    entity_type text not null,
    entity_id text not null,
    method text not null,
    key text,
    digest blob not null,
    trace_id text,
    status integer not null default 0 check (status between 0 and 2),
    sent_at_ns integer not null,
    due_at_ns integer not null,
    completed_at_ns integer check ((completed_at_ns is null) = (status = 0)),
    attempts integer not null default 0,
    epoch integer not null default 0,
    errors text not null default '[]',
    payload blob not null,
    reply blob,
    primary key (cluster, id)
) strict;

create unique index messages_key on messages (cluster, entity_type, entity_id, method, key) where key is not null;

-- In the order in which they run. The entity is there so that a sweep need not look at the rows.
create index messages_pending on messages (cluster, seat, due_at_ns, id, entity_type, entity_id) where status = 0;

-- Set aside: few, hopefully, among many that are done.
create index messages_dead on messages (cluster, seat, entity_type, entity_id, id) where status = 2;
