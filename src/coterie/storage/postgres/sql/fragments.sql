-- Parts of statements. `/* include fence (s.name, s.epoch) */` in a statement stands for the fragment `fence` with these
-- columns in place of `/* columns */`.
--
-- The fence [C1]: a write in the name of a seat proves the seat in the same statement. It locks the runner's own row
-- `for key share`, then the rows of the seats `for share` in name order, with holder and epoch. Every statement that
-- moves a seat waits for these locks. Every part that writes joins `held`: a part that does not is not fenced [M3].
-- Three statements write it out in a form of their own, since no fragment fits: `verify` (fenced_writes.sql), `add_step` and
-- `wake_due_units` (units.sql). A change to the fence concerns them too.

-- name: me
-- The runner's own row.
me as materialized (
    select id, name from coterie.runners where id = $2 and cluster = $1 for key share
)

-- name: fence
-- The seats of `items` that the runner holds with these epochs. The sort below the lock makes `me` end before the first
-- seat is locked, in every plan.
/* include me */, held as materialized (
    select /* columns */
    from (select distinct seat, epoch from items) as u
        join coterie.seats as s on s.name = u.seat and s.epoch = u.epoch
        cross join me
    where s.cluster = $1 and s.name = any($3::text[]) and s.holder = $2
    order by s.name
    for share of s
)

-- name: fence_without_epochs
-- As `fence`, for hundreds of seats: a join in here would be a walk for each, so those that join `held` compare epochs.
/* include me */, held as materialized (
    select /* columns */
    from coterie.seats as s cross join me
    where s.cluster = $1 and s.name = any($3::text[]) and s.holder = $2
    order by s.name
    for share of s
)

-- name: fence_of_one
-- As `fence`, for one seat.
/* include me */, held as materialized (
    select /* columns */
    from coterie.seats as s cross join me
    where s.cluster = $1 and s.name = $3 and s.epoch = $4 and s.holder = $2
    for share of s
)

-- name: fence_short
-- As `fence_of_one`, both rows in one select: the shortest form, for writes that are alone in their group.
held as materialized (
    select /* columns */
    from coterie.runners as r cross join coterie.seats as s
    where r.id = $2 and r.cluster = $1 and s.cluster = $1 and s.name = $3 and s.epoch = $4 and s.holder = $2
    for key share of r for share of s
)

-- name: here
-- Which database this is, wherever it is asked: on a connection of a user it must be the cluster's own.
here as materialized (
    select (select system_identifier from pg_catalog.pg_control_system())::text || '/' ||
        (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())::text as database
)
