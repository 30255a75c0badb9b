-- name: register
-- A runner; refused if the incarnation is there already.
insert into runners (
    id, cluster, name, address, host_id, groups, weight, version, knows, process, credentials, started_at_ns
)
values (
    :id, :cluster, :name, :address, :host_id, :groups, :weight, :version, :knows, :process, :credentials, :now_ns
);

-- name: learn
-- Add definitions to what a runner's program knows, which it made after it was registered. No row: evicted.
update runners set knows = json_patch(knows, :knows) where id = :id and cluster = :cluster returning id;

-- name: runners
-- All runners.
select id, name, address, host_id, groups, weight, version, knows, process, credentials, started_at_ns from runners
where cluster = :cluster order by id;

-- name: ids
-- The incarnations of all runners.
select id from runners where cluster = :cluster order by id;

-- name: runners_of
-- The runners that a process is, of whichever cluster.
select cluster, id from runners where process = :process order by id;

-- name: unregister
-- Delete a runner; the foreign key frees its seats [C4]. No row: it is not there.
delete from runners where id = :id and cluster = :cluster returning id;

-- name: date_losses
-- When the seats that their holder did not give back were lost, and at which epoch. What is stored later that holder cannot
-- have begun [C5].
update seats set lost_at_ns = :now_ns, lost_epoch = epoch
where cluster = :cluster and holder is null and epoch <> released_epoch and epoch <> lost_epoch;

-- name: agree
-- Store a setting unless it is there.
insert into agreements (cluster, name, value) values (:cluster, :name, :value) on conflict (cluster, name) do nothing;

-- name: agreements
-- All settings that are stored.
select name, value from agreements where cluster = :cluster;

-- name: declare
-- Make a seat known; one that exists stays as it is.
insert into seats (cluster, name, "group", fingerprint, effective_from_ns)
values (:cluster, :name, :group, :fingerprint, :now_ns)
on conflict (cluster, name) do nothing;

-- name: redefine
-- Make a definition the current one if it was never seen, or if no runner has the current one (is it `in_use`?) [M8]. It
-- takes effect now, unless it differs only past the first colon: what stands there, the options of a cron, makes no other ticks.
update seats set fingerprint = :fingerprint, "group" = :group, effective_from_ns = iif(
    substr(fingerprint, 1, instr(fingerprint || ':', ':') - 1)
    = substr(:fingerprint, 1, instr(:fingerprint || ':', ':') - 1), effective_from_ns, :now_ns
)
where cluster = :cluster and name = :name and fingerprint <> :fingerprint and (
    not exists (
        select 1 from fingerprints f where f.cluster = :cluster and f.seat = :name and f.fingerprint = :fingerprint
    ) or not :in_use
);

-- name: known
-- What each runner knows.
select knows from runners where cluster = :cluster;

-- name: remember
-- Take note of a definition.
insert into fingerprints (cluster, seat, fingerprint, seen_at_ns) values (:cluster, :name, :fingerprint, :now_ns)
on conflict (cluster, seat, fingerprint) do nothing;

-- name: fingerprints
-- The current definition of each seat.
select name, fingerprint from seats where cluster = :cluster;

-- name: acquire
-- Take a free seat, for a runner that is there; its new epoch, and whether the holder before gave it back [C5].
update seats set holder = :id, epoch = epoch + 1
where cluster = :cluster and name = :name and holder is null
and exists (select 1 from runners where id = :id and cluster = :cluster)
returning epoch, released_epoch = epoch - 1;

-- name: release
-- Give a seat back; no row: it was not mine any more.
update seats set holder = null, released_epoch = epoch
where cluster = :cluster and name = :name and holder = :id and epoch = :epoch
returning name;

-- name: holdings
-- What a runner holds, as one text: each row is a step, and beside a busy loop each step waits for its turn (5 ms).
select coalesce(group_concat(epoch || ' ' || name, char(10) order by name), '')
from seats where holder = :id and cluster = :cluster;

-- name: seats
-- Every seat with its holder, as one text for the same reason.
select json_group_array(
    json_array(name, "group", holder, epoch, fingerprint, effective_from_ns, released_epoch = epoch) order by name
)
from seats where cluster = :cluster;

-- name: changes
-- What differs whenever a seat has changed. A grant raises the sum of epochs; between two grants seats are only freed.
-- Of each epoch the last 40 bits, so that no sum overflows whatever is stored.
select
    count(*), coalesce(sum(epoch & 1099511627775), 0), count(holder),
    coalesce(
        group_concat(name || '=' || fingerprint || '@' || effective_from_ns, ' ' order by name)
        filter (where fingerprint <> ''), ''
    )
from seats where cluster = :cluster;

-- name: note
-- Something that happened, in the transaction in which it did (setting `audit`).
insert into audit (cluster, at_ns, kind, runner, seat, epoch, note)
values (:cluster, :now_ns, :kind, :runner, :seat, :epoch, :note);
