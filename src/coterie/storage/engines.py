"""Chooses the engine for a URL, and encrypts if there are keys. Both are imported only here, if they are in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping
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
    made = _engine(
        settings,
        incarnation=incarnation,
        clock=clock,
        chance=chance,
        check_schema=check_schema,
        supervisor=supervisor,
    )
    encrypt(made, settings, chance)
    return made


def encrypt(storage: Storage, settings: Settings, chance: Random) -> None:
    """Encrypt what users' code gives to a storage that is not started yet, if the settings have keys."""
    if not settings.payload_keys:
        return
    try:
        from coterie.storage.encryption.stores import encrypt
    except ImportError as error:
        raise ConfigurationError(
            problem="payload_keys need the cryptography package, which is not installed",
            hint='pip install "coterie[encryption]"',
        ) from error
    encrypt(storage, settings, chance)


def _engine(
    settings: Settings,
    *,
    incarnation: str,
    clock: Clock,
    chance: Random,
    check_schema: bool,
    supervisor: Supervisor | None,
) -> Storage:
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


def is_in_memory(settings: Settings) -> bool:
    """Whether the database begins empty with this process, and ends with it."""
    return not is_shared(settings) and file_of(settings) is None


def file_of(settings: Settings) -> Path | None:
    """The file that holds the cluster, existing or not; None: the cluster is not in a file."""
    if settings.url.partition(":")[0] != "sqlite":
        return None
    from coterie.storage.sqlite.file.location import path_of

    return path_of(settings.url)


_KEYS = (
    "give all processes of a cluster the same payload_keys; to change one without a stop, first give the old and the "
    "new key to all of them"
)


async def require_keys(storage: Storage) -> bool:
    """Compare the keys of this process with those that values may be encrypted with.

    The key that it encrypts with is stored as one of those, as a fingerprint, unless the process is refused.

    Returns:
        Whether it was not one of those before.

    Raises:
        ConfigurationError: A key is missing here, or another one has its id.
    """
    keyring = storage.keyring
    mine = {} if keyring is None else keyring.fingerprints()
    current = None if keyring is None else keyring.current
    stored = await storage.payloads.keys()
    _require_all(stored, mine)
    if current is None or current in stored:
        return False
    await storage.payloads.add_key(current, mine[current])
    _require_all(await storage.payloads.keys(), mine)  # another process may have added one meanwhile
    return True


async def withdraw_key(storage: Storage) -> None:
    """Undo what `require_keys` has added, for a process that is refused later: else all others would need its key.

    It stays if something is stored with it.
    """
    from coterie.storage.encryption.rotation import key_uses

    assert storage.keyring is not None, "it has added its key"
    current = storage.keyring.current
    assert current is not None, "it has added that one"
    if all(use.key != current for use in await key_uses(storage.payloads)):
        await storage.payloads.remove_key(current)


def _require_all(stored: Mapping[str, str], mine: Mapping[str, str]) -> None:
    for key_id, fingerprint in sorted(stored.items()):
        if key_id not in mine:
            problem = f"payloads of this cluster are encrypted with key {key_id!r}, which this process does not have"
            raise ConfigurationError(problem=problem, hint=_KEYS)
        if mine[key_id] != fingerprint:
            problem = f"the key {key_id!r} of payload_keys is another one than that which this cluster's payloads have"
            raise ConfigurationError(problem=problem, hint=_KEYS)
