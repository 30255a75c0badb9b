"""History checkers for handlers of messages: when they begin, how often, in which order, and one at a time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coterie.testing.checkers import Violation
from coterie.testing.message_events import Began, Completed, Died, Disturbed, Gauge, Left, Over, Sent

if TYPE_CHECKING:
    from coterie.testing.checkers import Event


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
