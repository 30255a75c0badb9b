"""Time: the one place that reads a clock, so that tests can drive it (H6); and this process's estimate of the
database's clock (`Dial`), which alone decides when a tick is due.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from coterie.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST_YEAR = 2200
"""Not every database supports much later years."""

# Counts suspension (a closed laptop), which CLOCK_MONOTONIC on Linux does not [M13].
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Two clocks in one: the wall clock, which may step, and a steady one, which only goes forward."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 in UTC. May step back or forward."""
        ...

    def steady_ns(self) -> int:
        """Nanoseconds since some start, never stepping back, counting suspension where the system can."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def wall_ns(self) -> int:
        return time.time_ns()

    def steady_ns(self) -> int:
        return time.clock_gettime_ns(_STEADY)


def steady_s() -> float:
    """The steady clock of this machine, in seconds."""
    return SystemClock().steady_ns() / 1e9


def require_instant(at: datetime, *, what: str) -> None:
    """Refuse an instant that not every database can store.

    Raises:
        InvalidArgument: It is before 1970, or too late.
    """
    if at.year >= LATEST_YEAR or at.timestamp() < 0:
        problem = f"expected an instant from the year 1970 on, and before the year {LATEST_YEAR}"
        raise InvalidArgument(what=what, value=str(at), problem=problem)


def to_ns(at: datetime) -> int:
    """Nanoseconds since 1970 of an aware instant, exact to the microsecond."""
    if at.tzinfo is None:
        raise ValueError(f"naive datetime {at}: add a zone")
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000


def to_datetime(ns: int) -> datetime:
    """The aware UTC instant of nanoseconds since 1970, truncated to microseconds."""
    return _EPOCH + timedelta(microseconds=ns // 1000)


_BEST_S = 30.0
"""How long the best reading counts: clocks drift, but not much in that time."""
_DRIFT_S = 0.05
"""More than they drift in that time."""


class Dial:
    """Estimates the database's clock from the times in its answers, without a query.

    The time in an answer was read some moment before it arrived, so the clock is at least that far now: the best of
    the last readings is the one that arrived fastest. The estimate is never ahead, so no tick is requested before it is
    due, unless the database's clock is set back: then call `correct`.

    Args:
        time: A steady time, in seconds.
        first: The estimate until the first answer, in seconds since 1970.
    """

    def __init__(self, time: Callable[[], float], first: float) -> None:
        self._time = time
        self._offset_s = first - time()
        self._read_s = float("-inf")

    def observe(self, now: datetime, *, asked: datetime | None = None) -> None:
        """An answer has just arrived.

        Args:
            now: What the database's clock showed when it was made.
            asked: The estimate when the query was sent. An answer is not older than its query: if it says so, the
                database's clock was set back.
        """
        is_set_back = asked is not None and (asked - now).total_seconds() > _DRIFT_S
        time_s = self._time()
        is_better = now.timestamp() - time_s >= self._offset_s
        if is_better or is_set_back or time_s - self._read_s > _BEST_S:
            self.correct(now)

    def correct(self, now: datetime) -> None:
        """Set the clock, whatever the estimate was."""
        self._read_s = self._time()
        self._offset_s = now.timestamp() - self._read_s

    def now(self) -> datetime:
        """The database's clock, or slightly less."""
        return datetime.fromtimestamp(self._time() + self._offset_s, UTC)

    def until_s(self, at: datetime) -> float:
        """Seconds until the clock shows `at`."""
        return at.timestamp() - self._offset_s - self._time()
