"""History checkers: one for each promise, streaming and linear, judging by the order of commits.

A history is a sequence of events in commit order, as the database saw them, followed by what clients were told.
Never the order in which clients heard of it: that raises false alarms. A checker sees each event once (`see`) and
raises `Violation` as soon as the promise is broken, or at the end (`finish`) if something is missing.

    Grant(seat, epoch, runner)              a seat changed hands
    Saved(key, seat, epoch, version, …)     state was written in the name of a seat
    Gone(runner, at, within)                a runner cannot hold seats from now on
    Drawn(id, by)                           a snowflake, in the order of drawing
    Told(…)                                 what a client was told of a write, in any order
    Ran(number, …), Answered(number, …)     a handler began with a call; what its caller was told

Those of messages stand in `message_events`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable


class Event:
    """What a history is made of."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Grant(Event):
    """A seat was granted to a runner."""

    seat: str
    epoch: int
    runner: str
    at_ns: int = 0


@dataclass(frozen=True, slots=True)
class Saved(Event):
    """A version of some state was committed in the name of (seat, epoch). Its value is a list that only grows."""

    key: str
    seat: str
    epoch: int
    version: int
    value: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trusted(Event):
    """A runner believed that it held (seat, epoch) until an instant of true time."""

    seat: str
    epoch: int
    runner: str
    until_ns: int


@dataclass(frozen=True, slots=True)
class AppendOutcome(Event):
    """What a client was told of appending one unique number to a list: the list it saw, if it was acknowledged."""

    key: str
    number: int
    outcome: Literal["ok", "failed", "unknown"]
    seen: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Final(Event):
    """What a list held when everything was over."""

    key: str
    value: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ran(Event):
    """A handler began with a volatile call."""

    number: int
    entity: str
    runner: str


@dataclass(frozen=True, slots=True)
class Answered(Event):
    """How a volatile call ended for its caller: by a reply, by an error that says it did not run, or by any other."""

    number: int
    outcome: Literal["ok", "not run", "unknown"]
    told: str = ""
    late_s: float = 0.0
    """How long after its deadline; negative: before it."""


@dataclass(frozen=True, slots=True)
class Gone(Event):
    """From this instant on a runner cannot hold seats; for how long its seats may stand empty."""

    runner: str
    at_ns: int
    within_ns: int


@dataclass(frozen=True, slots=True)
class Drawn(Event):
    """A process drew a snowflake."""

    id: int
    by: str


class Violation(AssertionError):
    """A promise is broken: which one, and by what."""

    def __init__(self, promise: str, problem: str) -> None:
        super().__init__(f"{promise}: {problem}")
        self.promise = promise


class Checker(Protocol):
    """Judges one promise."""

    def see(self, event: Event) -> None:
        """The next event, in commit order."""
        ...

    def finish(self) -> None:
        """The history is complete."""
        ...


@dataclass
class EpochsGrow:
    """INV-F1: for each seat, grants carry strictly increasing epochs, each given to one runner."""

    _last: dict[str, Grant] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Compare a grant with the one before it."""
        if isinstance(event, Grant):
            before = self._last.get(event.seat)
            if before is not None and event.epoch <= before.epoch:
                raise Violation("INV-F1", f"seat {event.seat}: epoch {event.epoch} was granted after {before.epoch}")
            self._last[event.seat] = event

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class NoStaleCommit:
    """INV-F2: no write in the name of (seat, e) commits after a grant of (seat, e') with e' > e."""

    _granted: dict[str, int] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Compare a write with the newest grant of its seat."""
        if isinstance(event, Grant):
            self._granted[event.seat] = max(event.epoch, self._granted.get(event.seat, 0))
        elif isinstance(event, Saved) and event.epoch < self._granted.get(event.seat, 0):
            raise Violation(
                "INV-F2",
                f"{event.key}: version {event.version} was written in the name of {event.seat} at epoch {event.epoch} "
                f"after epoch {self._granted[event.seat]} had been granted",
            )

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class OneChain:
    """INV-F3: each version follows the one before it, and its list extends the one before it by one number."""

    _last: dict[str, Saved] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Compare a version with the one before it."""
        if not isinstance(event, Saved):
            return
        before = self._last.get(event.key)
        version, value = (0, ()) if before is None else (before.version, before.value)
        if event.version != version + 1:
            raise Violation("INV-F3", f"{event.key}: version {event.version} follows {version}")
        if event.value[:-1] != value:
            raise Violation("INV-F3", f"{event.key}: version {event.version} does not continue version {version}")
        self._last[event.key] = event

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class BeliefBounded:
    """INV-F4: nobody is granted a seat while its former holder may still trust that it holds it."""

    _trusted: dict[tuple[str, int], Trusted] = field(default_factory=dict)
    _grants: list[Grant] = field(default_factory=list)

    def see(self, event: Event) -> None:
        """Remember: beliefs are known only when the runners are asked, after the grants."""
        if isinstance(event, Grant):
            self._grants.append(event)
        elif isinstance(event, Trusted):
            self._trusted[event.seat, event.epoch] = event

    def finish(self) -> None:
        """Compare each grant with the belief in the epoch before it."""
        before: dict[str, Grant] = {}
        for grant in self._grants:
            former = before.get(grant.seat)
            belief = self._trusted.get((grant.seat, former.epoch)) if former is not None else None
            if belief is not None and belief.until_ns > grant.at_ns:
                raise Violation(
                    "INV-F4",
                    f"{grant.runner} was granted {grant.seat} at +{grant.at_ns / 1e9:.3f}s while {belief.runner} "
                    f"trusted epoch {belief.epoch} until +{belief.until_ns / 1e9:.3f}s",
                )
            before[grant.seat] = grant


@dataclass
class HeldAgain:
    """INV-F5: whatever a runner held that is gone, another is granted in time. Events come in the order of instants."""

    _last: dict[str, Grant] = field(default_factory=dict)
    _owed: dict[str, Gone] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Note what stands empty, and whether it took too long."""
        if isinstance(event, Gone):
            lost = [seat for seat, grant in self._last.items() if grant.runner == event.runner]
            self._owed |= dict.fromkeys(lost, event)
        elif isinstance(event, Grant):
            gone = self._owed.pop(event.seat, None)
            took_ns = 0 if gone is None else event.at_ns - gone.at_ns
            if gone is not None and took_ns > gone.within_ns:
                most_s = gone.within_ns / 1e9
                raise Violation("INV-F5", f"{event.seat} stood empty for {took_ns / 1e9:.3f}s, allowed are {most_s:g}s")
            self._last[event.seat] = event

    def finish(self) -> None:
        """Find what was never granted again."""
        for seat, gone in self._owed.items():
            raise Violation("INV-F5", f"{seat} was never held again after {gone.runner} was gone")


@dataclass
class IdsUnique:
    """INV-S1: no snowflake is drawn twice, and those of one process increase."""

    _by: dict[int, str] = field(default_factory=dict)
    _last: dict[str, int] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Compare an id with all before it."""
        if isinstance(event, Drawn):
            if event.id in self._by:
                raise Violation("INV-S1", f"{event.by} drew {event.id}, which {self._by[event.id]} had drawn")
            if event.id < self._last.get(event.by, -1):
                raise Violation("INV-S1", f"{event.by} drew {event.id} after {self._last[event.by]}")
            self._by[event.id] = event.by
            self._last[event.by] = event.id

    def finish(self) -> None:
        """Nothing is left to judge."""


@dataclass
class NothingLostNothingDoubled:
    """INV-D1, D6: what was acknowledged is there once, what failed is not there, what is unknown is there at most once.

    Each acknowledged list is a beginning of the final one: all agree on one order.
    """

    _told: list[AppendOutcome] = field(default_factory=list)
    _final: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Remember what clients were told, and the end."""
        if isinstance(event, AppendOutcome):
            self._told.append(event)
        elif isinstance(event, Final):
            self._final[event.key] = event.value

    def finish(self) -> None:
        """Compare them."""
        counts = {key: Counter(value) for key, value in self._final.items()}
        for key, counter in counts.items():
            if doubled := [number for number, count in counter.items() if count > 1]:
                raise Violation("INV-D6", f"{key}: {doubled[0]} is there {counter[doubled[0]]} times")
        for told in self._told:
            final = self._final.get(told.key, ())
            there = counts.get(told.key, Counter())[told.number]
            if told.outcome == "ok" and not there:
                raise Violation("INV-D1", f"{told.key}: {told.number} was acknowledged and is not there")
            if told.outcome == "failed" and there:
                raise Violation("INV-D6", f"{told.key}: {told.number} was said to have failed and is there")
            if told.outcome == "ok" and final[: len(told.seen)] != told.seen:
                raise Violation("INV-D1", f"{told.key}: what {told.number} saw is no beginning of the final list")


@dataclass
class AtMostOnce:
    """INV-D8, E4: a handler runs once at most for a call, once if it was answered, never if it was refused."""

    _ran: dict[int, Ran] = field(default_factory=dict)
    _answered: list[Answered] = field(default_factory=list)

    def see(self, event: Event) -> None:
        """Refuse a second run."""
        if isinstance(event, Ran):
            before = self._ran.setdefault(event.number, event)
            if before is not event:
                where = f"on {before.runner} and on {event.runner}"
                raise Violation("INV-D8", f"call {event.number} of {event.entity} ran twice, {where}")
        elif isinstance(event, Answered):
            self._answered.append(event)

    def finish(self) -> None:
        """Compare what ran with what callers were told."""
        for each in self._answered:
            if each.outcome == "ok" and each.number not in self._ran:
                raise Violation("INV-D8", f"call {each.number} was answered, and no handler ran")
            if each.outcome == "not run" and each.number in self._ran:
                raise Violation("INV-E4", f"call {each.number} ran, and its caller was told {each.told}")


@dataclass
class EndedInTime:
    """F8: each call ends by its deadline, give or take `tick_s`."""

    tick_s: float = 0.1

    def see(self, event: Event) -> None:
        """Look at the moment of an end."""
        if isinstance(event, Answered) and event.late_s > self.tick_s:
            raise Violation("F8", f"call {event.number} ended {event.late_s:.3f}s after its deadline, by {event.told}")

    def finish(self) -> None:
        """Nothing is left to judge."""


def check(history: Iterable[Event], *checkers: Checker) -> int:
    """Show a history to checkers; how many events there were. Raises `Violation`."""
    count = 0
    for event in history:
        count += 1
        for checker in checkers:
            checker.see(event)
    for checker in checkers:
        checker.finish()
    return count
