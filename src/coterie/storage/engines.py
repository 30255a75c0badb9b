"""Chooses the engine for a URL. Engines are imported only here, and only the one in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from coterie.kernel.clock import Clock
    from coterie.kernel.random import Random
    from coterie.kernel.supervisor import Supervisor
    from coterie.settings import Settings
    from coterie.storage.interface import Storage


def open_storage(
    settings: Settings,
    *,
    incarnation: str,
    clock: Clock,
    chance: Random,
    check_schema: bool = True,
    supervisor: Supervisor | None = None,
) -> Storage:
    """Return the storage of one process, not started yet.

    Args:
        check_schema: Off for the migrate command: it starts on any schema and sets nothing up.
        supervisor: The supervisor of this process.
    """
    scheme = settings.url.partition(":")[0]
    if scheme == "sqlite":
        from coterie.storage.sqlite import SqliteStorage

        return SqliteStorage(
            settings,
            incarnation=incarnation,
            clock=clock,
            chance=chance,
            check_schema=check_schema,
            supervisor=supervisor,
        )
    if scheme in ("postgresql", "postgres"):
        try:
            from coterie.storage.postgres import PostgresStorage
        except ImportError as error:
            raise ConfigurationError(
                problem="PostgreSQL needs the asyncpg package, which is not installed",
                hint='pip install "coterie[postgres]"',
            ) from error
        return PostgresStorage(
            settings, incarnation=incarnation, chance=chance, check_schema=check_schema, supervisor=supervisor
        )
    raise ConfigurationError(
        problem=f"url begins with {scheme!r}, which is no database that coterie knows",
        hint="write sqlite:///file.db, sqlite:// (memory) or postgresql://user@host/database",
    )


def is_shared(settings: Settings) -> bool:
    """Whether other programs use the same database, and may send from SQL; a file is coterie's alone [C2]."""
    return settings.url.partition(":")[0] != "sqlite"


def file_of(settings: Settings) -> Path | None:
    """The file that holds the cluster, existing or not; None: the cluster is not in a file."""
    if settings.url.partition(":")[0] != "sqlite":
        return None
    from coterie.storage.sqlite.location import path_of

    return path_of(settings.url)
