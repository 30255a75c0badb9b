-- What should have been pruned. The deletions stand with their tables.

-- name: overdue
-- Of each table: when its oldest row should be gone. Of messages and jobs it is looked for among the oldest, since no index
-- has their ends.
select 'kv', (
    select expires_at_ns from kv
    where cluster = :cluster and expires_at_ns is not null order by expires_at_ns limit 1
)
union all
select 'states', (
    select expires_at_ns from states
    where cluster = :cluster and expires_at_ns is not null order by expires_at_ns limit 1
)
union all
select 'ticks', :retention_ns + (
    select ended_at_ns from ticks where cluster = :cluster and ended_at_ns is not null order by ended_at_ns limit 1
)
union all
select 'units', :retention_ns + (
    select ended_at_ns from units where cluster = :cluster and ended_at_ns is not null order by ended_at_ns limit 1
)
union all
select 'schedules', :retention_ns + (
    select changed_at_ns from schedules indexed by schedules_over
    where cluster = :cluster and next_at_ns is null order by changed_at_ns limit 1
)
union all
select 'activity', :key_retention_ns + (
    select at_ns from activity where cluster = :cluster order by id limit 1
)
union all
select 'messages', (
    select min(completed_at_ns + iif(key is null, :retention_ns, :key_retention_ns))
    from (select status, key, completed_at_ns from messages where cluster = :cluster order by id limit 1000)
    where status = 1
)
union all
select 'jobs', (
    select min(ended_at_ns + iif(key is null, :retention_ns, :key_retention_ns))
    from (select state, key, ended_at_ns from jobs where cluster = :cluster order by id limit 1000)
    where state in (4, 6, 7)
);
