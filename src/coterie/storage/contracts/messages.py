"""What the rest of coterie may ask of a database about messages: stored calls, from their insert to their end.

    inserted ──▶ pending ──▶ done (with its reply)      kept for the retention time, then purged
                   │  ▲ └──▶ dead (set aside)           kept until somebody retries or purges it
                   └──┘
              a failed attempt: due again later

Nothing claims a row: who holds the seat of a message's shard may run it (F4), and the fence decides whose end of it
counts. All instants are the database's.
"""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Mapping, Sequence

    from coterie.storage.contracts.units import UnitStart
    from coterie.storage.group_commit import Waiter
    from coterie.storage.interface import Claim

Status = Literal["pending", "done", "dead"]

Mark = tuple[datetime, str]
"""A place in the order of a shard's messages: when it is due, then its id."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """A stored call, as its sender gives it."""

    id: str
    seat: str
    """Of the shard on which its entity lives."""
    entity_type: str
    entity_id: str
    method: str
    payload: bytes
    key: str | None = None
    """As it is stored: unique for (entity type, entity id, method) while the row is there [m9]."""
    digest: bytes = b""
    """Of the arguments: the same key with another digest is a conflict [M4]. Empty without a key."""
    due_at: datetime | None = None
    """When it may run; None: `delay_s` from now."""
    delay_s: float = 0.0
    trace_id: str | None = None

    @property
    def is_immediate(self) -> bool:
        """Whether it is due as soon as it is stored."""
        return self.due_at is None and self.delay_s <= 0


class Insert(msgspec.Struct, frozen=True, gc=False):
    """Store a message, unless its key is there already [M4]. The result is a `Receipt`."""

    message: Message


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The message that is stored: the one given, or the one that had the key before.

    An id that is there already is one's own, from an earlier try whose outcome was unknown: it counts as fresh.
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
    """What a handler leaves behind, all of it or nothing, under the fence (B3). The result is a `Committed`.

    The end of its message with the reply, the change of its entity's state, and the messages that it sent. Each part
    may be missing: a volatile call has no message.
    """

    claim: Claim
    message: str | None = None
    reply: bytes = b""
    state: StateChange | None = None
    sends: tuple[Message, ...] = ()


Committed = Literal["written", "fenced", "gone", "stale", "taken"]
"""Of a `Commit`:

written  all of it is durable; also if an earlier try of the same commit did it, whose outcome was unknown
fenced   the seat is not held any more
gone     its message is not pending any more: done by somebody else, dead, cancelled
stale    the state has another version
taken    a message that it sends has a key that is in use by another message
"""


class Setback(msgspec.Struct, frozen=True, gc=False):
    """An attempt has failed, under the fence: count it, keep its error, and try again later or set it aside as dead.

    The result is a `Suffered`. `attempt` is the number of this one, from 1: written twice, it counts once.
    """

    claim: Claim
    message: str
    attempt: int
    error: str
    again_s: float | None
    """How long to wait before the next attempt; None: there is none, it is dead."""


Suffered = Literal["written", "fenced", "gone"]


class PendingMessages(msgspec.Struct, frozen=True, gc=False):
    """A pending message, as a sweep sees it."""

    seat: str
    id: str
    due_at: datetime
    entity_type: str
    entity_id: str


class Due(msgspec.Struct, frozen=True, gc=False):
    """What a sweep found, in order of seat, then due time, then id."""

    now: datetime
    rows: tuple[PendingMessages, ...]


class LateReply(msgspec.Struct, frozen=True, gc=False):
    """A pending message whose time has come."""

    seat: str
    id: str
    due_at: datetime
    entity_type: str
    entity_id: str
    method: str


class Backlog(msgspec.Struct, frozen=True, gc=False):
    """What waits, and what was given up, as those see it who judge the whole."""

    now: datetime
    late: tuple[LateReply, ...]
    """Of each seat the one that has been due longest; those that have been due longest first."""
    dead: int


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A pending message, to be run."""

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
    """That failed."""
    trace_id: str | None
    suspicion: int = 0
    """A `Suspicion`."""
    losses: int = 0
    """How often its runner was lost after it had begun it alone."""


class Suspicion(IntEnum):
    """What is known of a message that was pending when the holder of its seat was lost [C5]."""

    NONE = 0
    SUSPECT = 1
    """It may have been running then: it is begun alone, not beside other suspects."""
    ALONE = 2
    """It was begun alone, under the epoch in its row. If that holder is lost, too, it counts a loss."""
    BESIDE = 3
    """It was begun alone, and another suspect was begun while it ran: nobody knows of which one a process dies."""


class Loss(msgspec.Struct, frozen=True, gc=False):
    """A message that was begun alone, and whose runner was lost then."""

    id: str
    entity_type: str
    entity_id: str
    method: str
    losses: int
    is_dead: bool
    """Whether it was the last time that it may happen: it is set aside."""


class Suspected(msgspec.Struct, frozen=True, gc=False):
    """What came of a look at the messages of a holder that was lost."""

    suspects: int
    """How many messages became suspects."""
    lost: tuple[Loss, ...]


class Attempt(msgspec.Struct, frozen=True):
    """One attempt that failed."""

    number: int
    at: datetime
    error: str


class MessageRow(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known about a message."""

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
    """Of each failed attempt, the first one first; a bounded number, the last ones."""
    payload: bytes
    reply: bytes | None
    trace_id: str | None
    losses: int = 0
    """How often its runner was lost after it had begun it alone."""


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages; what is None does not matter."""

    status: Status | None = None
    entity_type: str | None = None
    entity_id: str | None = None
    method: str | None = None
    older_than_s: float | None = None
    """Since it was sent, or, if it has ended, since then."""


class Transaction(Protocol):
    """SQL of the user's own, with `$1` parameters, committed together with what a handler leaves behind.

    It has a connection of its own, opened at its first statement. From then on it has `limit_s` until it is committed;
    later everything raises `TransactionTimeout`, and it is rolled back. On SQLite the first statement that writes takes
    the write lock [C3].
    """

    async def execute(self, sql: str, /, *params: Any) -> int:
        """How many rows it changed."""
        ...

    async def fetch(self, sql: str, /, *params: Any) -> Sequence[Mapping[str, Any]]:
        """The rows, by the names of their columns."""
        ...

    def start(self, start: UnitStart, *, then: Callable[[], object]) -> None:
        """Have a workflow started by its commit; `then` is called after that.

        Raises:
            KeyConflict: It starts one of this id already, with another payload.
        """
        ...

    async def commit(self, write: Commit) -> Committed:
        """Commit it with the handler's own writes; anything but "written" has rolled back.

        The workflows, the fence and the messages are the last statements before the commit [M3]. A commit whose
        outcome is unknown raises; asking again with `MessageStore.commit` tells: "gone" of a message that this commit
        ended is "written".

        Raises:
            KeyConflict: There is a run with the id of a workflow that it starts, and another payload.
        """
        ...

    async def rollback(self) -> None:
        """Undo all of it. Never raises."""
        ...


class MessageStore(Protocol):
    """The messages of one cluster."""

    def insert(self, message: Message) -> Future[Receipt]:
        """Store a message. Concurrent ones share transactions. A future (`GroupWriter.submit`): it needs no task."""
        ...

    def commit(self, write: Commit) -> Future[Committed]:
        """Durable when it says "written". Concurrent ones share transactions; members are independent [M3]."""
        ...

    def save(self, write: Insert | Commit, waiter: Waiter) -> None:
        """Either, for calls and the ends of handlers: `waiter` is told, without a future (`GroupWriter.post`)."""
        ...

    def setback(self, write: Setback) -> Future[Suffered]:
        """See `Setback`."""
        ...

    async def due(self, after: Mapping[str, Mark | None], *, ahead_s: float = 0.0, most: int) -> Due:
        """Of each of these seats the first `most` pending messages past a mark that are due within `ahead_s`."""
        ...

    async def backlog(self, *, most: int, dead_most: int) -> Backlog:
        """The longest due message of each seat, `most` of them, also of seats that nobody declared; how many are dead.

        It costs little, however many are done: some steps for each seat with pending messages, and the dead are counted
        among the first `dead_most` that have failed, so that there may be more.
        """
        ...

    async def fetch(self, ids: Sequence[str]) -> Sequence[Delivery]:
        """Those of these messages that are pending, in no order."""
        ...

    async def suspect(self, claim: Claim, concurrency: Mapping[str, int], *, loss_limit: int) -> Suspected:
        """Judge what may have been running when the holder before was lost [C5], under the fence.

        What that holder had begun alone counts a loss; at `loss_limit` losses it is set aside as dead. Of each entity
        of these types the first due pending messages, as many as run at once, become suspects. What was stored, or
        fell due, after the loss does not: it cannot have been running. Done twice, nothing is counted twice.

        Args:
            claim: Of the present holder.
            concurrency: How many messages of an entity run at once, by entity type.
            loss_limit: How many losses set a message aside.
        """
        ...

    async def mark(self, claim: Claim, id: str, suspicion: Suspicion) -> bool:
        """Note how a suspect is begun, before it is, under the fence; False: it is not pending, or not ours."""
        ...

    async def look(self, ids: Sequence[str]) -> Sequence[MessageRow]:
        """What is known about these messages; those that are not there (any more) are missing."""
        ...

    async def find(self, entity_type: str, entity_id: str, method: str, key: str) -> Receipt | None:
        """The message that has a key."""
        ...

    async def cancel(self, id: str, claim: Claim | None, *, reply: bytes) -> bool:
        """End a pending message without running it; False: there is none. Its key may be used again.

        Args:
            id: Which one.
            claim: With one it happens only under the fence, without only if nobody holds its seat: a holder may be
                at it.
            reply: What its row says from then on: that it was cancelled.
        """
        ...

    async def list(self, chosen: MessageFilter, *, after: str | None = None, most: int = 100) -> Sequence[MessageRow]:
        """Messages in order of their ids, which is about the order in which they were sent, past the id `after`."""
        ...

    async def revive(self, *, id: str | None = None, entity_type: str = "", entity_id: str = "") -> int:
        """Make a dead message, or all dead ones of an entity, pending again, due now, with no failures; how many.

        Pending ones of that entity that wait for another attempt are due now, too.
        """
        ...

    async def remove(self, chosen: MessageFilter, *, most: int) -> int:
        """Delete up to `most` messages that are done or dead (never pending ones); how many it were."""
        ...

    async def count(self, chosen: MessageFilter, *, most: int) -> int:
        """How many messages there are, counted up to `most`."""
        ...

    async def discard(self, ids: Sequence[str], status: Status) -> int:
        """Delete those of these messages that have ended so (never pending ones); how many it were."""
        ...

    async def purge(self, *, after: str, retention_s: float, key_retention_s: float, most: int) -> tuple[int, str]:
        """Delete what was done longer ago than that, among the next `most` ids past `after` [m17].

        Returns:
            How many it were, and the id to go on after: empty when the end, or what is too young, was reached.
            Dead and pending ones stay.
        """
        ...
