-- Lives of units, and children of workflows that failed or were interrupted.

-- A unit has a life, drawn where it begins; a token names it. Units that began before have life 0, and so have their tokens.
alter table units add column life integer not null default 0;
alter table deferreds add column life integer not null default 0;

-- Set by the end of a workflow that failed or was interrupted, until its children are asked to end.
alter table units add column interrupts_children integer not null default 0;
create index units_interrupting_children on units (cluster, seat) where interrupts_children;
create index units_children on units (cluster, parent, unit) where parent is not null and ended_at_ns is null;
