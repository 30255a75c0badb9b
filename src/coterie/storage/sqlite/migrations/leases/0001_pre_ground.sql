-- Leases stand in a file of their own, so that renewing one never waits for a group commit [C3].
-- Times are those of CLOCK_BOOTTIME, which only this boot of this kernel understands.

pragma application_id = 1129272389;

create table migrations (
    number integer primary key,
    phase text not null check (phase in ('pre', 'post')),
    name text not null,
    applied_at text not null
) strict;

create table leases (
    cluster text not null,
    id text not null,
    counter integer not null,
    boot_id text not null,
    expires_boot_ns integer not null,
    primary key (cluster, id)
) strict, without rowid;
