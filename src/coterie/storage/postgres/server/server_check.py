"""Checks a server at start and at each connect, and refuses what breaks promises: standby, lazy commits, grants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.errors import ConfigurationError
from coterie.storage import statements

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from coterie.storage.postgres.session import PostgresSession

SQL = statements.load("coterie.storage.postgres.sql", "server.sql")

NEEDED: Mapping[str, tuple[str, ...]] = {
    "migrations": ("select",),
    **dict.fromkeys(
        ("kv", "runners", "leases", "seats", "states", "messages"), ("select", "insert", "update", "delete")
    ),
    "generations": ("select", "insert", "update"),
    **dict.fromkeys(("secrets", "agreements", "fingerprints"), ("select", "insert")),
    "machines": ("select", "insert", "update"),
    "audit": ("insert",),
    "incoming": ("select", "update", "delete"),
}
"""The rights that the role needs on coterie's tables at run time. Locking a row needs `update` too [M12]."""


POOLED = (
    "%s is a pooler that lends sessions per transaction: leases alone decide, so the seats of a crashed runner move "
    "after lease_ttl instead of at once, and statements take two more round trips; connect to the server itself, or to "
    "the pooler in session mode (pool_mode = session)"
)


ASYNCHRONOUS = (
    "{address} has standbys, and commits wait for none of them: a failover loses what was acknowledged and not "
    "replicated yet; set synchronous_standby_names, or accept that (docs/high-availability.md)"
)


ROUNDS = 10
"""Rounds of the pooler test: a single one missed a busy PgBouncer in up to 3 % of starts."""


@dataclass(frozen=True, slots=True)
class ServerCheck:
    """The server process that answers, and the mark left on it."""

    pid: int
    mark: str | None


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server reports about itself."""

    standby: bool
    synchronous_commit: str
    fsync: str
    full_page_writes: str
    standbys: int = 0
    synchronous_standby_names: str = ""


async def warnings(session: PostgresSession, *, address: str, over: float) -> list[str]:
    """Check the server behind a session now, and return warnings.

    Raises:
        ConfigurationError: It would break promises.
    """
    rows = await session.fetch(SQL["facts"], over=over)
    return judge(ServerFacts(**dict(rows[0])), address=address)


def judge(facts: ServerFacts, *, address: str) -> list[str]:
    """The warnings about a server. Pure.

    Raises:
        ConfigurationError: It cannot be used.
    """
    if facts.standby:
        raise ConfigurationError(
            problem=f"{address} is a standby: it takes no writes",
            hint="point the url to the primary, or list several hosts: the primary is chosen",
        )
    if facts.synchronous_commit == "off":
        raise ConfigurationError(
            problem=f"{address} has synchronous_commit=off: it acknowledges writes that a crash loses",
            hint="set synchronous_commit to on, or to local, for this role and database",
        )
    settings = {"fsync": facts.fsync, "full_page_writes": facts.full_page_writes}
    found = [
        f"{address} has {name}=off: a crash of its machine may lose or damage data"
        for name, value in settings.items()
        if value == "off"
    ]
    if facts.standbys and (not facts.synchronous_standby_names.strip() or facts.synchronous_commit == "local"):
        found.append(ASYNCHRONOUS.format(address=address))
    return found


async def lends_sessions(ours: PostgresSession, other: PostgresSession, *, mark: str, over: float) -> bool:
    """Whether a pooler lends server sessions per transaction: locks and settings would be lost [P28, m8].

    A real session keeps one server process and its settings. A pooler gives the process that served one session to the
    other, and the first the next free one. Other programs use the pooler meanwhile, so the same process may come back
    by chance: there are several rounds, unless the server itself answers, whose greeting has the number of the process.
    Where a setting makes a pooler pin the session, it counts as real. No transaction stays open: processes that start
    together would wait for each other's sessions.
    """
    await ours.execute(f"set coterie.session = '{mark}'", over=over)
    kept = await _look(ours, over=over)
    for _ in range(ROUNDS):
        others = await _look(other, over=over)
        if others.pid == kept.pid or await _look(ours, over=over) != ServerCheck(kept.pid, mark):
            return True
        if (kept.pid, others.pid) == (ours.greeted_by, other.greeted_by):
            return False
    return False


async def _look(session: PostgresSession, *, over: float) -> ServerCheck:
    rows = await session.fetch(SQL["whose"], over=over)
    return ServerCheck(**dict(rows[0]))


def require_grants(may: Mapping[str, Collection[str]], *, enters: bool, role: str, address: str) -> None:
    """Refuse a role that lacks rights on coterie's tables. Pure.

    Args:
        may: The rights of the role, by table.
        enters: Whether it has `usage` on the schema.
        role: Its name, quoted for SQL.
        address: The database's address.
    """
    missing = [
        f"{right} on coterie.{table}"
        for table, rights in NEEDED.items()
        if table in may
        for right in rights
        if right not in may[table]
    ]
    if not enters:
        missing.insert(0, "use schema coterie")
    if missing:
        raise ConfigurationError(
            problem=f"role {role} at {address} may not {missing[0]}" + _more(len(missing) - 1),
            hint=f"let the owner of the schema run: {grants(role)}",
        )


def grants(role: str) -> str:
    """The statements that grant a role all it needs at run time."""
    return (
        f"grant usage on schema coterie to {role}; "
        f"grant select, insert, update, delete on all tables in schema coterie to {role}"
    )


def _more(count: int) -> str:
    return f" (and {count} more)" if count else ""
