-- Crons: what is known of each, when it was paused, and its ticks.

-- One row a cron, written by its holder, except for `paused_at`: it stands here because a claim locks this row, so that no
-- tick begins once it is set. Half of each page is room: every claim writes it, and no index has what changes.
create table coterie.crons (
    cluster    text    collate "C" not null,
    name       text    collate "C" not null,
    definition text    not null default '',
    last_at    timestamptz,
    runs       bigint  not null default 0,
    ran_at     timestamptz,
    error      text,
    error_at   timestamptz,
    failures   integer not null default 0,
    failed_at  timestamptz,
    paused_at  timestamptz,
    primary key (cluster, name)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 1
);

-- Pauses that are over. By their ends: a holder asks for those that had not ended by an instant.
create table coterie.cron_pauses (
    cluster  text collate "C" not null,
    name     text collate "C" not null,
    since_at timestamptz not null,
    until_at timestamptz not null,
    primary key (cluster, name, until_at)
);

-- Claim, history and proof in one row. The epoch is that of the holder that runs it; 0: triggered, and nobody has seen it
-- yet. No foreign keys: the fence is the proof [M9].
create table coterie.ticks (
    cluster    text    collate "C" not null,
    name       text    collate "C" not null,
    kind       text    collate "C" not null check (kind in ('scheduled', 'manual')),
    at         timestamptz not null,
    seq        integer not null,
    until_at   timestamptz not null,
    count      bigint  not null default 1,
    epoch      bigint  not null,
    attempt    integer not null,
    outcome    text    collate "C" check (outcome in ('ran', 'failed', 'skipped')),
    reason     text    not null default '',
    errors     text    not null default '[]',
    runner     text    not null,
    claimed_at timestamptz not null,
    ended_at   timestamptz,
    late_s     double precision,
    took_s     double precision,
    note       text    not null default '',
    done       bigint,
    total      bigint,
    noted_at   timestamptz,
    primary key (cluster, name, kind, at, seq),
    check ((outcome is null) = (ended_at is null))
) with (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);

create index ticks_open on coterie.ticks (cluster, name, kind, at, seq) where outcome is null;

-- For what is old enough to be deleted, and for the one of a cron that ran last.
create index ticks_ended on coterie.ticks (cluster, ended_at) where ended_at is not null;
create index ticks_latest on coterie.ticks (cluster, name, ended_at) where outcome in ('ran', 'failed');
