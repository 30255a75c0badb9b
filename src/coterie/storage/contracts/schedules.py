"""The storage contract of schedules and of entities' timers: one row each, on a shard, fired by the shard's holder.

    put ──▶ waiting until next_at ──▶ fired: its messages are stored, and next_at moves, in one commit ──▶ … ──▶ over
              │  ▲
              ▼  │
            paused

A row is changed by whoever likes, and fired by the holder of its shard's seat. Each change counts its stamp up, and a
fire names the life and the stamp that it has seen: of two the first wins, and the other one reads again. All instants
are by the database's clock.
"""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 msgspec reads annotations at run time
from typing import TYPE_CHECKING, Literal, Protocol, Self

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from coterie.storage.contracts.jobs import NewJob
    from coterie.storage.contracts.messages import Message
    from coterie.storage.interface import Claim

SCHEDULE, TIMER = "schedule/", "timer/"
"""How the keys of both kinds begin."""


def schedule_key(name: str) -> str:
    """The key of a schedule."""
    return SCHEDULE + name


def timer_key(entity_type: str, entity_id: str, name: str) -> str:
    """The key of a timer of an entity. Neither a type nor the name of a timer has a slash."""
    return f"{TIMER}{entity_type}/{entity_id}/{name}"


def end_of(prefix: str) -> str:
    """The first text after all those that begin so, in the order of databases.

    >>> end_of("schedule/")
    'schedule0'
    """
    kept = prefix.rstrip("\U0010ffff")
    return kept[:-1] + ("\ue000" if kept[-1] == "\ud7ff" else chr(ord(kept[-1]) + 1))


class ScheduledJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=False):
    """What a job of a schedule has beside its task and arguments."""

    group: str
    queue: str | None = None
    """None: its task has no queue."""
    part: str
    fingerprint: str
    priority: int = 0
    age_s: float = 3600.0


class ScheduleTerms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=False):
    """When it is due, and what happens to instants that are missed: the words of crons."""

    schedule: str = ""
    """As of a cron; empty: once, at `at`."""
    timezone: str = "UTC"
    at: datetime | None = None
    start: datetime | None = None
    end: datetime | None = None
    catch_up: str = "latest"
    overlap: str = "allow"
    skip_if_older_than_s: float | None = None
    delay_s: float = 0.0
    """How long after its instant it is due: its share of the jitter."""
    job: ScheduledJob | None = None
    """Of a schedule that sends jobs of a task; None: it calls an entity."""

    def encode(self) -> str:
        """As it is stored."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str) -> Self:
        """From what is stored.

        Raises:
            msgspec.MsgspecError: It was stored by a later version, in another form.
        """
        return msgspec.json.decode(text, type=cls)


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule or timer as it is put."""

    key: str
    seat: str
    """The seat of its shard."""
    life: int
    """Drawn at random for each new content, so that nothing it sends is mistaken for what an earlier one has sent."""
    definition: str
    """Its `ScheduleTerms`, encoded."""
    target: str
    """The seat of the message that it sends; empty for jobs."""
    entity_type: str
    """Empty: it sends jobs."""
    entity_id: str
    method: str
    """The rpc, or the task."""
    payload: bytes
    since_at: datetime
    """From when it counts: instants before are never due. The anchor of an interval."""
    next_at: datetime | None
    """When it is to be looked at next; None: it is over."""

    @property
    def calls(self) -> str:
        """What it calls, for people: `Account/alice.add`, or the name of a task."""
        return f"{self.entity_type}/{self.entity_id}.{self.method}" if self.entity_type else self.method


class ScheduleRow(NewSchedule, frozen=True, kw_only=True):
    """A stored schedule or timer."""

    stamp: int
    """Counts the changes of this life."""
    last_at: datetime | None = None
    """The last instant that has a verdict."""
    last_id: str | None = None
    """The last message or job that it has sent."""
    paused_at: datetime | None = None
    outcomes: str = "[]"
    """The last verdicts, as JSON."""
    is_busy: bool = False
    """Whether that is not over."""

    @property
    def mark(self) -> ScheduleMark:
        """What identifies this state of the row."""
        return self.life, self.stamp


ScheduleMark = tuple[int, int]
"""The life and the stamp of a row."""


class TimerChange(msgspec.Struct, frozen=True):
    """A timer that a handler sets or cancels with its commit."""

    key: str
    timer: NewSchedule | None
    """None: it is cancelled."""


class DueSchedules(msgspec.Struct, frozen=True):
    """The rows of some seats that are due."""

    now: datetime
    rows: tuple[ScheduleRow, ...]
    later: Mapping[str, datetime]
    """For each seat when the first of the others is due; seats without others are left out."""
    unreadable: tuple[str, ...] = ()
    """The keys of due rows that cannot be read."""


class Fire(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a row that is due: its messages or jobs are sent and it moves on, or nothing of it happens."""

    claim: Claim
    key: str
    mark: ScheduleMark
    """The state of the row that this was decided about."""
    due_at: datetime | None
    """When the last instant with a verdict was due; None: there is none, it is only to be looked at later."""
    next_at: datetime | None
    last_at: datetime | None
    last_id: str | None
    outcomes: str
    is_over: bool = False
    """Whether the row is deleted: a timer that has fired for the last time."""
    asks: str | None = None
    """The message or job that must be over for this to happen."""
    sends: tuple[Message, ...] = ()
    jobs: tuple[NewJob, ...] = ()


Fired = Literal["written", "fenced", "changed", "early", "busy"]
"""The result of a `Fire`:

written  all of it is durable
fenced   the seat is no longer held
changed  the row is another one by now: put anew, paused, removed, or fired
early    the database's clock has not come so far
busy     the message or job that it asks for is not over
"""


class ScheduleStore(Protocol):
    """The schedules and timers of one cluster. Handlers set timers with their commits (`contracts.messages.Commit`)."""

    async def due(self, seats: Sequence[str], *, without: Collection[str] = (), most: int) -> DueSchedules:
        """Return the rows of these seats that are due, the longest due first, at most so many of each.

        Args:
            seats: The seats.
            without: Keys of rows to be left out.
            most: Rows of each seat.
        """
        ...

    async def fire(self, fires: Sequence[Fire]) -> Sequence[Fired]:
        """Fire rows under the fence, in one commit; each is written as a whole or not at all. One runner's claims."""
        ...

    async def get(self, key: str) -> ScheduleRow | None:
        """Return one row, or None."""
        ...

    async def list(self, prefix: str, *, after: str = "", most: int) -> Sequence[ScheduleRow]:
        """Return the rows whose keys begin so, in the order of their keys, after the key `after`."""
        ...

    async def swap(self, row: ScheduleRow, was: ScheduleMark | None) -> bool:
        """Write a row in place of the one that was read; None: there was none. False: it is another one by now.

        Its stamp is counted up; that of `row` does not matter.
        """
        ...

    async def pause(self, key: str) -> bool | None:
        """Pause a row: it is not due any more. Returns False if it is paused already, None if there is none."""
        ...

    async def remove(self, key: str) -> ScheduleRow | None:
        """Delete a row. Returns it, or None if there is none."""
        ...

    async def purge(self, *, older_s: float, most: int) -> int:
        """Delete rows that have been over for so long. Returns the number."""
        ...
