-- Membership: what all must agree on, machine ids, definitions seen, and the audit.

-- Settings that all runners of a cluster share, as the first one brought them.
create table agreements (
    cluster text not null,
    name text not null,
    value text not null,
    primary key (cluster, name)
) strict, without rowid;

-- Machine ids of snowflakes. The mark (milliseconds since 1970) is written ahead: whoever comes next starts after
-- it, so that nothing is drawn twice, whoever holds the row [M15].
create table machines (
    cluster text not null,
    id integer not null check (id between 0 and 1023),
    holder text not null,
    expires_at_ns integer not null,
    until_ms integer not null,
    primary key (cluster, id)
) strict, without rowid;

-- Every definition ever seen for a seat: an old one that comes back is no news [M8].
create table fingerprints (
    cluster text not null,
    seat text not null,
    fingerprint text not null,
    seen_at_ns integer not null,
    primary key (cluster, seat, fingerprint)
) strict, without rowid;

alter table runners add column process text not null default '';

-- The epoch at which the seat was last given back by its holder: another one means that the holder was lost [C5].
alter table seats add column released_epoch integer not null default 0;

-- What happened to seats, in the transaction in which it happened (setting `audit`).
create table audit (
    id integer primary key,
    cluster text not null,
    at_ns integer not null,
    kind text not null check (kind in ('granted', 'released', 'evicted', 'left', 'refused')),
    runner text not null,
    seat text,
    epoch integer,
    note text not null default ''
) strict;
