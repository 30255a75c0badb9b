-- name: now
-- The database's clock.
select clock_timestamp();

-- name: facts
-- What decides whether this server keeps our promises.
select
    pg_is_in_recovery() as standby,
    current_setting('synchronous_commit') as synchronous_commit,
    current_setting('fsync') as fsync,
    current_setting('full_page_writes') as full_page_writes,
    -- Roles without pg_read_all_stats see that there are some, and not their states.
    (select count(*) from pg_stat_replication where coalesce(state, 'streaming') = 'streaming') as standbys,
    current_setting('synchronous_standby_names') as synchronous_standby_names;

-- name: end_dropped
-- End sessions of this process whose connections it has cut; those that were still there. By name too: another session
-- may have got the number of one that has ended.
select pid, pg_terminate_backend(pid)
from pg_stat_activity
where pid = any($1::int[]) and application_name = any($2::text[]) and usename = current_user and pid <> pg_backend_pid();

-- name: whose
-- Which server session answers, and the mark that we left on it.
select pg_backend_pid() as pid, current_setting('coterie.session', true) as mark;

-- name: tables
-- Our tables and what this role may do with them, readable without any right of ours.
select c.relname as name, array_remove(array[
    case when has_table_privilege(c.oid, 'select') then 'select' end,
    case when has_table_privilege(c.oid, 'insert') then 'insert' end,
    case when has_table_privilege(c.oid, 'update') then 'update' end,
    case when has_table_privilege(c.oid, 'delete') then 'delete' end
], null) as may
from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
where n.nspname = 'coterie' and c.relkind in ('r', 'p');

-- name: role
-- Who we are, and whether we may look into our schema or create it.
select
    quote_ident(current_user) as name,
    coalesce((select has_schema_privilege(oid, 'usage') from pg_namespace where nspname = 'coterie'), false) as enters,
    coalesce(
        (select has_schema_privilege(oid, 'create') from pg_namespace where nspname = 'coterie'),
        has_database_privilege(current_database(), 'create')
    ) as creates;

-- name: applied
-- The migrations that are there.
select number, phase, name from coterie.migrations order by number;

-- name: record
-- One more migration is there.
insert into coterie.migrations (number, phase, name) values ($1, $2, $3);

-- name: grant_send
-- The statements that let a role send from SQL; no row if there is no such role ("public" is none).
select format(
    'grant usage on schema coterie to %1$I;'
    'grant execute on function coterie.send(text, text, text, jsonb, text, timestamptz, interval, text) to %1$I;'
    'grant execute on function coterie.start_workflow(text, jsonb, text, text) to %1$I',
    rolname
) as statements
from pg_roles where rolname = $1;

-- name: lock_migrations
-- One process at a time changes the schema; the lock goes with the transaction.
select pg_advisory_xact_lock($1);

-- name: database
-- Which database this is.
with /* include here */
select database from here;

-- name: ended
-- Which of these transactions have ended, and how; null: too long ago to be known. One that this server has not begun, as
-- after a failover, counts as open.
select id, status
from (
    select t.id, case
        when t.id::xid8 < pg_snapshot_xmax(pg_current_snapshot()) then pg_xact_status(t.id::xid8)
        else 'in progress'
    end as status
    from unnest($1::text[]) as t (id)
) as asked
where status is distinct from 'in progress';
