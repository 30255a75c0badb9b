-- What people did with the page: who, from where, what, and what came of it.
create table coterie.activity (
    id      bigint generated always as identity primary key,
    cluster text collate "C" not null,
    at      timestamptz not null default clock_timestamp(),
    who     text not null,
    origin  text not null,
    act     text not null,
    what    text not null,
    result  text not null
);

create index activity_of_cluster on coterie.activity (cluster, id);
