"""History checkers for what waits: no wake-up is lost, everything ends, and nothing of it is left (W3, W4, W5)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coterie.testing.checkers import Event, Violation
from coterie.testing.cron_events import Stepped
from coterie.testing.flow_events import (
    Begun,
    Calm,
    Dropped,
    Ended,
    Saw,
    Silence,
    StartTold,
    Stored,
    Suspended,
    Valued,
    Waits,
    Woken,
)

if TYPE_CHECKING:
    Key = tuple[str, str]


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
    """W5: the rows of a unit go when it ends, all of them in one commit, and not before.

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
            self._rows[event.unit].discard((event.name, event.is_value))
            return
        if isinstance(event, Ended):
            self._over.add(event.unit)
            self._ending.add(event.unit)
            return
        for unit in sorted(self._ending):
            if self._rows.pop(unit, None):
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
