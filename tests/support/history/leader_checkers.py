"""History checkers for leaders: their hooks, and what they take themselves for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tests.support.history.ownership import Event, Grant, Saved, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

_ORDER = ("becoming", "became", "began", "acting", "losing", "lost")


@dataclass(frozen=True, slots=True)
class Led(Event):
    """What the program of a leader saw of itself: both hooks from begin to end, its body, and what that does."""

    seat: str
    epoch: int
    process: str
    what: Literal["becoming", "became", "began", "acting", "losing", "lost"]
    is_leader: bool = False
    """What it took itself for."""
    state: tuple[int, ...] | None = None
    """What it was given by its predecessor, as a list that only grows; None: it is not told."""


@dataclass(frozen=True, slots=True)
class Outlived(Event):
    """A process was not killed: all that it began has come to its end."""

    process: str


@dataclass
class HooksInOrder:
    """S7: hooks run once for a gain and once for a loss, around the body, never two at once in a process.

    In a process that was not killed each gain is followed by its loss.
    """

    _steps: dict[tuple[str, str, int], list[str]] = field(default_factory=dict)
    _busy: dict[tuple[str, str], Led] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Compare a step with those before it."""
        if isinstance(event, Outlived):
            for (process, seat, epoch), steps in self._steps.items():
                if process == event.process and steps[-1] != "lost":
                    raise Violation("S7", f"{process} led {seat} at epoch {epoch}, and was never told of its loss")
        elif isinstance(event, Led):
            self._follow(event)
            self._take_turns(event)

    def finish(self) -> None:
        """Nothing is left to judge."""

    def _follow(self, event: Led) -> None:
        steps = self._steps.setdefault((event.process, event.seat, event.epoch), [])
        steps.append(event.what)
        if not _fits(steps):
            where = f"{event.process}, {event.seat} at epoch {event.epoch}"
            raise Violation("S7", f"{where}: {event.what} after {' '.join(steps[:-1]) or 'nothing'}")

    def _take_turns(self, event: Led) -> None:
        key = (event.process, event.seat)
        other = self._busy.pop(key, None)
        if other is not None and other.epoch != event.epoch:
            raise Violation("S7", f"{event.process}: {event.what} of {event.seat} while {other.what} was not over")
        if event.what in ("becoming", "losing"):
            self._busy[key] = event


@dataclass
class OnlyTheLeaderLeads:
    """INV-F4, S1: nobody begins before it is granted the seat, nor takes itself for the leader once its successor is.

    INV-F3: it begins with the last state that was saved.
    """

    _granted: dict[str, int] = field(default_factory=dict)
    _saved: dict[str, Saved] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Compare what a leader saw with what was committed before."""
        if isinstance(event, Grant):
            self._granted[event.seat] = event.epoch
        elif isinstance(event, Saved):
            self._saved[event.seat] = event
        elif isinstance(event, Led):
            for promise, problem in self._problems(event, self._granted.get(event.seat, 0)):
                what = f"{event.process}: {event.what} at epoch {event.epoch} of {event.seat}"
                raise Violation(promise, f"{what} {problem}")

    def finish(self) -> None:
        """Nothing is left to judge."""

    def _problems(self, event: Led, granted: int) -> Iterator[tuple[str, str]]:
        if event.epoch > granted:
            yield "INV-F4", "before it was granted"
        if event.is_leader and event.epoch < granted:
            yield "INV-F4", f"as the leader, after epoch {granted} was granted"
        saved = self._saved.get(event.seat)
        there = () if saved is None else saved.value
        if event.state is not None and event.epoch == granted and event.state != there:
            yield "INV-F3", f"with state {event.state}, when {there} was saved"


def _fits(steps: list[str]) -> bool:
    """Each step once and in order, but for the body, which may begin and act again and again, or not at all.

    A loss may come before the first hook has ended, if that was cut short.
    """
    *before, now = steps
    if not before:
        return now == "becoming"
    last = before[-1]
    if now == "began":
        return last in ("became", "began", "acting")
    if now == "acting":
        return last in ("began", "acting")
    return _ORDER.index(now) > _ORDER.index(last) and (now != "lost" or last == "losing") and now != "becoming"
