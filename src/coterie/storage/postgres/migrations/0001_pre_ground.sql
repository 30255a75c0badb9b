-- The ground: the list of migrations and the key-value store.

-- Not `create schema if not exists`: that asks for the right to create schemas even where an administrator has
-- made this one for us.
do $$
begin
    if not exists (select from pg_catalog.pg_namespace where nspname = 'coterie') then
        create schema coterie;
    end if;
end
$$;

create table coterie.migrations (
    number     integer     not null primary key,
    phase      text        not null check (phase in ('pre', 'post')),
    name       text        not null,
    applied_at timestamptz not null default clock_timestamp()
);

-- The collation "C" orders by bytes: a prefix is a range of the primary key, whatever the database's language.
-- Room on each page (fillfactor) lets an update stay on its page, out of the indexes; a hot table is vacuumed
-- by what changed, not by a fifth of its size.
create table coterie.kv (
    cluster    text   collate "C" not null,
    key        text   collate "C" not null,
    value      bytea  not null,
    stamp      bigint not null,
    expires_at timestamptz,
    primary key (cluster, key)
) with (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);

create index kv_expiry on coterie.kv (cluster, expires_at) where expires_at is not null;
