"""When to try again (`Retry`) and when to stop trying for a while (`Breaker`): pure policies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from coterie.errors import ConfigurationError
from coterie.kernel.durations import Duration, format_duration, to_timedelta

if TYPE_CHECKING:
    from datetime import timedelta

    from coterie.kernel.random import Random


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """How often and after which pauses something that failed is retried.

    The pause after the first failure is `base`, each following one is `factor` times as long, up to `max`.

        >>> Retry(attempts=3, base="1s").base
        datetime.timedelta(seconds=1)

    Args:
        attempts: All attempts, the first included. Five: with the pauses below they span 1.5 s, which outlasts a
            dropped connection or a change of owner, and still reports a real fault quickly.
        base: The first pause. 100 ms: longer than a hiccup, too short to be noticed.
        factor: How much longer each pause is than the one before. Two: an overloaded service gets half the load
            at each round.
        max: The longest pause. 30 s: long enough to be no burden, short enough that no one waits for minutes
            after a recovery.
        jitter: The random part of each pause, from 0 to 1, so that what failed together is not retried together.
            It shortens, never lengthens, so `max` holds and pauses at `max` spread too. A fifth is enough to spread
            a crowd, and leaves pauses that can be recognised in a log.
    """

    never: ClassVar[Retry]
    """One attempt, no retries."""

    attempts: int
    base: timedelta
    factor: float
    max: timedelta
    jitter: float

    def __init__(
        self,
        attempts: int = 5,
        base: Duration = "100ms",
        factor: float = 2.0,
        max: Duration = "30s",
        jitter: float = 0.2,
    ) -> None:
        put = object.__setattr__  # a frozen dataclass whose fields have other types than its arguments
        put(self, "attempts", _counted(attempts, what="attempts of Retry"))
        put(self, "base", to_timedelta(base, what="base of Retry", allow_zero=True))
        put(self, "factor", _within(factor, what="factor of Retry", low=1, high=100))
        put(self, "max", to_timedelta(max, what="max of Retry", allow_zero=True))
        put(self, "jitter", _within(jitter, what="jitter of Retry", low=0, high=1))
        if self.base > self.max:
            longer, limit = format_duration(self.base), format_duration(self.max)
            raise ConfigurationError(
                problem=f'base of Retry is "{longer}", longer than its max, "{limit}"',
                hint=f'shorten base, or write max="{longer}" or more',
            )

    def delay_s(self, attempt: int, chance: Random) -> float | None:
        """Seconds to wait after attempt number `attempt` (from 1) has failed; None: that was the last."""
        if attempt < 1:
            raise ValueError(f"attempts are counted from 1, not {attempt}")
        if attempt >= self.attempts:
            return None
        pause_s = self._pause_s(attempt)
        return chance.between(pause_s * (1 - self.jitter), pause_s)

    def _pause_s(self, attempt: int) -> float:
        if not self.base:
            return 0.0
        try:
            pause_s = self.base.total_seconds() * self.factor ** (attempt - 1)
        except OverflowError:
            pause_s = math.inf
        return min(pause_s, self.max.total_seconds())


@dataclass(frozen=True, slots=True, init=False)
class Breaker:
    """After how many failures in a row attempts are suspended, and for how long.

    Args:
        failures: Failures in a row that open the breaker. Five: more than a hiccup, and soon
            enough to spare what is down.
        reset: How long after the last failure one attempt is let through. A minute: most restarts take less.
    """

    failures: int
    reset: timedelta

    def __init__(self, failures: int = 5, reset: Duration = "1m") -> None:
        object.__setattr__(self, "failures", _counted(failures, what="failures of Breaker"))
        object.__setattr__(self, "reset", to_timedelta(reset, what="reset of Breaker"))


def _counted(value: object, *, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(problem=f"{what} is {value!r}: it must be a whole number from 1 on")
    return value


def _within(value: object, *, what: str, low: float, high: float) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        return float(value)
    raise ConfigurationError(problem=f"{what} is {value!r}: it must be a number from {low:g} to {high:g}")


Retry.never = Retry(attempts=1)  # last, since it needs all of the above
