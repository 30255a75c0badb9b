"""History checkers for messages: nothing is lost, nothing is applied twice, and all see one reply.

History checkers for handlers of messages: when they begin, how often, in which order, and one at a time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.history.message_events import (
    Began,
    Cancelled,
    Completed,
    Counted,
    Died,
    Disturbed,
    Gauge,
    Left,
    Over,
    Replied,
    Revived,
    Sent,
)
from tests.support.history.ownership import Violation

if TYPE_CHECKING:
    from tests.support.history.ownership import Event


@dataclass
class EverySendEnds:
    """INV-D1, D6: what was acknowledged has ended (or is pending, if so allowed); what was said to have failed is not.

    A try that failed says nothing if another try of the same message did not.
    """

    pending_allowed: bool = False
    _told: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _left: dict[str, Left] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Remember what was told, and what is there."""
        if isinstance(event, Sent):
            self._told[event.message].add(event.outcome)
        elif isinstance(event, Left):
            self._left[event.message] = event

    def finish(self) -> None:
        """Compare them."""
        for message, outcomes in self._told.items():
            left = self._left.get(message)
            if "ok" in outcomes and left is None:
                raise Violation("INV-D1", f"{message} was acknowledged and is not there")
            if outcomes == {"failed"} and left is not None:
                raise Violation("INV-D6", f"{message} was said to have failed and is {left.status}")
        for left in self._left.values():
            if left.status == "pending" and not self.pending_allowed:
                raise Violation("INV-D1", f"{left.message} is still pending")


@dataclass
class OneReply:
    """INV-D2: a message is done once, stays so, and everybody sees the reply that was stored then."""

    _stored: dict[str, Completed] = field(default_factory=dict)
    _ended: dict[str, str] = field(default_factory=dict)
    _seen: list[Replied] = field(default_factory=list)

    def see(self, event: Event) -> None:
        """Refuse a second end."""
        if isinstance(event, Completed):
            self._end(event.message, "done")
            self._stored[event.message] = event
        elif isinstance(event, Died):
            self._end(event.message, "dead")
        elif isinstance(event, Cancelled):
            self._end(event.message, "cancelled")
        elif isinstance(event, Revived):
            self._revive(event.message)
        elif isinstance(event, Replied):
            self._seen.append(event)
        elif isinstance(event, Left):
            self._compare(event)

    def finish(self) -> None:
        """Compare what callers saw with what was stored, perhaps after they saw it."""
        for seen in self._seen:
            stored = self._stored.get(seen.message)
            if stored is None:
                raise Violation("INV-D2", f"{seen.message}: a caller was told {seen.reply!r}, and nothing was stored")
            if stored.reply != seen.reply:
                raise Violation("INV-D2", f"{seen.message}: a caller was told {seen.reply!r}, not {stored.reply!r}")

    def _end(self, message: str, how: str) -> None:
        if message in self._ended:
            raise Violation("INV-D2", f"{message} is {how} after it was {self._ended[message]}")
        self._ended[message] = how

    def _revive(self, message: str) -> None:
        if self._ended.pop(message, "") != "dead":
            raise Violation("INV-D2", f"{message} was revived and was not dead")

    def _compare(self, left: Left) -> None:
        ended = self._ended.get(left.message, "pending")
        if left.status != ended:
            raise Violation("INV-D2", f"{left.message} is {left.status} at the end and was {ended}")
        if left.status == "done" and left.reply != self._stored[left.message].reply:
            raise Violation("INV-D2", f"{left.message}: the reply changed after it was stored")


@dataclass
class OneMessagePerKey:
    """INV-D3, D6: all who send to an entity with one key are told the same message, and one at most is done.

    The key of a message that was cancelled is free again.
    """

    _told: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    _keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    _done: list[str] = field(default_factory=list)
    _cancelled: set[str] = field(default_factory=set)

    def see(self, event: Event) -> None:
        """Remember: what is done, or cancelled, may be so before its sender is told."""
        if isinstance(event, Sent) and event.key:
            self._keys[event.message] = (event.entity, event.key)
            if event.outcome == "ok":
                self._told[event.entity, event.key].add(event.message)
        elif isinstance(event, Cancelled):
            self._cancelled.add(event.message)
        elif isinstance(event, Completed):
            self._done.append(event.message)

    def finish(self) -> None:
        """Compare the ids that were told, and count what was done for each key."""
        for (entity, key), messages in self._told.items():
            if len(told := sorted(messages - self._cancelled)) > 1:
                raise Violation("INV-D3", f"{entity}, key {key}: {told[0]} and {told[1]} were told")
        done = Counter(self._keys[message] for message in self._done if message in self._keys)
        for (entity, key), count in done.items():
            if count > 1:
                raise Violation("INV-D3", f"{entity}, key {key}: {count} messages were done")


@dataclass
class EffectsOnce:
    """INV-D4: after each commit an entity's state is the sum of what its messages that are done have added.

    What was committed at one instant is judged together: a message and its state are two events.
    """

    _sums: Counter[str] = field(default_factory=Counter)
    _values: Counter[str] = field(default_factory=Counter)
    _touched: set[str] = field(default_factory=set)
    _at_ns: int = -1

    def see(self, event: Event) -> None:
        """Judge the instant before, when another one begins."""
        if not isinstance(event, Completed | Counted):
            return
        if event.at_ns != self._at_ns:
            self.finish()
        self._at_ns = event.at_ns
        self._touched.add(event.entity)
        if isinstance(event, Completed):
            self._sums[event.entity] += event.adds
        else:
            self._values[event.entity] = event.value

    def finish(self) -> None:
        """Judge the last instant."""
        for entity in sorted(self._touched):
            value, total = self._values[entity], self._sums[entity]
            if value != total:
                raise Violation("INV-D4", f"{entity} is {value}, and its messages added {total}")
        self._touched.clear()


@dataclass
class LossesBounded:
    """INV-D7, C5: what has killed its process as often as it may is set aside; what nobody has begun never is."""

    losses: int
    _begun: Counter[str] = field(default_factory=Counter)

    def see(self, event: Event) -> None:
        """Count beginnings, and compare each end with them."""
        if isinstance(event, Began):
            self._begun[event.message] += 1
        elif isinstance(event, Died) and event.losses and not self._begun[event.message]:
            raise Violation("INV-D7", f"{event.message} was set aside after {event.losses} losses, and never began")
        elif isinstance(event, Left) and event.status == "pending" and event.losses >= self.losses:
            raise Violation("INV-D7", f"{event.message} had {event.losses} of {self.losses} losses, and goes on")

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class NotEarly:
    """INV-D5: nothing begins before it is due, and first within `late_s` after it (None: whenever)."""

    late_s: float | None = None
    _due_ns: dict[str, int] = field(default_factory=dict)
    _first: dict[str, Began] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Remember: a handler may begin before its sender is told."""
        if isinstance(event, Sent) and event.due_ns:
            self._due_ns[event.message] = event.due_ns
        elif isinstance(event, Began):
            self._first.setdefault(event.message, event)

    def finish(self) -> None:
        """Compare, by the database's clock."""
        for message, due_ns in self._due_ns.items():
            first = self._first.get(message)
            after_s = 0.0 if first is None else (first.by_clock_ns - due_ns) / 1e9
            if after_s < 0:
                raise Violation("INV-D5", f"{message} began {-after_s:.3f}s before it was due")
            if self.late_s is not None and after_s > self.late_s:
                raise Violation("INV-D5", f"{message} began {after_s:.3f}s after it was due")


@dataclass
class AttemptsBounded:
    """INV-D7: no message is begun more often than its policy says, and none is set aside before.

    One that has had all its losses is set aside, too: see `LossesBounded`.
    """

    attempts: int
    losses: int | None = None

    def see(self, event: Event) -> None:
        """Look at the number of each attempt, and at the numbers that are stored."""
        if isinstance(event, Began) and not 1 <= event.attempt <= self.attempts:
            raise Violation("INV-D7", f"{event.message}: attempt {event.attempt} of {self.attempts} began")
        if isinstance(event, Died) and event.attempts < self.attempts and not self._is_lost(event):
            raise Violation(
                "INV-D7", f"{event.message} was set aside after {event.attempts} of {self.attempts} attempts"
            )
        if isinstance(event, Left) and event.status == "pending" and event.attempts >= self.attempts:
            raise Violation("INV-D7", f"{event.message} had {event.attempts} of {self.attempts} attempts, and goes on")

    def _is_lost(self, died: Died) -> bool:
        return self.losses is not None and died.losses >= self.losses

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class OneHandlerAtATime:
    """INV-E1: of an entity with concurrency 1, runs that committed never overlap, and follow each other by epoch.

    Under one epoch no two runs overlap at all. Under two they may: a frozen runner does not know that it has lost its
    seat. `overlapped` has them, those that were killed among them.
    """

    overlapped: set[Began] = field(default_factory=set)
    _running: dict[str, dict[int, Began]] = field(default_factory=lambda: defaultdict(dict))
    _begun: dict[tuple[str, int], list[Began]] = field(default_factory=lambda: defaultdict(list))
    _committed: dict[str, list[Completed]] = field(default_factory=lambda: defaultdict(list))

    def see(self, event: Event) -> None:
        """Note who runs, and refuse a second one under the same epoch."""
        if isinstance(event, Began):
            self._begin(event)
        elif isinstance(event, Over):
            self._running[event.entity].pop(event.epoch, None)
        elif isinstance(event, Completed):
            self._committed[event.entity].append(event)

    def finish(self) -> None:
        """Compare the runs that committed, in the order of their commits."""
        for entity, commits in self._committed.items():
            before: Completed | None = None
            for commit in commits:
                began_ns = self._began_ns(commit)
                if before is not None and began_ns < before.at_ns:
                    problem = f"{commit.message} committed, and had begun before {before.message} was committed"
                    raise Violation("INV-E1", f"{entity}: {problem}")
                if before is not None and commit.epoch < before.epoch:
                    raise Violation("INV-E1", f"{entity}: epoch {commit.epoch} committed after epoch {before.epoch}")
                before = commit

    def _begin(self, event: Began) -> None:
        running = self._running[event.entity]
        before = running.get(event.epoch)
        if before is not None:
            raise Violation("INV-E1", f"{event.entity}: {event.message} began while {before.message} was running")
        self.overlapped.update(running.values())
        running[event.epoch] = event
        self._begun[event.message, event.epoch].append(event)

    def _began_ns(self, commit: Completed) -> int:
        """When the run began that ended with a commit: the last one before it."""
        begun = [each.at_ns for each in self._begun[commit.message, commit.epoch] if each.at_ns <= commit.at_ns]
        if not begun:
            raise Violation("INV-E1", f"{commit.message} was done at epoch {commit.epoch}, and no handler had begun")
        return begun[-1]


@dataclass
class FirstAttemptsInOrder:
    """INV-E2: what one sender sent to one entity begins first in the order in which its sends were acknowledged.

    Promised while nothing fails: who was on its way from sender to handler meanwhile is excused. What is due later goes
    by its time.
    """

    _sent: list[Sent] = field(default_factory=list)
    _first: dict[str, Began] = field(default_factory=dict)
    _disturbed: list[Disturbed] = field(default_factory=list)

    def see(self, event: Event) -> None:
        """Remember: a handler may begin before its sender is told."""
        if isinstance(event, Sent) and event.outcome == "ok" and not event.due_ns:
            self._sent.append(event)
        elif isinstance(event, Began):
            self._first.setdefault(event.message, event)
        elif isinstance(event, Disturbed):
            self._disturbed.append(event)

    def finish(self) -> None:
        """Compare the two orders."""
        last: dict[tuple[str, str], Began] = {}
        for sent in self._sent:
            began = self._first.get(sent.message)
            if began is None or self._is_excused(sent, began):
                continue
            before = last.get((sent.sender, sent.entity))
            if before is not None and began.at_ns < before.at_ns:
                whose = f"{began.message} of {sent.sender or 'a sender'}"
                raise Violation("INV-E2", f"{sent.entity}: {whose} began before {before.message}")
            last[sent.sender, sent.entity] = began

    def _is_excused(self, sent: Sent, began: Began) -> bool:
        return any(each.from_ns <= began.at_ns and sent.from_ns <= each.until_ns for each in self._disturbed)


@dataclass
class WithinBounds:
    """INV-R1, R2: nothing grows beyond its bound."""

    def see(self, event: Event) -> None:
        """Look at a gauge."""
        if isinstance(event, Gauge) and event.value > event.most:
            raise Violation("INV-R2", f"{event.what}: {event.value:g}, allowed are {event.most:g}")

    def finish(self) -> None:
        """Nothing is left to judge."""
