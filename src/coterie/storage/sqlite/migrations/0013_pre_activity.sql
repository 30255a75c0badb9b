-- What people did with the page: who, from where, what, and what came of it.
create table activity (
    id integer primary key autoincrement,
    cluster text not null,
    at_ns integer not null,
    who text not null,
    origin text not null,
    act text not null,
    what text not null,
    result text not null
) strict;

create index activity_of_cluster on activity (cluster, id);
