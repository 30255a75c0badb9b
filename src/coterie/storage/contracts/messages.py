"""The storage contract of messages: persisted calls, from their insert to their end.

    inserted ──▶ pending ──▶ done (with its reply)      kept for the retention time, then purged
                   │  ▲ └──▶ dead (set aside)           kept until it is retried or purged
                   └──┘
              a failed attempt, or put off: due again later

Rows are not claimed: the holder of the seat of a message's shard may run it (F4), and the fence decides whose result
counts. All instants are by the database's clock.
"""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import msgspec

from coterie.storage.contracts.schedules import TimerChange  # noqa: TC001 msgspec reads annotations at run time

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Mapping, Sequence

    from coterie.storage.contracts.jobs import JobEnd, NewJob
    from coterie.storage.contracts.units import UnitStart
    from coterie.storage.group_commit import Waiter
    from coterie.storage.interface import Claim

Status = Literal["pending", "done", "dead"]
STATUSES: tuple[Status, ...] = get_args(Status)
"""Indexed by the stored number."""

Mark = tuple[datetime, str]
"""A position in the order of a shard's messages: due time, then id."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """A persisted call, as its sender passes it."""

    id: str
    seat: str
    """The seat of its entity's shard."""
    entity_type: str
    entity_id: str
    method: str
    payload: bytes
    key: str | None = None
    """The key as stored: unique for (entity type, entity id, method) while the row exists [m9]."""
    digest: bytes = b""
    """A digest of the arguments: the same key with another digest is a conflict [M4]. Empty without a key."""
    due_at: datetime | None = None
    """When it may run; None: `delay_s` from now."""
    delay_s: float = 0.0
    trace_id: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    """Names, each once, and values."""

    @property
    def tags_text(self) -> str | None:
        """The tags as stored: a JSON object; None if there are none."""
        return msgspec.json.encode(dict(self.tags)).decode() if self.tags else None

    @property
    def is_immediate(self) -> bool:
        """Whether it is due as soon as it is stored."""
        return self.due_at is None and self.delay_s <= 0


class Insert(msgspec.Struct, frozen=True, gc=False):
    """Store a message, unless its key exists already [M4]. The result is a `Receipt`."""

    message: Message


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The stored message: the one passed, or the one that had the key before.

    An id that exists already comes from an earlier try of this insert whose outcome was unknown: it counts as fresh.
    """

    id: str
    fresh: bool
    due_at: datetime
    now: datetime
    """The database's clock."""
    status: Status = "pending"
    digest: bytes = b""
    reply: bytes | None = None


class StateChange(msgspec.Struct, frozen=True, gc=False):
    """The state that follows `version` (0: the first); a value of None deletes the row."""

    key: str
    value: bytes | None
    version: int


class Commit(msgspec.Struct, frozen=True, gc=False):
    """The writes of a handler, committed atomically under the fence (B3). The result is a `Committed`.

    They are the end of its message with the reply, the change of its entity's state, the messages and jobs that it
    sent, and the timers that it set or cancelled. Each part is optional: a volatile call has no message.
    """

    claim: Claim
    message: str | None = None
    reply: bytes = b""
    state: StateChange | None = None
    sends: tuple[Message, ...] = ()
    jobs: tuple[NewJob, ...] = ()
    timers: tuple[TimerChange, ...] = ()
    """One for each timer."""


Committed = Literal["written", "fenced", "gone", "stale", "taken", "cancelled"]
"""The result of a `Commit`, and of a transaction:

written    all of it is durable; also if an earlier try of the same commit, whose outcome was unknown, did it
fenced     the seat is no longer held
gone       its message is no longer pending: done by another holder, dead or cancelled
stale      the state has another version
taken      a message or job that it sends has a key that another one uses
cancelled  the job that a transaction ends was cancelled meanwhile; never of a `Commit`
"""


class Setback(msgspec.Struct, frozen=True, gc=False):
    """A failed attempt, under the fence: count it, store its error, and retry later or set the message aside as dead.

    Or one that is put off: due again later, and nothing is counted. The result is a `Suffered`. `attempt` is the number
    of this attempt, from 1: written twice, it counts once, and what is put off is so only until it is counted.
    """

    claim: Claim
    message: str
    attempt: int
    error: str | None
    """Counted as a failure and kept; None: it was put off, which needs a delay."""
    again_s: float | None
    """The delay before the next attempt; None: no further attempt, the message is dead."""

    def __post_init__(self) -> None:
        assert self.error is not None or self.again_s is not None, f"{self.message} is put off for ever"


Suffered = Literal["written", "fenced", "gone"]
"""The result of a `Setback`. gone: its message is not pending, or was to be put off and has a later failure."""


class PendingMessages(msgspec.Struct, frozen=True, gc=False):
    """A pending message, as a poll sees it."""

    seat: str
    id: str
    due_at: datetime
    entity_type: str
    entity_id: str


class Due(msgspec.Struct, frozen=True, gc=False):
    """The result of a poll, in order of seat, then due time, then id."""

    now: datetime
    rows: tuple[PendingMessages, ...]
    paused_types: tuple[str, ...] = ()
    """Entity types of which nothing is begun, as of this poll; `rows` has their messages as well."""
    paused_groups: tuple[str, ...] = ()


class LateReply(PendingMessages, frozen=True, gc=False):
    """A pending message that is due."""

    method: str


class Backlog(msgspec.Struct, frozen=True, gc=False):
    """Pending and dead messages of the whole cluster, for health checks."""

    now: datetime
    late: tuple[LateReply, ...]
    """The longest due message of each seat, the longest due first."""
    dead: int


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A pending message to run."""

    id: str
    seat: str
    entity_type: str
    entity_id: str
    method: str
    payload: bytes
    key: str | None
    due_s: float
    """When it may run, in seconds since 1970."""
    attempts: int
    """The number of failed attempts."""
    trace_id: str | None
    suspicion: int = 0
    """A `Suspicion`."""
    losses: int = 0
    """How often its runner was lost while it ran it alone."""


class Suspicion(IntEnum):
    """What is known of a message that was pending when the holder of its seat was lost [C5]."""

    NONE = 0
    SUSPECT = 1
    """It may have been running then: it is run alone, not beside other suspects."""
    ALONE = 2
    """It was begun alone, under the epoch in its row. If that holder is lost as well, it counts a loss."""
    BESIDE = 3
    """It was begun alone, and another suspect was begun while it ran: either may cause the loss of the process."""


class Loss(msgspec.Struct, frozen=True, gc=False):
    """A message whose runner was lost while it ran it alone."""

    id: str
    entity_type: str
    entity_id: str
    method: str
    losses: int
    is_dead: bool
    """Whether it has reached the limit of losses and is set aside."""


class Suspected(msgspec.Struct, frozen=True, gc=False):
    """The result of examining the messages of a lost holder."""

    suspects: int
    """The number of messages that became suspects."""
    lost: tuple[Loss, ...]


class Attempt(msgspec.Struct, frozen=True):
    """A failed attempt."""

    number: int
    at: datetime
    error: str


class MessageRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message with all its columns."""

    id: str
    seat: str
    entity_type: str
    entity_id: str
    method: str
    status: Status
    key: str | None
    sent_at: datetime
    due_at: datetime
    completed_at: datetime | None
    """When it was done, or set aside as dead."""
    attempts: int
    errors: tuple[Attempt, ...]
    """The errors of the last failed attempts (a bounded number), the oldest first."""
    payload: bytes
    reply: bytes | None
    trace_id: str | None
    losses: int = 0
    """How often its runner was lost while it ran it alone."""
    tags: dict[str, str] = msgspec.field(default_factory=dict)


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects messages; fields that are None do not restrict it."""

    status: Status | None = None
    entity_type: str | None = None
    entity_id: str | None = None
    method: str | None = None
    older_than_s: float | None = None
    """Minimum age since it was sent, or, if it has ended, since its end."""
    tag: tuple[str, str] | None = None
    """A name and a value. Only lists are restricted by it."""


class Transaction(Protocol):
    """The user's own SQL, with `$1` parameters, committed together with a handler's writes.

    It has its own connection, opened by its first statement. From then on it must be committed within `limit_s`; after
    that every call raises `TransactionTimeout`, and it is rolled back. On SQLite the first statement that writes takes
    the write lock [C3].
    """

    async def execute(self, sql: str, /, *params: Any) -> int:
        """Return the number of rows changed."""
        ...

    async def fetch(self, sql: str, /, *params: Any) -> Sequence[Mapping[str, Any]]:
        """Return the rows, by column name."""
        ...

    def start(self, start: UnitStart, *, then: Callable[[], object]) -> None:
        """Start a workflow with the commit; `then` is called after that.

        Raises:
            KeyConflict: This transaction already starts a workflow with this id and another payload.
        """
        ...

    def send(self, message: Message, *, then: Callable[[], object]) -> None:
        """Send a message with the commit; `then` is called after that. Its key must not be that of another one of
        `sends`."""
        ...

    @property
    def sends(self) -> Sequence[Message]:
        """The messages that it sends so far."""
        ...

    def add_job(self, job: NewJob, *, then: Callable[[], object]) -> None:
        """Store a job with the commit; `then` is called after that. Its key must not be that of another one of
        `jobs`."""
        ...

    @property
    def jobs(self) -> Sequence[NewJob]:
        """The jobs that it stores so far."""
        ...

    async def commit(self, write: Commit | JobEnd | None) -> Committed:
        """Commit with the writes of a handler or job, if there are any; any result but "written" means rolled back.

        The workflows, the fence, the messages and the jobs are the last statements before the commit [M3]. A commit
        whose outcome is unknown raises; `MessageStore.commit` of the same write then tells: "gone" for a message that
        this commit ended means "written". A job that was cancelled meanwhile has not ended by this: `JobStore.end`
        ends it.

        Raises:
            KeyConflict: There is a run with the id of a workflow that it starts, and another payload.
            PersistenceError: Among others: a key of `sends` or `jobs` was used meanwhile.
        """
        ...

    async def rollback(self) -> None:
        """Roll back. Never raises."""
        ...


class MessageStore(Protocol):
    """The messages of one cluster."""

    def insert(self, message: Message) -> Future[Receipt]:
        """Store a message. Concurrent inserts share transactions. Returns a future (`GroupWriter.submit`): no task."""
        ...

    def commit(self, write: Commit) -> Future[Committed]:
        """Durable when it results in "written". Concurrent commits share transactions; each is independent [M3]."""
        ...

    def save(self, write: Insert | Commit, waiter: Waiter) -> None:
        """Insert or commit; `waiter` receives the result, without a future (`GroupWriter.post`)."""
        ...

    def setback(self, write: Setback) -> Future[Suffered]:
        """See `Setback`."""
        ...

    async def due(self, after: Mapping[str, Mark | None], *, ahead_s: float = 0.0, most: int) -> Due:
        """Of each of these seats the first `most` pending messages after a mark that are due within `ahead_s`."""
        ...

    async def backlog(self, *, most: int, dead_most: int) -> Backlog:
        """Return the longest due message of up to `most` seats, also undeclared ones, and the number of dead messages.

        Cheap however many messages are done: a few steps for each seat with pending messages. The dead are counted
        among the first `dead_most` that have failed, so there may be more.
        """
        ...

    async def fetch(self, ids: Sequence[str]) -> Sequence[Delivery]:
        """Return those of these messages that are pending, in no order."""
        ...

    async def suspect(self, claim: Claim, concurrency: Mapping[str, int], *, loss_limit: int) -> Suspected:
        """Examine what may have been running when the previous holder was lost [C5], under the fence.

        A message the lost holder had begun alone counts a loss; at `loss_limit` losses it is set aside as dead. Of
        each entity of these types the first due pending messages, as many as run concurrently, become suspects.
        Messages stored or due after the loss do not: they cannot have been running. Idempotent.

        Args:
            claim: The claim of the present holder.
            concurrency: How many messages of an entity run concurrently, by entity type.
            loss_limit: The number of losses that sets a message aside.
        """
        ...

    async def mark(self, claim: Claim, id: str, suspicion: Suspicion) -> bool:
        """Record how a suspect will run, before it runs, under the fence. False: not pending, or seat not held."""
        ...

    async def look(self, ids: Sequence[str]) -> Sequence[MessageRow]:
        """Return these messages; those that do not exist (any more) are left out."""
        ...

    async def find(self, entity_type: str, entity_id: str, method: str, key: str) -> Receipt | None:
        """Return the message that has a key, or None."""
        ...

    async def cancel(self, id: str, claim: Claim | None, *, reply: bytes) -> bool:
        """End a pending message without running it. Its key may be used again. Returns False if there is none.

        Args:
            id: The message's id.
            claim: With a claim it happens only under the fence; without one only if the seat is free, since a holder
                may be running the message.
            reply: The reply to store, which says that it was cancelled.
        """
        ...

    async def list(
        self, chosen: MessageFilter, *, after: str | None = None, most: int = 100, newest: bool = False
    ) -> Sequence[MessageRow]:
        """Return messages after the id `after`, in order of their ids, which is about the order of sending; with
        `newest` in the reverse order."""
        ...

    async def revive(self, *, id: str | None = None, entity_type: str = "", entity_id: str = "") -> int:
        """Make a dead message, or all dead ones of an entity, pending again, due now, without failures.

        Pending messages of that entity that wait for another attempt become due, too. Returns the number revived.
        """
        ...

    async def remove(self, chosen: MessageFilter, *, most: int) -> int:
        """Delete up to `most` messages that are done or dead (never pending ones). Returns the number deleted."""
        ...

    async def count(self, chosen: MessageFilter, *, most: int) -> int:
        """Count the messages, up to `most`."""
        ...

    async def discard(self, ids: Sequence[str], status: Status) -> int:
        """Delete those of these messages that have this final status. Returns the number deleted."""
        ...

    async def purge(self, *, after: str, retention_s: float, key_retention_s: float, most: int) -> tuple[int, str]:
        """Delete messages that were done longer ago than that, among the next `most` ids after `after` [m17].

        Returns:
            The number deleted, and the id to continue after: empty when the end, or a message too young, was reached.
            Dead and pending messages stay.
        """
        ...
