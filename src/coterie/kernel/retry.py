"""When to try again (`Retry`) and when to stop trying for a while (`Breaker`): pure policies.

`Snooze` and `Discard` are exceptions by which a handler decides itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from coterie.errors import ConfigurationError
from coterie.kernel.durations import Duration, format_duration, to_seconds, to_timedelta

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from coterie.kernel.random import Random


@dataclass(frozen=True, slots=True, init=False, repr=False)
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
        on: Only these exceptions, and classes derived from them, are retried. Default: all.
        unless: These exceptions are not retried, whatever `on` says. Default: none.
    """

    never: ClassVar[Retry]
    """One attempt, no retries."""

    attempts: int
    base: timedelta
    factor: float
    max: timedelta
    jitter: float
    on: tuple[type[Exception], ...] | None
    unless: tuple[type[Exception], ...]

    def __init__(
        self,
        attempts: int = 5,
        base: Duration = "100ms",
        factor: float = 2.0,
        max: Duration = "30s",
        jitter: float = 0.2,
        *,
        on: Iterable[type[Exception]] | None = None,
        unless: Iterable[type[Exception]] = (),
    ) -> None:
        put = object.__setattr__  # a frozen dataclass whose fields have other types than its arguments
        put(self, "attempts", _counted(attempts, what="attempts of Retry"))
        put(self, "base", to_timedelta(base, what="base of Retry", allow_zero=True))
        put(self, "factor", _within(factor, what="factor of Retry", low=1, high=100))
        put(self, "max", to_timedelta(max, what="max of Retry", allow_zero=True))
        put(self, "jitter", _within(jitter, what="jitter of Retry", low=0, high=1))
        put(self, "on", None if on is None else _classes(on, what="on"))
        put(self, "unless", _classes(unless, what="unless"))
        if self.on == ():
            raise ConfigurationError(
                problem="on of Retry is empty, so that nothing is ever retried",
                hint="leave it out to retry after any exception, or write Retry.never",
            )
        if self.base > self.max:
            longer, limit = format_duration(self.base), format_duration(self.max)
            raise ConfigurationError(
                problem=f'base of Retry is "{longer}", longer than its max, "{limit}"',
                hint=f'shorten base, or write max="{longer}" or more',
            )

    @property
    def decides_by_class(self) -> bool:
        """Whether it matters which exception an attempt has raised."""
        return self.on is not None or bool(self.unless)

    def delay_s(self, attempt: int, chance: Random, error: BaseException | None = None) -> float | None:
        """Seconds to wait after attempt number `attempt` (from 1) has failed; None: no attempt follows.

        Args:
            attempt: The number of the attempt.
            chance: The randomness of the pause.
            error: What it has raised, for `on` and `unless`; None: they do not matter here.
        """
        if attempt < 1:
            raise ValueError(f"attempts are counted from 1, not {attempt}")
        if attempt >= self.attempts or not self.retries(error):
            return None
        pause_s = self._pause_s(attempt)
        return chance.between(pause_s * (1 - self.jitter), pause_s)

    def retries(self, error: BaseException | None) -> bool:
        """Whether what an attempt has raised is one of those that are retried; None: its class does not matter."""
        if not isinstance(error, Exception):  # a cancellation, or the like, is no exception of the user's
            return True
        if isinstance(error, self.unless):
            return False
        return self.on is None or isinstance(error, self.on)

    def __repr__(self) -> str:
        # Classes are shown only if there are any: the fingerprints of crons are made of this text.
        shown = {name: getattr(self, name) for name in ("attempts", "base", "factor", "max", "jitter")}
        shown |= {name: kinds for name in ("on", "unless") if (kinds := getattr(self, name))}
        return f"Retry({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

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


class Snooze(Exception):
    """Raised by the handler of a persisted call, puts the call off: it runs again after `delay`, as the same attempt.

    Nothing is counted and nothing is kept of this run: state, messages and SQL are as before.

        >>> Snooze("10m").delay_s
        600.0

    Args:
        delay: How long the call is put off.

    Raises:
        ConfigurationError: It is no duration, zero, or more than a century.
    """

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay_s = to_seconds(delay, what="delay of Snooze")
        if self.delay_s > _SNOOZE_MOST_S:
            raise ConfigurationError(
                problem=f"delay of Snooze is {self.delay_s / 86_400:,.0f} days: it can be a century"
            )

    def __str__(self) -> str:
        return f"put off for {self.delay_s:g}s, which only the handler of a persisted call can do"


class Discard(Exception):
    """Raised by the handler of a persisted call, ends the call for good: it is not retried, and no dead letter.

    Who waits for its result gets `Discarded`. State, messages and SQL are as before.

    Args:
        why: The reason, for those who wait and for those who look.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = str(why)

    def __str__(self) -> str:
        return f"{self.why} (discarded, which only the handler of a persisted call can do)"


_SNOOZE_MOST_S = 36_525 * 86_400.0
"""A century: not every database can represent much later instants."""


def _classes(value: object, *, what: str) -> tuple[type[Exception], ...]:
    if isinstance(value, type) or not isinstance(value, list | tuple | set | frozenset):
        shown = getattr(value, "__name__", "TimeoutError")
        raise ConfigurationError(
            problem=f"{what} of Retry is {value!r}, expected a list of exception classes",
            hint=f"write {what}=[{shown}]",
        )
    for each in value:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise ConfigurationError(problem=f"{what} of Retry has {each!r}, which is no exception class")
        if issubclass(each, Snooze | Discard):
            raise ConfigurationError(
                problem=f"{what} of Retry has {each.__name__}, which decides by itself", hint="leave it out"
            )
    return tuple(value)


def _counted(value: object, *, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(problem=f"{what} is {value!r}: it must be a whole number from 1 on")
    return value


def _within(value: object, *, what: str, low: float, high: float) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        return float(value)
    raise ConfigurationError(problem=f"{what} is {value!r}: it must be a number from {low:g} to {high:g}")


Retry.never = Retry(attempts=1)  # last, since it needs all of the above
