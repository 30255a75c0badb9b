"""Rates per second, durations and CPU use, computed from two samples of a runner's counters. Pure."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from coterie.kernel.metrics import CALL_DURATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from coterie.observe.facts import LocalFacts

_SHORTEST_S = 0.05
"""Two samples that are closer together say nothing: the counts since the start are used instead."""


class Rate(NamedTuple):
    """The rates of a runner, or of all of them."""

    calls_s: float
    """Calls and messages handled per second."""
    times: tuple[int, ...]
    """Histogram of their durations, with the metric's buckets; since the start, if there was none in between."""
    cpu: float
    """Share of one core that it uses: 1.0 is all of it."""

    @property
    def p50_s(self) -> float | None:
        """The median duration; None: there was no call."""
        return percentile(self.times, 0.5)

    @property
    def p99_s(self) -> float | None:
        """The 99th percentile of the durations; None: there was no call."""
        return percentile(self.times, 0.99)


def rate(before: LocalFacts | None, after: LocalFacts) -> Rate:
    """The rates of a runner between two samples; since its start, if there is no earlier sample."""
    length_s = after.up_s if before is None else after.up_s - before.up_s
    if before is not None and length_s < _SHORTEST_S:
        return rate(None, after)
    if before is None:
        whole_s = max(length_s, 1.0)  # a runner that has just started would show absurd rates
        return Rate(after.calls / whole_s, after.call_times, min(after.cpu_s / whole_s, 1.0))
    times = _between(before.call_times, after.call_times)
    return Rate(
        calls_s=max(after.calls - before.calls, 0) / length_s,
        times=times if any(times) else after.call_times,
        cpu=max(after.cpu_s - before.cpu_s, 0.0) / length_s,
    )


def rates(before: Mapping[str, LocalFacts | None], after: Mapping[str, LocalFacts | None]) -> dict[str, Rate]:
    """The rates of each runner that replied, by its incarnation."""
    return {runner: rate(before.get(runner), local) for runner, local in after.items() if local is not None}


def together(each: Iterable[Rate]) -> Rate | None:
    """The rates of all of them together; None: there are none."""
    all_of = list(each)
    if not all_of:
        return None
    size = len(CALL_DURATION.bounds) + 1
    known = [one.times for one in all_of if len(one.times) == size]
    times = tuple(sum(counts) for counts in zip(*known, strict=True))
    return Rate(sum(one.calls_s for one in all_of), times, sum(one.cpu for one in all_of))


def percentile(times: Sequence[int], share: float) -> float | None:
    """The duration that this share of calls did not exceed, as exactly as the buckets tell; None: unknown.

    >>> percentile([0, 10, *[0] * 15], 0.5)  # all took 0.5 to 1 ms
    0.00075
    """
    bounds = CALL_DURATION.bounds
    total = sum(times)
    if not total or len(times) != len(bounds) + 1:  # a later version may have other buckets
        return None
    wanted = total * share
    sums = [0, *accumulate(times)]
    edges = [0.0, *bounds, bounds[-1]]  # beyond the last bound nothing more is known
    for place, (low, high) in enumerate(pairwise(sums)):
        if high >= wanted and high > low:
            within = (wanted - low) / (high - low)
            return round(edges[place] + (edges[place + 1] - edges[place]) * within, 6)
    return None


def _between(before: Sequence[int], after: Sequence[int]) -> tuple[int, ...]:
    if len(before) != len(after):
        return tuple(after)
    return tuple(max(now - then, 0) for then, now in zip(before, after, strict=True))
