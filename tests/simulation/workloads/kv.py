"""Workload: runners append unique numbers to shared lists, count and set keys, while everything breaks."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import TYPE_CHECKING

from coterie import Cluster, NotStarted, PersistenceError, ShuttingDown
from coterie.testing import faults
from coterie.testing.loop.seeds import stream
from coterie.testing.run import current_loop
from coterie.testing.simulation import Runner, simulate
from tests.support.history.ownership import AppendOutcome, Final, NothingLostNothingDoubled, check

if TYPE_CHECKING:
    from coterie.testing.loop.seeds import Stream

RUNNERS = 5
LASTING_S = 300
KEYS = 6


async def main(*, lasting_s: float = LASTING_S, runners: int = RUNNERS) -> int:
    """One seed: faults throughout, then calm, then judgement. How many writes were judged."""
    cluster = Cluster("sqlite://", shards=1)
    told: list[AppendOutcome] = []
    numbers = itertools.count(1)

    async def body(runner: Runner) -> None:
        random = stream(current_loop().seed, f"kv {runner.name} {runner.incarnation}")
        await asyncio.gather(*(append(cluster, random, numbers, told) for _ in range(2)))

    async with simulate(cluster, runners=runners, faults=faults.EVERYTHING, body=body) as sim:
        await sim.advance(lasting_s)
        sim.body = None
        for runner in sim.runners:
            runner.kill()  # whatever is still under way ends here: nobody appends after the judgement
        await sim.calm()
        await sim.advance(10)  # what was stuck on its way has arrived by now
        finals = [Final(key, tuple(await cluster.kv.get(key) or ())) for key in map(name, range(KEYS))]
    judged = check([*told, *finals], NothingLostNothingDoubled())
    assert sum(each.outcome == "ok" for each in told) > 10, "hardly anything was written: the run shows nothing"
    return judged


async def append(cluster: Cluster, random: Stream, numbers: itertools.count[int], told: list[AppendOutcome]) -> None:
    """Append until the runner dies."""
    while True:
        await asyncio.sleep(random.expovariate(0.5))
        key, number = name(random.randrange(KEYS)), next(numbers)
        place = len(told)
        told.append(AppendOutcome(key, number, "unknown"))  # should this runner die now, nobody knows
        try:
            seen = await cluster.kv.modify(key, partial(with_number, number))
        except (NotStarted, ShuttingDown):
            told[place] = AppendOutcome(key, number, "failed")
            return
        except PersistenceError as error:
            if error.outcome != "unknown":
                told[place] = AppendOutcome(key, number, "failed")
        else:
            told[place] = AppendOutcome(key, number, "ok", tuple(seen or ()))


def with_number(number: int, old: list[int] | None) -> list[int]:
    return [*(old or []), number]


def name(number: int) -> str:
    return f"list-{number}"
