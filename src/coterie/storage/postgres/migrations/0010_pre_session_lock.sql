-- Whether the session of a runner holds the lock whose absence is a sign of its death. A runner behind a transaction
-- pooler has none, and one of an older version does not tell: nothing follows from a lock that was never there.
alter table coterie.runners add column session_lock boolean not null default false;
