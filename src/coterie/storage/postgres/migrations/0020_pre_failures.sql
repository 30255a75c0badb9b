-- Runs that have failed and may be tried again. A run that is held undoes nothing until somebody decides.
alter table coterie.units
    add column retries      integer not null default 0,
    add column held         boolean not null default false,
    add column failed_steps text    not null default ''; -- the places of the steps whose errors have ended it
