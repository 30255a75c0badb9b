"""What the rest of coterie may ask of a database. PostgreSQL and SQLite fulfil it, one contract suite holds both.

The contract is split by what is stored: `kv`, `states` (under the fence), `machines` (ids), `messages`, `executions`,
`ticks`, `units` and `inspection` (in files of their own), ownership, the schema and the cluster's secret. Each part
speaks in plain values: texts, bytes, whole numbers; encoding is the caller's business.

Every failure is a `PersistenceError` whose `outcome` says what is known: "refused" (rolled back), "unreachable"
(nothing was sent), "unknown" (the connection broke while the commit was under way).
"""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from datetime import datetime  # noqa: TC003 msgspec reads annotations at run time
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, cast

import msgspec

from coterie.errors import LeadershipLost
from coterie.kernel.service import Service
from coterie.storage.contracts.executions import Stamp
from coterie.storage.contracts.messages import Commit, Insert, Setback
from coterie.storage.contracts.ticks import TickClaim, TickNote
from coterie.storage.contracts.units import StepWrite, UnitEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from coterie.errors import PersistenceError
    from coterie.storage.contracts.executions import Executions
    from coterie.storage.contracts.inspection import Inspection
    from coterie.storage.contracts.messages import MessageStore, Transaction
    from coterie.storage.contracts.ticks import TickStore
    from coterie.storage.contracts.units import UnitStore
    from coterie.storage.migrations import Migration, Phase

T = TypeVar("T")

GROUP_MOST = 500
"""Writes in one transaction at most: beyond it a group gets slower for its first member, not faster for all."""

WAITING_MOST = 20_000
"""Writes that may wait for their group: a bound on memory; the next one is refused."""


SECRET_BYTES = 32
"""The size of a cluster's secret: 256 random bits."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """What a write in the name of a seat must prove: that this runner holds it, at this epoch [C1]."""

    runner: str
    seat: str
    epoch: int


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
    claim: Claim | None = None
    """In whose name: without the seat nothing is written. None: in nobody's, always."""


class KvSwap(msgspec.Struct, frozen=True, gc=False):
    """Replace a key's value if its stamp is still `expected` (None: if the key is absent or expired).

    A value of None removes the key. The result is True if it was replaced, False if somebody was faster.
    """

    key: str
    expected: int | None
    value: bytes | None
    stamp: int
    ttl_s: float | None = None
    claim: Claim | None = None


class KvRemove(msgspec.Struct, frozen=True, gc=False):
    """Remove a key. The result is True if it was there (and not expired)."""

    key: str
    claim: Claim | None = None


Fenced = Literal["fenced"]
"""What a group's transaction says of a write whose seat is not held. From there on it is a `LeadershipLost`: nobody may
take it for a "yes", and it says nothing about the key."""


class StateSave(msgspec.Struct, frozen=True, gc=False):
    """Write the state that follows `version` (0: the first) under the fence. The result is a `Written`."""

    claim: Claim
    key: str
    value: bytes
    version: int
    ttl_s: float | None = None
    """After how long without another save it expires; None: never."""
    keep: int = 0
    """How many of the last states stay in its history."""


Written = Literal["written", "fenced", "conflict"]
"""Of a fenced write: it happened; the seat is not held any more; another version is there (perhaps our own [0.6])."""


class StateLoaded(msgspec.Struct, frozen=True, gc=False):
    """A state as its new holder finds it: None and version 0 if there is none yet."""

    value: bytes | None
    version: int
    expired: bool = False
    """Whether its time is over: as good as none, but the next state follows its version."""


class StateRow(msgspec.Struct, frozen=True):
    """A state as it was saved, for those who look at it from outside."""

    value: bytes
    version: int
    epoch: int
    runner: str
    """The name of the runner that saved it."""
    saved_at: datetime
    reason: str = ""
    """Why it was set aside; empty: it was not, it is part of the history."""


ASIDE_MOST = 5
"""How many states of a key are kept aside: the last ones."""


Write = (
    KvPut
    | KvSwap
    | KvRemove
    | StateSave
    | Stamp
    | Insert
    | Commit
    | Setback
    | TickClaim
    | TickNote
    | StepWrite
    | UnitEnd
)
"""What goes through the group writer: concurrent writes share transactions, each stays independent."""


def checksum(held: Mapping[str, int]) -> str:
    """The checksum of seats and epochs that `Renewal.held` is compared with."""
    lines = "\n".join(f"{epoch} {name}" for name, epoch in sorted(held.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def require_held(result: T | Fenced, claim: Claim | None) -> T:
    """The result of a write, unless the fence has refused it.

    Raises:
        LeadershipLost: It has.
    """
    if result == "fenced" and claim is not None:
        raise LeadershipLost(seat=claim.seat, epoch=claim.epoch)
    return cast("T", result)


class Kv(Protocol):
    """Keys and values of one cluster. Keys are ordered by their UTF-8 bytes; expired ones are as good as absent.

    Writes with a claim raise `LeadershipLost` unless the seat is held: then nothing was written [C1].
    """

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


class StateStore(Protocol):
    """State written in the name of seats, one row a key."""

    async def save(self, write: StateSave) -> Written:
        """Durable when it returns "written". Concurrent ones share transactions."""
        ...

    async def load(self, claim: Claim, key: str) -> StateLoaded | None:
        """The state for a new holder, whose epoch marks the row from now on; None: the seat is not held."""
        ...

    async def verify(self, claim: Claim) -> bool:
        """Whether the seat is held at this epoch just now."""
        ...

    async def set_aside(self, claim: Claim, key: str, reason: str) -> bool:
        """Keep a copy of what is stored, before something else takes its place; False: the seat is not held."""
        ...

    async def peek(self, key: str) -> StateRow | None:
        """The state as it is, for those who hold nothing. Expired ones are not there."""
        ...

    async def history(self, key: str) -> Sequence[StateRow]:
        """What `StateSave.keep` has kept, and what was set aside: the newest first."""
        ...

    async def purge(self, *, most: int) -> int:
        """Delete up to `most` states that have expired, with their histories; how many it were."""
        ...


class Machine(msgspec.Struct, frozen=True, gc=False):
    """A leased machine id. All its snowflakes are later than `after_ms`, the mark of the holder before [M15]."""

    id: int
    after_ms: int


class MachineIds(Protocol):
    """The machine ids of snowflakes, 0-1023, each leased to one process with a mark up to which it may draw."""

    async def lease(self, holder: str, *, ttl_s: float, until_ms: int) -> Machine | None:
        """Lease a free one and store `max(until_ms, the former mark)` as its mark; None: all are taken."""
        ...

    async def extend(self, id: int, holder: str, *, ttl_s: float, until_ms: int) -> bool:
        """Prolong the lease and raise the mark; False: it is not ours any more, draw nothing beyond the old mark."""
        ...

    async def give_back(self, id: int, holder: str) -> None:
        """Free it at once; the mark stays."""
        ...


class SeatDeclaration(msgspec.Struct, frozen=True, gc=False):
    """A seat that a runner knows. A shard has no fingerprint: its definition never changes."""

    name: str
    group: str
    fingerprint: str = ""


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A runner as it registers: written once, never changed."""

    id: str
    """The incarnation."""
    name: str
    address: str
    host_id: str
    groups: tuple[str, ...]
    weight: float = 1.0
    version: str = ""
    knows: dict[str, str] = {}
    """Seats other than shards by name, each with the fingerprint of its definition here [M8]."""
    process: str = ""
    """Process id and its start time, by which a frozen writer is recognised on SQLite [C3]."""
    credentials: str = ""
    """What it proves itself with, by fingerprints: see `transport.credentials`. Empty: it does not say."""


class RunnerRow(Registration, frozen=True, kw_only=True):
    """A registered runner."""

    started_at: datetime
    leaving: bool = False


class SeatRow(msgspec.Struct, frozen=True):
    """A seat and who holds it."""

    name: str
    group: str
    holder: str | None
    epoch: int
    fingerprint: str
    effective_from: datetime
    """Since when the part of it before its first colon is the current one, by the database's clock."""
    clean: bool
    """Whether its last holder gave it back, or there was none yet; means something while nobody holds it [C5]."""


class ClusterSnapshot(msgspec.Struct, frozen=True):
    """Everybody and everything, as the database has it."""

    runners: tuple[RunnerRow, ...]
    seats: tuple[SeatRow, ...]
    stamp: str
    """As in `Renewal`, of these seats."""


class Sighting(msgspec.Struct, frozen=True, gc=False):
    """Another runner's lease, as a renewal shows it."""

    id: str
    counter: int
    expired: bool
    leaving: bool


class Renewal(msgspec.Struct, frozen=True):
    """What a renewal of one's lease tells, in the same statement [M1, M13]."""

    counter: int
    leaving: bool
    """Whether somebody, perhaps oneself, has asked this runner to give up all it holds."""
    others: tuple[Sighting, ...]
    held: str
    """The `checksum` of the seats that the table has in one's name."""
    stamp: str
    """Another one whenever any seat of the cluster was declared, redefined, granted, released or freed."""
    now: datetime
    """The database's clock."""
    generation: int = 0
    """A greater one on another server or timeline than before: commits that it had acknowledged may be missing."""


class Grant(msgspec.Struct, frozen=True, gc=False):
    """A seat just acquired. Clean: the holder before released it, or there was none [C5]."""

    name: str
    epoch: int
    clean: bool


class Presences(msgspec.Struct, frozen=True):
    """Which runners' sessions are alive: the first witness [M2]. It proves nothing across two starts of the server."""

    server: str
    """Which start of the server this is about."""
    held: frozenset[str]
    counters: dict[str, int]
    """The counter of each lease that is there, as it was before the locks were read: who renews later is spared."""
    expired: frozenset[str] = frozenset()
    """Those of them whose lease has run out, by the database's clock."""
    gone: frozenset[str] = frozenset()
    """Those whose process is gone for certain: the kernel keeps their lock, and says so."""
    unwitnessed: frozenset[str] = frozenset()
    """Those of whom it is not known that they ever had a lock: that it is not held says nothing."""
    up_s: float = 0.0
    """How long the server has been up: right after its start nobody holds a lock yet."""


class Ownership(Protocol):
    """The dedicated session of one runner, for one task at a time; whoever opens it uses it on that loop only.

    When the session is lost every call raises `PersistenceError`: open another one.
    """

    @property
    def witnessed(self) -> bool:
        """Whether the session holds the lock that others take as a sign of life."""
        ...

    @property
    def leases_only(self) -> bool:
        """Whether there are no such locks here: work may start without, and `presences` takes all for alive."""
        ...

    @property
    def generation(self) -> int:
        """The generation of the server on which the session was opened, see `Renewal`."""
        ...

    async def agree(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Store settings that all must share if nobody has yet; what is stored."""
        ...

    async def view(self) -> ClusterSnapshot: ...

    async def register(self, me: Registration, seats: Sequence[SeatDeclaration], *, ttl_s: float) -> None:
        """Appear in the cluster, with a lease, and declare seats, in one transaction.

        A fingerprint never seen before for its seat becomes the current one; one seen before does so only if no
        registered runner has the current one [M8].
        """
        ...

    async def declare(self, seats: Sequence[SeatDeclaration]) -> None:
        """As `register` does, later: an older definition comes back when the last runner with the current is gone."""
        ...

    async def define(self, seats: Sequence[SeatDeclaration]) -> bool:
        """Declare seats that one's program has defined since `register`, and be a candidate for them, in one
        transaction. False: one was evicted, and nothing was written."""
        ...

    async def renew(self, *, ttl_s: float) -> Renewal | None:
        """Prolong one's lease; None: there is none, one was evicted."""
        ...

    async def leaving(self, runner: str) -> bool:
        """Mark a runner, oneself or another, as leaving: it is no candidate any more. False: there is none."""
        ...

    async def acquire(self, names: Sequence[str]) -> Sequence[Grant]:
        """Take the free ones of these seats [C4]."""
        ...

    async def release(self, name: str, epoch: int) -> bool:
        """Give a seat back; waits for writes in flight. False: it was not held any more."""
        ...

    async def presences(self, runners: Sequence[str]) -> Presences: ...

    async def evict(self, victim: str, *, counter: int, expired: bool) -> bool:
        """Delete a runner that has not renewed since `counter` was seen, and, if so asked, has expired. False: spared.

        What blocks it and belongs to the victim is ended: sessions in its name [M12], its frozen process [C3].
        """
        ...

    async def leave(self) -> None:
        """Delete oneself. Seats not released before are free, but not clean."""
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
    states: StateStore
    executions: Executions
    ticks: TickStore
    units: UnitStore
    machines: MachineIds
    messages: MessageStore
    inspection: Inspection
    schema: Schema

    on_unreachable: Callable[[PersistenceError], None] | None = None
    """If set before the start, a server that cannot be reached is waited for, and this is told of each vain round of
    tries. None: it is refused. What another try cannot mend (a wrong password, an unknown database) always is."""

    def ownership(self, incarnation: str) -> AbstractAsyncContextManager[Ownership]:
        """A dedicated session for a runner of this incarnation, with its lock held, on the loop that asks.

        Raises:
            PersistenceError: It cannot be opened.
        """
        raise NotImplementedError

    def presence(self, incarnation: str) -> AbstractAsyncContextManager[object]:
        """A sign of life of a runner during the block, across all of its sessions, where the kernel keeps one.

        Where a server keeps the locks, they go with each session, and this does nothing.
        """
        del incarnation
        return nullcontext()

    def rename(self, incarnation: str) -> None:
        """Work from now on is done in the name of another incarnation, as its sessions tell the server [M12]."""
        raise NotImplementedError

    async def view(self) -> ClusterSnapshot:
        """Everybody and everything, for those who hold nothing: clients route by it."""
        raise NotImplementedError

    def transaction(self, *, limit_s: float) -> Transaction:
        """SQL of the user's own. Nothing is opened before its first statement."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        """Where the data is, fit to be printed: without password."""
        raise NotImplementedError

    async def now(self) -> datetime:
        """The database's clock, which decides about leases, ticks and expiry."""
        raise NotImplementedError

    async def overdue(self, *, retention_s: float, key_retention_s: float) -> Mapping[str, float]:
        """For how many seconds the oldest row of each table should have been pruned, by the name of the table; those
        that have no such row are left out. Of messages the 1,000 oldest are looked at."""
        raise NotImplementedError

    async def secret(self) -> bytes:
        """The cluster's secret, `SECRET_BYTES` random bytes. Keep it out of logs and errors.

        Promise:
            Drawn at its first use by whoever comes first, durable before it is returned, and the same for
            all processes of the cluster from then on.
        """
        raise NotImplementedError
