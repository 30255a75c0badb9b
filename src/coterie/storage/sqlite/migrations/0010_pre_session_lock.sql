-- Nothing to do here: on SQLite every runner has its lock beside the file. PostgreSQL has a column for it.
select 1;
