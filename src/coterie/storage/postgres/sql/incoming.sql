-- Incoming work: rows that SQL has written, and what they become [O2].
--
-- A move takes the rows that still wait, writes what they become and deletes them, in one statement under the fence: each is
-- moved once, and a repeated move finds none. Of rows with one key the first is moved, the others are left for the next
-- round. If a message with that key came since it was looked for, the statement fails and is run again [M3].

-- name: take_incoming
-- Read the first rows of some kinds and types that wait, up to a number of each and a size of all.
with found as materialized (
    select r.*, sum(octet_length(r.args)) over (order by r.id) - octet_length(r.args) as bytes_before
    from unnest($2::text[], $3::text[], $4::text[]) as u (kind, type, after) cross join lateral (
        select id, kind, type, entity, method, args, key, due_at
        from coterie.incoming
        where cluster = $1 and kind = u.kind and type = u.type and same_as is null and id > u.after
            and id <> all($5::text[])
        order by id
        limit $6
    ) as r
)
select id, kind, type, entity, method, args, key, extract(epoch from due_at)::float8 as due_s
from found
where bytes_before < $7
order by id;

-- name: move_incoming
-- Make messages of rows; dead ones of those with an error. A row whose key belongs to a message with the same arguments stays,
-- with the id of that one; so does one whose `known` is the digest of that one [O6]. Returns per id whether the seat was
-- held, what became of it, and the message that has its key, with its digest if that is another one.
with /* include fence_of_one (s.name) */, items as materialized (
    select * from unnest(
        $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::bytea[], $11::text[], $12::bytea[], $13::text[],
        $14::timestamptz[], $15::float8[], $16::text[], $17::text[], $18::bytea[]
    ) as u (id, seat, entity_type, entity_id, method, payload, key, digest, trace_id, due_at, delay_s, tags, error, known)
), found as materialized (
    select i.*, w.sent_at,
        row_number() over (partition by i.entity_type, i.entity_id, i.method, i.key order by i.id) as turn
    from items as i cross join held cross join lateral (
        select sent_at from coterie.incoming
        where cluster = $1 and id = i.id and coalesce(same_as, '') = '' -- by its id: the index of what waits must not fit
        offset 0
        for update
    ) as w
    order by i.id
), rivals as materialized (
    select f.id, m.id as other, m.digest, m.digest in (f.digest, f.known) as is_same
    from found as f cross join lateral (
        select id, digest from coterie.messages
        where cluster = $1 and entity_type = f.entity_type and entity_id = f.entity_id and method = f.method
            and key = f.key
        offset 0
    ) as m
), sent as (
    insert into coterie.messages (
        cluster, id, seat, entity_type, entity_id, method, payload, key, digest, trace_id, sent_at, due_at,
        status, completed_at, attempts, epoch, errors, tags
    )
    select
        $1, f.id, f.seat, f.entity_type, f.entity_id, f.method, f.payload, f.key, f.digest, f.trace_id, f.sent_at,
        coalesce(f.due_at, statement_timestamp() + make_interval(secs => f.delay_s)),
        case when f.error is null then 0 else 2 end,
        case when f.error is not null then statement_timestamp() end,
        case when f.error is null then 0 else 1 end, 0,
        case when f.error is null then '[]'::jsonb else jsonb_build_array(
            jsonb_build_object('number', 1, 'at', statement_timestamp(), 'error', f.error)
        ) end,
        f.tags::jsonb
    from found as f left join rivals as r on r.id = f.id
    where r.id is null and (f.turn = 1 or f.key is null)
    order by f.entity_type, f.entity_id, f.method, f.key, f.id
    on conflict do nothing
    returning id
), gone as (
    delete from coterie.incoming where cluster = $1 and id = any(array(select id from sent))
    returning id
), same as (
    update coterie.incoming as w set same_as = r.other, args = '' -- what it said stands with the other
    from rivals as r
    where w.cluster = $1 and w.id = any(array(select id from rivals where is_same)) and w.id = r.id and r.is_same
    returning w.id
)
select i.id, held.name is not null as held, case
    when gone.id is not null then 'moved'
    when same.id is not null then 'same'
    when r.id is not null then 'conflict'
    when f.id is null or (f.turn > 1 and f.key is not null) then 'left'
    else coterie.overtaken()
end as told, r.other, case when not coalesce(r.is_same, false) then r.digest end as digest
from items as i
    left join held on true
    left join found as f on f.id = i.id
    left join gone on gone.id = i.id
    left join same on same.id = i.id
    left join rivals as r on r.id = i.id;

-- name: start_incoming
-- Make runs of rows; one that exists with the same payload counts. Returns as `move_incoming`.
with /* include fence_of_one (s.name) */, items as materialized (
    select * from unnest(
        $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::bytea[], $11::bytea[], $12::text[], $13::bigint[],
        $14::bytea[]
    ) as u (id, unit, name, run, seat, payload, digest, version, life, known)
), found as materialized (
    select i.*, row_number() over (partition by i.unit order by i.id) as turn
    from items as i cross join held cross join lateral (
        select from coterie.incoming
        where cluster = $1 and id = i.id and coalesce(same_as, '') = ''
        offset 0
        for update
    ) as w
    order by i.id
), rivals as materialized (
    select f.id, u.unit as other, u.digest, u.digest in (f.digest, f.known) as is_same
    from found as f cross join lateral (
        select unit, digest from coterie.units where cluster = $1 and unit = f.unit offset 0
    ) as u
), started as (
    insert into coterie.units (
        cluster, unit, kind, name, id, seat, status, started_at, changed_at, payload, digest, version, life
    )
    select
        $1, f.unit, 'workflow', f.name, f.run, f.seat, 'running', clock_timestamp(), clock_timestamp(), f.payload, f.digest,
        f.version, f.life
    from found as f left join rivals as r on r.id = f.id
    where r.id is null and f.turn = 1
    order by f.unit
    on conflict (cluster, unit) do nothing
    returning unit
), gone as (
    delete from coterie.incoming
    where cluster = $1 and id = any(array(
        select f.id from found as f join started as s on s.unit = f.unit where f.turn = 1
        union all
        select id from rivals where is_same
    ))
    returning id
)
select i.id, held.name is not null as held, case
    when gone.id is not null and r.id is null then 'moved'
    when gone.id is not null then 'same'
    when r.id is not null then 'conflict'
    when f.id is null or f.turn > 1 then 'left'
    else coterie.overtaken()
end as told, r.other, case when not coalesce(r.is_same, false) then r.digest end as digest
from items as i
    left join held on true
    left join found as f on f.id = i.id
    left join gone on gone.id = i.id
    left join rivals as r on r.id = i.id;

-- name: find_incoming
-- A row by its id.
select kind, type, same_as, entity, method, key, extract(epoch from sent_at)::float8 as sent_s
from coterie.incoming where cluster = $1 and id = $2;

-- name: cancel_incoming
-- Delete a row that waits.
delete from coterie.incoming where cluster = $1 and id = $2 and coalesce(same_as, '') = '' returning id;

-- name: incoming_backlog
-- Read of each kind and type the row that has waited longest, and how many wait, counted up to a bound. It goes from type to
-- type along the index.
with recursive sources as (
    (
        select kind, type from coterie.incoming
        where cluster = $1 and same_as is null
        order by cluster, kind, type, id
        limit 1
    )
    union all
    select next.kind, next.type
    from sources as s cross join lateral (
        select i.kind, i.type from coterie.incoming as i
        where i.cluster = $1 and i.same_as is null and (i.kind, i.type) > (s.kind, s.type)
        order by i.cluster, i.kind, i.type, i.id
        limit 1
    ) as next
)
select r.kind, r.type, r.id, extract(epoch from clock_timestamp() - r.sent_at)::float8 as waited_s, n.rows
from (select * from sources limit $2) as s cross join lateral (
    select kind, type, id, sent_at from coterie.incoming
    where cluster = $1 and kind = s.kind and type = s.type and same_as is null
    order by id
    limit 1
) as r cross join lateral (
    select count(*) as rows from (
        select from coterie.incoming
        where cluster = $1 and kind = s.kind and type = s.type and same_as is null
        limit $3
    ) as found
) as n
order by r.sent_at;

-- name: purge_incoming
-- Delete old rows that are the same as a message. Returns the number.
with chosen as materialized (
    select id from coterie.incoming
    where cluster = $1 and same_as is not null and sent_at <= clock_timestamp() - make_interval(secs => $2::float8)
    order by sent_at
    limit $3
    for update skip locked
), gone as (
    delete from coterie.incoming where cluster = $1 and id = any(array(select id from chosen)) returning 1
)
select count(*) from gone;
