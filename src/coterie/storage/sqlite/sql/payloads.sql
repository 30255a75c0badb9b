-- What users' code gave, and the keys that it may be encrypted with. `page` and `rewrite` are filled in for each table
-- of `storage/contracts/payloads.py` (here: `payload_table`) by `storage/sqlite/payloads.py`: names of tables and
-- columns only.

-- name: keys
-- The fingerprints of the keys, by name.
select name, value from agreements where cluster = :cluster and name >= 'payload key ' and name < 'payload key!';

-- name: add_key
-- Store the fingerprint of a key unless there is one.
insert into agreements (cluster, name, value) values (:cluster, 'payload key ' || :id, :fingerprint)
on conflict (cluster, name) do nothing;

-- name: remove_key
-- Forget a key.
delete from agreements where cluster = :cluster and name = 'payload key ' || :id;

-- name: page
-- The next rows, with those values that do not begin as asked.
select /* key */, /* values */
from payload_table
where cluster = ?1 /* after */
    and ?3 is not null and ?4 is not null and ?5 is not null -- not each table needs all of them
order by /* key_order */
limit ?2;

-- name: rewrite
-- Replace values of a row that are still the same.
update payload_table set /* set */ where cluster = ?1 and /* same */;
