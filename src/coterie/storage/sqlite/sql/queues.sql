-- Queues: what limits the jobs of a seat.

-- name: queue
-- A queue.
select
    seat, "group", fingerprint, age_s, takeover_delay_s, expected_wait_s, concurrency, partition_concurrency, rate, burst,
    is_set, set_concurrency, set_partition_concurrency, set_rate, set_burst, paused_at_ns, stamp, tokens, refilled_at_ns
from queues where cluster = :cluster and seat = :seat;

-- name: queues
-- All queues.
select
    seat, "group", fingerprint, age_s, takeover_delay_s, expected_wait_s, concurrency, partition_concurrency, rate, burst,
    is_set, set_concurrency, set_partition_concurrency, set_rate, set_burst, paused_at_ns, stamp, tokens, refilled_at_ns
from queues where cluster = :cluster order by seat;

-- name: store
-- A queue with all its columns, of which the stamp is another one.
insert into queues (
    cluster, seat, "group", fingerprint, age_s, takeover_delay_s, expected_wait_s, concurrency, partition_concurrency, rate,
    burst, is_set, set_concurrency, set_partition_concurrency, set_rate, set_burst, paused_at_ns, stamp, tokens,
    refilled_at_ns
)
values (
    :cluster, :seat, :group, :fingerprint, :age_s, :takeover_delay_s, :expected_wait_s, :concurrency, :partition_concurrency,
    :rate, :burst, :is_set, :set_concurrency, :set_partition_concurrency, :set_rate, :set_burst, :paused_at_ns, 1, :tokens,
    :refilled_at_ns
)
on conflict (cluster, seat) do update set
    "group" = excluded."group",
    fingerprint = excluded.fingerprint,
    age_s = excluded.age_s,
    takeover_delay_s = excluded.takeover_delay_s,
    expected_wait_s = excluded.expected_wait_s,
    concurrency = excluded.concurrency,
    partition_concurrency = excluded.partition_concurrency,
    rate = excluded.rate,
    burst = excluded.burst,
    is_set = excluded.is_set,
    set_concurrency = excluded.set_concurrency,
    set_partition_concurrency = excluded.set_partition_concurrency,
    set_rate = excluded.set_rate,
    set_burst = excluded.set_burst,
    paused_at_ns = excluded.paused_at_ns,
    stamp = stamp + 1,
    tokens = excluded.tokens,
    refilled_at_ns = excluded.refilled_at_ns;

-- name: paused_tasks
-- All tasks that are paused.
select name from pauses where cluster = :cluster and kind = 'task' order by name;

-- name: paused_group
-- Whether a group is paused.
select 1 from pauses where cluster = :cluster and kind = 'group' and name = :group;

-- name: spend
-- The tokens that are left after a claim.
update queues set tokens = :tokens, refilled_at_ns = :now_ns where cluster = :cluster and seat = :seat;

-- name: group
-- The group of a seat.
select "group" from seats where cluster = :cluster and name = :seat;
