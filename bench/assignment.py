"""Who should hold what, in a large cluster: 200 runners and 3,000 seats, beside the time that it may take."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from tests.unit.ownership.rows import held, runner, seat, shards

from bench.measure import Row
from coterie.kernel.ids import new_incarnation
from coterie.kernel.random import Random
from coterie.ownership.assignment import targets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.interface import RunnerRow, SeatRow

RUNNERS = 200
SEATS = 3000
GOALS_S = {"cold": 1.5, "one went": 0.05, "one came": 0.05}


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """A row for each case, for shards alone and with a tenth of singletons; the ratio is allowed time / time taken."""
    del seconds
    for others in (0, SEATS // 10):
        for case, goal_s in GOALS_S.items():
            members, seats = situation(case, others=others)
            taken_s = statistics.median(time_s(members, seats) for _ in range(rounds))
            scenario = f"assign, {case}, {others} others"
            yield Row(scenario, RUNNERS, 1 / taken_s, 1 / goal_s, goal_s / taken_s, goal=1.0)


def situation(case: str, *, others: int) -> tuple[list[RunnerRow], list[SeatRow]]:
    """The members and seats of a case; `others` of the seats are no shards, and known to all."""
    chance = Random(1)
    names = [f"singleton:{number}" for number in range(others)]
    members = [runner(new_incarnation(chance), knows=dict.fromkeys(names, "v1")) for _ in range(RUNNERS + 1)]
    seats = shards(SEATS - others) + [seat(name, fingerprint="v1") for name in names]
    before = members[:RUNNERS]
    if case == "cold":
        return before, seats
    seats = held(seats, targets(before, seats))
    return (before[1:] if case == "one went" else members), seats


def time_s(members: list[RunnerRow], seats: list[SeatRow]) -> float:
    """How long one computation takes."""
    began = time.perf_counter()
    targets(members, seats)
    return time.perf_counter() - began
