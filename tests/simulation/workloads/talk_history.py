"""What the talks workload is judged by: what was sent to runs, received and published, in commit order."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from tests.support.history.ownership import EpochsGrow, Event, Grant, Violation, check

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coterie.testing.simulation import Simulation

    Inbox = tuple[str, str]

HISTORY = """
create temp table log (place integer, what text, unit text, name text, a, b, c);
create temp trigger log_granted after update of holder on main.seats when new.holder is not null begin
    insert into log values (place(), 'granted', new.name, '', new.epoch, new.holder, null);
end;
create temp trigger log_sent after insert on main.run_messages begin
    insert into log values (place(), 'sent', new.unit, new.name, new.id, new.value, null);
end;
create temp trigger log_given_back after update on main.run_messages
when old.received_at_ns is not null and new.received_at_ns is null begin
    insert into log values (place(), 'given back', new.unit, new.name, new.id, new.value, null);
end;
create temp trigger log_received after insert on main.steps when new.kind = 'receive' and new.done begin
    insert into log values (
        place(), 'received', new.unit, new.name, new.branch || ' ' || new.position, new.value, new.error
    );
end;
create temp trigger log_received_later after update on main.steps when new.kind = 'receive' begin
    insert into log values (
        place(), 'received', new.unit, new.name, new.branch || ' ' || new.position, new.value, new.error
    );
end;
create temp trigger log_published after insert on main.published begin
    insert into log values (place(), 'published', new.unit, new.name, new.seq, new.value, null);
end;
create temp trigger log_begun after insert on main.units begin
    insert into log values (place(), 'begun', new.unit, new.id, new.parent, null, null);
end;
create temp trigger log_ended after update of ended_at_ns on main.units when new.ended_at_ns is not null begin
    insert into log values (place(), 'ended', new.unit, new.status, new.value, null, null);
end;
"""


@dataclass(frozen=True, slots=True)
class Sent(Event):
    """A message is stored."""

    unit: str
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class GivenBack(Event):
    """A message that was received waits again."""

    unit: str
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Received(Event):
    """A step has received a message; None: it has timed out."""

    unit: str
    name: str
    place: str
    value: int | None


@dataclass(frozen=True, slots=True)
class Published(Event):
    """A value is published under a number."""

    unit: str
    seq: int
    value: str


@dataclass(frozen=True, slots=True)
class Born(Event):
    """A run has begun, as a child or not."""

    unit: str
    parent: str | None


@dataclass(frozen=True, slots=True)
class Over(Event):
    """A run has ended: how, and with which result."""

    unit: str
    status: str
    result: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SendTold(Event):
    """Somebody was told that a message is sent."""

    unit: str
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Followed(Event):
    """What somebody has got who followed a run to its end, from the first value on."""

    unit: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Heard(Event):
    """What a body was given at a place, in any of its runs."""

    unit: str
    what: str
    value: str


@dataclass
class TalkHistory:
    """The history of one run of the workload."""

    noted: list[tuple[int, Event]] = field(default_factory=list)
    _places: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _main: Any = None

    def watch(self, sim: Simulation) -> None:
        """Have the database write its part, from before the first runner starts."""
        self._main = sim.database.main
        self._main.create_scalar_function("place", lambda *_: next(self._places), 0)
        self._main.execute(HISTORY)

    def note(self, event: Event) -> None:
        """Something happens just now."""
        self.noted.append((next(self._places), event))

    def events(self) -> list[Event]:
        """All of it, in order."""
        rows = self._main.execute("select * from log order by place").fetchall()
        placed = [*((row[0], _event(row[1:])) for row in rows), *self.noted]
        return [event for _, event in sorted(placed, key=lambda each: each[0])]


def _event(row: Any) -> Event:
    what, unit, name, a, b, c = row
    if what == "granted":
        return Grant(unit, a, b)
    if what == "begun":
        return Born(unit, a)
    if what == "ended":
        return Over(unit, name, tuple(msgspec.msgpack.decode(a, type=list[str])) if a else ())
    if what == "published":
        return Published(unit, a, msgspec.msgpack.decode(b))
    value: Any = None if b is None else msgspec.msgpack.decode(b)
    if what == "received":
        assert (value is None) == (c is not None)
        return Received(unit, name, a, value)
    return (Sent if what == "sent" else GivenBack)(unit, name, value)


@dataclass
class ReceivedOnceInOrder:
    """W6: each message is received once, the oldest first, and none of them waits when a wait times out."""

    _waiting: dict[Inbox, list[int]] = field(default_factory=lambda: defaultdict(list))
    _order: dict[Inbox, list[int]] = field(default_factory=lambda: defaultdict(list))
    _places: set[tuple[str, str]] = field(default_factory=set)

    def see(self, event: Event) -> None:
        """Compare what is received with what waits."""
        if isinstance(event, Sent):
            inbox = event.unit, event.name
            if event.value in self._order[inbox]:
                raise Violation("W6", f"{event.value} was stored twice for {event.unit}")
            self._order[inbox].append(event.value)
            self._waiting[inbox].append(event.value)
        elif isinstance(event, GivenBack):
            inbox = event.unit, event.name
            self._waiting[inbox] = sorted([*self._waiting[inbox], event.value], key=self._order[inbox].index)
        elif isinstance(event, SendTold):
            if event.value not in self._order[event.unit, event.name]:
                raise Violation("W6", f"{event.value} was acknowledged, and not stored for {event.unit}")
        elif isinstance(event, Received):
            self._receive(event)
        elif isinstance(event, Over) and event.status == "done":
            heard = [word for each in event.result for word in _words(each)]
            if sorted(heard) != list(range(len(heard))):
                raise Violation("W6", f"{event.unit} is done, and has heard {heard} of all that it was sent")

    def _receive(self, event: Received) -> None:
        waiting = self._waiting[event.unit, event.name]
        if (event.unit, event.place) in self._places:
            raise Violation("W6", f"{event.unit} received twice at {event.place}")
        self._places.add((event.unit, event.place))
        if event.value is None:
            if waiting:
                raise Violation("W6", f"{event.unit} timed out when {waiting} waited for it")
        elif waiting[:1] != [event.value]:
            raise Violation("W6", f"{event.unit} received {event.value}, and {waiting} waited for it")
        else:
            del waiting[0]

    def finish(self) -> None:
        """Nothing is left to judge."""


def _words(result: str) -> list[int]:
    """The messages of the inbox `word` in a part of a result."""
    what, _, given = result.partition("=")
    is_word = what.startswith(("heard", "race", "both")) and "[" in given
    return [int(word) for word in given.partition("[")[2].strip("]").split(", ")] if is_word else []


@dataclass
class HeardTheSame:
    """W6, W13: what a body is given at a place is the same in all of its runs."""

    _heard: dict[tuple[str, str], str] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Compare it with what was given there before."""
        if isinstance(event, Heard):
            known = self._heard.setdefault((event.unit, event.what), event.value)
            if known != event.value:
                raise Violation("W13", f"{event.unit} was given {event.value} by {event.what}, before it was {known}")

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class PublishedOnceInOrder:
    """W7: what a run publishes is there once, in order, and who follows it gets just that."""

    _published: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def see(self, event: Event) -> None:
        """Compare what is published with what was, and what is read with what is published."""
        if isinstance(event, Published):
            values = self._published[event.unit]
            if event.value in values:
                raise Violation("W7", f"{event.unit} published {event.value} twice")
            values.append(event.value)
            if event.seq != len(values):
                raise Violation("W7", f"{event.unit} published {event.value} as {event.seq}, after {len(values) - 1}")
        elif isinstance(event, Followed) and list(event.values) != self._published[event.unit]:
            raise Violation("W7", f"{event.values} was read of {event.unit}, not {self._published[event.unit]}")
        elif isinstance(event, Over) and event.status == "done":
            missing = [
                each for each in event.result if each.startswith("p") and each not in self._published[event.unit]
            ]
            if missing:
                raise Violation("W7", f"{event.unit} is done, and {missing} was not published")

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class ChildrenEnd:
    """W10: no child begins when its parent is over, and those of a parent that failed or was interrupted end."""

    _over: dict[str, str] = field(default_factory=dict)
    _parents: dict[str, str] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Note who began and who ended."""
        if isinstance(event, Born) and event.parent is not None:
            self._parents[event.unit] = event.parent
            if event.parent in self._over:
                raise Violation("W10", f"{event.unit} began when its parent {event.parent} was over")
        elif isinstance(event, Over):
            self._over[event.unit] = event.status

    def finish(self) -> None:
        """All of them should be over."""
        for child, parent in self._parents.items():
            if self._over.get(parent) in ("failed", "interrupted") and child not in self._over:
                raise Violation("W10", f"{child} goes on, and its parent {parent} is {self._over[parent]}")


@dataclass
class AllEnd:
    """W3, W4: every run ends, since all that it waits for comes."""

    _born: dict[str, None] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Note who began and who ended."""
        if isinstance(event, Born):
            self._born[event.unit] = None
        elif isinstance(event, Over):
            del self._born[event.unit]

    def finish(self) -> None:
        """Nobody should be left."""
        if self._born:
            raise Violation("W3", f"{sorted(self._born)[:5]} never ended")


def judge(events: Iterable[Event]) -> int:
    """How many events there were. Raises `Violation`."""
    return check(
        events,
        EpochsGrow(),
        ReceivedOnceInOrder(),
        HeardTheSame(),
        PublishedOnceInOrder(),
        ChildrenEnd(),
        AllEnd(),
    )
