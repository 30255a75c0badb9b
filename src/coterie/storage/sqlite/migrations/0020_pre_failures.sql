-- Runs that have failed and may be tried again. A run that is held undoes nothing until somebody decides.
alter table units add column retries integer not null default 0;
alter table units add column held integer not null default 0;
alter table units add column failed_steps text not null default ''; -- the places of the steps whose errors have ended it
