"""Dial: the database's clock, as it is known in this process. It alone decides when a tick is due."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_BEST_S = 30.0
"""For how long the best reading counts: clocks drift, but not much in that time."""
_DRIFT_S = 0.05
"""More than they drift in that time."""


class Dial:
    """Reads the database's clock without asking it, from what its answers said.

    An answer was read at some moment before it arrived, so the clock is at least that far now: the best of the last
    readings is the one that arrived fastest. It is never ahead, so nobody asks for a tick before it is due, unless the
    database's clock is set back: whoever is told so says it with `correct`.

    Args:
        time: A steady time, in seconds.
        first: What to believe until the first answer, in seconds since 1970.
    """

    def __init__(self, time: Callable[[], float], first: float) -> None:
        self._time = time
        self._offset_s = first - time()
        self._read_s = float("-inf")

    def hear(self, now: datetime, *, asked: datetime | None = None) -> None:
        """An answer has just arrived.

        Args:
            now: What the database's clock showed when it was made.
            asked: What was believed when the question was sent. An answer is not older than its question: if it says
                so, the database's clock was set back.
        """
        is_set_back = asked is not None and (asked - now).total_seconds() > _DRIFT_S
        is_better = now.timestamp() - self._time() >= self._offset_s
        if is_better or is_set_back or self._time() - self._read_s > _BEST_S:
            self.correct(now)

    def correct(self, now: datetime) -> None:
        """It is that time, whatever was believed."""
        self._read_s = self._time()
        self._offset_s = now.timestamp() - self._read_s

    def now(self) -> datetime:
        """The database's clock, or a bit less."""
        return datetime.fromtimestamp(self._time() + self._offset_s, UTC)

    def until_s(self, at: datetime) -> float:
        """How long until it shows that."""
        return at.timestamp() - self._offset_s - self._time()
