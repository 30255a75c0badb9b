"""The storage contract of incoming work: calls and starts of workflows that SQL has written, until they are moved [O2].

    incoming ──▶ checked by a runner that has the type ──▶ a message, or a run of a workflow
                   │
                   └── it does not fit: a dead message, with the reason

The row is gone in the commit that stores what became of it, so it is moved once. A row whose key belongs to an earlier
message stays, with that message's id. Only PostgreSQL has such rows: a SQLite file is written by coterie alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, get_args

import msgspec

from coterie.storage.contracts.messages import Message  # noqa: TC001 likewise
from coterie.storage.contracts.units import UnitStart  # noqa: TC001 likewise

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from coterie.storage.interface import Claim

IncomingKind = Literal["call", "workflow"]
INCOMING_KINDS: tuple[IncomingKind, ...] = get_args(IncomingKind)

START = "(start)"
"""The method of a dead message that was to start a workflow. It is no call, and cannot be run again."""

COUNTED_MOST = 1_000
"""Up to which rows of one source are counted: who looks at them does not need to know more."""

Source = tuple[IncomingKind, str]
"""What a row is for: its kind, and the type of the entity or the name of the workflow."""


class IncomingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row that waits."""

    id: str
    """The id of the message that it becomes."""
    kind: IncomingKind
    type: str
    """The type of the entity, or the name of the workflow."""
    entity: str
    """The id of the entity, or of the run."""
    method: str
    args: str
    """JSON: the arguments by name, or the payload."""
    key: str | None
    due_s: float | None
    """When it may run, in seconds since 1970; None: at once."""

    @property
    def source(self) -> Source:
        """What it is for."""
        return self.kind, self.type


class MovedCall(msgspec.Struct, frozen=True):
    """A row that becomes a message."""

    message: Message
    """Its id is that of the row."""
    error: str | None = None
    """Why it is dead from the start; None: it is to run."""
    known: bytes | None = None
    """A digest, as it is stored, that is known to be of the same arguments: one told with a conflict."""


class MovedStart(msgspec.Struct, frozen=True):
    """A row that becomes a run of a workflow."""

    id: str
    start: UnitStart
    known: bytes | None = None
    """As `MovedCall.known`."""


class Move(msgspec.Struct, frozen=True):
    """What became of a row.

    moved     it is gone, and what it was to become is stored
    same      the key belongs to a message with the same arguments, or the id to a run with the same payload
    conflict  it belongs to one with others: nothing was written
    left      it is gone already, or another row with its key goes first: nothing was written
    """

    told: Literal["moved", "same", "conflict", "left"]
    other: str | None = None
    """The id of the message that has the key."""
    digest: bytes = b""
    """That of the other one as it is stored, if it is a conflict."""


class Found(msgspec.Struct, frozen=True):
    """A row that a caller asks for by its id."""

    kind: IncomingKind
    type: str
    same_as: str | None
    """The message that it is the same as; None: it waits."""
    entity: str
    """The id of the entity, or of the run."""
    method: str
    key: str | None
    sent_s: float
    """When it was written, in seconds since 1970."""


class WaitingIncoming(msgspec.Struct, frozen=True):
    """The row of one source that has waited longest."""

    kind: IncomingKind
    type: str
    id: str
    waited_s: float
    """Since it was written, which may be long before it was committed."""
    rows: int = 1
    """How many of its source wait, counted up to `COUNTED_MOST`."""


class IncomingStore(Protocol):
    """The incoming work of one cluster."""

    async def take(
        self, after: Mapping[Source, str], *, without: Collection[str] = (), most: int, most_bytes: int
    ) -> Sequence[IncomingRow]:
        """Return rows that wait, by id.

        Args:
            after: Only rows of these sources, each with an id after this one.
            without: Not these ids.
            most: The number of rows of each source.
            most_bytes: Of their arguments together; one row is returned however large it is.
        """
        ...

    async def move(self, claim: Claim, calls: Sequence[MovedCall]) -> Mapping[str, Move]:
        """Make messages of rows, under the fence. Returns what became of each, by its id.

        Raises:
            LeadershipLost: The seat is not held; nothing was written.
        """
        ...

    async def start(self, claim: Claim, starts: Sequence[MovedStart]) -> Mapping[str, Move]:
        """Make runs of rows, each run once, under the fence. See `move`."""
        ...

    async def find(self, id: str) -> Found | None:
        """Return the row of an id, or None."""
        ...

    async def cancel(self, id: str) -> bool:
        """Delete a row that waits. Returns False if there is none."""
        ...

    async def backlog(self, *, most: int) -> Sequence[WaitingIncoming]:
        """Return the longest waiting row of each of up to `most` sources, the longest first."""
        ...

    async def purge(self, *, older_s: float, most: int) -> int:
        """Delete up to `most` rows that are the same as a message and were written longer ago. Returns the number."""
        ...


class NoIncomingCalls:
    """That of an engine whose data nobody but coterie writes: there are no rows [C2]."""

    async def take(
        self, after: Mapping[Source, str], *, without: Collection[str] = (), most: int, most_bytes: int
    ) -> Sequence[IncomingRow]:
        """Nothing waits."""
        del after, without, most, most_bytes
        return ()

    async def move(self, claim: Claim, calls: Sequence[MovedCall]) -> Mapping[str, Move]:
        """Each row is gone."""
        del claim
        return {each.message.id: Move("left") for each in calls}

    async def start(self, claim: Claim, starts: Sequence[MovedStart]) -> Mapping[str, Move]:
        """Each row is gone."""
        del claim
        return {each.id: Move("left") for each in starts}

    async def find(self, id: str) -> None:
        """There is no such row."""
        del id

    async def cancel(self, id: str) -> bool:
        """There is no such row."""
        del id
        return False

    async def backlog(self, *, most: int) -> Sequence[WaitingIncoming]:
        """Nothing waits."""
        del most
        return ()

    async def purge(self, *, older_s: float, most: int) -> int:
        """Nothing is there."""
        del older_s, most
        return 0
