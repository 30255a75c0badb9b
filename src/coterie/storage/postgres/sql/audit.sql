-- name: refused
-- Writes that the fence has refused, in the transaction in which they were (setting `audit`); their keys as notes.
insert into coterie.audit (cluster, kind, runner, seat, epoch, note)
select $1, 'refused', $2, u.seat, u.epoch, u.key
from unnest($3::text[], $4::bigint[], $5::text[]) as u (seat, epoch, key);
