-- Tags of messages: what they are found by besides their entity.

-- A message has its tags itself, so that whatever stores it stores them. Triggers keep a row for each, so that it can be found, in
-- the same statement: also in a transaction of a user, who may have no rights on that table, and where a program that knows no
-- tags deletes messages. A message without tags costs neither: the condition is checked before the function is called.
alter table coterie.messages add column tags jsonb;

create table coterie.message_tags (
    cluster text collate "C" not null,
    message text collate "C" not null,
    name    text collate "C" not null,
    value   text collate "C" not null,
    primary key (cluster, message, name)
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 1
);

create index message_tags_value on coterie.message_tags (cluster, name, value, message);

create function coterie.store_tags() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into coterie.message_tags (cluster, message, name, value)
    select new.cluster, new.id, tag.key, tag.value from jsonb_each_text(new.tags) as tag;
    return null;
end
$$;

create function coterie.remove_tags() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    delete from coterie.message_tags where cluster = old.cluster and message = old.id;
    return null;
end
$$;

create trigger store_tags after insert on coterie.messages for each row when (new.tags is not null) execute function coterie.store_tags();

create trigger remove_tags after delete on coterie.messages for each row when (old.tags is not null) execute function coterie.remove_tags();
