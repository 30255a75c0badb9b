-- The ground: which migrations are here, and keys with their values.
-- The application id ("COTE") tells our files from anybody else's.

pragma application_id = 1129272389;

create table migrations (
    number integer primary key,
    phase text not null check (phase in ('pre', 'post')),
    name text not null,
    applied_at text not null
) strict;

create table kv (
    cluster text not null,
    key text not null,
    value blob not null,
    stamp integer not null,
    expires_at_ns integer,
    primary key (cluster, key)
) strict, without rowid;

create index kv_expiring on kv (cluster, expires_at_ns) where expires_at_ns is not null;
