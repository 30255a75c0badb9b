-- Crons and their ticks. A holder's writes are fenced as in fragments.sql, and have steps as in messages.sql: find,
-- judge, write [C1, M3]. A statement has one write of a seat, up to hundreds of seats. Rows are locked in one order:
-- ticks by key, then crons by name. A claim is the exception and needs none: its ticks are new.

-- name: look_at_crons
-- Read the crons that are held, a row for each open tick (at least one), and whether something must be written: then
-- `take_crons` comes first. Locks nothing.
with items as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::text[], $6::text[]) as u (seat, epoch, name, definition)
)
select
    i.name as cron, s.fingerprint, s.effective_from, c.last_at, c.failures, c.failed_at, c.paused_at, p.since, p.until,
    clock_timestamp() as now, c.known is null or c.definition <> i.definition or t.epoch < i.epoch as fresh,
    i.epoch as mine, t.*
from items as i
    cross join lateral (
        select fingerprint, effective_from from coterie.seats
        where cluster = $1 and name = i.seat and holder = $2 and epoch = i.epoch
        offset 0
    ) as s
    left join lateral (
        select true as known, definition, last_at, failures, failed_at, paused_at
        from coterie.crons where cluster = $1 and name = i.name
        offset 0
    ) as c on true
    cross join lateral (
        select array_agg(since_at order by until_at) as since, array_agg(until_at order by until_at) as until
        from coterie.cron_pauses
        where cluster = $1 and name = i.name and until_at > coalesce(c.last_at, '-infinity')
    ) as p
    left join lateral (
        select * from coterie.ticks where cluster = $1 and name = i.name and outcome is null offset 0
    ) as t on true
order by i.name, t.kind, t.at, t.seq;

-- name: take_crons
-- Store the definitions of crons, and make this runner the holder of their open ticks. Returns those that are held.
with items as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::text[], $6::text[]) as u (seat, epoch, name, definition)
), /* include fence_without_epochs (s.name, s.epoch, me.name as runner) */, clock as materialized (
    select clock_timestamp() as now from (select count(*) from held) as fence -- not while that one waits
), left_over as materialized (
    select i.epoch, held.runner, t.place, t.name, t.epoch = 0 as begins, clock.now
    from items as i
        join held on held.name = i.seat and held.epoch = i.epoch
        cross join clock
        cross join lateral (
            select ctid as place, name, kind, at, seq, epoch
            from coterie.ticks where cluster = $1 and name = i.name and outcome is null and epoch < i.epoch
            offset 0
        ) as t
    order by t.name, t.kind, t.at, t.seq
), moved as (
    update coterie.ticks as t
    set epoch = l.epoch, attempt = t.attempt + 1, runner = l.runner,
        claimed_at = case when l.begins then l.now else t.claimed_at end
    from left_over as l
    where t.ctid = l.place and t.outcome is null and t.epoch < l.epoch
    returning t.name, l.begins, l.now
), begun as materialized (
    select name, count(*) as runs, max(now) as now from moved where begins group by name
), told as (
    insert into coterie.crons as c (cluster, name, definition, runs, ran_at)
    select $1, i.name, coalesce(i.definition, ''), coalesce(begun.runs, 0), begun.now
    from items as i
        join held on held.name = i.seat and held.epoch = i.epoch
        left join begun on begun.name = i.name
    order by i.name
    on conflict (cluster, name) do update
    set definition = coalesce(nullif(excluded.definition, ''), c.definition), runs = c.runs + excluded.runs,
        ran_at = coalesce(excluded.ran_at, c.ran_at)
    where excluded.runs > 0 or excluded.definition not in ('', c.definition)
)
select i.name from items as i join held on held.name = i.seat and held.epoch = i.epoch;

-- name: claim_ticks
-- Store the verdicts of ticks, per cron all or none. Returns per seat, once each, the result, and the clock.
with items as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::text[], $6::text[], $7::timestamptz[], $8::float8[])
        as u (seat, epoch, name, schedule, last_at, delay_s)
), verdicts as materialized (
    select * from unnest($9::text[], $10::timestamptz[], $11::timestamptz[], $12::bigint[], $13::text[])
        as u (seat, at, until_at, count, reason)
), spans as materialized (
    select seat, max(until_at) as until_at, count(*) as ticks, count(*) filter (where reason = '') as runs
    from verdicts group by seat
), /* include fence_without_epochs (
    s.name, s.epoch, s.fingerprint, s.effective_from, me.name as runner
) */, clock as materialized (
    select clock_timestamp() as now from (select count(*) from held) as fence -- not while that one waits
), known as materialized ( -- there already: cannot be, and must not break the group
    select distinct v.seat
    from verdicts as v
        join items as i on i.seat = v.seat
        cross join lateral (
            select from coterie.ticks
            where cluster = $1 and name = i.name and kind = 'scheduled' and at = v.at and seq = 0
            offset 0
        ) as t
), judged as materialized (
    select i.*, spans.until_at, spans.ticks, spans.runs, held.runner, clock.now, c.place, case
        when held.name is null then 'fenced'
        when c.last_at is distinct from i.last_at or known.seat is not null then 'moved'
        when split_part(held.fingerprint, ':', 1) <> i.schedule and spans.until_at >= held.effective_from
            then 'redefined'
        when c.paused_at is not null and spans.runs > 0 then 'paused'
        when spans.until_at + make_interval(secs => i.delay_s) > clock.now then 'early'
    end as outcome
    from items as i
        join spans on spans.seat = i.seat
        cross join clock
        left join held on held.name = i.seat and held.epoch = i.epoch
        left join known on known.seat = i.seat
        left join lateral (
            select ctid as place, last_at, paused_at from coterie.crons where cluster = $1 and name = i.name offset 0
        ) as c on true
    order by i.name
), first as (
    insert into coterie.crons (cluster, name, last_at, runs, ran_at)
    select $1, j.name, j.until_at, j.runs, case when j.runs > 0 then j.now end
    from judged as j
    where j.outcome is null and j.place is null
    order by j.name
    on conflict (cluster, name) do nothing
    returning name
), next as (
    update coterie.crons as c
    set last_at = j.until_at, runs = c.runs + j.runs, ran_at = case when j.runs > 0 then j.now else c.ran_at end
    from judged as j
    where c.ctid = j.place and j.outcome is null
        and c.last_at is not distinct from j.last_at and (c.paused_at is null or j.runs = 0)
    returning c.name
), advanced as materialized (
    select name from first union all select name from next
), claimed as (
    insert into coterie.ticks (
        cluster, name, kind, at, seq, until_at, count, epoch, attempt, outcome, reason, runner, claimed_at, ended_at, late_s
    )
    select
        $1, j.name, 'scheduled', v.at, 0, v.until_at, v.count, j.epoch, (v.reason = '')::int,
        case when v.reason <> '' then 'skipped' end, v.reason, j.runner, j.now,
        case when v.reason <> '' then j.now end,
        case when v.reason = '' then extract(epoch from j.now - v.at) - j.delay_s end
    from judged as j
        join advanced on advanced.name = j.name
        join verdicts as v on v.seat = j.seat
    order by j.name, v.at
    on conflict (cluster, name, kind, at, seq) do nothing
    returning name
), counted as materialized (
    select name, count(*) as ticks from claimed group by name
)
select j.seat, case
    when j.outcome is not null then j.outcome
    when advanced.name is not null and counted.ticks = j.ticks then 'written'
    else coterie.overtaken()
end as told, j.now
from judged as j
    left join advanced on advanced.name = j.name
    left join counted on counted.name = j.name;

-- name: note_ticks
-- Store reports on ticks, one for each cron. Returns per seat, once each, the result.
with items as materialized (
    select * from unnest(
        $3::text[], $4::bigint[], $5::text[], $6::text[], $7::timestamptz[], $8::bigint[], $9::bigint[], $10::text[],
        $11::boolean[], $12::text[], $13::text[], $14::float8[], $15::float8[], $16::text[], $17::bigint[], $18::bigint[], $19::text[]
    ) as u (
        seat, epoch, name, kind, at, seq, attempt, outcome, again, errors, error, late_s, took_s, note, done, total,
        reason
    )
), /* include fence_without_epochs (s.name, s.epoch) */, clock as materialized (
    select clock_timestamp() as now from (select count(*) from held) as fence -- not while that one waits
), judged as materialized (
    select i.*, t.place, clock.now, c.place as cron, c.place is not null
        and (i.error is not null or i.outcome = 'failed' or (i.outcome = 'ran' and c.failures > 0)) as counts
    from items as i
        join held on held.name = i.seat and held.epoch = i.epoch
        cross join clock
        cross join lateral (
            select ctid as place from coterie.ticks
            where cluster = $1 and name = i.name and kind = i.kind and at = i.at and seq = i.seq
                and epoch = i.epoch and attempt = i.attempt and outcome is null
            offset 0
        ) as t
        left join lateral (
            select ctid as place, failures from coterie.crons where cluster = $1 and name = i.name offset 0
        ) as c on true
    order by i.name
), noted as (
    update coterie.ticks as t
    set attempt = t.attempt + j.again::int, outcome = j.outcome,
        ended_at = case when j.outcome is not null then j.now end,
        errors = coalesce(j.errors, t.errors), late_s = coalesce(j.late_s, t.late_s),
        took_s = coalesce(j.took_s, t.took_s), note = j.note, done = j.done, total = j.total, reason = j.reason,
        noted_at = j.now
    from judged as j
    where t.ctid = j.place and t.epoch = j.epoch and t.attempt = j.attempt and t.outcome is null
    returning j.seat, j.name, j.outcome, j.error, j.now, j.cron, coalesce(j.counts, false) as counts
), counted as (
    update coterie.crons as c
    set failures = case n.outcome when 'failed' then c.failures + 1 when 'ran' then 0 else c.failures end,
        failed_at = case n.outcome when 'failed' then n.now else c.failed_at end,
        error = coalesce(n.error, c.error), error_at = case when n.error is not null then n.now else c.error_at end
    from noted as n
    where c.ctid = n.cron and n.counts and c.name = n.name
    returning n.seat
)
select i.seat, case
    when held.name is null then 'fenced'
    when j.place is null then 'conflict'
    when noted.seat is not null and (counted.seat is not null or not noted.counts) then 'written'
    else coterie.overtaken()
end as told
from items as i
    left join held on held.name = i.seat and held.epoch = i.epoch
    left join judged as j on j.seat = i.seat
    left join noted on noted.seat = i.seat
    left join counted on counted.seat = i.seat;

-- name: trigger_tick
-- Add a manual tick, after those for the same instant. No row: there is no such seat.
with wanted as materialized (
    select coalesce($4::timestamptz, clock_timestamp()) as at, clock_timestamp() as now
    from coterie.seats where cluster = $1 and name = $2
), triggered as (
    insert into coterie.ticks (cluster, name, kind, at, seq, until_at, epoch, attempt, runner, claimed_at)
    select $1, $3, 'manual', w.at, 1 + coalesce(before.seq, 0), w.at, 0, 0, '', w.now
    from wanted as w
        left join lateral (
            select seq from coterie.ticks
            where cluster = $1 and name = $3 and kind = 'manual' and at = w.at
            order by seq desc limit 1
        ) as before on true
    on conflict (cluster, name, kind, at, seq) do nothing
    returning *
)
select t.*, case when t.name is null then coterie.overtaken() end as faster
from wanted left join triggered as t on true;

-- name: pause_cron
-- Let no tick begin from now on. Returns whether it was not paused before; no row: there is no such seat.
with seat as materialized (
    select name from coterie.seats where cluster = $1 and name = $2
), paused as (
    insert into coterie.crons as c (cluster, name, paused_at)
    select $1, $3, clock_timestamp() from seat
    on conflict (cluster, name) do update
    set paused_at = clock_timestamp() -- after the claim that this may have waited for
    where c.paused_at is null
    returning name
)
select paused.name is not null as told from seat left join paused on true;

-- name: resume_cron
-- End a pause. Returns whether there was one; no row: there is no such seat.
with seat as materialized (
    select name from coterie.seats where cluster = $1 and name = $2
), paused as materialized (
    select name, paused_at from coterie.crons where cluster = $1 and name = $3 and paused_at is not null for no key update
), kept as (
    insert into coterie.cron_pauses (cluster, name, since_at, until_at)
    select $1, name, paused_at, greatest(clock_timestamp(), paused_at) from paused
    on conflict (cluster, name, until_at) do nothing
), resumed as (
    update coterie.crons as c
    set paused_at = null
    from paused
    where c.cluster = $1 and c.name = $3
    returning c.name
)
select resumed.name is not null as told from seat left join resumed on true;

-- name: get_tick
-- One tick.
select * from coterie.ticks where cluster = $1 and name = $2 and kind = $3 and at = $4 and seq = $5;

-- name: tick_history
-- The last ticks of a cron, those for the latest instants first. Each kind by its key: it needs no index of its own.
select t.*
from (values ('scheduled'), ('manual')) as k (kind) cross join lateral (
    select * from coterie.ticks
    where cluster = $1 and name = $2 and kind = k.kind and at < coalesce($4::timestamptz, 'infinity')
    order by at desc, seq desc
    limit $3
) as t
order by t.at desc, t.kind, t.seq desc
limit $3;

-- name: tick_histories
-- As `tick_history`, for several crons: of each kind as many as are asked for, in order, without those before an instant.
select t.*
from unnest($2::text[]) as n (name) cross join (values ('scheduled'), ('manual')) as k (kind) cross join lateral (
    select * from coterie.ticks
    where cluster = $1 and name = n.name and kind = k.kind and at < $4::timestamptz
    order by at desc, seq desc
    limit $3
) as t
where t.until_at >= $5::timestamptz;

-- name: list_crons
-- All crons that have a seat, each with the tick that ended last as ran or failed.
select
    substr(s.name, 6) as cron, coalesce(c.definition, '') as definition, s.effective_from, c.last_at as last,
    coalesce(c.runs, 0) as runs, c.ran_at, c.error, c.error_at, coalesce(c.failures, 0) as failures, c.failed_at,
    c.paused_at, o.open, o.beat_at, clock_timestamp() as now, t.*
from coterie.seats as s
    left join lateral (
        select * from coterie.crons where cluster = $1 and name = substr(s.name, 6) offset 0
    ) as c on true
    cross join lateral (
        select count(*) as open, max(greatest(claimed_at, noted_at)) as beat_at from coterie.ticks
        where cluster = $1 and name = substr(s.name, 6) and outcome is null
    ) as o
    left join lateral (
        select * from coterie.ticks
        where cluster = $1 and name = substr(s.name, 6) and outcome in ('ran', 'failed')
        order by ended_at desc
        limit 1
    ) as t on true
where s.cluster = $1 and s.name > 'cron:' and s.name < 'cron;'
order by s.name;

-- name: purge_ticks
-- Delete some ticks that ended long ago, the oldest first, and such pauses, unless a tick in them may still lack its
-- verdict. Returns the number of ticks.
with edge as materialized (
    select clock_timestamp() - make_interval(secs => $2::float8) as at
), old as materialized (
    select ctid as place from coterie.ticks
    where cluster = $1 and ended_at <= (select at from edge)
    order by ended_at limit $3
    for update skip locked
), gone as (
    delete from coterie.ticks where ctid = any(array(select place from old)) returning 1
), old_pauses as materialized (
    select p.ctid as place
    from coterie.cron_pauses as p cross join lateral (
        select last_at from coterie.crons where cluster = $1 and name = p.name offset 0
    ) as c
    where p.cluster = $1 and p.until_at <= (select at from edge) and p.until_at <= c.last_at
    limit $3
    for update of p skip locked
), forgotten as (
    delete from coterie.cron_pauses where ctid = any(array(select place from old_pauses))
)
select count(*) from gone;
