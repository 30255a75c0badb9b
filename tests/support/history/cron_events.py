"""Events of crons, for histories: what was committed about ticks, and what their bodies saw. See `ownership`.

All instants are the database's, as its clock showed them in that very commit. Those who write histories give each event
its place in the order of commits; what bodies note stands where it was noted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from tests.support.history.ownership import Event

if TYPE_CHECKING:
    from datetime import datetime

    from coterie.cron.decide import TickPolicy
    from coterie.cron.schedule import Schedule


class TickKey(NamedTuple):
    """Which tick."""

    cron: str
    kind: str
    at: datetime
    seq: int = 0

    def __str__(self) -> str:
        number = f" number {self.seq}" if self.kind == "manual" else ""
        return f"{self.kind} tick {self.at:%H:%M:%S.%f} of {self.cron}{number}"


@dataclass(frozen=True)
class Plan:
    """What a cron says of itself."""

    schedule: Schedule
    policy: TickPolicy
    attempts: int = 1
    has_timeout: bool = False


@dataclass(frozen=True, slots=True)
class Defined(Event):
    """From an instant on the ticks of a cron are those of a schedule."""

    cron: str
    plan: Plan
    effective_from: datetime


@dataclass
class Plans:
    """What all crons say of themselves, as far as a history tells."""

    periods: dict[str, list[Defined]] = field(default_factory=dict)

    def learn(self, event: Event) -> None:
        """Take note of a definition."""
        if isinstance(event, Defined):
            self.periods.setdefault(event.cron, []).append(event)

    def of(self, cron: str, at: datetime) -> Plan:
        """By which a tick is judged: that of its instant. What is made up for may lie before them all."""
        periods = self.periods[cron]
        return next((each.plan for each in reversed(periods) if each.effective_from <= at), periods[0].plan)


@dataclass(frozen=True, slots=True)
class Given(Event):
    """A tick was claimed, or it and its neighbours were skipped for a reason."""

    cron: str
    at: datetime
    until: datetime
    count: int
    reason: str
    """Empty: it runs."""
    epoch: int
    attempt: int
    now: datetime
    commit: int
    """What was committed together has one number."""

    @property
    def key(self) -> TickKey:
        """Of the first of them."""
        return TickKey(self.cron, "scheduled", self.at)


@dataclass(frozen=True, slots=True)
class Triggered(Event):
    """Somebody wants a tick by hand."""

    key: TickKey


@dataclass(frozen=True, slots=True)
class Confirmed(Event):
    """Somebody was told that a tick by hand is stored."""

    key: TickKey


@dataclass(frozen=True, slots=True)
class Attempted(Event):
    """A tick is at another attempt, or has another holder."""

    key: TickKey
    epoch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Concluded(Event):
    """A tick has its outcome."""

    key: TickKey
    epoch: int
    attempt: int
    outcome: str
    now: datetime


@dataclass(frozen=True, slots=True)
class Rewritten(Event):
    """A tick that was over was changed, or removed before its time."""

    key: TickKey


@dataclass(frozen=True, slots=True)
class Paused(Event):
    """A cron was paused."""

    cron: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Resumed(Event):
    """A pause has ended."""

    cron: str
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Stepped(Event):
    """The database's clock was set."""

    by_s: float


@dataclass(frozen=True, slots=True)
class BodyBegan(Event):
    """A body began."""

    key: TickKey
    epoch: int
    attempt: int
    process: str


@dataclass(frozen=True, slots=True)
class BodyEnded(Event):
    """A body has ended: by itself, by an error, or because it was cancelled."""

    key: TickKey
    epoch: int
    attempt: int
    process: str
    how: Literal["returned", "raised", "cut"]


@dataclass(frozen=True, slots=True)
class Effect(Event):
    """What a body wrote under the fence was committed."""

    key: TickKey
    epoch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Quiet(Event):
    """Whatever was due by an instant, or triggered by then, should be over."""

    now: datetime
