-- What is sent to a run of a workflow, and what it publishes: both stay until the run's row goes.

create table run_messages (
    cluster text not null,
    unit text not null,
    name text not null,
    id text not null,
    seq integer not null,
    sent_at_ns integer not null,
    received_at_ns integer,
    early integer not null, -- whether its run had not begun
    digest blob not null,
    value blob, -- null: the step that received it has it
    life integer, -- which step received it
    branch text,
    position integer,
    primary key (cluster, unit, name, id)
) strict;

create unique index run_messages_seq on run_messages (cluster, unit, name, seq);
create index run_messages_waiting on run_messages (cluster, unit, name, seq) where received_at_ns is null;
create index run_messages_received on run_messages (cluster, received_at_ns) where received_at_ns is not null;
create index run_messages_early on run_messages (cluster, sent_at_ns) where early and received_at_ns is null;

create table published (
    cluster text not null,
    unit text not null,
    name text not null,
    seq integer not null,
    at_ns integer not null,
    value blob not null,
    primary key (cluster, unit, name, seq)
) strict;

-- Kinds of steps are those of the program: a column takes the place of the one with a list of them.
alter table steps rename column kind to kind_of_list;
alter table steps add column kind text not null default '';
update steps set kind = kind_of_list;
alter table steps drop column kind_of_list;
