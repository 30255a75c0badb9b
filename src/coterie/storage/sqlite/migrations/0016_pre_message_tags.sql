-- Tags of messages: what they are found by besides their entity.

-- A message has its tags itself, so that whatever stores it stores them. Triggers keep a row for each, so that it can be
-- found. A message without tags costs neither.
alter table messages add column tags text;

create table message_tags (
    cluster text not null,
    message text not null,
    name text not null,
    value text not null,
    primary key (cluster, message, name)
) strict, without rowid;

create index message_tags_value on message_tags (cluster, name, value, message);

create trigger store_tags after insert on messages when new.tags is not null
begin
    insert into message_tags (cluster, message, name, value)
    select new.cluster, new.id, tag.key, tag.value from json_each(new.tags) as tag;
end;

create trigger remove_tags after delete on messages when old.tags is not null
begin
    delete from message_tags where cluster = old.cluster and message = old.id;
end;
