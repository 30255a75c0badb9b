-- Runs that begin later, that may take only so long, and that are found by tags.

-- A run that has not begun is suspended until `starts_at_ns`, which its begin clears. What is started with `debounce` while a
-- run is under way is kept as its next life. `times_out_at_ns` counts from the begin, and is cleared when the run is asked to end.
alter table units add column starts_at_ns integer;
alter table units add column latest_at_ns integer; -- a debounced start is put off no further
alter table units add column timeout_s real;
alter table units add column times_out_at_ns integer;
alter table units add column interrupted_for text not null default ''; -- why it was asked to end; empty: somebody has asked
alter table units add column tags text;
alter table units add column next_life integer;
alter table units add column next_at_ns integer;
alter table units add column next_latest_at_ns integer;
alter table units add column next_timeout_s real;
alter table units add column next_version text;
alter table units add column next_tags text;
alter table units add column next_digest blob;
alter table units add column next_payload blob;

create index units_timing_out on units (cluster, seat, times_out_at_ns) where times_out_at_ns is not null;
create index units_next on units (cluster, seat, ended_at_ns)
    where next_life is not null and ended_at_ns is not null and not held;

-- As those of messages.
create table unit_tags (
    cluster text not null,
    unit text not null,
    name text not null,
    value text not null,
    primary key (cluster, unit, name)
) strict, without rowid;

create index unit_tags_value on unit_tags (cluster, name, value, unit);

create trigger store_unit_tags after insert on units when new.tags is not null
begin
    insert into unit_tags (cluster, unit, name, value)
    select new.cluster, new.unit, tag.key, tag.value from json_each(new.tags) as tag;
end;

create trigger replace_unit_tags after update of tags on units when new.tags is not old.tags
begin
    delete from unit_tags where cluster = old.cluster and unit = old.unit;
    insert into unit_tags (cluster, unit, name, value)
    select new.cluster, new.unit, tag.key, tag.value from json_each(new.tags) as tag where new.tags is not null;
end;

create trigger remove_unit_tags after delete on units when old.tags is not null
begin
    delete from unit_tags where cluster = old.cluster and unit = old.unit;
end;
