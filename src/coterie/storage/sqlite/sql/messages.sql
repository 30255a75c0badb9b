-- Stored calls. The guard of what ends a message is `completed_at_ns is null`, which never matches the index of the
-- pending ones: a message is found by its id.

-- name: insert
-- New messages; touches nothing of those whose id or key is there. `or rollback` spares copies of pages, see store.py.
insert or rollback into messages (
    cluster, sent_at_ns, id, seat, entity_type, entity_id, method, key, digest, trace_id, due_at_ns, payload, tags
)
values
    (?1, ?2, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) -- each
on conflict do nothing;

-- name: receipt
-- What a sender learns of the message with an id.
select id, due_at_ns, status, digest, reply from messages where cluster = :cluster and id = :id;

-- name: find
-- What a sender learns of the message that has a key.
select id, due_at_ns, status, digest, reply from messages
where cluster = :cluster and entity_type = :entity_type and entity_id = :entity_id and method = :method and key = :key;

-- name: pending
-- Whether a message waits or runs: one row if so.
select 1 from messages where cluster = :cluster and id = :id and completed_at_ns is null;

-- name: complete
-- A message is done.
update messages set status = 1, completed_at_ns = :now_ns, reply = :reply, epoch = :epoch
where cluster = :cluster and id = :id and completed_at_ns is null;

-- name: complete_all
-- Messages are done.
update or rollback messages set status = 1, completed_at_ns = ?2, reply = ended.column2, epoch = ended.column3
from (
    values
        (?, ?, ?) -- each
) as ended
where cluster = ?1 and id = ended.column1 and completed_at_ns is null;

-- name: completed
-- Whether a message was done by an epoch with a reply: one row if so.
select 1 from messages
where cluster = :cluster and id = :id and status = 1 and epoch = :epoch and reply = :reply;

-- name: fail
-- An attempt has failed: the next one is due later, or there is none. Of the errors the last 20 are kept.
update messages set
    attempts = :attempt,
    suspicion = 0, -- its process has survived it
    due_at_ns = coalesce(:again_at_ns, due_at_ns),
    status = iif(:again_at_ns is null, 2, 0),
    completed_at_ns = iif(:again_at_ns is null, :now_ns, null),
    epoch = iif(:again_at_ns is null, :epoch, epoch),
    errors = json_insert(
        iif(json_array_length(errors) < 20, errors, json_remove(errors, '$[0]')), '$[#]', json(:error)
    )
where cluster = :cluster and id = :id and completed_at_ns is null and attempts < :attempt;

-- name: put_off
-- An attempt is put off: due later, and not counted.
update messages set suspicion = 0, due_at_ns = :again_at_ns
where cluster = :cluster and id = :id and completed_at_ns is null and attempts < :attempt;

-- name: failed
-- Whether an attempt has been counted: one row if so, and if the message is pending or was set aside by this epoch.
select 1 from messages
where cluster = :cluster and id = :id and attempts >= :attempt
and (completed_at_ns is null or (status = 2 and epoch = :epoch));

-- name: paused
-- Entity types and groups that are paused.
select kind, name from pauses where cluster = :cluster and kind in ('entity', 'group');

-- name: due
-- The first pending messages of a seat past a mark.
select id, due_at_ns, entity_type, entity_id from messages
where cluster = :cluster and seat = :seat and status = 0
and due_at_ns <= :until_ns and (due_at_ns, id) > (:after_ns, :after_id)
order by due_at_ns, id limit :most;

-- name: backlog
-- Of each seat the pending message that has been due longest. From seat to seat along the index: what is done is never
-- looked at.
with recursive pending (seat) as (
    select min(seat) from messages indexed by messages_pending where cluster = :cluster and status = 0
    union all
    select (
        select min(m.seat) from messages as m indexed by messages_pending
        where m.cluster = :cluster and m.status = 0 and m.seat > pending.seat
    )
    from pending where pending.seat is not null
), firsts (id) as materialized (
    select (
        select m.id from messages as m indexed by messages_pending
        where m.cluster = :cluster and m.seat = pending.seat and m.status = 0 and m.due_at_ns <= :now_ns
        order by m.due_at_ns, m.id limit 1
    )
    from pending where pending.seat is not null
)
select seat, id, due_at_ns, entity_type, entity_id, method
from firsts cross join messages using (id)
where cluster = :cluster
order by due_at_ns, id limit :most;

-- name: count_dead
-- How many messages are dead, up to a bound.
select count(*) from (
    select 1 from messages indexed by messages_dead where cluster = :cluster and status = 2 limit :most
);

-- name: fetch
-- The pending ones of these messages.
select id, seat, entity_type, entity_id, method, payload, key, due_at_ns, attempts, trace_id, suspicion, losses
from messages
where cluster = :cluster and id in (select value from json_each(:ids)) and completed_at_ns is null;

-- name: lost_at
-- When the previous holder of a seat was deleted; null: unknown.
select iif(lost_epoch = epoch - 1, lost_at_ns, null) from seats where cluster = :cluster and name = :seat;

-- name: begun_alone
-- The pending messages of a seat that a holder had begun alone.
select id, entity_type, entity_id, method, losses from messages
where cluster = :cluster and seat = :seat and status = 0 and suspicion = 2 and epoch = :before;

-- name: lose
-- Count that the holder was lost after it had begun a message alone, and set it aside if it was the last time.
update messages set
    losses = losses + 1,
    suspicion = 1,
    status = iif(:is_dead, 2, 0),
    completed_at_ns = iif(:is_dead, :now_ns, null),
    attempts = iif(:is_dead, max(attempts, 1), attempts),
    epoch = :epoch,
    errors = json_insert(
        iif(json_array_length(errors) < 20, errors, json_remove(errors, '$[0]')),
        '$[#]', json_object('number', attempts + 1, 'at_ns', :now_ns, 'error', :error)
    )
where cluster = :cluster and id = :id and completed_at_ns is null;

-- name: suspect
-- Of each entity of a type the first messages of a seat that were due and stored at an instant become suspects.
update messages set suspicion = 1
where cluster = :cluster and completed_at_ns is null and suspicion = 0 and sent_at_ns <= :lost_at_ns and id in (
    select id from (
        select id, row_number() over (partition by entity_id order by due_at_ns, id) as place
        from messages
        where cluster = :cluster and seat = :seat and status = 0 and entity_type = :entity_type
        and due_at_ns <= :lost_at_ns
    )
    where place <= :concurrency
);

-- name: mark
-- How a suspect is begun; or that it is none any more.
update messages set suspicion = :suspicion, epoch = :epoch
where cluster = :cluster and id = :id and completed_at_ns is null;

-- name: look
-- All about these messages.
select
    id, seat, entity_type, entity_id, method, status, key, sent_at_ns, due_at_ns, completed_at_ns, attempts, errors,
    payload, reply, trace_id, losses, tags
from messages
where cluster = :cluster and id in (select value from json_each(:ids));

-- name: chosen
-- The next ids of messages that are wanted, in order; of those that have ended only, if so asked.
select id from messages
where cluster = :cluster and id > :after
and (:status is null or status = :status)
and (not :ended or completed_at_ns is not null)
and (:entity_type is null or entity_type = :entity_type)
and (:entity_id is null or entity_id = :entity_id)
and (:method is null or method = :method)
and (:before_ns is null or coalesce(completed_at_ns, sent_at_ns) <= :before_ns)
order by id limit :most;

-- name: chosen_newest
-- The same in the reverse order.
select id from messages
where cluster = :cluster and id < :after
and (:status is null or status = :status)
and (:entity_type is null or entity_type = :entity_type)
and (:entity_id is null or entity_id = :entity_id)
and (:method is null or method = :method)
and (:before_ns is null or coalesce(completed_at_ns, sent_at_ns) <= :before_ns)
order by id desc limit :most;

-- name: chosen_pending
-- The same of pending ones, which may be few among many, in either order: the planner would walk along all ids, as they
-- are in order.
select id from messages indexed by messages_pending
where cluster = :cluster and iif(:newest, id < :after, id > :after) and status = 0
and (:entity_type is null or entity_type = :entity_type)
and (:entity_id is null or entity_id = :entity_id)
and (:method is null or method = :method)
and (:before_ns is null or sent_at_ns <= :before_ns)
order by iif(:newest, id, '') desc, id limit :most;

-- name: chosen_dead
-- The same of dead ones.
select id from messages indexed by messages_dead
where cluster = :cluster and iif(:newest, id < :after, id > :after) and status = 2
and (:entity_type is null or entity_type = :entity_type)
and (:entity_id is null or entity_id = :entity_id)
and (:method is null or method = :method)
and (:before_ns is null or completed_at_ns <= :before_ns)
order by iif(:newest, id, '') desc, id limit :most;

-- name: chosen_tagged
-- The same with a tag, of any status, in either order.
select m.id from message_tags as t cross join messages as m on m.cluster = t.cluster and m.id = t.message
where t.cluster = :cluster and t.name = :tag_name and t.value = :tag_value
and iif(:newest, t.message < :after, t.message > :after)
and (:status is null or m.status = :status)
and (:entity_type is null or m.entity_type = :entity_type)
and (:entity_id is null or m.entity_id = :entity_id)
and (:method is null or m.method = :method)
and (:before_ns is null or coalesce(m.completed_at_ns, m.sent_at_ns) <= :before_ns)
order by iif(:newest, t.message, '') desc, t.message limit :most;

-- name: cancel
-- End a pending message: its reply says that it was cancelled, and its key is free again.
update messages set status = 1, completed_at_ns = :now_ns, reply = :reply, key = null, epoch = 0
where cluster = :cluster and id = :id and completed_at_ns is null;

-- name: cancel_free
-- The same for a message whose seat is free: otherwise only its holder knows whether it runs.
update messages set status = 1, completed_at_ns = :now_ns, reply = :reply, key = null, epoch = 0
where cluster = :cluster and id = :id and completed_at_ns is null
    and not exists (
        select 1 from seats as s where s.cluster = :cluster and s.name = messages.seat and s.holder is not null
    );

-- name: revive
-- A dead message is pending again, and due.
update messages set status = 0, completed_at_ns = null, attempts = 0, losses = 0, due_at_ns = :now_ns
where cluster = :cluster and id = :id and completed_at_ns is not null and status = 2;

-- name: revive_entity
-- All dead messages of an entity are pending again, and due.
update messages indexed by messages_dead set status = 0, completed_at_ns = null, attempts = 0, losses = 0, due_at_ns = :now_ns
where cluster = :cluster and entity_type = :entity_type and entity_id = :entity_id and status = 2;

-- name: hasten
-- What waits for another attempt is due.
update messages indexed by messages_pending set due_at_ns = :now_ns
where cluster = :cluster and entity_type = :entity_type and entity_id = :entity_id and status = 0
and attempts > 0 and due_at_ns > :now_ns;

-- name: remove
-- Delete messages that have ended.
delete from messages
where cluster = :cluster and id in (select value from json_each(:ids)) and completed_at_ns is not null;

-- name: discard
-- Delete those of these messages that have ended in one way.
delete from messages
where cluster = :cluster and id in (select value from json_each(:ids)) and completed_at_ns is not null
and status = :status;

-- name: last_of
-- The last one of the next so many messages in the order of their ids; no row: they are fewer.
select id, sent_at_ns from messages where cluster = :cluster and id > :after order by id limit 1 offset :most - 1;

-- name: purge
-- Delete what was done long ago in a range of ids.
delete from messages
where cluster = :cluster and id > :after and id <= :last and status = 1
and completed_at_ns <= iif(key is null, :before_ns, :keys_before_ns);
