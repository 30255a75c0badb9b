"""Time: the one place that reads a clock, so that tests can drive it (H6)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from coterie.errors import InvalidArgument

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST_YEAR = 2200
"""Not every database can count much further."""

# Counts suspension (a closed laptop), which CLOCK_MONOTONIC on Linux does not [M13].
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Two clocks in one: the wall, which may step, and a steady one, which only goes forward."""

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


class ManualClock:
    """A clock that stands still until it is told to move. For tests."""

    def __init__(self, start_at: datetime = _EPOCH) -> None:
        self._wall_ns = to_ns(start_at)
        self._steady_ns = 0

    def wall_ns(self) -> int:
        return self._wall_ns

    def steady_ns(self) -> int:
        return self._steady_ns

    def advance(self, by: timedelta) -> None:
        """Let time pass."""
        step_ns = by // timedelta(microseconds=1) * 1000
        if step_ns < 0:
            raise ValueError("time does not pass backwards: step_wall() moves the wall clock alone")
        self._wall_ns += step_ns
        self._steady_ns += step_ns

    def step_wall(self, by: timedelta) -> None:
        """Set the wall clock, as NTP or an administrator does; the steady clock does not move."""
        self._wall_ns += by // timedelta(microseconds=1) * 1000


def require_instant(at: datetime, *, what: str) -> None:
    """Refuse an instant that not every database can keep.

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
    """The aware UTC instant of nanoseconds since 1970, cut to microseconds."""
    return _EPOCH + timedelta(microseconds=ns // 1000)
