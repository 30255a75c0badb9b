-- Messages. Inserts, ends and setbacks come in groups; the rest one by one.
--
-- A write under the fence (see fragments.sql) has three steps. Find: each row is found by its key, one lookup each
-- (`offset 0` keeps the planner from turning the join around, see kv.sql), and its place is kept. Judge: a member
-- whose condition fails gets its reason, and no part of it is written. Write: the others, by place, with each row
-- checked once more. If another transaction has changed a row since it was found, the statement fails and is run
-- again: a member is written as a whole or not at all [M3]. Everything written comes from what was judged, and
-- nothing is judged before `held` has returned its rows, so every part is fenced.

-- name: insert_messages
-- Store messages, except those whose id or key exists already. Those with keys come first, in the order of their
-- keys. $14 limits the wait for another transaction that has stored a key and is open, as one of a user may be for long
-- (`via=`): it is set for the rest of this transaction, where a key is stored.
insert into coterie.messages
    (cluster, id, seat, entity_type, entity_id, method, payload, key, digest, trace_id, sent_at, due_at, tags)
select
    $1, u.id, u.seat, u.entity_type, u.entity_id, u.method, u.payload, u.key, u.digest, u.trace_id, statement_timestamp(),
    coalesce(u.due_at, statement_timestamp() + make_interval(secs => u.delay_s)), u.tags::jsonb
from unnest(
    $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::text[], $9::bytea[], $10::text[],
    $11::timestamptz[], $12::float8[], $13::text[]
) as u (id, seat, entity_type, entity_id, method, payload, key, digest, trace_id, due_at, delay_s, tags)
where u.key is null or $14::text is null or set_config('lock_timeout', $14, true) is not null
on conflict do nothing
returning id, due_at, sent_at;

-- name: insert_message
-- As `insert_messages`, for one that is alone in its group: without arrays.
insert into coterie.messages
    (cluster, id, seat, entity_type, entity_id, method, payload, key, digest, trace_id, sent_at, due_at, tags)
select
    $1, $2, $3, $4, $5, $6, $7::bytea, $8, $9::bytea, $10, statement_timestamp(),
    coalesce($11::timestamptz, statement_timestamp() + make_interval(secs => $12::float8)), $13::text::jsonb
where $8::text is null or $14::text is null or set_config('lock_timeout', $14, true) is not null
on conflict do nothing
returning due_at, sent_at;

-- name: add_message
-- As `insert_message`, without a key and tags and due at once. It fails if the message exists, which is cheaper than a check.
insert into coterie.messages
    (cluster, id, seat, entity_type, entity_id, method, payload, digest, trace_id, sent_at, due_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, statement_timestamp(), statement_timestamp())
returning sent_at;

-- name: read_back
-- Read the messages that exist instead of others, by number: found by id it is the sender's own, by key another one
-- [M4].
select u.n, m.id, m.due_at, clock_timestamp() as now, m.status, m.digest, m.reply
from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[]) with ordinality
    as u (id, entity_type, entity_id, method, key, n)
cross join lateral (
    select id, due_at, status, digest, reply from coterie.messages where cluster = $1 and id = u.id
    union all
    select id, due_at, status, digest, reply from coterie.messages
    where cluster = $1 and entity_type = u.entity_type and entity_id = u.entity_id and method = u.method and key = u.key
    limit 1
) as m;

-- name: insert_via
-- As `insert_messages`, in a transaction of the user, on the user's connection: with its search path, settings and rights.
-- Stores nothing in another database than the cluster's, if that is given. Returns the database, the transaction, and
-- what was stored.
with /* include here */, stored as (
    insert into coterie.messages
        (cluster, id, seat, entity_type, entity_id, method, payload, key, digest, trace_id, sent_at, due_at, tags)
    select
        $1::text, u.id, u.seat, u.entity_type, u.entity_id, u.method, u.payload, u.key, u.digest, u.trace_id,
        statement_timestamp(), coalesce(u.due_at, statement_timestamp() + make_interval(secs => u.delay_s)), u.tags::jsonb
    from here cross join unnest(
        $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::text[], $9::bytea[], $10::text[],
        $11::timestamptz[], $12::float8[], $13::text[]
    ) as u (id, seat, entity_type, entity_id, method, payload, key, digest, trace_id, due_at, delay_s, tags)
    where here.database = coalesce($14::text, here.database)
    on conflict do nothing
    returning id, due_at, sent_at
)
select
    here.database, case when s.id is not null then pg_current_xact_id()::text end as transaction, s.id,
    extract(epoch from s.due_at)::float8 as due_s, extract(epoch from s.sent_at)::float8 as now_s
from here left join stored as s on true;

-- name: end_messages
-- End messages with their replies. Returns the result of each member, by number.
with items as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::text[], $6::bytea[]) with ordinality
        as u (seat, epoch, message, reply, n)
), /* include fence (s.name, s.epoch) */, judged as materialized (
    select i.n, i.epoch, i.reply, m.place, case
        when m.status = 1 and m.epoch = i.epoch then 'written' -- by an earlier try of this commit
        when held.name is null then 'fenced'
        when m.status is distinct from 0 then 'gone'
    end as outcome
    from items as i
        left join held on held.name = i.seat and held.epoch = i.epoch
        left join lateral (
            select ctid as place, status, epoch from coterie.messages where cluster = $1 and id = i.message offset 0
        ) as m on true
    order by i.message
), done as (
    update coterie.messages as m
    set status = 1, completed_at = clock_timestamp(), reply = j.reply, epoch = j.epoch
    from judged as j
    where m.ctid = j.place and j.outcome is null and m.completed_at is null
    returning j.n
)
select j.n, case
    when j.outcome is not null then j.outcome
    when done.n is not null then 'written'
    else coterie.overtaken()
end as outcome
from judged as j left join done on done.n = j.n;

-- name: end_message
-- End a message that is alone in its group. No row: run `end_messages`, which returns the reason. With the reason in
-- it, it took a tenth longer.
with /* include fence_short */
update coterie.messages as m
set status = 1, completed_at = clock_timestamp(), reply = $6, epoch = $4
from held
where m.cluster = $1 and m.id = $5 and m.completed_at is null
returning 'written' as outcome;

-- name: commit_handlers
-- End messages, change states, send messages, and set and cancel timers, as handlers commit them. Returns the result of
-- each member, by number.
with items as materialized (
    select * from unnest(
        $3::text[], $4::bigint[], $5::text[], $6::bytea[], $7::text[], $8::bytea[], $9::bigint[]
    ) with ordinality as u (seat, epoch, message, reply, key, value, version, n)
), sends as materialized (
    select * from unnest(
        $10::bigint[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::bytea[], $17::text[],
        $18::bytea[], $19::text[], $20::timestamptz[], $21::float8[], $22::text[]
    ) as u (n, id, seat, entity_type, entity_id, method, payload, key, digest, trace_id, due_at, delay_s, tags)
), timers as materialized (
    select * from unnest(
        $23::bigint[], $24::text[], $25::bigint[], $26::text[], $27::text[], $28::text[], $29::text[], $30::text[],
        $31::bytea[], $32::timestamptz[], $33::timestamptz[]
    ) as u (n, key, life, definition, target, entity_type, entity_id, method, payload, since_at, next_at)
), /* include fence (s.name, s.epoch) */, taken as materialized (
    /* include taken_keys */
), /* include judged_handlers */, /* include sent_messages ($34) */, /* include set_timers */
select j.n, case
    when j.outcome is not null then j.outcome
    when (done.n is not null or j.message is null)
        and (changed.key is not null or j.key is null or (j.version = 0 and j.value is null))
        and unsent.n is null then 'written'
    else coterie.overtaken()
end as outcome
from judged as j
    left join done on done.n = j.n
    left join (
        select key from first union all select key from next union all select key from dropped
    ) as changed on changed.key = j.key
    left join unsent on unsent.n = j.n;

-- name: commit_handlers_and_jobs
-- As `commit_handlers`, for those that send jobs, too.
with items as materialized (
    select * from unnest(
        $3::text[], $4::bigint[], $5::text[], $6::bytea[], $7::text[], $8::bytea[], $9::bigint[]
    ) with ordinality as u (seat, epoch, message, reply, key, value, version, n)
), sends as materialized (
    select * from unnest(
        $10::bigint[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::bytea[], $17::text[],
        $18::bytea[], $19::text[], $20::timestamptz[], $21::float8[], $22::text[]
    ) as u (n, id, seat, entity_type, entity_id, method, payload, key, digest, trace_id, due_at, delay_s, tags)
), new_jobs as materialized (
    select * from unnest(
        $23::bigint[], $24::text[], $25::text[], $26::text[], $27::text[], $28::text[], $29::bytea[], $30::text[],
        $31::bytea[], $32::int[], $33::float8[], $34::text[], $35::timestamptz[], $36::float8[]
    ) as u (n, id, seat, part, task, fingerprint, payload, key, digest, priority, age_s, trace_id, due_at, delay_s)
), tags as materialized (
    select * from unnest($37::text[], $38::text[], $39::text[]) as u (job, name, value)
), timers as materialized (
    select * from unnest(
        $40::bigint[], $41::text[], $42::bigint[], $43::text[], $44::text[], $45::text[], $46::text[], $47::text[],
        $48::bytea[], $49::timestamptz[], $50::timestamptz[]
    ) as u (n, key, life, definition, target, entity_type, entity_id, method, payload, since_at, next_at)
), /* include fence (s.name, s.epoch) */, taken as materialized (
    /* include taken_keys */
    union
    /* include taken_job_keys */
), /* include judged_handlers */, /* include sent_messages ($51) */, /* include stored_jobs ($51) */,
/* include set_timers */
select j.n, case
    when j.outcome is not null then j.outcome
    when (done.n is not null or j.message is null)
        and (changed.key is not null or j.key is null or (j.version = 0 and j.value is null))
        and unsent.n is null and unstored.n is null then 'written'
    else coterie.overtaken()
end as outcome
from judged as j
    left join done on done.n = j.n
    left join (
        select key from first union all select key from next union all select key from dropped
    ) as changed on changed.key = j.key
    left join unsent on unsent.n = j.n
    left join unstored on unstored.n = j.n;

-- name: set_back
-- Count failed attempts: the next one is due later, or the message is dead. One without an error is put off, and not
-- counted. Returns the result of each member, by number. An attempt is counted once.
with items as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::text[], $8::float8[]) with ordinality
        as u (seat, epoch, message, attempt, error, again_s, n)
), /* include fence (s.name, s.epoch) */, judged as materialized (
    select i.*, m.place, case
        when m.status = 2 and m.epoch = i.epoch and m.attempts = i.attempt and i.error is not null
            then 'written' -- by an earlier try
        when held.name is null then 'fenced'
        when m.status is distinct from 0 or m.attempts >= i.attempt and i.error is null then 'gone'
        when m.attempts >= i.attempt then 'written'
    end as outcome
    from items as i
        left join held on held.name = i.seat and held.epoch = i.epoch
        left join lateral (
            select ctid as place, status, attempts, epoch
            from coterie.messages where cluster = $1 and id = i.message offset 0
        ) as m on true
    order by i.message
), failed as (
    update coterie.messages as m
    set attempts = case when j.error is null then m.attempts else j.attempt end,
        suspicion = 0, -- its process has survived it
        errors = case
            when j.error is null then m.errors
            else case when jsonb_array_length(m.errors) < 20 then m.errors else m.errors - 0 end
                || jsonb_build_object('number', j.attempt, 'at', statement_timestamp(), 'error', j.error)
        end,
        due_at = coalesce(statement_timestamp() + make_interval(secs => j.again_s), m.due_at),
        status = case when j.again_s is null then 2 else 0 end,
        completed_at = case when j.again_s is null then statement_timestamp() end,
        epoch = case when j.again_s is null then j.epoch else m.epoch end
    from judged as j
    where m.ctid = j.place and j.outcome is null and m.completed_at is null and m.attempts < j.attempt
    returning j.n
)
select j.n, case
    when j.outcome is not null then j.outcome
    when failed.n is not null then 'written'
    else coterie.overtaken()
end as outcome
from judged as j left join failed on failed.n = j.n;

-- name: due
-- Read the first pending messages of each seat after a mark. Returns the clock, and what is paused, even if there are none.
with clock as materialized (
    select
        clock_timestamp() as now,
        array(select name from coterie.pauses where cluster = $1 and kind = 'entity') as types,
        array(select name from coterie.pauses where cluster = $1 and kind = 'group') as groups
)
select clock.now, clock.types, clock.groups, found.seat, found.id, found.due_at, found.entity_type, found.entity_id
from clock left join (
    select u.n, m.*
    from unnest($2::text[], $3::timestamptz[], $4::text[]) with ordinality as u (seat, after_at, after_id, n)
        cross join lateral (
            select seat, id, due_at, entity_type, entity_id
            from coterie.messages
            where cluster = $1 and seat = u.seat and status = 0
                and due_at <= (select now from clock) + make_interval(secs => $5::float8)
                and (due_at, id) > (coalesce(u.after_at, '-infinity'), coalesce(u.after_id, ''))
            order by due_at, id
            limit $6
        ) as m
) as found on true
order by found.n, found.due_at, found.id;

-- name: backlog
-- Read of each seat the pending message that has been due longest. Returns the clock and the number of dead messages
-- even if there are none. It goes from seat to seat along the index of pending messages, and never reads those that
-- are done.
with recursive clock as materialized (
    select clock_timestamp() as now
), seats as (
    (
        select seat from coterie.messages
        where cluster = $1 and status = 0
        order by cluster, seat, due_at, id
        limit 1
    )
    union all
    select (
        select m.seat from coterie.messages as m
        where m.cluster = $1 and m.seat > s.seat and m.status = 0
        order by m.cluster, m.seat, m.due_at, m.id
        limit 1
    )
    from seats as s
    where s.seat is not null
), dead as materialized (
    select count(*) filter (where failed.status = 2) as dead
    from (
        select status from coterie.messages where cluster = $1 and attempts > 0 and status <> 1 limit $3
    ) as failed
)
select clock.now, dead.dead, late.seat, late.id, late.due_at, late.entity_type, late.entity_id, late.method
from clock cross join dead left join (
    select m.*
    from seats cross join lateral (
        select seat, id, due_at, entity_type, entity_id, method
        from coterie.messages
        where cluster = $1 and seat = seats.seat and status = 0 and due_at <= (select now from clock)
        order by due_at, id
        limit 1
    ) as m
    order by m.due_at, m.id
    limit $2
) as late on true
order by late.due_at, late.id;

-- name: fetch
-- Read pending messages by their ids.
select
    m.id, m.seat, m.entity_type, m.entity_id, m.method, m.payload, m.key, extract(epoch from m.due_at)::float8, m.attempts,
    m.trace_id, m.suspicion, m.losses
from unnest($2::text[]) as u (id) cross join lateral (
    select * from coterie.messages where cluster = $1 and id = u.id and completed_at is null offset 0
) as m;

-- name: look
-- Read messages by their ids.
select
    m.id, m.seat, m.entity_type, m.entity_id, m.method, m.status, m.key, m.sent_at, m.due_at, m.completed_at, m.attempts,
    m.errors, m.payload, m.reply, m.trace_id, m.losses, m.tags
from unnest($2::text[]) as u (id) cross join lateral (
    select * from coterie.messages where cluster = $1 and id = u.id offset 0
) as m;

-- name: find
-- Read the message that has a key.
select id, due_at, clock_timestamp() as now, status, digest, reply
from coterie.messages
where cluster = $1 and entity_type = $2 and entity_id = $3 and method = $4 and key = $5;

-- name: suspect
-- Examine what may have been running when the previous holder was lost [C5]. A message that it had begun alone counts
-- a loss, and is dead when it has reached the limit. The first due messages of each entity, as many as run at once,
-- become suspects, unless they were stored after the loss. Idempotent. Returns the number of suspects, and the
-- messages that counted a loss. (Dead messages have at least one attempt: the index of failed messages finds them.)
with types as materialized (
    select * from unnest($5::text[], $6::bigint[]) as u (entity_type, concurrency)
), /* include fence_of_one (
    s.name, case when s.lost_epoch = s.epoch - 1 then s.lost_at else clock_timestamp() end as lost_at
) */, pending as materialized (
    select m.ctid as place, m.suspicion, m.epoch, t.concurrency,
        m.sent_at <= held.lost_at as is_old,
        row_number() over (partition by m.entity_type, m.entity_id order by m.due_at, m.id) as rank
    from held
        join coterie.messages as m on m.seat = held.name
        left join types as t on t.entity_type = m.entity_type
    where m.cluster = $1 and m.seat = $3 and m.status = 0 and m.due_at <= held.lost_at
), lost as (
    update coterie.messages as m
    set losses = m.losses + 1,
        suspicion = 1,
        errors = case when jsonb_array_length(m.errors) < 20 then m.errors else m.errors - 0 end
            || jsonb_build_object('number', m.attempts + 1, 'at', statement_timestamp(), 'error', format(
                'its runner was lost when it ran this message alone, or was about to (%s of %s)', m.losses + 1, $7::bigint
            )),
        status = case when m.losses + 1 >= $7 then 2 else 0 end,
        completed_at = case when m.losses + 1 >= $7 then statement_timestamp() end,
        attempts = case when m.losses + 1 >= $7 then greatest(m.attempts, 1) else m.attempts end,
        epoch = $4
    from pending as p
    where m.ctid = p.place and p.suspicion = 2 and p.epoch = $4 - 1
        and m.completed_at is null and m.suspicion = 2 and m.epoch = $4 - 1
    returning m.id, m.entity_type, m.entity_id, m.method, m.losses, m.status = 2 as is_dead
), suspected as (
    update coterie.messages as m
    set suspicion = 1
    from pending as p
    where m.ctid = p.place and p.suspicion = 0 and p.is_old and p.rank <= p.concurrency
        and m.completed_at is null and m.suspicion = 0
    returning 1
)
select found.count, lost.*
from (select count(*) from suspected) as found left join lost on true;

-- name: mark_suspect
-- Record how a suspect will run, before it runs; or that it is no suspect any more. No row: it is not pending, or the
-- seat is not held.
with /* include fence_short */
update coterie.messages as m
set suspicion = $6, epoch = $4
from held
where m.cluster = $1 and m.id = $5 and m.completed_at is null
returning m.id;

-- name: cancel
-- End a pending message whose seat is free, and stays free meanwhile: otherwise only its holder knows whether it
-- runs. The reply says that it was cancelled; its key is free again.
with seat as materialized (
    select s.holder
    from coterie.seats as s
    where s.cluster = $1 and s.name = (select m.seat from coterie.messages as m where m.cluster = $1 and m.id = $2)
    for share of s
)
update coterie.messages as m
set status = 1, completed_at = statement_timestamp(), reply = $3, key = null, epoch = 0
where m.cluster = $1 and m.id = $2 and m.completed_at is null
    and not exists (select 1 from seat where seat.holder is not null)
returning m.id;

-- name: cancel_fenced
-- As `cancel`, in the name of a seat.
with /* include fence_of_one (s.name, s.epoch) */
update coterie.messages as m
set status = 1, completed_at = statement_timestamp(), reply = $6, key = null, epoch = 0
from held
where m.cluster = $1 and m.id = $5 and m.seat = held.name and m.completed_at is null
returning m.id;

-- name: list
-- Read messages in the order of their ids, after one. Conditions that are null do not count.
select
    id, seat, entity_type, entity_id, method, status, key, sent_at, due_at, completed_at, attempts, errors, payload, reply,
    trace_id, losses, tags
from coterie.messages
where cluster = $1 and id > $2 and status = coalesce($4, status) and entity_type = coalesce($5, entity_type)
    and entity_id = coalesce($6, entity_id) and method = coalesce($7, method)
    and ($8::float8 is null or coalesce(completed_at, sent_at) <= clock_timestamp() - make_interval(secs => $8))
order by cluster, id
limit $3;

-- name: list_newest
-- As `list`, from the newest one back.
select
    id, seat, entity_type, entity_id, method, status, key, sent_at, due_at, completed_at, attempts, errors, payload, reply,
    trace_id, losses, tags
from coterie.messages
where cluster = $1 and id < $2 and status = coalesce($4, status) and entity_type = coalesce($5, entity_type)
    and entity_id = coalesce($6, entity_id) and method = coalesce($7, method)
    and ($8::float8 is null or coalesce(completed_at, sent_at) <= clock_timestamp() - make_interval(secs => $8))
order by cluster desc, id desc
limit $3;

-- name: list_newest_pending
-- As `list_newest`, for pending messages. If they are few, they are read and sorted, and what is done is not walked
-- along. If they are many, some are found soon.
with known as materialized (
    select id from coterie.messages where cluster = $1 and status = 0 order by cluster, seat, due_at limit 10001
), few as materialized (
    select m.*
    from known cross join lateral (
        select * from coterie.messages where cluster = $1 and id = known.id and id < $2 offset 0
    ) as m
    where (select count(*) from known) <= 10000
), walked as materialized (
    select * from coterie.messages
    where cluster = $1 and id < $2 and status = $4 and entity_type = coalesce($5, entity_type)
        and entity_id = coalesce($6, entity_id) and method = coalesce($7, method)
        and ($8::float8 is null or sent_at <= clock_timestamp() - make_interval(secs => $8))
        and (select count(*) from known) > 10000
    order by cluster desc, id desc
    limit $3
)
select
    id, seat, entity_type, entity_id, method, status, key, sent_at, due_at, completed_at, attempts, errors, payload, reply,
    trace_id, losses, tags
from (select * from few union all select * from walked) as found
where status = 0 and entity_type = coalesce($5, entity_type) and entity_id = coalesce($6, entity_id)
    and method = coalesce($7, method)
    and ($8::float8 is null or sent_at <= clock_timestamp() - make_interval(secs => $8))
order by id desc
limit $3;

-- name: list_dead
-- As `list`, for dead messages, which are few among many; with $9 from the newest one back.
with dead as materialized (
    select * from coterie.messages
    where cluster = $1 and case when $9::boolean then id < $2 else id > $2 end and attempts > 0 and status <> 1 and status = $4
        and entity_type = coalesce($5, entity_type) and entity_id = coalesce($6, entity_id)
        and method = coalesce($7, method)
        and ($8::float8 is null or completed_at <= clock_timestamp() - make_interval(secs => $8))
)
select
    id, seat, entity_type, entity_id, method, status, key, sent_at, due_at, completed_at, attempts, errors, payload, reply,
    trace_id, losses, tags
from dead
order by case when $9 then id end desc, id
limit $3;

-- name: list_tagged
-- As `list`, for messages with a tag: along its index.
select
    m.id, m.seat, m.entity_type, m.entity_id, m.method, m.status, m.key, m.sent_at, m.due_at, m.completed_at, m.attempts,
    m.errors, m.payload, m.reply, m.trace_id, m.losses, m.tags
from coterie.message_tags as t cross join lateral (
    select * from coterie.messages where cluster = $1 and id = t.message offset 0
) as m
where t.cluster = $1 and t.name = $9 and t.value = $10 and t.message > $2
    and m.status = coalesce($4, m.status) and m.entity_type = coalesce($5, m.entity_type)
    and m.entity_id = coalesce($6, m.entity_id) and m.method = coalesce($7, m.method)
    and ($8::float8 is null or coalesce(m.completed_at, m.sent_at) <= clock_timestamp() - make_interval(secs => $8))
order by t.cluster, t.name, t.value, t.message
limit $3;

-- name: list_tagged_newest
-- As `list_tagged`, from the newest one back.
select
    m.id, m.seat, m.entity_type, m.entity_id, m.method, m.status, m.key, m.sent_at, m.due_at, m.completed_at, m.attempts,
    m.errors, m.payload, m.reply, m.trace_id, m.losses, m.tags
from coterie.message_tags as t cross join lateral (
    select * from coterie.messages where cluster = $1 and id = t.message offset 0
) as m
where t.cluster = $1 and t.name = $9 and t.value = $10 and t.message < $2
    and m.status = coalesce($4, m.status) and m.entity_type = coalesce($5, m.entity_type)
    and m.entity_id = coalesce($6, m.entity_id) and m.method = coalesce($7, m.method)
    and ($8::float8 is null or coalesce(m.completed_at, m.sent_at) <= clock_timestamp() - make_interval(secs => $8))
order by t.cluster desc, t.name desc, t.value desc, t.message desc
limit $3;

-- name: revive
-- Make a dead message pending again.
update coterie.messages
set status = 0, completed_at = null, attempts = 0, losses = 0, due_at = statement_timestamp()
where cluster = $1 and id = $2 and status = 2 and method <> '(start)' -- that is no call, see incoming.sql
returning id;

-- name: revive_all
-- Make all dead messages of an entity pending again, and those due that wait for another attempt. Returns the number
-- of dead ones.
with troubled as materialized (
    select id, status from coterie.messages
    where cluster = $1 and entity_type = $2 and entity_id = $3 and attempts > 0 and status <> 1
        and method <> '(start)'
    order by id
    for no key update
), revived as (
    update coterie.messages
    set status = 0, completed_at = null, attempts = case when status = 2 then 0 else attempts end,
        losses = case when status = 2 then 0 else losses end,
        due_at = least(due_at, statement_timestamp())
    where cluster = $1 and id = any(array(select id from troubled)) and status <> 1
    returning id
)
select count(*) from troubled join revived using (id) where status = 2;

-- name: remove_messages
-- Delete the first messages that have ended and match. Returns the number.
with chosen as materialized (
    select id from coterie.messages
    where cluster = $1 and completed_at is not null and status = coalesce($3, status)
        and entity_type = coalesce($4, entity_type) and entity_id = coalesce($5, entity_id)
        and method = coalesce($6, method)
        and ($7::float8 is null or completed_at <= clock_timestamp() - make_interval(secs => $7))
    order by cluster, id
    limit $2
), gone as ( -- each checked again once it is locked: it may have been revived, and done since
    delete from coterie.messages
    where cluster = $1 and id = any(array(select id from chosen)) and completed_at is not null
        and status = coalesce($3, status)
        and ($7::float8 is null or completed_at <= clock_timestamp() - make_interval(secs => $7))
    returning 1
)
select count(*) from gone;

-- name: remove_dead
-- As `remove_messages`, for dead messages, which are few among many.
with chosen as materialized (
    select id from coterie.messages
    where cluster = $1 and attempts > 0 and status <> 1 and status = $3
        and entity_type = coalesce($4, entity_type) and entity_id = coalesce($5, entity_id)
        and method = coalesce($6, method)
        and ($7::float8 is null or completed_at <= clock_timestamp() - make_interval(secs => $7))
    limit $2
), gone as ( -- each checked again, as above
    delete from coterie.messages
    where cluster = $1 and id = any(array(select id from chosen)) and status = $3
        and ($7::float8 is null or completed_at <= clock_timestamp() - make_interval(secs => $7))
    returning 1
)
select count(*) from gone;

-- name: count_messages
-- Count the messages that match, up to a bound.
select count(*) from (
    select id from coterie.messages
    where cluster = $1 and status = coalesce($3, status)
        and entity_type = coalesce($4, entity_type) and entity_id = coalesce($5, entity_id)
        and method = coalesce($6, method)
        and ($7::float8 is null or coalesce(completed_at, sent_at) <= clock_timestamp() - make_interval(secs => $7))
    order by cluster, id
    limit $2
) as chosen;

-- name: count_dead
-- As `count_messages`, for dead messages, which are few among many.
select count(*) from (
    select id from coterie.messages
    where cluster = $1 and attempts > 0 and status <> 1 and status = $3
        and entity_type = coalesce($4, entity_type) and entity_id = coalesce($5, entity_id)
        and method = coalesce($6, method)
        and ($7::float8 is null or completed_at <= clock_timestamp() - make_interval(secs => $7))
    limit $2
) as chosen;

-- name: discard_messages
-- Delete those of these messages that have this final status.
delete from coterie.messages
where cluster = $1 and id = any($2::text[]) and completed_at is not null and status = $3
returning id;

-- name: purge_messages
-- Delete messages done long ago, among the next ids. Returns the number deleted, the number of ids examined, the last
-- id, and whether that message was sent so late that it and all later ones cannot be old enough.
with span as materialized (
    select id, status, key, completed_at, sent_at
    from coterie.messages
    where cluster = $1 and id > $2
    order by cluster, id
    limit $3
), gone as (
    delete from coterie.messages
    where cluster = $1 and status = 1 and id = any(array(
        select id from span
        where status = 1 and completed_at
            <= clock_timestamp() - make_interval(secs => case when key is null then $4::float8 else $5::float8 end)
    ))
    returning 1
)
select
    (select count(*) from gone) as gone,
    (select count(*) from span) as seen,
    (select max(id) from span) as last,
    (select sent_at > clock_timestamp() - make_interval(secs => least($4::float8, $5::float8)) from span order by id desc limit 1) as young;
