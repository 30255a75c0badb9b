-- Ownership: runners, their leases, seats with epochs, state under the fence. The cluster is part of each key [m7].

-- Written once and never updated: the fence locks this row in every write, and only an eviction takes it away.
-- The key is the incarnation alone (128 random bits), so that `on delete set null` below needs one column: with
-- two it would empty the cluster as well (PostgreSQL 14 cannot name the columns to empty). No index on the cluster:
-- while the tables are small, the planner would prefer it to the key.
create table coterie.runners (
    id         text   collate "C" not null primary key,
    cluster    text   collate "C" not null,
    name       text   not null,
    address    text   not null,
    host_id    text   not null,
    groups     text[] not null,
    weight     double precision not null check (weight >= 0),
    version    text   not null,
    knows      jsonb  not null,
    started_at timestamptz not null default clock_timestamp()
);

-- The hot row, alone in its table: half of each page is room, and no index on what changes, so that a renewal
-- stays on its page and out of the indexes.
create table coterie.leases (
    id         text   collate "C" not null primary key references coterie.runners (id) on delete cascade,
    cluster    text   collate "C" not null,
    expires_at timestamptz not null,
    counter    bigint not null,
    ids_until  bigint not null
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 1
);

-- The foreign key frees the seats of a deleted runner, also one that it was granted while the delete waited [C4].
create table coterie.seats (
    cluster        text   collate "C" not null,
    name           text   collate "C" not null,
    "group"        text   not null,
    holder         text   collate "C" references coterie.runners (id) on delete set null,
    epoch          bigint not null default 0 check (epoch >= 0),
    fingerprint    text   not null default '',
    effective_from timestamptz not null default clock_timestamp(),
    primary key (cluster, name)
) with (fillfactor = 80);

create index seats_holder on coterie.seats (holder);

-- State written in the name of a seat. The epoch is the one that wrote or claimed the row last. No foreign keys:
-- the fence is the proof, and a key would lock the seat's row once more with each write.
create table coterie.states (
    cluster text   collate "C" not null,
    key     text   collate "C" not null,
    seat    text   collate "C" not null,
    value   bytea  not null,
    version bigint not null,
    epoch   bigint not null,
    primary key (cluster, key)
) with (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 1
);

-- Which server the epochs were given out on: a promoted standby may lack the last grants [M13].
create table coterie.generations (
    cluster           text    collate "C" not null primary key,
    generation        bigint  not null check (generation between 0 and 8388607),
    system_identifier bigint  not null,
    timeline          bigint  not null
);
