"""A clock that tests drive by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from coterie.kernel.clock import to_ns


class ManualClock:
    """A clock that stands still until it is advanced."""

    def __init__(self, start_at: datetime = datetime(1970, 1, 1, tzinfo=UTC)) -> None:
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
