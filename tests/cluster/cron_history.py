"""What the rows of a cron and the journals of its bodies say, read together and judged: no tick lost, none doubled.

Which ticks there should be is counted here by arithmetic, and not asked of the schedule that is tried: the bells ring
at the multiples of so many seconds.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from coterie.storage.contracts.ticks import TickRow
    from tests.cluster.seat_history import Event


class BodyStart(NamedTuple):
    """That a body began."""

    tick_s: int
    attempt: int
    epoch: int
    began_s: float

    @classmethod
    def of(cls, event: Event) -> BodyStart:
        """As a process has noted it."""
        more = event.more
        return cls(int(more["tick_s"]), int(more["attempt"]), event.epoch, float(more["began_s"]))


def due(since: datetime, until: datetime, *, every_s: int = 1) -> list[int]:
    """The ticks from an instant to another, both included, in seconds since 1970."""
    first = math.ceil(since.timestamp() / every_s) * every_s
    return list(range(first, math.floor(until.timestamp()) + 1, every_s))


def by_tick(rows: Iterable[TickRow], *, until: datetime, every_s: int = 1) -> dict[int, list[TickRow]]:
    """Which rows speak of each tick that is due up to an instant; ticks that are skipped share one."""
    found: dict[int, list[TickRow]] = defaultdict(list)
    for row in (row for row in rows if row.kind == "scheduled" and row.at <= until):
        covered = due(row.at, row.until, every_s=every_s)
        assert len(covered) == row.count, f"it says {row.count} ticks and covers {len(covered)}: {row}"
        for tick in covered:
            found[tick].append(row)
    return found


def judge(
    rows: Iterable[TickRow], rings: Iterable[BodyStart], *, since: datetime, until: datetime, every_s: int = 1
) -> Counter[str]:
    """Raise an AssertionError if a tick has no outcome or two, or if a body ran that had no right to; what there was.

    Args:
        rows: All that is stored of one cron.
        rings: All that was noted of its bodies.
        since: When its definition took effect.
        until: Up to when everything is over.
        every_s: It is due at the multiples of that.
    """
    expected, found = set(due(since, until, every_s=every_s)), by_tick(rows, until=until, every_s=every_s)
    last = math.floor(until.timestamp())
    _require_none("is lost", expected - found.keys())
    _require_none("was invented", {tick for tick in found.keys() - expected if tick <= last})
    _require_none("has two outcomes", {tick for tick, its in found.items() if len(its) > 1})
    _require_none("has no outcome", {tick for tick in expected if found[tick][0].outcome is None})
    rung: dict[int, list[BodyStart]] = defaultdict(list)
    for ring in sorted(rings, key=lambda ring: (ring.attempt, ring.epoch)):
        rung[ring.tick_s].append(ring)
    _require_none("rang for nobody", {tick for tick in rung if tick <= last} - found.keys())
    for tick in expected:
        _judge_attempts(found[tick][0], rung[tick])
    counts = Counter(found[tick][0].reason or str(found[tick][0].outcome) for tick in expected)
    return counts + Counter(again=sum(found[tick][0].attempt > 1 for tick in expected))


def _judge_attempts(row: TickRow, rings: Sequence[BodyStart]) -> None:
    """A body ran once for each attempt at most, each by another holder than the one before, and the last one ended."""
    told = f"{row.at:%H:%M:%S} of {row.name}: {row.outcome} at attempt {row.attempt}, {rings}"
    attempts, epochs = [ring.attempt for ring in rings], [ring.epoch for ring in rings]
    if row.outcome == "skipped":
        assert not rings, f"was skipped and rang: {told}"
        return
    assert len(set(attempts)) == len(attempts), f"one attempt ran twice: {told}"
    assert sorted(set(epochs)) == epochs, f"two attempts by one holder, or one by a former: {told}"
    assert attempts[-1:] == [row.attempt], f"another attempt than the stored one ran last: {told}"
    assert epochs[-1] == row.epoch, f"ended by another holder than rang: {told}"


def _require_none(problem: str, ticks: Iterable[int]) -> None:
    wrong = sorted(ticks)
    assert not wrong, f"{len(wrong)} times a tick {problem}, such as {wrong[:5]}"


def late_s(rings: Iterable[BodyStart], *, since_s: float = 0.0, until_s: float = math.inf) -> list[float]:
    """How long after its instant the last attempt of each tick began, of those due in a time.

    By the clock of this machine, which is the database's too. The last attempt is the one that was not cut short.
    """
    last = {ring.tick_s: ring.began_s for ring in sorted(rings, key=lambda ring: ring.attempt)}
    return [began_s - tick_s for tick_s, began_s in sorted(last.items()) if since_s <= tick_s < until_s]
