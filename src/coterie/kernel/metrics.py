"""Metrics: plain numbers that the code counts in, each declared once. Who publishes them reads them when asked.

>>> calls = Meter("calls_total", "counter", "Calls that were handled", ("type",))
>>> accounts = calls.of("Account")  # once: this looks it up
>>> accounts.value += 1  # for each call

No locks: each number is counted by one thread, the runner's loop as a rule, and may be read by any. Several runners in
one process, as in tests, share them.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["counter", "gauge", "histogram"]

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""From a local call to a run that takes its time."""

SERIES_MOST = 5_000
"""Label values are names of a program, which are few: beyond that they share one series, `…`."""

_REST = "…"


class Series:
    """One number."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Spread:
    """How often which value was seen."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Up to each bound, and beyond the last one: not cumulative."""
        self.total = 0.0

    def see(self, value: float) -> None:
        """Once more."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, int]]:
        """How many were at most as large as each bound, by its text; the last one, `+Inf`, is all of them."""
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


class Meter:
    """A metric: its declaration, and its numbers by the values of its labels. One for the whole process.

    Args:
        name: As published.
        kind: Of counters and gauges `of` gives a `Series`, of histograms `spread` gives a `Spread`.
        help: What it says, for people.
        labels: The names of its labels. Their values are names that the program chose, never ids.
        bounds: The upper bounds of a histogram.
    """

    __slots__ = ("bounds", "help", "kind", "labels", "name", "series", "spreads")

    def __init__(
        self, name: str, kind: Kind, help: str, labels: tuple[str, ...] = (), *, bounds: Sequence[float] = SECONDS
    ) -> None:
        self.name = name
        self.kind = kind
        self.help = help
        self.labels = labels
        self.bounds = bounds
        self.series: dict[tuple[str, ...], Series] = {}
        self.spreads: dict[tuple[str, ...], Spread] = {}

    def of(self, *values: str) -> Series:
        """The number for these values of its labels."""
        assert self.kind != "histogram", f"{self.name} has a spread"
        found = self.series.get(values)
        if found is None:
            found = self.series.setdefault(self._bounded(values, len(self.series)), Series())
        return found

    def spread(self, *values: str) -> Spread:
        """The spread for these values of its labels."""
        assert self.kind == "histogram", f"{self.name} has no spread"
        found = self.spreads.get(values)
        if found is None:
            found = self.spreads.setdefault(self._bounded(values, len(self.spreads)), Spread(self.bounds))
        return found

    def forget(self) -> None:
        """Publish nothing until it is set again: of a gauge whose value is not known any more."""
        assert self.kind == "gauge", f"{self.name} counts what has happened, and that stays so"
        self.series.clear()

    def together(self) -> list[int]:
        """How often which value was seen, whatever its labels, by the bounds of the histogram."""
        spreads = [spread.counts for spread in list(self.spreads.values())]
        return [sum(counts) for counts in zip(*spreads, strict=True)] or [0] * (len(self.bounds) + 1)

    def _bounded(self, values: tuple[str, ...], known: int) -> tuple[str, ...]:
        assert len(values) == len(self.labels), f"{self.name} has the labels {self.labels}, not {values}"
        return values if known < SERIES_MOST else (_REST,) * len(values)
