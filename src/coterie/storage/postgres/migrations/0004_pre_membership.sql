-- Membership: what all must agree on, machine ids, definitions seen, signs of leaving, and the audit.

-- Settings that all runners of a cluster share, as the first one brought them.
create table coterie.agreements (
    cluster text collate "C" not null,
    name    text collate "C" not null,
    value   text not null,
    primary key (cluster, name)
);

-- Machine ids of snowflakes. The mark (milliseconds since 1970) is written ahead: whoever comes next starts after
-- it, so that nothing is drawn twice, whoever holds the row [M15].
create table coterie.machines (
    cluster    text     collate "C" not null,
    id         smallint not null check (id between 0 and 1023),
    holder     text     collate "C" not null,
    expires_at timestamptz not null,
    until_ms   bigint   not null,
    primary key (cluster, id)
);

-- Every definition ever seen for a seat: an old one that comes back is no news [M8].
create table coterie.fingerprints (
    cluster     text collate "C" not null,
    seat        text collate "C" not null,
    fingerprint text collate "C" not null,
    seen_at     timestamptz not null default clock_timestamp(),
    primary key (cluster, seat, fingerprint)
);

-- The ids of machines are leased for themselves.
alter table coterie.leases drop column ids_until;
alter table coterie.leases add column leaving boolean not null default false;

alter table coterie.runners add column process text not null default '';

-- The epoch at which the seat was last given back by its holder: another one means that the holder was lost [C5].
alter table coterie.seats add column released_epoch bigint not null default 0;

-- What happened to seats, in the transaction in which it happened (setting `audit`).
create table coterie.audit (
    id      bigint generated always as identity primary key,
    cluster text collate "C" not null,
    at      timestamptz not null default clock_timestamp(),
    kind    text not null check (kind in ('granted', 'released', 'evicted', 'left', 'refused')),
    runner  text collate "C" not null,
    seat    text collate "C",
    epoch   bigint,
    note    text not null default ''
);
