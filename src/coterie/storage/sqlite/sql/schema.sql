-- name: tables
-- How many tables, views and the like there are: none in an empty file.
select count(*) from sqlite_schema;

-- name: applied
-- The migrations that have been applied, in order.
select number, phase, name from migrations order by number;

-- name: record
-- Remember that a migration has been applied.
insert into migrations (number, phase, name, applied_at) values (:number, :phase, :name, :applied_at);
