"""What the rest of coterie may ask of a database. PostgreSQL and SQLite fulfil it, one contract suite holds both.

The contract is split by what is stored. Present: `kv`, the schema and the cluster's secret. Each part speaks in
plain values: texts, bytes, whole numbers; encoding is the caller's business.

Every failure is a `PersistenceError` whose `outcome` says what is known: "refused" (rolled back), "unreachable"
(nothing was sent), "unknown" (the connection broke while the commit was under way).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from coterie.kernel.service import Service

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from coterie.storage.migrations import Migration, Phase

GROUP_MOST = 500
"""Writes in one transaction at most: beyond it a group gets slower for its first member, not faster for all."""

WAITING_MOST = 20_000
"""Writes that may wait for their group: a bound on memory; the next one is refused."""


SECRET_BYTES = 32
"""The size of a cluster's secret: 256 random bits."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A key's value as stored. The stamp is new with each write and never used twice."""

    key: str
    value: bytes
    stamp: int


class KvPut(msgspec.Struct, frozen=True, gc=False):
    """Set a key, whatever it was. The result is None."""

    key: str
    value: bytes
    stamp: int
    ttl_s: float | None = None


class KvSwap(msgspec.Struct, frozen=True, gc=False):
    """Replace a key's value if its stamp is still `expected` (None: if the key is absent or expired).

    A value of None removes the key. The result is True if it was replaced, False if somebody was faster.
    """

    key: str
    expected: int | None
    value: bytes | None
    stamp: int
    ttl_s: float | None = None


class KvRemove(msgspec.Struct, frozen=True, gc=False):
    """Remove a key. The result is True if it was there (and not expired)."""

    key: str


Write = KvPut | KvSwap | KvRemove
"""What goes through the group writer: concurrent writes share transactions, each stays independent."""


class Kv(Protocol):
    """Keys and values of one cluster. Keys are ordered by their UTF-8 bytes; expired ones are as good as absent."""

    async def get(self, key: str) -> Entry | None:
        """The entry, or None if it is absent or expired."""
        ...

    async def put(self, write: KvPut) -> None:
        """Durable when it returns."""
        ...

    async def swap(self, write: KvSwap) -> bool:
        """Durable when it returns; see `KvSwap`."""
        ...

    async def remove(self, write: KvRemove) -> bool:
        """Durable when it returns; see `KvRemove`."""
        ...

    async def count(self, prefix: str) -> int:
        """How many keys start with `prefix`."""
        ...

    async def page(self, prefix: str, *, after: str | None, most: int) -> Sequence[Entry]:
        """The next entries whose keys start with `prefix`, in order, past the key `after`."""
        ...

    async def clear(self, prefix: str) -> int:
        """Remove all keys that start with `prefix`; how many there were (expired ones do not count)."""
        ...

    async def purge(self, *, most: int) -> int:
        """Delete up to `most` expired entries for good; how many it were."""
        ...


class Schema(Protocol):
    """The tables: which migrations are there, and how the missing ones get there."""

    async def applied(self) -> Sequence[Migration]:
        """What has been applied, in order; empty for an empty database. `sql` of these is empty."""
        ...

    async def pending(self, phase: Phase | None = None) -> Sequence[Migration]:
        """What this program knows and the database lacks, in order."""
        ...

    async def apply(self, phase: Phase | None = None) -> Sequence[Migration]:
        """Apply what is pending (of one phase, or all) under a lock; what was applied here.

        Safe to call from several processes at once: one does the work, the others find it done.
        """
        ...


class Storage(Service):
    """One cluster's database: start connects, checks and refuses what would break promises; stop lets go."""

    kv: Kv
    schema: Schema

    @property
    def address(self) -> str:
        """Where the data is, fit to be printed: without password."""
        raise NotImplementedError

    async def now(self) -> datetime:
        """The database's clock, which decides about leases, ticks and expiry."""
        raise NotImplementedError

    async def secret(self) -> bytes:
        """The cluster's secret, `SECRET_BYTES` random bytes. Keep it out of logs and errors.

        Promise:
            Drawn at its first use by whoever comes first, durable before it is returned, and the same for
            all processes of the cluster from then on.
        """
        raise NotImplementedError
