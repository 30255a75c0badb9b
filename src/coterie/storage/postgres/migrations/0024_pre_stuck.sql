-- Runs that cannot go on until the program is another one, or something is in reach again.

-- `stuck` is the reason why a suspended run is tried again later; `stuck_times` is how often that came to nothing.
alter table coterie.units
    add column stuck       bytea,
    add column stuck_times integer not null default 0;

create index units_stuck on coterie.units (cluster, seat) where stuck is not null;
