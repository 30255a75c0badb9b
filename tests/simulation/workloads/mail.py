"""What the messages workload is judged by: what was committed, in commit order, with what handlers and callers noted.

The database's part is written by triggers, so that it is part of each transaction and vanishes with it. Everything has
a number from one counter, and so its place among all the rest; what was committed together has one transaction.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from coterie.entities.envelopes import MARK
from coterie.testing.checkers import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coterie.testing.simulation import Simulation

ATTEMPTS = 5
"""That each message of the workload has."""
EARLY_NS = 5_000_000
"""By how much a message may run too early: what a quartz can lose while the database's clock cannot be asked."""

HISTORY = """
create table effects (number text primary key);
create temp table mail (at integer, commit_at integer, what text, id text, entity text, a, b, c);
create temp trigger mail_granted after update of holder on main.seats when new.holder is not null begin
    insert into mail values (place(), commit_at(), 'granted', new.name, '', new.epoch, new.holder, null);
end;
create temp trigger mail_sent after insert on main.messages begin
    insert into mail values (place(), commit_at(), 'sent', new.id, new.entity_id, new.method, new.due_at_ns, new.payload);
end;
create temp trigger mail_done after update of status on main.messages when new.status = 1 begin
    insert into mail values (place(), commit_at(), 'done', new.id, new.entity_id, new.epoch, new.seat, new.reply);
end;
create temp trigger mail_dead after update of status on main.messages when new.status = 2 begin
    insert into mail values (place(), commit_at(), 'dead', new.id, new.entity_id, new.attempts, null, null);
end;
create temp trigger mail_counted after update of attempts on main.messages begin
    insert into mail values (place(), commit_at(), 'counted', new.id, new.entity_id, new.attempts, new.due_at_ns, null);
end;
create temp trigger mail_removed after delete on main.messages begin
    insert into mail values (place(), commit_at(), 'removed', old.id, old.entity_id, null, null, null);
end;
create temp trigger mail_saved after insert on main.states begin
    insert into mail values (place(), commit_at(), 'saved', new.key, new.key, new.epoch, new.seat, new.value);
end;
create temp trigger mail_saved_again after update of value on main.states begin
    insert into mail values (place(), commit_at(), 'saved', new.key, new.key, new.epoch, new.seat, new.value);
end;
"""


class Book(msgspec.Struct):
    """The state of an account: what messages and what volatile calls have done to it, and which was the last."""

    balance: int = 0
    count: int = 0
    extra: int = 0
    last: str = ""


class Noted(NamedTuple):
    """One event. Which facts it has depends on what it is."""

    at: int
    commit: int
    """Of what was committed: which transaction; 0 for the rest."""
    what: str
    id: str
    entity: str
    a: Any = None
    b: Any = None
    c: Any = None


class Began(NamedTuple):
    """What a handler said when it began."""

    id: str
    number: str
    entity: str
    runner: str
    epoch: int
    attempt: int
    is_stored: bool
    clock_ns: int
    """The database's clock, as if it had never been set back."""


@dataclass
class Mail:
    """The history of one run."""

    places: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    events: list[Noted] = field(default_factory=list)
    _sim: Simulation | None = None
    _ahead_ns: int = 0

    def watch(self, sim: Simulation) -> None:
        """Have the database write its part."""
        self._sim, main = sim, sim.database.main
        main.create_scalar_function("place", lambda *_: next(self.places), 0)
        main.create_scalar_function("commit_at", lambda *_: sim.database.commits, 0)
        main.execute(HISTORY)

    def note(self, what: str, id: str, entity: str = "", a: Any = None, b: Any = None, c: Any = None) -> None:
        """Something has happened just now."""
        self.events.append(Noted(next(self.places), 0, what, id, entity, a, b, c))

    def clock_ns(self) -> int:
        """The database's clock, as if it had never been set back: who has not asked since cannot know of that."""
        assert self._sim is not None, "it watches"
        now_ns = self._sim.loop.now_ns
        self._ahead_ns = max(self._ahead_ns, self._sim.database.clock.wall_ns() - now_ns)
        return now_ns + self._ahead_ns

    def history(self) -> list[Noted]:
        """All of it, in order."""
        assert self._sim is not None, "it watches"
        rows = self._sim.database.main.execute("select at, commit_at, what, id, entity, a, b, c from mail")
        return sorted([*(Noted(*row) for row in rows), *self.events])


def judge(history: Iterable[Noted]) -> int:
    """Hold a history against all that is promised; how many events there were. Raises `Violation`."""
    court = Court()
    count = 0
    for event in history:
        count += 1
        court.see(event)
    court.finish()
    return count


@dataclass
class Row:
    """A message, as far as the history has come."""

    id: str
    entity: str
    method: str
    number: str
    due_ns: int
    commit: int
    status: str = "pending"
    attempts: int = 0
    reply: Any = None
    ended: int = 0
    """In which transaction."""


@dataclass
class Account:
    """An entity, as far as the history has come."""

    book: Book = field(default_factory=Book)
    balance: int = 0
    count: int = 0
    """What the replies of messages that are done come to."""
    saved_at: int = 0
    open: dict[tuple[str, int], Began] = field(default_factory=dict)
    """Handlers that run, by runner and epoch."""


@dataclass
class Court:
    """All checkers of messages: they share what they have seen."""

    rows: dict[str, Row] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=lambda: defaultdict(Account))
    ids: dict[str, str] = field(default_factory=dict)
    """Of messages, by the numbers that they carry."""
    began: dict[str, tuple[int, Began]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    acknowledged: dict[str, str] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    _commit: int = 0
    _touched: dict[str, None] = field(default_factory=dict)

    def see(self, event: Noted) -> None:
        """The next event."""
        if event.commit and event.commit != self._commit:
            self._balance()
            self._commit = event.commit
        getattr(self, f"_{event.what}")(event)

    def finish(self) -> None:
        """The history is complete: everything was mended, and all is quiet."""
        self._balance()
        for row in self.rows.values():
            if row.status == "pending":
                raise Violation("INV-D1", f"{named(row)} is still pending, long after the last fault")
        for number, id_ in self.acknowledged.items():
            if id_ not in self.rows:
                raise Violation("INV-D1", f"{number} was acknowledged as message {id_}, which never was there")
            if self.rows[id_].status == "removed" and id_ not in self.cancelled:
                raise Violation("INV-D1", f"{named(self.rows[id_])} was acknowledged and is gone")
        self._follow_money()

    # What was committed

    def _granted(self, event: Noted) -> None:
        self.epochs[event.id] = event.a

    def _sent(self, event: Noted) -> None:
        arguments = msgspec.msgpack.decode(event.c)
        row = self.rows[event.id] = Row(
            event.id, event.entity, event.a, arguments["number"], event.b, event.commit
        )
        before = self.ids.setdefault(row.number, row.id)
        if before != row.id and self.rows[before].status != "removed":
            raise Violation("INV-D3", f"{named(row)} was stored beside {named(self.rows[before])}")
        self.ids[row.number] = row.id

    def _done(self, event: Noted) -> None:
        row = self.rows[event.id]
        if row.status != "pending":
            raise Violation("INV-D2", f"{named(row)} was {row.status} and is done once more")
        self._require_epoch(event, named(row))
        row.status, row.ended = "done", event.commit
        if event.c[0] != MARK:
            row.reply = msgspec.msgpack.decode(event.c)
            account = self.accounts[event.entity]
            account.balance += row.reply[1]
            account.count += 1
        self._touched[event.entity] = None

    def _dead(self, event: Noted) -> None:
        row = self.rows[event.id]
        row.status, row.ended = "dead", event.commit
        if event.a < ATTEMPTS:
            raise Violation("INV-D7", f"{named(row)} is dead after {event.a} attempts of {ATTEMPTS}")

    def _counted(self, event: Noted) -> None:
        row = self.rows[event.id]
        if event.a != row.attempts + 1:
            raise Violation("INV-D7", f"{named(row)}: attempt {event.a} was counted after {row.attempts}")
        row.attempts, row.due_ns = event.a, event.b

    def _removed(self, event: Noted) -> None:
        self.rows[event.id].status = "removed"

    def _saved(self, event: Noted) -> None:
        entity = event.entity.rpartition("/")[2]
        account = self.accounts[entity]
        self._require_epoch(event, entity)
        account.book = book_of(event.c)
        at, began = self.began[account.book.last]
        if at < account.saved_at:
            raise Violation("INV-E1", f"{entity}: {began.number} began before what was saved before it")
        account.saved_at = event.at
        self._touched[entity] = None

    def _require_epoch(self, event: Noted, what: str) -> None:
        if event.a != self.epochs[event.b]:
            raise Violation("INV-F2", f"{what} was written at epoch {event.a}, and {event.b} is at {self.epochs[event.b]}")

    def _balance(self) -> None:
        """INV-D4: at the end of each transaction a state is what the replies of its entity come to."""
        for entity in self._touched:
            account = self.accounts[entity]
            book = account.book
            if (book.balance, book.count) != (account.balance, account.count):
                problem = f"replies come to {account.balance} in {account.count} messages, its state is {book}"
                raise Violation("INV-D4", f"{entity}: {problem}")
        self._touched.clear()

    # What handlers noted

    def _began(self, event: Noted) -> None:
        began: Began = event.a
        if began.is_stored:
            self._began_message(began)
        account = self.accounts[began.entity]
        other = account.open.get((began.runner, began.epoch))
        if other is not None:
            raise Violation("INV-E1", f"{began.entity}: {began.number} began while {other.number} was running")
        account.open[began.runner, began.epoch] = began
        self.began[began.id] = event.at, began

    def _began_message(self, began: Began) -> None:
        row = self.rows.get(began.id)
        if row is None:
            raise Violation("INV-D4", f"{began.number} began, and message {began.id} is not stored")
        if row.status in ("done", "dead"):
            raise Violation("M5", f"{named(row)} began once more after it was {row.status}")
        if began.attempt > ATTEMPTS:
            raise Violation("INV-D7", f"{named(row)} began for the {began.attempt}th time, of {ATTEMPTS}")
        if began.clock_ns < row.due_ns - EARLY_NS:
            early_s = (row.due_ns - began.clock_ns) / 1e9
            raise Violation("INV-D5", f"{named(row)} began {early_s:.6f}s before it was due")

    def _ended(self, event: Noted) -> None:
        self.accounts[event.entity].open.pop(event.a, None)

    def _strange(self, event: Noted) -> None:
        raise Violation("M7", f"{event.entity}: {event.id} began with {event.a}, and {event.b} is committed")

    # What callers were told

    def _acknowledged(self, event: Noted) -> None:
        before = self.acknowledged.setdefault(event.id, event.a)
        if before != event.a:
            raise Violation("INV-D3", f"{event.id} is message {before} to one caller and {event.a} to another")

    def _told(self, event: Noted) -> None:
        """A caller that awaited, by number, or by id, was given a reply."""
        row = self.rows.get(self.ids.get(event.id, event.id))
        if row is None or row.reply != list(event.a):
            stored = "nothing" if row is None or row.reply is None else row.reply
            raise Violation("INV-D2", f"{event.id} was answered with {event.a}, and {stored} is stored")

    def _cancelled(self, event: Noted) -> None:
        self.cancelled.add(event.id)

    # What belongs together

    def _follow_money(self) -> None:
        """What a handler sent is stored with its reply or not at all; what it awaited was done once, and before."""
        for row in self.rows.values():
            inner = self.rows.get(self.ids.get(f"{row.number}+", ""))
            if row.method == "transfer":
                _require_sent(row, inner)
            elif row.method == "relay" and row.reply is not None and (inner is None or inner.reply is None):
                raise Violation("M6", f"{named(row)} is done, and what it awaited is not")
        self._require_conserved()

    def _require_conserved(self) -> None:
        """What the accounts hold was given to them; what was moved is under way nowhere but in dead letters."""
        held = sum(account.book.balance for account in self.accounts.values())
        done = [row for row in self.rows.values() if row.reply is not None]
        given = sum(row.reply[1] for row in done if row.method in ("deposit", "record") and row.number[-1] != "+")
        awaited = sum(row.reply[1] for row in done if row.method in ("grant", "relay"))
        lost = sum(1 for row in self.rows.values() if row.status == "dead" and row.method == "deposit")
        if held != given + awaited and not lost:
            raise Violation("INV-D4", f"accounts hold {held}, and {given + awaited} were given to them")


def _require_sent(row: Row, inner: Row | None) -> None:
    if row.reply is None and inner is not None:
        raise Violation("B3", f"{named(row)} has not ended well, and what it sent is stored")
    if row.reply is not None and (inner is None or inner.commit != row.ended):
        raise Violation("B3", f"{named(row)} is done, and what it sent was not stored with it")


def book_of(data: bytes) -> Book:
    """A state as it is stored."""
    _, book = msgspec.msgpack.decode(data)
    return msgspec.convert(book, Book)


def named(row: Row) -> str:
    """A message in an error."""
    return f"message {row.id} ({row.entity}.{row.method} {row.number})"
