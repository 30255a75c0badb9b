-- What the runners of a cluster prove to each other that they belong together. Whoever may read it can join them.
create table secrets (
    cluster text not null primary key,
    value blob not null check (length(value) = 32)
) strict, without rowid;
