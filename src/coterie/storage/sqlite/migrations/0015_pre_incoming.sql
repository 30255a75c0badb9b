-- Nothing to do here: the file is coterie's alone, and no other program writes into it. PostgreSQL has functions for SQL.
select 1;
