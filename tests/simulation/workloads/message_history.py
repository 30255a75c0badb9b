"""What the messages workload is judged by: what was committed, in commit order, with what handlers and callers noted.

The database's part is written by triggers, so that it is part of each transaction and vanishes with it. Everything has
a number from one counter, and so its place among all the rest: it stands for the instant, and what was committed
together has one. Most rules are those of `coterie.testing`; `Books` has those that only this workload can know.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from coterie.entities.calls.wire import MARK
from coterie.entities.persisted.outcome import cancelled
from tests.support.history.message_checkers import (
    AttemptsBounded,
    EffectsOnce,
    EverySendEnds,
    LossesBounded,
    NotEarly,
    OneHandlerAtATime,
    OneMessagePerKey,
    OneReply,
)
from tests.support.history.message_events import Began, Cancelled, Completed, Counted, Died, Left, Replied, Sent
from tests.support.history.ownership import EpochsGrow, Event, Grant, NoStaleCommit, Saved, Violation, check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from coterie.storage.contracts.messages import Status
    from coterie.testing.simulation import Simulation

    Outcome = Literal["ok", "failed", "unknown"]

ATTEMPTS = 5
"""That each message of the workload has."""
LOSSES = 3
"""That the setting `loss_limit` allows by default."""
EARLY_NS = 5_000_000
"""By how much a message may run too early: what a quartz can lose while the database's clock cannot be asked."""
STATUSES: tuple[Status, ...] = ("pending", "done", "dead")

HISTORY = """
create table effects (number text primary key);
create temp table mail (at integer, at_ns integer, what text, id text, entity text, a, b, c);
create temp trigger mail_granted after update of holder on main.seats when new.holder is not null begin
    insert into mail values (place(), together(), 'granted', new.name, '', new.epoch, new.holder, null);
end;
create temp trigger mail_sent after insert on main.messages begin
    insert into mail
        values (place(), together(), 'sent', new.id, new.entity_id, new.method, new.due_at_ns, new.payload);
end;
create temp trigger mail_done after update of status on main.messages when new.status = 1 begin
    insert into mail values (place(), together(), 'done', new.id, new.entity_id, new.epoch, new.seat, new.reply);
end;
create temp trigger mail_dead after update of status on main.messages when new.status = 2 begin
    insert into mail values (place(), together(), 'dead', new.id, new.entity_id, new.attempts, new.losses, null);
end;
create temp trigger mail_counted after update of attempts on main.messages when new.attempts <> old.attempts begin
    insert into mail values (place(), together(), 'counted', new.id, new.entity_id, new.attempts, null, null);
end;
create temp trigger mail_removed after delete on main.messages begin
    insert into mail values (place(), together(), 'removed', old.id, old.entity_id, null, null, null);
end;
create temp trigger mail_saved after insert on main.states begin
    insert into mail values (place(), together(), 'saved', new.key, new.key, new.epoch, new.seat, new.value);
end;
create temp trigger mail_saved_again after update of value on main.states begin
    insert into mail values (place(), together(), 'saved', new.key, new.key, new.epoch, new.seat, new.value);
end;
create temp trigger mail_effect after insert on main.effects begin
    insert into mail values (place(), together(), 'effect', new.number, '', null, null, null);
end;
"""


class Book(msgspec.Struct):
    """The state of an account: what messages and what volatile calls have done to it."""

    balance: int = 0
    extra: int = 0


@dataclass(frozen=True, slots=True)
class Stored(Event):
    """A message was stored."""

    message: str
    entity: str
    method: str
    number: str
    due_ns: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Tried(Event):
    """An attempt was counted."""

    message: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Asked(Event):
    """Somebody is about to take a message back."""

    message: str


@dataclass(frozen=True, slots=True)
class Removed(Event):
    """The row of a message was deleted."""

    message: str


@dataclass(frozen=True, slots=True)
class Effect(Event):
    """A user's own SQL."""

    number: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class Strange(Event):
    """A handler began with a state that is not the committed one, while its runner held the seat."""

    entity: str
    number: str
    state: Book
    committed: Book


class DatabaseEvent(NamedTuple):
    """A row of the database's part."""

    at: int
    at_ns: int
    what: str
    id: str
    entity: str
    a: Any
    b: Any
    c: Any


@dataclass
class MessageHistory:
    """The history of one run."""

    noted: list[tuple[int, Event]] = field(default_factory=list)
    _told: list[tuple[str, Any]] = field(default_factory=list)
    _outcomes: list[tuple[str, Outcome]] = field(default_factory=list)
    _places: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _sim: Simulation | None = None
    _commits: dict[int, int] = field(default_factory=dict)
    _ahead_ns: int = 0

    def watch(self, sim: Simulation) -> None:
        """Have the database write its part."""
        self._sim, main = sim, sim.database.main
        main.create_scalar_function("place", lambda *_: next(self._places), 0)
        main.create_scalar_function("together", lambda *_: self._together(sim.database.commits), 0)
        main.execute(HISTORY)

    def _together(self, commits: int) -> int:
        if commits not in self._commits:
            self._commits = {commits: next(self._places)}
        return self._commits[commits]

    # What happens just now

    def note(self, event: Event) -> None:
        """Anything."""
        self.noted.append((next(self._places), event))

    def began(self, message: str, entity: str, *, epoch: int, attempt: int) -> None:
        """A handler began with a message, or a volatile call."""
        at = next(self._places)
        self.noted.append((at, Began(message, entity, epoch, attempt, at, self._clock_ns())))

    def told(self, number: str, reply: Any) -> None:
        """A caller was given a reply, to the message with an id, or a number."""
        self._told.append((number, reply))

    def sent(self, number: str, outcome: Outcome) -> None:
        """A sender was told whether its message is stored."""
        self._outcomes.append((number, outcome))

    def _clock_ns(self) -> int:
        """The database's clock, as if it had never been set back: who has not asked since cannot know of that."""
        assert self._sim is not None, "it watches"
        now_ns = self._sim.loop.now_ns
        self._ahead_ns = max(self._ahead_ns, self._sim.database.clock.wall_ns() - now_ns)
        return now_ns + self._ahead_ns

    # All of it

    def history(self) -> list[Event]:
        """In order; last what callers were told, and what is left."""
        assert self._sim is not None, "it watches"
        main = self._sim.database.main
        rows = [DatabaseEvent(*row) for row in main.execute("select at, at_ns, what, id, entity, a, b, c from mail")]
        committed = [(row.at, event) for row in rows for event in _events(row)]
        events = [event for _, event in sorted([*committed, *self.noted], key=lambda each: each[0])]
        ids = {event.number: event.message for event in events if isinstance(event, Stored)}
        told = [Replied(ids.get(number, number), reply) for number, reply in self._told]
        sent = [Sent(ids.get(number, number), "", outcome=outcome) for number, outcome in self._outcomes]
        left = [
            Left(id_, "cancelled" if reply == cancelled(id_) else STATUSES[status], attempts, _reply_of(reply), losses)
            for id_, status, attempts, reply, losses in main.execute(
                "select id, status, attempts, reply, losses from messages"
            )
        ]
        return [*events, *told, *sent, *left]


def judge(history: list[Event]) -> int:
    """Hold a history against all that is promised; how many messages were done. Raises `Violation`."""
    check(
        history,
        EpochsGrow(),
        NoStaleCommit(),
        EverySendEnds(),
        OneReply(),
        EffectsOnce(),
        AttemptsBounded(ATTEMPTS, LOSSES),
        LossesBounded(LOSSES),
        OneHandlerAtATime(),
        Books(),
    )
    check(_as_sent(history), OneMessagePerKey(), NotEarly())
    return sum(isinstance(event, Completed) for event in history)


@dataclass
class Books:
    """What belongs together in this workload, and how its messages may come and go."""

    _rows: dict[str, Stored] = field(default_factory=dict)
    _ids: dict[str, str] = field(default_factory=dict)
    """Of messages, by the numbers that they carry."""
    _done: dict[str, Completed] = field(default_factory=dict)
    _attempts: Counter[str] = field(default_factory=Counter)
    _asked: set[str] = field(default_factory=set)
    _effects: dict[str, int] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Refuse what may not happen; remember the rest."""
        if isinstance(event, Began):
            self._begin(event)
        elif isinstance(event, Stored):
            self._rows[event.message] = event
            self._ids[event.number] = event.message
        elif isinstance(event, Completed):
            self._done[event.message] = event
        elif isinstance(event, Tried):
            self._count(event)
        elif isinstance(event, Asked):
            self._asked.add(event.message)
        elif isinstance(event, Cancelled) and event.message not in self._asked:
            raise Violation("INV-D1", f"{self._named(event.message)} was cancelled, and nobody took it back")
        elif isinstance(event, Removed):
            raise Violation("INV-D1", f"the row of {self._named(event.message)} is gone, long before its retention")
        elif isinstance(event, Effect):
            self._effects[event.number] = event.at_ns
        elif isinstance(event, Strange):
            problem = f"{event.number} began with {event.state}, and {event.committed} is committed"
            raise Violation("M7", f"{event.entity}: {problem}")

    def finish(self) -> None:
        """What a handler sent, awaited and wrote is there with its reply, or not at all."""
        for row in self._rows.values():
            done = self._done.get(row.message)
            if done is not None and done.reply is None:
                done = None  # a declared error: it has done nothing
            inner = self._rows.get(self._ids.get(f"{row.number}+", ""))
            if row.method == "transfer":
                self._require_together(row, done, "what it sent", None if inner is None else inner.at_ns)
            elif row.method == "record":
                self._require_together(row, done, "its SQL", self._effects.get(row.number))
            elif row.method == "relay" and done is not None and (inner is None or inner.message not in self._done):
                raise Violation("M6", f"{self._named(row.message)} is done, and what it awaited is not")

    def _begin(self, began: Began) -> None:
        row = self._rows.get(began.message)
        if row is None:
            return  # a volatile call
        done = self._done.get(began.message)
        # A user's transaction is the exception: whether it is committed may be learned only after the next attempt.
        if done is not None and done.epoch == began.epoch and row.method != "record":
            raise Violation("M5", f"{self._named(began.message)} began once more where it was done before")

    def _count(self, tried: Tried) -> None:
        self._attempts[tried.message] += 1
        if tried.attempts != self._attempts[tried.message]:
            raise Violation(
                "INV-D7", f"{self._named(tried.message)}: {tried} is number {self._attempts[tried.message]}"
            )

    def _require_together(self, row: Stored, done: Completed | None, what: str, at_ns: int | None) -> None:
        if done is None and at_ns is not None:
            raise Violation("B3", f"{self._named(row.message)} has not ended well, and {what} is stored")
        if done is not None and at_ns != done.at_ns:
            raise Violation("B3", f"{self._named(row.message)} is done, and {what} was not stored with it")

    def _named(self, message: str) -> str:
        row = self._rows[message]
        return f"message {row.message} ({row.entity}.{row.method} {row.number})"


def book_of(data: bytes) -> Book:
    """A state as it is stored."""
    _, book = msgspec.msgpack.decode(data)
    return msgspec.convert(book, Book)


def _events(row: DatabaseEvent) -> Iterator[Event]:
    """What a row of the database's part means."""
    if row.what == "granted":
        yield Grant(row.id, row.a, row.b)
    elif row.what == "sent":
        number = msgspec.msgpack.decode(row.c)["number"]
        yield Stored(row.id, row.entity, row.a, number, row.b, row.at_ns)
    elif row.what == "done" and row.c == cancelled(row.id):
        yield Cancelled(row.id)  # in the name of no epoch: nobody has run it
    elif row.what == "done":
        reply = _reply_of(row.c)
        yield Saved(row.id, row.b, row.a, 0, ())
        yield Completed(row.id, row.entity, row.a, reply, 0 if reply is None else reply[1], row.at_ns)
    elif row.what == "dead":
        yield Died(row.id, row.a, row.b)
    elif row.what == "counted":
        yield Tried(row.id, row.a)
    elif row.what == "removed":
        yield Removed(row.id)
    elif row.what == "effect":
        yield Effect(row.id, row.at_ns)
    else:
        yield Saved(row.id, row.b, row.a, 0, ())
        yield Counted(row.entity.rpartition("/")[2], book_of(row.c).balance, row.at_ns)


def _reply_of(data: bytes | None) -> Any:
    """What callers see of a stored reply; None: nothing, or a declared error."""
    return None if not data or data[0] == MARK else msgspec.msgpack.decode(data)


def _as_sent(history: Iterable[Event]) -> Iterator[Event]:
    """A history in which whatever was stored was sent, whoever heard of it."""
    for event in history:
        if isinstance(event, Stored):
            due_ns = event.due_ns - EARLY_NS
            yield Sent(event.message, event.entity, key=event.number, outcome="unknown", due_ns=due_ns)
        elif not isinstance(event, Sent) or event.key:
            yield event
