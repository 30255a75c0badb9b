"""The storage interface, which PostgreSQL and SQLite implement. One contract suite tests both.

The contract is split by what is stored: `kv`, `states` (fenced), `machines` (ids), ownership, the schema and the
cluster's secret are here; `messages`, `jobs`, `user_writes`, `executions`, `ticks`, `units`, `run_messages`,
`schedules`, `pauses`, `payloads` and `inspection` are in `storage.contracts`. Each part takes and returns plain values
(text, bytes, integers); the caller encodes.

Every failure is a `PersistenceError` whose `outcome` says what is known: "refused" (rolled back), "unreachable"
(nothing was sent), "unknown" (the connection broke during the commit).
"""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from datetime import datetime  # noqa: TC003 msgspec reads annotations at run time
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, cast

import msgspec

from coterie.errors import LeadershipLost
from coterie.kernel.ids import Seat
from coterie.kernel.service import Service
from coterie.storage.contracts.executions import Stamp
from coterie.storage.contracts.jobs import JobEnd, JobInsert, JobSetback
from coterie.storage.contracts.messages import Commit, Insert, Setback
from coterie.storage.contracts.ticks import TickClaim, TickNote
from coterie.storage.contracts.units import StepWrite, UnitEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from coterie.errors import PersistenceError
    from coterie.storage.contracts.activity import Activity
    from coterie.storage.contracts.executions import Executions
    from coterie.storage.contracts.incoming_calls import IncomingStore
    from coterie.storage.contracts.inspection import Inspection
    from coterie.storage.contracts.jobs import JobStore
    from coterie.storage.contracts.messages import MessageStore, Transaction
    from coterie.storage.contracts.pauses import PauseStore
    from coterie.storage.contracts.payloads import PayloadStore
    from coterie.storage.contracts.run_messages import RunMessageStore
    from coterie.storage.contracts.schedules import ScheduleStore
    from coterie.storage.contracts.ticks import TickStore
    from coterie.storage.contracts.units import UnitStore
    from coterie.storage.contracts.user_writes import UserWrites
    from coterie.storage.encryption.cipher import Keyring
    from coterie.storage.migrations import Migration, Phase

T = TypeVar("T")

GROUP_MOST = 500
"""Maximum number of writes in one transaction: larger groups delay their first member and gain nothing."""

WAITING_MOST = 20_000
"""Maximum number of queued writes: a bound on memory; further ones are refused."""


SECRET_BYTES = 32
"""The size of a cluster's secret: 256 random bits."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The proof that a fenced write must give: this runner holds the seat at this epoch [C1]."""

    runner: str
    seat: str
    epoch: int


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A key's value as stored. Each write draws a new stamp, which is never reused."""

    key: str
    value: bytes
    stamp: int


class KvPut(msgspec.Struct, frozen=True, gc=False):
    """Set a key unconditionally. The result is None."""

    key: str
    value: bytes
    stamp: int
    ttl_s: float | None = None
    claim: Claim | None = None
    """The seat that must be held for the write to happen. None: the write is not fenced."""


class KvSwap(msgspec.Struct, frozen=True, gc=False):
    """Replace a key's value if its stamp is still `expected` (None: if the key is absent or expired).

    A value of None removes the key. The result is True if it was replaced, False if another write came first.
    """

    key: str
    expected: int | None
    value: bytes | None
    stamp: int
    ttl_s: float | None = None
    claim: Claim | None = None


class KvRemove(msgspec.Struct, frozen=True, gc=False):
    """Remove a key. The result is True if it existed (and had not expired)."""

    key: str
    claim: Claim | None = None


Fenced = Literal["fenced"]
"""The result of a write whose seat is not held. Callers get `LeadershipLost` instead: the string must not be mistaken
for a truthy result, and it says nothing about the key."""


class StateSave(msgspec.Struct, frozen=True, gc=False):
    """Write the state that follows `version` (0: the first), fenced. The result is a `Written`."""

    claim: Claim
    key: str
    value: bytes
    version: int
    ttl_s: float | None = None
    """The time after which it expires unless saved again; None: never."""
    keep: int = 0
    """The number of past states to keep in the history."""


Written = Literal["written", "fenced", "conflict"]
"""Of a fenced write: it happened; the seat is no longer held; the stored version differs (perhaps by this very write,
tried before [0.6])."""


class StateLoaded(msgspec.Struct, frozen=True, gc=False):
    """A state as loaded by a new holder: None and version 0 if there is none yet."""

    value: bytes | None
    version: int
    expired: bool = False
    """Whether it has expired: treated as absent, but the next state follows its version."""


class StateRow(msgspec.Struct, frozen=True):
    """A saved state, for readers that do not hold the seat."""

    value: bytes
    version: int
    epoch: int
    runner: str
    """The name of the runner that saved it."""
    saved_at: datetime
    reason: str = ""
    """Why it was set aside; empty for a row of the history."""


ASIDE_MOST = 5
"""The number of set-aside states kept per key: the latest ones."""


Write = (
    KvPut
    | KvSwap
    | KvRemove
    | StateSave
    | Stamp
    | Insert
    | Commit
    | Setback
    | JobInsert
    | JobEnd
    | JobSetback
    | TickClaim
    | TickNote
    | StepWrite
    | UnitEnd
)
"""Writes that go through the group writer: concurrent ones share transactions, each stays independent."""


def checksum(held: Mapping[str, int]) -> str:
    """The checksum of seats and epochs that `Renewal.held` is compared with."""
    lines = "\n".join(f"{epoch} {name}" for name, epoch in sorted(held.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def require_held(result: T | Fenced, claim: Claim | None) -> T:
    """Return the result of a write.

    Raises:
        LeadershipLost: The fence has refused the write.
    """
    if result == "fenced" and claim is not None:
        raise LeadershipLost(seat=claim.seat, epoch=claim.epoch)
    return cast("T", result)


class Kv(Protocol):
    """Keys and values of one cluster. Keys are ordered by their UTF-8 bytes; expired ones count as absent.

    Writes with a claim raise `LeadershipLost` and write nothing unless the seat is held [C1].
    """

    async def get(self, key: str) -> Entry | None:
        """Return the entry, or None if it is absent or expired."""
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
        """Count the keys that start with `prefix`."""
        ...

    async def page(self, prefix: str, *, after: str | None, most: int) -> Sequence[Entry]:
        """Return the next entries whose keys start with `prefix`, in order, after the key `after`."""
        ...

    async def clear(self, prefix: str) -> int:
        """Remove all keys that start with `prefix`. Returns the number removed, expired ones not counted."""
        ...

    async def purge(self, *, most: int) -> int:
        """Delete up to `most` expired entries for good. Returns the number deleted."""
        ...


class StateStore(Protocol):
    """State written under the fence, one row per key."""

    async def save(self, write: StateSave) -> Written:
        """Durable when it returns "written". Concurrent saves share transactions."""
        ...

    async def load(self, claim: Claim, key: str) -> StateLoaded | None:
        """Load the state for a new holder and mark the row with its epoch. Returns None if the seat is not held."""
        ...

    async def verify(self, claim: Claim) -> bool:
        """Whether the seat is currently held at this epoch."""
        ...

    async def set_aside(self, claim: Claim, key: str, reason: str) -> bool:
        """Keep a copy of the stored state before it is overwritten. Returns False if the seat is not held."""
        ...

    async def peek(self, key: str) -> StateRow | None:
        """Read the state without holding its seat. Returns None if it is absent or expired."""
        ...

    async def history(self, key: str) -> Sequence[StateRow]:
        """Return the states kept by `StateSave.keep` and those set aside, the newest first."""
        ...

    async def purge(self, *, most: int) -> int:
        """Delete up to `most` expired states with their histories. Returns the number of states deleted."""
        ...


class Machine(msgspec.Struct, frozen=True, gc=False):
    """A leased machine id. All its snowflakes are later than `after_ms`, the mark of the previous holder [M15]."""

    id: int
    after_ms: int


class MachineIds(Protocol):
    """The machine ids of snowflakes, 0-1023, each leased to one process with a mark: its last usable timestamp."""

    async def lease(self, holder: str, *, ttl_s: float, until_ms: int) -> Machine | None:
        """Lease a free id and set its mark to `max(until_ms, previous mark)`. Returns None if all are taken."""
        ...

    async def extend(self, id: int, holder: str, *, ttl_s: float, until_ms: int) -> bool:
        """Renew the lease and raise the mark. Returns False if it was lost: draw no id beyond the old mark."""
        ...

    async def give_back(self, id: int, holder: str) -> None:
        """Free the id at once; its mark stays."""
        ...


class SeatDeclaration(msgspec.Struct, frozen=True, gc=False):
    """A seat that a runner declares. A shard has no fingerprint: its definition never changes."""

    name: str
    group: str
    fingerprint: str = ""


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What a runner writes when it registers; never changed later."""

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
    """Process id and start time, which identify a frozen writer on SQLite [C3]."""
    credentials: str = ""
    """Fingerprints of its credentials: see `transport.credentials`. Empty: unknown."""


class RunnerRow(Registration, frozen=True, kw_only=True):
    """A registered runner."""

    started_at: datetime
    leaving: bool = False


class SeatRow(msgspec.Struct, frozen=True):
    """A seat and its holder."""

    name: str
    group: str
    holder: str | None
    epoch: int
    fingerprint: str
    effective_from: datetime
    """When the part of the fingerprint before its first colon became current, by the database's clock."""
    clean: bool
    """Whether the last holder released it, or there was none yet; meaningful only while the seat is free [C5]."""


class ClusterSnapshot(msgspec.Struct, frozen=True, dict=True):
    """All runners and seats as stored."""

    runners: tuple[RunnerRow, ...]
    seats: tuple[SeatRow, ...]
    stamp: str
    """The `Renewal.stamp` of these seats."""

    @cached_property
    def shards(self) -> tuple[SeatRow, ...]:
        """The seats that are shards."""
        return tuple(seat for seat in self.seats if Seat.is_shard(seat.name))


class Sighting(msgspec.Struct, frozen=True, gc=False):
    """Another runner's lease, as seen by a renewal."""

    id: str
    counter: int
    expired: bool
    leaving: bool


class Renewal(msgspec.Struct, frozen=True):
    """The result of a lease renewal, read in the same statement [M1, M13]."""

    counter: int
    leaving: bool
    """Whether this runner was asked (perhaps by itself) to give up all its seats."""
    others: tuple[Sighting, ...]
    held: str
    """The `checksum` of the seats that the table lists for this runner."""
    stamp: str
    """Changes whenever any seat of the cluster is declared, redefined, granted, released or freed."""
    now: datetime
    """The database's clock."""
    generation: int = 0
    """Increases on another server or timeline: commits acknowledged before may be missing."""


class Grant(msgspec.Struct, frozen=True, gc=False):
    """A seat just acquired. Clean: the previous holder released it, or there was none [C5]."""

    name: str
    epoch: int
    clean: bool


class Presences(msgspec.Struct, frozen=True):
    """Which runners' sessions are alive: the first witness [M2]. Not comparable across a restart of the server."""

    server: str
    """Identifies the server's start."""
    held: frozenset[str]
    counters: dict[str, int]
    """The counter of each lease, read before the locks: a runner that renews later is not evicted."""
    expired: frozenset[str] = frozenset()
    """Runners whose lease has expired by the database's clock."""
    gone: frozenset[str] = frozenset()
    """Runners whose process is certainly gone: the kernel manages their lock and reports it free."""
    unwitnessed: frozenset[str] = frozenset()
    """Runners not known to have ever held a lock: its absence proves nothing."""
    up_s: float = 0.0
    """The server's uptime: right after its start no runner holds a lock yet."""


class Ownership(Protocol):
    """The dedicated session of one runner, for one task at a time, on the loop that opened it.

    When the session is lost every call raises `PersistenceError`: open another one.
    """

    @property
    def witnessed(self) -> bool:
        """Whether the session holds the lock that other runners take as a sign of life."""
        ...

    @property
    def leases_only(self) -> bool:
        """Whether there are no such locks here: work starts without one, and `presences` reports all as alive."""
        ...

    @property
    def generation(self) -> int:
        """The generation of the server on which the session was opened, see `Renewal`."""
        ...

    async def agree(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Store the settings that all runners must share unless they are stored already. Returns the stored ones."""
        ...

    async def view(self) -> ClusterSnapshot: ...

    async def register(self, me: Registration, seats: Sequence[SeatDeclaration], *, ttl_s: float) -> None:
        """Insert the runner with a lease and declare its seats, in one transaction.

        A fingerprint never seen before for its seat becomes the current one; one seen before does so only if no
        registered runner has the current one [M8].
        """
        ...

    async def declare(self, seats: Sequence[SeatDeclaration]) -> None:
        """Declare seats later: an older definition becomes current when no runner with the current one is left."""
        ...

    async def define(self, seats: Sequence[SeatDeclaration]) -> bool:
        """Declare seats that this program has defined since `register` and become a candidate for them, in one
        transaction. Returns False, with nothing written, if this runner was evicted."""
        ...

    async def renew(self, *, ttl_s: float) -> Renewal | None:
        """Renew this runner's lease. Returns None if it has none: it was evicted."""
        ...

    async def leaving(self, runner: str) -> bool:
        """Mark a runner (this or another) as leaving: it is no longer a candidate. Returns False if it is unknown."""
        ...

    async def acquire(self, names: Sequence[str]) -> Sequence[Grant]:
        """Acquire those of these seats that are free [C4]."""
        ...

    async def release(self, name: str, epoch: int) -> bool:
        """Release a seat after the writes in flight. Returns False if it was no longer held."""
        ...

    async def presences(self, runners: Sequence[str]) -> Presences: ...

    async def evict(self, victim: str, *, counter: int, expired: bool) -> bool:
        """Delete a runner that has not renewed since `counter` was read (and, if `expired`, whose lease has expired).

        Terminates what blocks it and belongs to the victim: its sessions [M12], its frozen process [C3]. Returns False
        if the runner was spared.
        """
        ...

    async def leave(self) -> None:
        """Delete this runner. Seats not released before become free, but not clean."""
        ...


class Schema(Protocol):
    """The tables: which migrations are applied, and how to apply the missing ones."""

    async def applied(self) -> Sequence[Migration]:
        """Return the applied migrations in order, with empty `sql`; none for an empty database."""
        ...

    async def pending(self, phase: Phase | None = None) -> Sequence[Migration]:
        """Return the migrations that this program knows and the database lacks, in order."""
        ...

    async def apply(self, phase: Phase | None = None) -> Sequence[Migration]:
        """Apply what is pending (of one phase, or all) under a lock. Returns what this call has applied.

        Safe to call from several processes at once: one does the work, the others find it done.
        """
        ...

    async def grant_send(self, role: str) -> None:
        """Let a role of the database send calls and start workflows from SQL, and nothing else [O2].

        Raises:
            ConfigurationError: There is no such role, the schema lacks the functions, or SQL cannot send here.
        """
        ...


class Storage(Service):
    """One cluster's database: `start` connects and refuses a server that would break promises; `stop` disconnects."""

    kv: Kv
    states: StateStore
    executions: Executions
    ticks: TickStore
    units: UnitStore
    machines: MachineIds
    messages: MessageStore
    jobs: JobStore
    incoming: IncomingStore
    schedules: ScheduleStore
    run_messages: RunMessageStore
    pauses: PauseStore
    user_writes: UserWrites
    inspection: Inspection
    activity: Activity
    payloads: PayloadStore
    schema: Schema

    keyring: Keyring | None = None
    """Decrypts the values that `payloads` returns; None: this process has no keys. All else is decrypted already."""

    on_unreachable: Callable[[PersistenceError], None] | None = None
    """If set before `start`, an unreachable server is waited for, and this is called after each failed round of tries.
    None: `start` raises. Errors that a retry cannot fix (a wrong password, an unknown database) are always raised."""

    def ownership(self, incarnation: str) -> AbstractAsyncContextManager[Ownership]:
        """Open a dedicated session, with its lock held, for a runner of this incarnation, on the running loop.

        Raises:
            PersistenceError: It cannot be opened.
        """
        raise NotImplementedError

    def presence(self, incarnation: str) -> AbstractAsyncContextManager[object]:
        """Hold a runner's sign of life during the block, across all its sessions, where the kernel manages the locks.

        Where the database server manages them, they end with each session, and this does nothing.
        """
        del incarnation
        return nullcontext()

    def rename(self, incarnation: str) -> None:
        """Use another incarnation from now on, as the sessions report it to the server [M12]."""
        raise NotImplementedError

    async def view(self) -> ClusterSnapshot:
        """Read all runners and seats without a session; clients route by it."""
        raise NotImplementedError

    def transaction(self, *, limit_s: float) -> Transaction:
        """The user's own SQL. Opens no connection before its first statement."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        """Where the data is, safe to print: without the password."""
        raise NotImplementedError

    async def now(self) -> datetime:
        """The database's clock, which decides about leases, ticks and expiry."""
        raise NotImplementedError

    async def overdue(self, *, retention_s: float, key_retention_s: float) -> Mapping[str, float]:
        """For each table, how many seconds ago its oldest row should have been pruned; tables without such a row are
        left out. Of messages only the 1,000 oldest are considered."""
        raise NotImplementedError

    async def secret(self) -> bytes:
        """The cluster's secret, `SECRET_BYTES` random bytes. Keep it out of logs and errors.

        Promise:
            Drawn by the first process that needs it, durable before it is returned, and the same for all processes
            of the cluster from then on.
        """
        raise NotImplementedError
