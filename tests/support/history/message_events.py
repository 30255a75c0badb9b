"""What histories of messages are made of, beside the events of `ownership`.

They are judged by `message_checkers` and `turn_checkers`. Instants are true ones, of the simulator or of the machine,
but for `due_ns` and `by_clock_ns`, which are the database's.

    Sent(message, entity, sender, …)        what a sender was told of a send; its own in the order in which it was told
    Began(message, entity, epoch, …)        a handler began with a message
    Over(message, entity, epoch)            … and came to an end, whatever became of it; a killed one never does
    Completed(message, entity, epoch, …)    committed: the message is done, with its reply
    Died(message, attempts, losses)         committed: the message was set aside
    Revived(message), Cancelled(message)    committed: somebody wanted it so
    Counted(entity, value)                  committed: the entity's state, a number to which its messages add
    Replied(message, reply)                 what a caller was told, at any time
    Left(message, status, …)                a row of the table when everything was over; a cancelled one is left, too
    Disturbed(from_ns, until_ns)            something failed: what was on its way may come in another order
    Gauge(what, value, most)                how much there was of something that has a bound

What was committed comes in commit order, best from triggers inside the database; `Began` and `Over` in the order of
instants; `RunnerLeft` last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tests.support.history.ownership import Event

if TYPE_CHECKING:
    from coterie.storage.contracts.messages import Status


@dataclass(frozen=True, slots=True)
class Sent(Event):
    """What a sender was told of a send: the id that it got (of an earlier message, if that had the key)."""

    message: str
    entity: str
    sender: str = ""
    key: str = ""
    """As the user sees it, with the method; empty: none."""
    outcome: Literal["ok", "failed", "unknown"] = "ok"
    from_ns: int = 0
    """When the sender began to send."""
    due_ns: int = 0
    """When it may run, if that was given."""


@dataclass(frozen=True, slots=True)
class Began(Event):
    """A handler began with a message."""

    message: str
    entity: str
    epoch: int
    attempt: int = 1
    at_ns: int = 0
    by_clock_ns: int = 0


@dataclass(frozen=True, slots=True)
class Over(Event):
    """A handler came to an end, and its commit, if there was one, is known."""

    message: str
    entity: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Completed(Event):
    """A message was committed as done."""

    message: str
    entity: str
    epoch: int
    reply: object = None
    adds: int = 0
    """By how much it changed the state, as its reply says; 0 for a failure that was declared."""
    at_ns: int = 0


@dataclass(frozen=True, slots=True)
class Died(Event):
    """A message was set aside."""

    message: str
    attempts: int
    losses: int = 0
    """How often its runner was lost when it ran this message alone."""


@dataclass(frozen=True, slots=True)
class Revived(Event):
    """A dead message was made pending again, without attempts."""

    message: str


@dataclass(frozen=True, slots=True)
class Cancelled(Event):
    """A pending message was taken back: its row says so, in the name of no epoch."""

    message: str


@dataclass(frozen=True, slots=True)
class Counted(Event):
    """The state of an entity was committed."""

    entity: str
    value: int
    at_ns: int = 0


@dataclass(frozen=True, slots=True)
class Replied(Event):
    """A caller was told the reply of a message."""

    message: str
    reply: object


@dataclass(frozen=True, slots=True)
class Left(Event):
    """A message as it was found when everything was over."""

    message: str
    status: Status | Literal["cancelled"]
    attempts: int = 0
    reply: object = None
    losses: int = 0


@dataclass(frozen=True, slots=True)
class Disturbed(Event):
    """Something failed, and from when until when that may have mattered."""

    from_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True)
class Gauge(Event):
    """How much there was of something."""

    what: str
    value: float
    most: float
