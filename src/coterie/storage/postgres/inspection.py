"""What is refused at start, as promises break on it: a standby, lazy commits, a pooler, missing grants."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.errors import ConfigurationError
from coterie.storage import statements
from coterie.storage.postgres.failures import DatabaseRefusal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from coterie.storage.postgres.sessions import Session

log = logging.getLogger("coterie")

SQL = statements.load("coterie.storage.postgres.sql", "server.sql")

NEEDED: Mapping[str, tuple[str, ...]] = {
    "migrations": ("select",),
    **dict.fromkeys(("kv", "runners", "leases", "seats", "states"), ("select", "insert", "update", "delete")),
    "generations": ("select", "insert", "update"),
    **dict.fromkeys(("secrets", "agreements", "fingerprints"), ("select", "insert")),
    "machines": ("select", "insert", "update"),
    "audit": ("insert",),
}
"""What the role at run time must be allowed on our tables. Locking a row needs `update` too [M12]."""


_MIXED_UP = {"26000", "42P05", "08P01"}  # prepared in another session, prepared there already, out of step


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says about itself."""

    standby: bool
    synchronous_commit: str
    fsync: str
    full_page_writes: str


async def require_fit_server(session: Session, *, address: str, over: float) -> None:
    """Refuse a server that would break promises, and warn about one that may lose data."""
    rows = await session.fetch(SQL["facts"], over=over)
    for warning in judge(Facts(**dict(rows[0])), address=address):
        log.warning(warning)


def judge(facts: Facts, *, address: str) -> list[str]:
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
    return [
        f"{address} has {name}=off: a crash of its machine may lose or damage data"
        for name, value in settings.items()
        if value == "off"
    ]


async def require_sessions(ours: Session, other: Session, *, mark: str, address: str, over: float) -> None:
    """Refuse a pooler that lends server sessions per transaction: locks and settings would be lost [P28, m8].

    A session keeps one server process and its settings even while another of ours is inside a transaction. A
    pooler gives the process that served us to the other one, and us the next that is free.
    """
    try:
        await ours.execute(f"set coterie.session = '{mark}'", over=over)
        before = await ours.fetch(SQL["whose"], over=over)
        await other.execute("begin", over=over)
        held = await other.fetch(SQL["whose"], over=over)
        after = await ours.fetch(SQL["whose"], over=over)
        await other.execute("rollback", over=over)
    except DatabaseRefusal as error:
        if getattr(error, "sqlstate", None) not in _MIXED_UP:
            raise
        raise _pooler(address) from error
    if len({before[0]["pid"], after[0]["pid"]}) > 1 or held[0]["pid"] == after[0]["pid"] or after[0]["mark"] != mark:
        raise _pooler(address)


def _pooler(address: str) -> ConfigurationError:
    return ConfigurationError(
        problem=f"{address} is a pooler that lends sessions per transaction: locks and settings get lost",
        hint="connect to the server itself, or to the pooler in session mode (pool_mode = session)",
    )


def require_grants(may: Mapping[str, Collection[str]], *, enters: bool, role: str, address: str) -> None:
    """Refuse a role that lacks rights on our tables. Pure.

    Args:
        may: What the role may do, by table.
        enters: Whether it may look into the schema at all.
        role: Its name, quoted as SQL wants it.
        address: Where.
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
    """The statements that give a role all it needs at run time."""
    return (
        f"grant usage on schema coterie to {role}; "
        f"grant select, insert, update, delete on all tables in schema coterie to {role}"
    )


def _more(count: int) -> str:
    return f" (and {count} more)" if count else ""
