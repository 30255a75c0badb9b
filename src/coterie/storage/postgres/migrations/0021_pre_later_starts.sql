-- Runs that begin later, that may take only so long, and that are found by tags.

-- A run that has not begun is suspended until `starts_at`, which its begin clears. What is started with `debounce` while a run is
-- under way is kept as its next life. `times_out_at` counts from the begin, and is cleared when the run is asked to end.
alter table coterie.units
    add column starts_at       timestamptz,
    add column latest_at       timestamptz, -- a debounced start is put off no further
    add column timeout_s       double precision,
    add column times_out_at    timestamptz,
    add column interrupted_for text not null default '', -- why it was asked to end; empty: somebody has asked
    add column tags            jsonb,
    add column next_life       bigint,
    add column next_at         timestamptz,
    add column next_latest_at  timestamptz,
    add column next_timeout_s  double precision,
    add column next_version    text,
    add column next_tags       jsonb,
    add column next_digest     bytea,
    add column next_payload    bytea;

create index units_timing_out on coterie.units (cluster, seat, times_out_at) where times_out_at is not null;
create index units_next on coterie.units (cluster, seat, ended_at)
    where next_life is not null and ended_at is not null and not held;

-- As those of messages.
create table coterie.unit_tags (
    cluster text collate "C" not null,
    unit    text collate "C" not null,
    name    text collate "C" not null,
    value   text collate "C" not null,
    primary key (cluster, unit, name)
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 1
);

create index unit_tags_value on coterie.unit_tags (cluster, name, value, unit);

create function coterie.store_unit_tags() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if tg_op <> 'INSERT' then
        delete from coterie.unit_tags where cluster = old.cluster and unit = old.unit;
    end if;
    if tg_op <> 'DELETE' then
        insert into coterie.unit_tags (cluster, unit, name, value)
        select new.cluster, new.unit, tag.key, tag.value from jsonb_each_text(new.tags) as tag;
    end if;
    return null;
end
$$;

create trigger store_unit_tags after insert on coterie.units for each row when (new.tags is not null) execute function coterie.store_unit_tags();
create trigger replace_unit_tags after update on coterie.units for each row when (old.tags is distinct from new.tags) execute function coterie.store_unit_tags();
create trigger remove_unit_tags after delete on coterie.units for each row when (old.tags is not null) execute function coterie.store_unit_tags();
