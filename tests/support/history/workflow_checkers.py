"""History checkers for durable work: what is stored is stored once, and is what every replay sees (W1 to W5, B5).

Wake-ups, and whether everything ends, have a file of their own, `wake_checkers`.

History checkers for what waits: no wake-up is lost, everything ends, and nothing of it is left (W3, W4, W5).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.history.cron_events import Stepped
from tests.support.history.ownership import Event, Grant, Violation
from tests.support.history.workflow_events import (
    Begun,
    Calm,
    Changed,
    Dropped,
    Ended,
    Interrupting,
    Planned,
    Promised,
    ResolveTold,
    Saw,
    Silence,
    StartTold,
    StepBegan,
    Stored,
    Suspended,
    Valued,
    Waits,
    Woken,
)

if TYPE_CHECKING:
    Key = tuple[str, str]


@dataclass
class StepsStoredOnce:
    """W1: what a step gave is stored once and never changed, every replay sees that, and it does not run again.

    A unit of a leader whose name is used again begins anew; who was frozen meanwhile may still see what was.
    """

    _over: set[str] = field(default_factory=set)
    _open: set[Key] = field(default_factory=set)
    _done: dict[Key, str] = field(default_factory=dict)
    _ever: dict[Key, set[str]] = field(default_factory=lambda: defaultdict(set))

    def see(self, event: Event) -> None:
        """Compare what runs, and what is seen, with what is stored."""
        if isinstance(event, Begun):
            self._over.discard(event.unit)
            self._open = {key for key in self._open if key[0] != event.unit}
            self._done = {key: given for key, given in self._done.items() if key[0] != event.unit}
        elif isinstance(event, Ended):
            self._over.add(event.unit)
        elif isinstance(event, Stored):
            self._store(event)
        elif isinstance(event, Changed) and not event.is_value:
            raise Violation("W1", f"{event.name} of {event.unit} was written over")
        elif isinstance(event, StepBegan):
            if (event.unit, event.name) in self._done:
                raise Violation("W1", f"{event.name} of {event.unit} ran again, and was stored")
        elif isinstance(event, Saw) and (event.kind in ("step", "timed")):
            key = event.unit, event.name
            if event.given not in self._ever[key]:
                stored = self._done.get(key, "nothing")
                raise Violation("W1", f"{event.unit} saw {event.given} of {event.name}, and stored is {stored}")

    def _store(self, event: Stored) -> None:
        key = event.unit, event.name
        if event.unit in self._over:
            raise Violation("W1", f"{event.name} was stored when {event.unit} was over")
        if key in self._done or (key in self._open and not event.done):
            raise Violation("W1", f"{event.name} of {event.unit} was stored twice")
        if event.done:
            self._done[key] = event.given
            self._ever[key].add(event.given)
        else:
            self._open.add(key)

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class ResultsAreRight:
    """B5: a run that ends well gives what its steps, its waits and its children gave, all of them, in order."""

    _planned: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _known: dict[Key, set[str]] = field(default_factory=lambda: defaultdict(set))
    _ended: dict[str, str] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Compare a result with what was stored."""
        if isinstance(event, Planned):
            self._planned[event.unit] = event.names
        elif isinstance(event, Stored | Valued):
            self._known[event.unit, event.name].add(event.given)
        elif isinstance(event, Saw) and event.kind == "child":
            self._told(event)
        elif isinstance(event, Ended):
            self._ended[event.unit] = shown(event)
            if event.status == "done" and event.unit in self._planned:
                self._compare(event)

    def _told(self, event: Saw) -> None:
        """A parent sees how its child has ended, and what it gave; the name is the child's own."""
        if event.given != self._ended.get(event.name):
            raise Violation(
                "B5", f"{event.unit} saw {event.given} of {event.name}, {self._ended.get(event.name)} is so"
            )

    def _compare(self, event: Ended) -> None:
        pairs = [each.partition("=") for each in event.result]
        names = tuple(name for name, _, _ in pairs)
        if names != self._planned[event.unit]:
            raise Violation("B5", f"{event.unit} is done by {names}, planned was {self._planned[event.unit]}")
        for name, _, given in pairs:
            fits = given == self._ended[name] if name in self._ended else given in self._known[event.unit, name]
            if not fits:
                raise Violation("B5", f"{event.unit} ends with {given} of {name}, which was never stored")

    def finish(self) -> None:
        """Nothing is left to judge."""


def shown(end: Ended) -> str:
    """How a child has ended, as its parent sees it."""
    return " & ".join((end.status, *end.result))


@dataclass
class FirstResolveWins:
    """W4: a deferred has one value, for ever: what somebody was told is stored, and what every replay sees."""

    _values: dict[Key, set[str]] = field(default_factory=lambda: defaultdict(set))
    _live: set[Key] = field(default_factory=set)
    _over: set[str] = field(default_factory=set)

    def see(self, event: Event) -> None:
        """Compare what was told and seen with what is stored."""
        if isinstance(event, Valued):
            if (event.unit, event.name) in self._live:
                raise Violation("W4", f"deferred {event.name} of {event.unit} has two values")
            self._live.add((event.unit, event.name))
            self._values[event.unit, event.name].add(event.given)
        elif isinstance(event, Changed) and event.is_value:
            raise Violation("W4", f"deferred {event.name} of {event.unit} was written over")
        elif isinstance(event, Dropped) and event.is_value:
            self._live.discard((event.unit, event.name))
        elif isinstance(event, Ended):
            self._over.add(event.unit)
        elif isinstance(event, ResolveTold):
            self._told(event)
        elif isinstance(event, Saw) and event.kind in ("wait", "timed"):
            values = self._values[event.unit, event.name]
            if event.given not in values and not (event.kind == "timed" and event.given == "timeout"):
                raise Violation("W4", f"{event.unit} saw {event.given} of {event.name}, it has {values or 'no value'}")

    def _told(self, event: ResolveTold) -> None:
        values = self._values[event.unit, event.name]
        if event.outcome == "ok" and event.given not in values:
            raise Violation("W4", f"{event.given} was acknowledged as {event.name} of {event.unit}, it has {values}")
        if event.outcome == "already" and not values and event.unit not in self._over:
            raise Violation("W4", f"{event.name} of {event.unit} was said to be resolved, and is not")

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class InTimeIsInTime:
    """W4: a value that came before the time of its waiter was over is what the waiter sees, by the database's clock.

    Unless that was set meanwhile.
    """

    _due_s: dict[Key, float] = field(default_factory=dict)
    _came_s: dict[Key, float] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Compare the instant of a value with when it was due."""
        if isinstance(event, Stepped):
            self._came_s.clear()
        elif isinstance(event, Valued):
            self._came_s[event.unit, event.name] = event.now_s
        elif isinstance(event, Stored) and event.kind == "deferred":
            key = event.unit, event.name
            if not event.done and event.due_s is not None:
                self._due_s[key] = event.due_s
            if event.done and event.given == "timeout" and key in self._came_s:
                early_s = self._due_s[key] - self._came_s[key]
                if early_s > 0:
                    raise Violation("W4", f"{event.unit} gave up {event.name}, which had come {early_s:.3f}s before")

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class FlowsAreFenced:
    """INV-F2: what is stored about a unit is what the holder of its seat ran, never what a former one did."""

    _granted: dict[str, int] = field(default_factory=dict)
    _seats: dict[str, str] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Compare a write with the newest grant."""
        if isinstance(event, Grant):
            self._granted[event.seat] = event.epoch
        elif isinstance(event, Begun):
            self._seats[event.unit] = event.seat
        elif isinstance(event, Stored | Ended) and event.epoch:
            granted = self._granted.get(self._seats[event.unit], 0)
            if event.epoch != granted:
                what = event.name if isinstance(event, Stored) else event.status
                raise Violation("INV-F2", f"{event.unit}: {what} by epoch {event.epoch}, when {granted} was granted")

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class _Undoing:
    """What a unit has to undo."""

    promised: dict[str, str] = field(default_factory=dict)
    """In order, with the branches."""
    expected: list[tuple[str, str]] = field(default_factory=list)
    """What was promised when the first one was undone."""
    began: set[str] = field(default_factory=set)
    undone: list[str] = field(default_factory=list)


@dataclass
class WhatWasDoneIsUndone:
    """B5: what a body has said to be undone is undone if it fails or is interrupted, and only then; the last one first.

    Each runs at least once, and is stored. The order counts in each branch: those of others come as they come.
    """

    _units: dict[str, _Undoing] = field(default_factory=lambda: defaultdict(_Undoing))

    def see(self, event: Event) -> None:
        """Follow what was promised and what is undone."""
        if isinstance(event, Promised):
            self._units[event.unit].promised.setdefault(event.name, event.branch)
        elif isinstance(event, StepBegan):
            self._began(event, self._units[event.unit])
        elif isinstance(event, Stored) and event.kind == "compensation":
            self._undo(event, self._units[event.unit])
        elif isinstance(event, Ended):
            self._judge(event, self._units[event.unit])

    def _began(self, event: StepBegan, known: _Undoing) -> None:
        if event.is_undo:
            known.began.add(event.name)
        elif known.undone and not event.branch:
            raise Violation("B5", f"{event.name} of {event.unit} began when it was being undone")

    def _undo(self, event: Stored, known: _Undoing) -> None:
        if event.name not in known.promised:
            raise Violation("B5", f"{event.name} of {event.unit} was stored, and nobody has said so")
        if event.name not in known.began:
            raise Violation("B5", f"{event.name} of {event.unit} was stored, and never ran")
        known.expected = known.expected or list(known.promised.items())
        names = [name for name, branch in known.expected if branch == known.promised[event.name]]
        if event.name in names:
            later = [name for name in names[names.index(event.name) + 1 :] if name not in known.undone]
            if later:
                raise Violation("B5", f"{event.name} of {event.unit} was undone before {later[-1]}")
        known.undone.append(event.name)

    def _judge(self, event: Ended, known: _Undoing) -> None:
        if event.status == "done" and known.began:
            raise Violation("B5", f"{event.unit} is done, and {sorted(known.began)} ran")
        left = [name for name in known.promised if name not in known.undone]
        if event.status in ("failed", "interrupted") and left:
            raise Violation("B5", f"{event.unit} has {event.status}, and {left} never ran")

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class InterruptsCount:
    """B5: who takes over a unit that shall end begins nothing more; and none is interrupted that should not be."""

    _seats: dict[str, str] = field(default_factory=dict)
    _granted: dict[str, int] = field(default_factory=dict)
    _asked: dict[str, int] = field(default_factory=dict)
    """Who held it when its interruption was asked for."""

    def see(self, event: Event) -> None:
        """Compare what begins, and ends, with the epoch of the question."""
        if isinstance(event, Grant):
            self._granted[event.seat] = event.epoch
        elif isinstance(event, Begun):
            self._seats[event.unit] = event.seat
        elif isinstance(event, Interrupting):
            self._asked[event.unit] = self._granted.get(self._seats[event.unit], 0)
        elif isinstance(event, StepBegan):
            if not event.is_undo and event.epoch > self._asked.get(event.unit, event.epoch):
                raise Violation("B5", f"{event.name} of {event.unit} began after a takeover, when it should end")
        elif isinstance(event, Ended):
            if event.status == "interrupted" and event.unit not in self._asked:
                raise Violation("B5", f"{event.unit} was interrupted, and nobody wanted that")
            if event.status == "done" and event.epoch > self._asked.get(event.unit, event.epoch):
                raise Violation("B5", f"{event.unit} was done by a later holder than the one to interrupt it")

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class NoWakeUpIsLost:
    """W4: a value has a suspended unit go on in the same commit, and once all is calm its waiter sees it in time.

    Args:
        within_s: How long that may take, and how late a sleep may end.
    """

    within_s: float
    _suspended: set[str] = field(default_factory=set)
    _owed: str | None = None
    _waiting: set[Key] = field(default_factory=set)
    _due_s: dict[Key, float] = field(default_factory=dict)
    _calm: bool = False

    def see(self, event: Event) -> None:
        """Follow who is suspended, and who waits for what."""
        self._require_woken(event)
        if isinstance(event, Suspended):
            self._suspended.add(event.unit)
        elif isinstance(event, Woken):
            self._suspended.discard(event.unit)
        elif isinstance(event, Calm):
            self._calm = True
        elif isinstance(event, Waits):
            self._waiting.add((event.unit, event.name))
        elif isinstance(event, Valued):
            if event.unit in self._suspended:
                self._owed = event.unit
            if self._calm and (event.unit, event.name) in self._waiting:
                self._due_s.setdefault((event.unit, event.name), event.now_s)
        elif isinstance(event, Stored) and self._calm and event.kind == "sleep" and not event.done:
            assert event.due_s is not None, "a sleep has an end"
            self._due_s[event.unit, event.name] = event.due_s
        elif isinstance(event, Saw):
            self._waiting.discard((event.unit, event.name))
            self._judge((event.unit, event.name), event.now_s)
        elif isinstance(event, Ended):
            self._suspended.discard(event.unit)
            self._due_s = {key: due_s for key, due_s in self._due_s.items() if key[0] != event.unit}
        elif isinstance(event, Silence):
            for key in [*self._due_s]:
                self._judge(key, event.now_s)

    def _require_woken(self, event: Event) -> None:
        """Nothing else comes in between: it is one transaction."""
        if self._owed is None or isinstance(event, Valued | Dropped | Woken):
            if isinstance(event, Woken) and event.unit == self._owed:
                self._owed = None
            return
        raise Violation("W4", f"{self._owed} has a value, and stays suspended")

    def _judge(self, key: Key, now_s: float) -> None:
        late_s = now_s - self._due_s.pop(key, now_s)
        if late_s > self.within_s:
            raise Violation("W4", f"{key[0]} waited {late_s:.3f}s for {key[1]}, which was there")

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class SleepsLast:
    """S11: a sleep is not over before its time, by the database's clock, unless that was set meanwhile.

    Args:
        drift_s: By how much a runner may be wrong about that clock.
    """

    drift_s: float
    _due_s: dict[Key, float] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Compare when it is seen with when it was due."""
        if isinstance(event, Stepped):
            self._due_s.clear()
        elif isinstance(event, Stored) and event.kind == "sleep" and not event.done and event.due_s is not None:
            self._due_s[event.unit, event.name] = event.due_s
        elif isinstance(event, Saw) and event.kind == "sleep":
            early_s = self._due_s.get((event.unit, event.name), event.now_s) - event.now_s
            if early_s > self.drift_s:
                raise Violation("S11", f"sleep {event.name} of {event.unit} was over {early_s:.3f}s before its time")

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class EveryRunEnds:
    """W3, B5: what somebody was told to be started is there; and when all is silent, every workflow has ended, once."""

    _begun: set[str] = field(default_factory=set)
    _open: set[str] = field(default_factory=set)

    def see(self, event: Event) -> None:
        """Count beginnings and ends."""
        if isinstance(event, Begun):
            if event.kind == "workflow":
                self._begun.add(event.unit)
                self._open.add(event.unit)
        elif isinstance(event, StartTold):
            if event.unit not in self._begun:
                raise Violation("B5", f"{event.unit} was said to be started, and is not there")
        elif isinstance(event, Ended):
            if event.unit in self._begun and event.unit not in self._open:
                raise Violation("B5", f"{event.unit} has ended twice, now as {event.status}")
            self._open.discard(event.unit)
        elif isinstance(event, Silence) and self._open:
            raise Violation("W3", f"{sorted(self._open)} have never ended")

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class NothingIsLeft:
    """W5, W8: the rows of a workflow stay when it ends, those of other units go then, in one commit and not before.

    Of a unit of a leader nothing is left by which its end can be known: what comes later waits for the next one.
    """

    _kinds: dict[str, str] = field(default_factory=dict)
    _rows: dict[str, set[tuple[str, bool]]] = field(default_factory=lambda: defaultdict(set))
    _over: set[str] = field(default_factory=set)
    _ending: set[str] = field(default_factory=set)

    def see(self, event: Event) -> None:
        """Keep the books."""
        if isinstance(event, Dropped):
            if event.unit in self._kinds and event.unit not in self._over:
                raise Violation("W5", f"{event.name} of {event.unit} is gone, and that goes on")
            if self._kinds.get(event.unit) == "workflow":
                raise Violation("W8", f"{event.name} of {event.unit} is gone before its retention is over")
            self._rows[event.unit].discard((event.name, event.is_value))
            return
        if isinstance(event, Ended):
            self._over.add(event.unit)
            self._ending.add(event.unit)
            return
        for unit in sorted(self._ending):
            if self._rows.pop(unit, None) and self._kinds.get(unit) != "workflow":
                raise Violation("W5", f"{unit} is over, and rows of it are left")
        self._ending.clear()
        if isinstance(event, Begun):
            self._kinds[event.unit] = event.kind
            self._over.discard(event.unit)
        elif isinstance(event, Stored | Valued):
            may_come = isinstance(event, Valued) and self._kinds.get(event.unit) != "workflow"
            if event.unit in self._over and not may_come:
                raise Violation("W5", f"{event.name} was stored for {event.unit}, which is over")
            self._rows[event.unit].add((event.name, isinstance(event, Valued)))

    def finish(self) -> None:
        """Nothing is left to judge."""
