-- What is sent to runs of workflows, and what they publish. The write lock is held: nothing changes between a look and a write.

-- name: there
-- The digest of a message.
select digest from run_messages where cluster = :cluster and unit = :unit and name = :name and id = :id;

-- name: send
-- A message, after all others of its name.
insert into run_messages (cluster, unit, name, id, seq, sent_at_ns, early, digest, value)
values (
    :cluster, :unit, :name, :id,
    (select ifnull(max(seq), 0) + 1 from run_messages where cluster = :cluster and unit = :unit and name = :name),
    :now_ns, :early, :digest, :value
);

-- name: first
-- The oldest message of a name that nobody has received.
select id, value from run_messages
where cluster = :cluster and unit = :unit and name = :name and received_at_ns is null order by seq limit 1;

-- name: receive
-- A step has received it, and has its value.
update run_messages
set received_at_ns = :now_ns, value = null, life = :life, branch = :branch, position = :position
where cluster = :cluster and unit = :unit and name = :name and id = :id;

-- name: give_back
-- The message that a step has received waits again.
update run_messages
set received_at_ns = null, life = null, branch = null, position = null, value = (
    select value from steps where cluster = :cluster and unit = :unit and branch = :branch and position = :position
)
where cluster = :cluster and unit = :unit and received_at_ns is not null and branch = :branch and position = :position
    and life = (select life from units where cluster = :cluster and unit = :unit);

-- name: publish
-- A value under the next number of its name.
insert into published (cluster, unit, name, seq, at_ns, value)
select :cluster, :unit, :name, ifnull(max(seq), 0) + 1, :now_ns, :value
from published where cluster = :cluster and unit = :unit and name = :name;

-- name: trim
-- The values of a name that are too old.
delete from published
where cluster = :cluster and unit = :unit and name = :name and seq <= (
    select max(seq) from published where cluster = :cluster and unit = :unit and name = :name
) - :kept;

-- name: after
-- Values of a name after a number, in order.
select seq, value, at_ns from published
where cluster = :cluster and unit = :unit and name = :name and seq > :after order by seq limit :most;

-- name: last
-- The last value of a name.
select seq, value, at_ns from published
where cluster = :cluster and unit = :unit and name = :name order by seq desc limit 1;

-- name: names
-- The names under which a run has published, with the last value of each.
select p.name, p.seq, p.value, p.at_ns from published as p
where p.cluster = :cluster and p.unit = :unit and p.seq = (
    select max(seq) from published where cluster = :cluster and unit = :unit and name = p.name
)
order by p.name limit :most;

-- name: waiting
-- How many messages to a run wait, by name, and since when.
select name, count(*), min(sent_at_ns) from run_messages
where cluster = :cluster and unit = :unit and received_at_ns is null group by name order by name limit :most;

-- name: purge_received
-- Some messages that were received long ago.
delete from run_messages where rowid in (
    select rowid from run_messages
    where cluster = :cluster and received_at_ns < :before_ns order by received_at_ns limit :most
);

-- name: purge_early
-- Some messages to runs that never began.
delete from run_messages where rowid in (
    select rowid from run_messages as m
    where cluster = :cluster and early and received_at_ns is null and sent_at_ns < :before_ns
        and not exists (select 1 from units as u where u.cluster = m.cluster and u.unit = m.unit)
    order by sent_at_ns limit :most
);
