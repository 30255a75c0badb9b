-- What users' code gave, and the keys that it may be encrypted with. `page` and `rewrite` are filled in for each table
-- of `storage/contracts/payloads.py` (here: `payload_table`) by `storage/postgres/payloads.py`: names of tables and
-- columns only.
--
-- `rewrite` waits for no lock, so it takes part in no deadlock: what is locked is rewritten in another round.

-- name: keys
-- The fingerprints of the keys, by name.
select name, value from coterie.agreements where cluster = $1 and starts_with(name, 'payload key ');

-- name: add_key
-- Store the fingerprint of a key unless there is one.
insert into coterie.agreements (cluster, name, value) values ($1, 'payload key ' || $2::text, $3)
on conflict (cluster, name) do nothing;

-- name: remove_key
-- Forget a key.
delete from coterie.agreements where cluster = $1 and name = 'payload key ' || $2::text;

-- name: page
-- The next rows, with those values that do not begin as asked.
select /* key */, /* values */
from coterie.payload_table
where cluster = $1 /* after */
    and $3::bytea is not null and $4::text is not null and $5::integer is not null -- not each table needs all of them
order by /* key_order */
limit $2;

-- name: rewrite
-- Replace values that are still the same, of rows that nobody has locked.
with items as materialized (
    select * from unnest(/* arrays */) as u (/* item */)
), free as materialized (
    select i.*, t.place
    from items as i cross join lateral (
        select ctid as place from coterie.payload_table as t
        where t.cluster = $1 and /* same */
        for no key update skip locked
    ) as t
)
update coterie.payload_table as t
set /* set */
from free as i
where t.ctid = i.place
returning 1;
