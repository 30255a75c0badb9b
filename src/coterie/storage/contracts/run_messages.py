"""The storage contract of what is sent to a run of a workflow, and of what it publishes (W6, W7).

    send ──▶ waits ──▶ received: the row of the step that took it has its value
    publish ──▶ the row of its step, and the next number of its name: the last 1,000 of each name stay

What is sent waits in the inbox of a name of a run, in the order of the commits, also before the run begins. A receive
and the row of its step are one commit; so are a publication and the row of its step. Both belong to the run, not to one
of its lives, and go with the row of the run.

No wake-up is lost: the statement that suspends a unit locks the inboxes it waits for while it finds them empty, and a
send writes the same row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from coterie.storage.contracts.units import StepResult, UnitStatus
    from coterie.storage.interface import Claim

PUBLISHED_MOST = 1_000
"""How many values of one name stay."""


class RunMessage(msgspec.Struct, frozen=True):
    """Something to send to a run of a workflow."""

    unit: str
    name: str
    id: str
    """It is stored once for each id; a key makes the id."""
    value: bytes
    digest: bytes = b""
    """A digest of the value, where there is a key."""


class RunMessageSent(msgspec.Struct, frozen=True, gc=False):
    """The result of a send.

    sent   it is stored
    there  it was stored before, with this digest; perhaps by this very send, tried before
    over   the run has ended
    """

    told: Literal["sent", "there", "over"]
    digest: bytes = b""
    wake: str | None = None
    """The seat of the run, if it has begun."""
    status: UnitStatus | None = None
    """How it has ended."""


class Receive(msgspec.Struct, frozen=True):
    """Take the oldest message of a name into a step, or wait. The result is a `StepResult`."""

    claim: Claim
    unit: str
    branch: str
    position: int
    name: str
    due_s: float | None
    """After how long the wait times out, from its first call."""
    late: bytes
    """The error to store then."""
    runner: str
    life: int | None = None
    """The life it belongs to: it is not stored in another one. None: whichever there is."""


class Publish(msgspec.Struct, frozen=True):
    """Publish a value at a place. The result is a `StepResult`."""

    claim: Claim
    unit: str
    branch: str
    position: int
    name: str
    value: bytes
    runner: str
    life: int | None = None
    """The life it belongs to: it is not stored in another one. None: whichever there is."""


class RaceEnd(msgspec.Struct, frozen=True):
    """Store who has won a race, and give back what the other side has received. The result is a `StepResult`."""

    claim: Claim
    unit: str
    branch: str
    position: int
    name: str
    value: bytes
    runner: str
    received: tuple[tuple[str, int], ...]
    """The branches and positions of the steps whose messages wait again, in their old order."""
    life: int | None = None
    """The life it belongs to: it is not stored in another one. None: whichever there is."""


class PublishedRow(msgspec.Struct, frozen=True, gc=False):
    """A value that a run has published."""

    seq: int
    """The first one of a name is 1."""
    value: bytes
    at: datetime


class WaitingMessages(msgspec.Struct, frozen=True, gc=False):
    """What was sent to a run under a name, and that it has not received."""

    name: str
    count: int
    since_at: datetime
    """When the oldest one was sent."""


class RunMessageStore(Protocol):
    """The inboxes of the runs of one cluster, and what they publish."""

    async def send(self, message: RunMessage) -> RunMessageSent:
        """Store a message for a run that has not ended, and make the run running. Durable when it returns."""
        ...

    async def receive(self, write: Receive) -> StepResult:
        """Store a step that has taken the oldest message of its name; or, once it is due, the error of its time-out; or
        that it waits, until there is a message. "there": the step is stored, done or waiting as in `row`."""
        ...

    async def publish(self, write: Publish) -> StepResult:
        """Store a value and its step, unless the step is stored."""
        ...

    async def give_back(self, write: RaceEnd) -> StepResult:
        """Store a step, and let the messages of others wait again, unless the step is stored."""
        ...

    async def published(self, unit: str, name: str, *, after: int | None, most: int) -> Sequence[PublishedRow]:
        """Return the next values after a number, in order; None: the last one alone."""
        ...

    async def published_names(self, unit: str, *, most: int) -> Sequence[tuple[str, PublishedRow]]:
        """Return the names under which a run has published, each with its last value, by name."""
        ...

    async def waiting(self, unit: str, *, most: int) -> Sequence[WaitingMessages]:
        """Return what was sent to a run and waits, by name."""
        ...

    async def purge(self, *, older_s: float, most: int) -> int:
        """Delete up to `most` of each kind that are older than that: what was sent to runs that never began, and what
        was received. Returns the larger number."""
        ...
