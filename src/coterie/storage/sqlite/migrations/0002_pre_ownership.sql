-- Ownership: runners, seats with epochs, state under the fence. Leases stand in a file of their own.
-- The cluster is part of each key [m7].

-- Written once and never updated. Process id and start time tell who holds the file's write lock [C3].
create table runners (
    id text not null primary key,
    cluster text not null,
    name text not null,
    address text not null,
    host_id text not null,
    groups text not null,
    weight real not null check (weight >= 0),
    version text not null,
    knows text not null,
    started_at_ns integer not null
) strict, without rowid;

-- The foreign key frees the seats of a deleted runner [C4].
create table seats (
    cluster text not null,
    name text not null,
    "group" text not null,
    holder text references runners (id) on delete set null,
    epoch integer not null default 0 check (epoch >= 0),
    fingerprint text not null default '',
    effective_from_ns integer not null,
    primary key (cluster, name)
) strict, without rowid;

create index seats_holder on seats (holder);

-- State written in the name of a seat. The epoch is the one that wrote or claimed the row last.
create table states (
    cluster text not null,
    key text not null,
    seat text not null,
    value blob not null,
    version integer not null,
    epoch integer not null,
    primary key (cluster, key)
) strict, without rowid;
