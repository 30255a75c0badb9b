-- A runner that leaves says so, and is no candidate for seats any more.
alter table leases add column leaving integer not null default 0;
