-- Messages: stored calls, from their insert to their end.

-- A row that has ended (done, or set aside as dead) has its time of it: statements that must find rows by their id ask for
-- `completed_at is null`, so that the index of what is pending does not come into question for them.
-- The epoch is the one that ended it, or that suspected it last [C5]. No foreign keys: the fence is the proof. No checks
-- either: the server would read and plan their expressions at every statement, a tenth of a lone insert's own time.
create table coterie.messages (
    cluster      text     collate "C" not null,
    id           text     collate "C" not null,
    seat         text     collate "C" not null,
    entity_type  text     collate "C" not null,
    entity_id    text     collate "C" not null,
    method       text     collate "C" not null,
    key          text     collate "C",
    trace_id     text,
    sent_at      timestamptz not null,
    due_at       timestamptz not null,
    completed_at timestamptz,
    epoch        bigint   not null default 0,
    attempts     integer  not null default 0,
    status       smallint not null default 0, -- pending, done, dead: the latter two with completed_at
    digest       bytea    not null,
    payload      bytea    not null,
    reply        bytea,
    errors       jsonb    not null default '[]',
    primary key (cluster, id)
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);

create unique index messages_key on coterie.messages (cluster, entity_type, entity_id, method, key) where key is not null;

create index messages_pending on coterie.messages (cluster, seat, due_at, id) where status = 0;

-- The few that have failed and are not done: the dead, and those that wait for another attempt.
create index messages_failed on coterie.messages (cluster, entity_type, entity_id, id) where attempts > 0 and status <> 1;

-- A statement looks before it writes, and what it writes must be what it has looked at. Where somebody else was faster, it
-- comes to nothing as a whole and is run again, with a fresh look [M3].
create function coterie.overtaken() returns text language plpgsql as $$
begin
    raise exception 'somebody else was faster' using errcode = 'serialization_failure';
end
$$;
