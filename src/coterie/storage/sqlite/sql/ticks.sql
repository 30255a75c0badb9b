-- name: look
-- All that holders need to know of crons, as one text: each row is a step, and beside a busy loop each waits its turn.
select json_group_array(json_array(
    asked.key, s.fingerprint, s.effective_from_ns, c.last_at_ns, coalesce(c.failures, 0), c.failed_at_ns,
    c.name is null or coalesce(c.definition <> asked.value ->> 'definition', 0),
    json((
        select json_group_array(json_array(p.since_at_ns, p.until_at_ns) order by p.since_at_ns)
        from cron_pauses as p
        where p.cluster = :cluster and p.name = asked.value ->> 'name'
            and (p.until_at_ns is null or c.last_at_ns is null or p.until_at_ns > c.last_at_ns)
    )),
    json((
        select json_group_array(json_array(
            name, kind, at_ns, until_at_ns, count, seq, epoch, attempt, outcome, reason, json(iif(json_valid(errors), errors, 'null')), runner,
            claimed_at_ns, ended_at_ns, late_s, took_s, note, done, total
        ) order by kind, at_ns, seq)
        from ticks as t indexed by ticks_open
        where t.cluster = :cluster and t.name = asked.value ->> 'name' and t.outcome is null
    ))
))
from json_each(:asked) as asked
    cross join seats as s on s.cluster = :cluster and s.name = asked.value ->> 'seat'
    left join crons as c on c.cluster = :cluster and c.name = asked.value ->> 'name';

-- name: introduce
-- Store crons, or their definitions.
insert into crons (cluster, name, definition)
select :cluster, value ->> 'name', coalesce(value ->> 'definition', '') from json_each(:asked) where true
on conflict (cluster, name) do update set definition = excluded.definition;

-- name: adopt
-- What is not over belongs to its new holder, as the next attempt [M9].
update ticks indexed by ticks_open
set epoch = :epoch, attempt = attempt + 1, runner = (select r.name from runners as r where r.id = :runner),
    claimed_at_ns = iif(epoch = 0, :now_ns, claimed_at_ns)
where cluster = :cluster and name = :name and outcome is null and epoch < :epoch;

-- name: begin
-- What was triggered has begun.
update crons set runs = runs + :begun, ran_at_ns = :now_ns where cluster = :cluster and name = :name;

-- name: schedules
-- What decides about claims: the schedule and since when, the last tick that has a verdict, whether it is paused.
select json_group_array(json_array(
    s.fingerprint, s.effective_from_ns, c.last_at_ns,
    exists (
        select 1 from cron_pauses as p
        where p.cluster = :cluster and p.name = asked.value ->> 'name' and p.until_at_ns is null
    )
) order by asked.key)
from json_each(:asked) as asked
    cross join seats as s on s.cluster = :cluster and s.name = asked.value ->> 'seat'
    left join crons as c on c.cluster = :cluster and c.name = asked.value ->> 'name';

-- name: advance
-- Which tick is the last one that has a verdict.
insert into crons (cluster, name, last_at_ns, runs, ran_at_ns)
select :cluster, value ->> 'name', value ->> 'last_at_ns', value ->> 'runs', iif(value ->> 'runs', :now_ns, null)
from json_each(:rows) where true
on conflict (cluster, name) do update
set last_at_ns = excluded.last_at_ns, runs = runs + excluded.runs, ran_at_ns = coalesce(excluded.ran_at_ns, ran_at_ns);

-- name: claim
-- Ticks with their verdicts: those that run are claimed, the others are over.
insert into ticks (
    cluster, name, kind, at_ns, seq, until_at_ns, count, epoch, attempt, outcome, reason, runner, claimed_at_ns,
    ended_at_ns, late_s
)
select :cluster, value ->> 'name', 'scheduled', value ->> 'at_ns', 0, value ->> 'until_at_ns', value ->> 'count',
    value ->> 'epoch', iif(value ->> 'runs', 1, 0), iif(value ->> 'runs', null, 'skipped'), value ->> 'reason',
    (select r.name from runners as r where r.id = value ->> 'runner'), :now_ns,
    iif(value ->> 'runs', null, :now_ns), value ->> 'late_s'
from json_each(:rows);

-- name: running
-- Those of the notes whose ticks are this holder's, at this attempt and not over.
select json_group_array(asked.key)
from json_each(:rows) as asked
    cross join ticks as t on t.cluster = :cluster and t.name = asked.value ->> 'name'
        and t.kind = asked.value ->> 'kind' and t.at_ns = asked.value ->> 'at_ns' and t.seq = asked.value ->> 'seq'
where t.epoch = asked.value ->> 'epoch' and t.attempt = asked.value ->> 'attempt' and t.outcome is null;

-- name: note
-- Store a report on a tick.
update ticks
set attempt = attempt + :again, outcome = :outcome, ended_at_ns = iif(:outcome is null, null, :now_ns),
    errors = coalesce(:errors, errors), late_s = coalesce(:late_s, late_s), took_s = coalesce(:took_s, took_s),
    note = :note, done = :done, total = :total, reason = :reason, noted_at_ns = :now_ns
where cluster = :cluster and name = :name and kind = :kind and at_ns = :at_ns and seq = :seq;

-- name: count
-- What a note means for its cron: failures in a row, and the last error.
update crons
set failures = case :outcome when 'failed' then failures + 1 when 'ran' then 0 else failures end,
    failed_at_ns = iif(:outcome = 'failed', :now_ns, failed_at_ns), error = coalesce(:error, error),
    error_at_ns = iif(:error is null, error_at_ns, :now_ns)
where cluster = :cluster and name = :name;

-- name: is_known
-- Whether there is such a cron.
select count(*) from seats where cluster = :cluster and name = :seat;

-- name: trigger
-- One more tick for an instant, which its holder will find.
insert into ticks (cluster, name, kind, at_ns, seq, until_at_ns, epoch, attempt, claimed_at_ns)
select :cluster, :name, 'manual', :at_ns, 1 + coalesce(max(seq), 0), :at_ns, 0, 0, :now_ns
from ticks where cluster = :cluster and name = :name and kind = 'manual' and at_ns = :at_ns
returning seq;

-- name: is_paused
-- Whether a pause has not ended.
select count(*) from cron_pauses where cluster = :cluster and name = :name and until_at_ns is null;

-- name: pause
-- Begin a pause, after the end of the last one also if the clock has gone back; one that ended just now goes on.
insert into cron_pauses (cluster, name, since_at_ns)
select :cluster, :name, max(:now_ns, coalesce(max(until_at_ns), :now_ns))
from cron_pauses where cluster = :cluster and name = :name
on conflict (cluster, name, since_at_ns) do update set until_at_ns = null;

-- name: resume
-- End a pause, not before it began.
update cron_pauses set until_at_ns = max(:now_ns, since_at_ns)
where cluster = :cluster and name = :name and until_at_ns is null;

-- name: get
-- One tick.
select json_array(
    name, kind, at_ns, until_at_ns, count, seq, epoch, attempt, outcome, reason, json(iif(json_valid(errors), errors, 'null')), runner, claimed_at_ns,
    ended_at_ns, late_s, took_s, note, done, total
)
from ticks where cluster = :cluster and name = :name and kind = :kind and at_ns = :at_ns and seq = :seq;

-- name: history
-- The last ticks of a cron: of each kind as many as are asked for, which lie in order, and of these the last.
select json_group_array(json_array(
    name, kind, at_ns, until_at_ns, count, seq, epoch, attempt, outcome, reason, json(iif(json_valid(errors), errors, 'null')), runner, claimed_at_ns,
    ended_at_ns, late_s, took_s, note, done, total
) order by at_ns desc, kind, seq desc)
from (
    select * from (
        select * from ticks where cluster = :cluster and name = :name and kind = 'scheduled' and at_ns < :before_ns
        order by at_ns desc, seq desc limit :most
    ) union all select * from (
        select * from ticks where cluster = :cluster and name = :name and kind = 'manual' and at_ns < :before_ns
        order by at_ns desc, seq desc limit :most
    ) order by at_ns desc, kind, seq desc limit :most
);

-- name: list
-- All crons, each with the tick that ended last, as one text. Their seats are those between "cron:" and "cron;", the
-- character after the colon.
select json_group_array(json_array(json_array(
    substr(s.name, 6), coalesce(c.definition, ''), s.effective_from_ns, c.last_at_ns, coalesce(c.runs, 0),
    c.ran_at_ns, c.error, c.error_at_ns, coalesce(c.failures, 0), c.failed_at_ns,
    (
        select p.since_at_ns from cron_pauses as p
        where p.cluster = :cluster and p.name = substr(s.name, 6) and p.until_at_ns is null
    ),
    (
        select count(*) from ticks as t indexed by ticks_open
        where t.cluster = :cluster and t.name = substr(s.name, 6) and t.outcome is null
    ),
    (
        select max(max(t.claimed_at_ns, coalesce(t.noted_at_ns, 0))) from ticks as t indexed by ticks_open
        where t.cluster = :cluster and t.name = substr(s.name, 6) and t.outcome is null
    )
), json((
    select json_array(
        name, kind, at_ns, until_at_ns, count, seq, epoch, attempt, outcome, reason, json(iif(json_valid(errors), errors, 'null')), runner,
        claimed_at_ns, ended_at_ns, late_s, took_s, note, done, total
    )
    from ticks as t indexed by ticks_latest
    where t.cluster = :cluster and t.name = substr(s.name, 6) and t.outcome in ('ran', 'failed')
    order by t.ended_at_ns desc limit 1
))) order by s.name)
from seats as s left join crons as c on c.cluster = :cluster and c.name = substr(s.name, 6)
where s.cluster = :cluster and s.name > 'cron:' and s.name < 'cron;';

-- name: purge
-- Delete some ticks that ended long ago.
delete from ticks where (cluster, name, kind, at_ns, seq) in (
    select cluster, name, kind, at_ns, seq from ticks
    where cluster = :cluster and ended_at_ns < :before_ns order by ended_at_ns limit :most
);

-- name: purge_pauses
-- Delete some pauses that ended long ago, and whose ticks all have their verdicts.
delete from cron_pauses where (cluster, name, since_at_ns) in (
    select p.cluster, p.name, p.since_at_ns
    from cron_pauses as p join crons as c on c.cluster = p.cluster and c.name = p.name
    where p.cluster = :cluster and p.until_at_ns < :before_ns and p.until_at_ns <= c.last_at_ns limit :most
);
