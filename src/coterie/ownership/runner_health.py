"""The health of a runner, as its lease keeper measures it: whether its loop turns, and how the database answers.

Written in the lease thread and on the runner's loop, read anywhere: single values, so no thread needs a lock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from coterie.kernel.clock import Dial

if TYPE_CHECKING:
    from datetime import datetime

    from coterie.kernel.clock import Clock

_WINDOW_NS = 10_000_000_000
"""How long a delay of the loop is remembered."""


class LastAnswer(NamedTuple):
    """The last answer of the database."""

    at_ns: int
    took_s: float


class RunnerHealth:
    """The health of one life of a runner.

    Args:
        clock: The runner's: a wall clock, which is compared with the database's, and a steady one.
        silence_s: After how long without an answer the database counts as silent.
    """

    def __init__(self, clock: Clock, *, silence_s: float) -> None:
        self._clock = clock
        self._silence_s = silence_s
        self._dial = Dial(lambda: clock.steady_ns() / 1e9, clock.wall_ns() / 1e9)
        self._lags: deque[tuple[int, int]] = deque()  # later ones are smaller: the first is the longest
        self._answer: LastAnswer | None = None
        self._heard = False
        self._problem = ""
        self._failed_over_ns: int | None = None

    # Observations

    def turned(self, since_ns: int) -> None:
        """The loop turns; it was pinged at `since_ns`."""
        now_ns = self._clock.steady_ns()
        lag_ns = now_ns - since_ns
        while self._lags and self._lags[-1][1] <= lag_ns:
            self._lags.pop()
        self._lags.append((now_ns, lag_ns))
        self._forget(now_ns)

    def answered(self, sent_ns: int, now: datetime | None = None) -> None:
        """The database has answered, perhaps with its time."""
        at_ns = self._clock.steady_ns()
        if now is not None:
            self._dial.observe(now)
            self._heard = True
        self._answer, self._problem = LastAnswer(at_ns, (at_ns - sent_ns) / 1e9), ""

    def failed(self, problem: str) -> None:
        """The database could not be reached, or has not answered."""
        self._problem = problem

    def failed_over(self) -> None:
        """The database is another server, or another timeline, than before."""
        self._failed_over_ns = self._clock.steady_ns()

    # Conclusions

    @property
    def failed_over_s(self) -> float | None:
        """How long ago a failover was noticed; None: the database is the one on which this life began."""
        return None if self._failed_over_ns is None else (self._clock.steady_ns() - self._failed_over_ns) / 1e9

    @property
    def lag_s(self) -> float:
        """The longest delay of the loop in the last 10 s. To be called on that loop."""
        self._forget(self._clock.steady_ns())
        return self._lags[0][1] / 1e9 if self._lags else 0.0

    @property
    def storage_s(self) -> float | None:
        """The latency of the database's last answer; None: there is none, or there is a problem."""
        answer = self._answer
        return None if answer is None or self.storage_problem else answer.took_s

    @property
    def storage_problem(self) -> str:
        """Why the database does not answer; empty: it does."""
        answer = self._answer
        if self._problem or answer is None:
            return self._problem
        silent_s = (self._clock.steady_ns() - answer.at_ns) / 1e9
        return f"no answer for {silent_s:.1f}s" if silent_s > self._silence_s else ""

    @property
    def clock_offset_s(self) -> float | None:
        """How far our wall clock is ahead of the database's, within the latency of an answer; None: not known yet."""
        return self._clock.wall_ns() / 1e9 - self._dial.now().timestamp() if self._heard else None

    def _forget(self, now_ns: int) -> None:
        while self._lags and now_ns - self._lags[0][0] > _WINDOW_NS:
            self._lags.popleft()
