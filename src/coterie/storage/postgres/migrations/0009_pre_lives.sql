-- Lives of units, and children of workflows that failed or were interrupted.

-- A unit has a life, drawn where it begins; a token names it. Units that began before have life 0, and so have their tokens.
alter table coterie.units add column life bigint not null default 0;
alter table coterie.deferreds add column life bigint not null default 0;

-- Set by the end of a workflow that failed or was interrupted, until its children are asked to end.
alter table coterie.units add column interrupts_children boolean not null default false;
create index units_interrupting_children on coterie.units (cluster, seat) where interrupts_children;
create index units_children on coterie.units (cluster, parent, unit) where parent is not null and ended_at is null;
