"""Stored values that outlive their class: a version number, and migrations to the next (S5).

A value is stored as the list [version, value]. Decoding it has four outcomes: the value; `NewerVersion`,
written by a later program, not to be touched; `MigrationFailed`, a defect of a migration, not to be touched
either; and `MalformedMessage`, which does not fit the type and never will (S4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import msgspec

from coterie.errors import ConfigurationError, CoterieError, MalformedMessage, NewerVersion
from coterie.kernel.serialization.codec import PLAIN, Codec, codec_for, misfit

if TYPE_CHECKING:
    from collections.abc import Callable

    Migrations = Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]]

T = TypeVar("T")


class MigrationFailed(CoterieError):
    """A migration function raised, or returned something other than a map."""

    text = "{what}: migration from version {version} to {following} failed: {problem}"
    advice = "correct the migration; the stored state was not touched"
    what: str
    version: int
    following: int
    problem: str


class _Stored(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    version: Annotated[int, msgspec.Meta(ge=1)]
    payload: msgspec.Raw


_STORED = msgspec.msgpack.Decoder(_Stored)


def split(data: bytes, *, what: str) -> tuple[int, bytes]:
    """The version and the encoded value of a stored value, for callers that do not know the type."""
    try:
        stored = _STORED.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedMessage(what=what, problem=misfit(error, data)) from error
    return stored.version, bytes(stored.payload)


class Versioned(Generic[T]):
    """Encodes values of one type with the version of their class, and decodes those of earlier versions.

    Args:
        type: The type that the program has now.
        version: Its version, from 1 on.
        migrations: By version, the function from the map of that version to the map of the next.
        what: What is stored, for errors.

    Promise:
        Migrations run in order, each once, on a map of their own. Decoding changes nothing that is stored.
    """

    def __init__(
        self,
        type: type[T],
        version: int = 1,
        migrations: Migrations | None = None,
        *,
        what: str | None = None,
    ) -> None:
        self._codec: Codec[T] = codec_for(type)
        self.type = type
        self.version = version
        self.what = what or self._codec.name
        self._migrations = self._read(migrations)
        self._require_complete()
        self._head = b"\x92" + msgspec.msgpack.encode(version)

    def encode(self, value: T) -> bytes:
        """Encode the value with its version; known to decode."""
        return self._head + self._codec.checked(value, what=self.what)

    def decode(self, data: bytes) -> T:
        """Decode the value, migrated if an earlier version wrote it."""
        version, payload = split(data, what=self.what)
        if version > self.version:
            raise NewerVersion(what=self.what, found=version, known=self.version)
        if version == self.version:
            return self._codec.decode(payload, what=self.what)
        return self._migrated(version, payload)

    def version_of(self, data: bytes) -> int:
        """The version that wrote a value, which must decode."""
        return _STORED.decode(data).version

    def _migrated(self, version: int, payload: bytes) -> T:
        values = PLAIN.decode(payload, what=self.what)
        if not isinstance(values, dict):
            problem = f"version {version} is stored as {type(values).__name__}, and migrations work on maps"
            raise MalformedMessage(what=self.what, problem=problem)
        for step in range(version, self.version):
            values = self._step(step, values)
        what = f"{self.what}, migrated from version {version}"
        return self._codec.decode(PLAIN.encode(values, what=what), what=what)

    def _step(self, version: int, values: dict[str, Any]) -> dict[str, Any]:
        try:
            migrated: Any = self._migrations[version](values)
        except Exception as error:  # a user's function may raise anything
            raise self._failed(version, f"{type(error).__name__}: {error}") from error
        if not isinstance(migrated, dict):
            raise self._failed(version, f"it gave {type(migrated).__name__}, expected dict")
        return migrated

    def _failed(self, version: int, problem: str) -> MigrationFailed:
        return MigrationFailed(what=self.what, version=version, following=version + 1, problem=problem)

    def _read(self, migrations: Any) -> dict[int, Any]:
        if migrations is not None and not isinstance(migrations, Mapping):
            raise ConfigurationError(
                problem=f"{self.what}: migrations is {migrations!r}, expected a map from versions to functions",
                hint="write migrations={1: to_version_2}",
            )
        for version, function in (migrations or {}).items():
            if not callable(function):
                raise ConfigurationError(
                    problem=f"{self.what}: the migration from {version!r} is {function!r}, expected a function"
                )
        return dict(migrations or {})

    def _require_complete(self) -> None:
        if type(self.version) is not int or self.version < 1:
            raise ConfigurationError(
                problem=f"{self.what}: version is {self.version!r}, expected a whole number from 1 on"
            )
        wanted, given = set(range(1, self.version)), set(self._migrations)
        if missing := sorted(wanted - given):
            raise ConfigurationError(
                problem=f"{self.what} is version {self.version}, but has no migration from {missing[0]}",
                hint=f"add migrations={{{missing[0]}: …}}: a function from that version's map to the next's",
            )
        if beyond := sorted(given - wanted, key=str):
            raise ConfigurationError(
                problem=f"{self.what} is version {self.version}, but has a migration from {beyond[0]}",
                hint=f"is the version {self.version} right? a migration from n leads to n + 1",
            )
