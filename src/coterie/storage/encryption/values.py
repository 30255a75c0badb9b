"""The base of encrypted stores; and values of keys, and states of entities and leaders with their histories."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from msgspec.structs import replace

from coterie.storage.encryption import places
from coterie.storage.interface import Kv, StateStore
from coterie.storage.unreadable_rows import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coterie.storage.encryption.cipher import Keyring, Place
    from coterie.storage.interface import (
        Claim,
        Entry,
        KvPut,
        KvSwap,
        StateLoaded,
        StateRow,
        StateSave,
        Written,
    )


R = TypeVar("R")
S = TypeVar("S")


class EncryptedStore(Generic[S]):
    """Stands in front of a store of an engine.

    Args:
        inner: The engine's store.
        keyring: The keys.
    """

    passes: ClassVar[frozenset[str]] = frozenset()
    """The methods of the contract through which no payload goes: they are those of the engine's store."""
    table: ClassVar[str] = ""
    """The table of the rows that `_readable` leaves out."""

    def __init__(self, inner: S, keyring: Keyring) -> None:
        self._inner = inner
        self._keyring = keyring
        for name in self.passes:
            setattr(self, name, getattr(inner, name))

    def _seal(self, data: bytes | None, place: Place) -> bytes | None:
        return None if data is None else self._keyring.seal(data, place)

    def _open(self, data: bytes | None, place: Place) -> bytes | None:
        return None if data is None else self._keyring.open(data, place)

    def _readable(self, rows: Sequence[R], decrypt: Callable[[R], R], *, key: Callable[[R], str]) -> list[R]:
        """Those of the rows that can be decrypted: one that cannot waits in storage, reported, and the others go on."""
        return readable(rows, decrypt, table=self.table, key=key)


def encrypted_save(write: StateSave, keyring: Keyring) -> StateSave:
    """A leader's state as it is stored."""
    return replace(write, value=keyring.seal(write.value, places.state(write.key, write.version + 1)))


class EncryptedKv(EncryptedStore[Kv]):
    """See `storage.interface.Kv`."""

    passes = frozenset({"remove", "count", "clear", "purge"})

    async def get(self, key: str) -> Entry | None:
        """Return the entry, or None if it is absent or expired."""
        found = await self._inner.get(key)
        return None if found is None else self._entry(found)

    async def put(self, write: KvPut) -> None:
        """Durable when it returns."""
        await self._inner.put(
            replace(write, value=self._keyring.seal(write.value, places.entry(write.key, write.stamp)))
        )

    async def swap(self, write: KvSwap) -> bool:
        """Durable when it returns."""
        value = self._seal(write.value, places.entry(write.key, write.stamp))
        return await self._inner.swap(replace(write, value=value))

    async def page(self, prefix: str, *, after: str | None, most: int) -> Sequence[Entry]:
        """Return the next entries whose keys start with `prefix`, in order, after the key `after`."""
        return [self._entry(each) for each in await self._inner.page(prefix, after=after, most=most)]

    def _entry(self, entry: Entry) -> Entry:
        return replace(entry, value=self._keyring.open(entry.value, places.entry(entry.key, entry.stamp)))


class EncryptedStates(EncryptedStore[StateStore]):
    """See `storage.interface.StateStore`."""

    passes = frozenset({"verify", "purge"})
    table = "state_history"

    async def save(self, write: StateSave) -> Written:
        """Durable when it returns "written"."""
        return await self._inner.save(encrypted_save(write, self._keyring))

    async def load(self, claim: Claim, key: str) -> StateLoaded | None:
        """Load the state for a new holder. Returns None if the seat is not held."""
        found = await self._inner.load(claim, key)
        return found and replace(found, value=self._open(found.value, places.state(key, found.version)))

    async def set_aside(self, claim: Claim, key: str, reason: str) -> bool:
        """Keep a copy of the stored state before it is overwritten."""
        return await self._inner.set_aside(claim, key, self._keyring.seal_text(reason, places.reason(key)))

    async def peek(self, key: str) -> StateRow | None:
        """Read the state without holding its seat."""
        found = await self._inner.peek(key)
        return None if found is None else self._row(key, found)

    async def history(self, key: str) -> Sequence[StateRow]:
        """Return the past states and those set aside, the newest first. One that cannot be read is left out."""
        rows = await self._inner.history(key)
        return self._readable(rows, partial(self._row, key), key=lambda row: f"{key} {row.version}")

    def _row(self, key: str, row: StateRow) -> StateRow:
        value = self._keyring.open(row.value, places.state(key, row.version))
        return replace(row, value=value, reason=self._keyring.shown_text(row.reason, places.reason(key)))
