"""The tables that the pairs are played on: how they begin, what judges see, how sessions are opened."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg

from coterie.storage import migrations, statements
from coterie.storage.postgres.connector import ConnectionLimits, session_settings
from tests.support.interleaving import PairTables, Run, SessionPair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

CLUSTER = "c"

THERE = frozenset({"23505"})
"""What a statement fails with that adds, if something stands there already."""

PACKAGE = "coterie.storage.postgres.sql"
"""Where the `.sql` files stand."""
SQL: Mapping[str, str] = {
    **statements.load(PACKAGE, "ownership.sql"),
    **statements.load(PACKAGE, "fenced_writes.sql"),
    **statements.load(PACKAGE, "leading.sql"),
    **statements.load(PACKAGE, "messages.sql"),
    **statements.load(PACKAGE, "jobs.sql"),
    **statements.load(PACKAGE, "queues.sql"),
    **statements.load(PACKAGE, "pauses.sql"),
    **statements.load(PACKAGE, "ticks.sql"),
    **statements.load(PACKAGE, "units.sql"),
    **statements.load(PACKAGE, "lives.sql"),
    **statements.load(PACKAGE, "later.sql"),
    **statements.load(PACKAGE, "incoming.sql"),
    **statements.load(PACKAGE, "schedules.sql"),
    **statements.load(PACKAGE, "run_messages.sql"),
    **{
        f"{part}_{name}": sql
        for part in ("kv", "machines", "secrets")
        for name, sql in statements.load(PACKAGE, f"{part}.sql").items()
    },
}
"""The statements under test, by name; those of the key-value store as `kv_get` and so on."""

ORPHANS = """
select s.name, s.holder
from coterie.seats as s
where s.cluster = $1 and s.holder is not null and not exists (
    select from coterie.runners as r where r.id = s.holder and r.cluster = s.cluster
)
order by s.name
"""
"""Seats whose holder is no runner of this cluster. There must be none [C4]."""

_TABLES = {
    "runners": "select id, knows from coterie.runners order by id",
    "leases": "select id, counter, leaving from coterie.leases order by id",
    "seats": "select name, holder, epoch, fingerprint from coterie.seats order by name",
    "states": "select key, convert_from(value, 'UTF8') as value, version, epoch from coterie.states order by key",
    "state_history": "select key, convert_from(value, 'UTF8') as value from coterie.state_history order by key, slot",
    "executions": "select seat, epoch, leader, runs from coterie.executions order by seat",
    "kv": (
        "select key, convert_from(value, 'UTF8') as value, stamp, expires_at <= now() as expired"
        " from coterie.kv order by key"
    ),
    "messages": "select id, key, status, attempts, suspicion, losses, epoch, reply,"
    " due_at > now() - interval '1 hour' as is_recent from coterie.messages order by id",
    "jobs": (
        "select id, part, key, runner, ran_by, claim, put_back, failures, lost, state, cancelling, reply, rank_at,"
        " claimed_at, jsonb_array_length(errors) as errors, ended_at is not null as is_over,"
        " lost_at is not null as is_lost from coterie.jobs order by id"
    ),
    "job_tags": "select * from coterie.job_tags order by job",
    "job_progress": "select * from coterie.job_progress order by job",
    "queues": "select * from coterie.queues order by seat",
    "pauses": "select kind, name from coterie.pauses order by kind, name",
    "definitions": "select name, fingerprint, effective_from from coterie.seats order by name",
    "crons": "select * from coterie.crons order by name",
    "cron_pauses": "select * from coterie.cron_pauses order by name, until_at",
    "ticks": "select *, ended_at < now() - interval '1 hour' as old from coterie.ticks order by name, kind, at, seq",
    "units": "select * from coterie.units order by unit",
    "steps": "select * from coterie.steps order by unit, branch, position",
    "deferreds": "select * from coterie.deferreds order by unit, name",
    "incoming": "select id, same_as from coterie.incoming order by id",
    "schedules": (
        "select key, seat, life, stamp, next_at, last_id, paused_at, outcomes from coterie.schedules order by key"
    ),
    "run_inboxes": "select unit, name, sent, waiting, begun from coterie.run_inboxes order by unit, name",
    "run_messages": (
        "select unit, name, id, seq, received_at is not null as received, value, branch, position"
        " from coterie.run_messages order by unit, name, id"
    ),
    "published": "select unit, name, seq, value from coterie.published order by unit, name, seq",
    "machines": "select id, holder, expires_at > now() as leased, until_ms from coterie.machines order by id",
    "secrets": "select value from coterie.secrets",
    "generations": "select generation from coterie.generations",
    "orphans": ORPHANS.replace("$1", f"'{CLUSTER}'"),
}

_EMPTIED = (
    *("messages", "jobs", "job_tags", "job_progress", "queues", "pauses"),
    *("seats", "states", "state_history", "executions", "kv", "leases", "runners"),
    *("generations", "fingerprints", "agreements", "crons", "cron_pauses", "ticks"),
    *("units", "steps", "deferreds", "machines", "secrets", "incoming", "schedules"),
    *("run_inboxes", "run_messages", "published"),
)
_RESET = (
    "".join(f"delete from coterie.{table};" for table in _EMPTIED)
    + SQL["raise_generation"].replace("$1", f"'{CLUSTER}'")
    + ";delete from interleaving.gate;"
)


def ground() -> PairTables:
    """The ground of the whole catalogue."""
    return PairTables(_RESET, _TABLES, judge=judge)


def judge(run: Run) -> Sequence[str]:
    """What holds in every run, whoever plays."""
    told = {"A": run.a, "B": run.b}
    problems = [f"{row['name']} is held by {row['holder']}, who is no runner [C4]" for row in run.tables["orphans"]]
    problems += [f"{side} gave up" for side, told_ in told.items() if told_.end == "given up"]
    return [*problems, *_epochs(run)]


def _epochs(run: Run) -> Sequence[str]:
    """Epochs only grow, and each is given to one holder [INV-F1]. All seats begin at epoch 1."""
    grants = [
        (row["name"], row["epoch"])
        for told in (run.a, run.b)
        for step in told.committed
        if step.startswith("grant")
        for row in told.reads[step]
    ]
    problems = [
        f"{name} was granted at epoch {epoch} twice" for name, epoch in set(grants) if grants.count((name, epoch)) > 1
    ]
    problems += [f"{name} was granted at epoch {epoch}, as before" for name, epoch in grants if epoch <= 1]
    final = {row["name"]: row["epoch"] for row in run.tables["seats"]}
    return problems + [f"{name}'s epoch went back to {final[name]}" for name, epoch in grants if final[name] < epoch]


def given(
    *,
    runners: Mapping[str, float],
    seats: Mapping[str, str | None] | None = None,
    states: Mapping[str, str] | None = None,
    kv: Mapping[str, str] | None = None,
) -> str:
    """The rows to begin with.

    Args:
        runners: How many seconds each one's lease is still good; negative if it has expired.
        seats: The holder of each, all at epoch 1.
        states: Values of the seat s1, all at version 1.
        kv: Values, all with stamp 1.
    """
    lines = []
    for runner, left_s in runners.items():
        lines.append(
            "insert into coterie.runners (cluster, id, name, address, host_id, groups, weight, version, knows)"
            f" values ('{CLUSTER}', '{runner}', '{runner}', '', '', array['default'], 1, '0', '{{}}')"
        )
        lines.append(
            "insert into coterie.leases (cluster, id, expires_at, counter)"
            f" values ('{CLUSTER}', '{runner}', clock_timestamp() + make_interval(secs => {left_s}), 1)"
        )
    for name, holder in (seats or {}).items():
        who = f"'{holder}'" if holder else "null"
        lines.append(
            'insert into coterie.seats (cluster, name, "group", holder, epoch)'
            f" values ('{CLUSTER}', '{name}', 'default', {who}, 1)"
        )
    lines += [
        f"insert into coterie.states values ('{CLUSTER}', '{k}', 's1', '{v}', 1, 1)" for k, v in (states or {}).items()
    ]
    lines += [f"insert into coterie.kv values ('{CLUSTER}', '{k}', '{v}', 1)" for k, v in (kv or {}).items()]
    return ";".join(lines)


def defined(seat: str, *fingerprints: str) -> str:
    """Definitions of a seat that were seen; the last one is the current one."""
    lines = [
        f"insert into coterie.fingerprints (cluster, seat, fingerprint) values ('{CLUSTER}', '{seat}', '{each}')"
        for each in fingerprints
    ]
    lines.append(f"update coterie.seats set fingerprint = '{fingerprints[-1]}' where name = '{seat}'")
    return ";" + ";".join(lines)


def schema() -> str:
    """The whole schema, as a fresh database gets it."""
    return ";".join(m.sql for m in migrations.load("coterie.storage.postgres.migrations"))


@asynccontextmanager
async def stage(url: str, *, own_level: bool = True) -> AsyncIterator[SessionPair]:
    """A stage on a database; with sessions as the engine sets them up, unless told to leave out their level."""
    settings = session_settings("dedicated", application="interleavings", limits=ConnectionLimits())
    if not own_level:
        settings += "; reset default_transaction_isolation"

    async def connect() -> asyncpg.Connection[Any]:
        connection = await asyncpg.connect(url, ssl=False)
        # A statement waits while other sessions take their turns, and a session between its statements: on a busy
        # machine for seconds. The engine's limits would end them.
        unlimited = "; set lock_timeout = '60s'; set statement_timeout = 0; set idle_in_transaction_session_timeout = 0"
        await connection.execute(settings + "; set deadlock_timeout = '20ms'" + unlimited)
        return connection

    async def watch() -> asyncpg.Connection[Any]:
        return await asyncpg.connect(
            url, ssl=False, server_settings={"default_transaction_isolation": "read committed"}
        )

    async with SessionPair(connect, watch, ground()) as ready:
        yield ready
