-- What should have been pruned. The deletions stand with their tables.

-- name: overdue
-- Of each table that has rows which should be gone: for how many seconds the oldest one should. Of messages and jobs it is
-- looked for among the oldest, since no index has their ends.
select t.name, extract(epoch from clock.now - t.at)::float8 as late_s
from (select clock_timestamp() as now) as clock cross join lateral (
    values
        ('kv', (
            select expires_at from coterie.kv
            where cluster = $1 and expires_at is not null order by expires_at limit 1
        )),
        ('states', (
            select expires_at from coterie.states
            where cluster = $1 and expires_at is not null order by expires_at limit 1
        )),
        ('ticks', (
            select ended_at from coterie.ticks where cluster = $1 and ended_at is not null order by ended_at limit 1
        ) + make_interval(secs => $2::float8)),
        ('units', (
            select ended_at from coterie.units where cluster = $1 and ended_at is not null order by ended_at limit 1
        ) + make_interval(secs => $2::float8)),
        ('schedules', (
            select changed_at from coterie.schedules where cluster = $1 and next_at is null order by changed_at limit 1
        ) + make_interval(secs => $2::float8)),
        ('activity', (
            select at from coterie.activity where cluster = $1 order by cluster, id limit 1
        ) + make_interval(secs => $3::float8)),
        ('incoming', (
            select sent_at from coterie.incoming where cluster = $1 and same_as is not null order by sent_at limit 1
        ) + make_interval(secs => $3::float8)),
        ('messages', (
            select min(m.completed_at + make_interval(secs => case when m.key is null then $2::float8 else $3::float8 end))
            from (
                select status, key, completed_at from coterie.messages where cluster = $1 order by id limit 1000
            ) as m
            where m.status = 1
        )),
        ('jobs', (
            select min(j.ended_at + make_interval(secs => case when j.key is null then $2::float8 else $3::float8 end))
            from (
                select state, key, ended_at from coterie.jobs where cluster = $1 order by id limit 1000
            ) as j
            where j.state in (4, 6, 7)
        ))
) as t (name, at)
where t.at < clock.now;
