-- name: begin
-- A new holder introduces itself; what was known.
insert into executions as x (cluster, seat, epoch, leader, known_at_ns, since_at_ns, alive_at_ns, expected_s)
values (:cluster, :seat, :epoch, :leader, :now_ns, :now_ns, :now_ns, :expected_s)
on conflict (cluster, seat) do update
set epoch = excluded.epoch, leader = excluded.leader, expected_s = excluded.expected_s,
    since_at_ns = case when x.epoch = excluded.epoch then x.since_at_ns else excluded.since_at_ns end,
    alive_at_ns = excluded.alive_at_ns
returning seat, epoch, leader, known_at_ns, since_at_ns, runs, ran_at_ns, progress_at_ns, alive_at_ns, error,
    error_at_ns, note, done, total, expected_s;

-- name: stamp
-- What a leader says of its work.
update executions
set alive_at_ns = :now_ns, runs = :runs, note = :note, done = :done, total = :total,
    ran_at_ns = coalesce(:ran_at_ns, ran_at_ns), progress_at_ns = coalesce(:progress_at_ns, progress_at_ns),
    error = coalesce(:error, error), error_at_ns = coalesce(:error_at_ns, error_at_ns)
where cluster = :cluster and seat = :seat and epoch = :epoch;

-- name: list
-- What is known about the work on seats whose names begin with :prefix.
select seat, epoch, leader, known_at_ns, since_at_ns, runs, ran_at_ns, progress_at_ns, alive_at_ns, error,
    error_at_ns, note, done, total, expected_s
from executions
where cluster = :cluster and substr(seat, 1, length(:prefix)) = :prefix
order by seat;

-- name: date
-- When a state was saved, by whom, and until when it lives.
update states set saved_at_ns = :now_ns, expires_at_ns = :expires_at_ns,
    runner = (select name from runners where id = :runner)
where cluster = :cluster and key = :key;

-- name: keep
-- A state, as it stands in the table, into its place in the history.
insert into state_history (cluster, key, slot, version, epoch, runner, saved_at_ns, value)
select cluster, key, version % :most, version, epoch, coalesce(runner, ''), coalesce(saved_at_ns, :now_ns), value
from states where cluster = :cluster and key = :key
on conflict (cluster, key, slot) do update
set version = excluded.version, epoch = excluded.epoch, runner = excluded.runner, saved_at_ns = excluded.saved_at_ns,
    value = excluded.value;

-- name: set_aside
-- A state into a place of its own: where it is already, else the next free one, else that of the oldest.
insert into state_history (cluster, key, slot, version, epoch, runner, saved_at_ns, reason, value)
select cluster, key, coalesce(
        (select slot from state_history as h
         where h.cluster = s.cluster and h.key = s.key and slot < 0 and h.version = s.version),
        (select -1 - count(*) from state_history as h
         where h.cluster = s.cluster and h.key = s.key and slot < 0 having count(*) < :most),
        (select slot from state_history as h
         where h.cluster = s.cluster and h.key = s.key and slot < 0 order by h.version limit 1)
    ), version, epoch, coalesce(runner, ''), coalesce(saved_at_ns, :now_ns), :reason, value
from states as s where cluster = :cluster and key = :key
on conflict (cluster, key, slot) do update
set version = excluded.version, epoch = excluded.epoch, runner = excluded.runner, saved_at_ns = excluded.saved_at_ns,
    reason = excluded.reason, value = excluded.value;

-- name: peek
-- A state as it is, unless it has expired.
select value, version, epoch, coalesce(runner, ''), coalesce(saved_at_ns, :now_ns)
from states
where cluster = :cluster and key = :key and (expires_at_ns is null or expires_at_ns > :now_ns);

-- name: history
-- The last states of a key and what was set aside, the newest first.
select value, version, epoch, runner, saved_at_ns, reason
from state_history where cluster = :cluster and key = :key order by version desc, slot desc;

-- name: expired
-- Some states whose time is over.
select key from states where cluster = :cluster and expires_at_ns <= :now_ns order by expires_at_ns limit :most;

-- name: remove
-- No state any more.
delete from states where cluster = :cluster and key = :key;

-- name: forget
-- No history any more.
delete from state_history where cluster = :cluster and key = :key;
