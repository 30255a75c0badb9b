-- What the runners of a cluster prove to each other that they belong together. Whoever may read it can join them:
-- grant nothing on this table to roles that only look.
create table coterie.secrets (
    cluster text  collate "C" not null primary key,
    value   bytea not null check (length(value) = 32)
);
