"""What a blocking call costs over an awaited one: the same call to a runner in another process, taking turns.

Microseconds by which the median of `c.call(…)` in a thread is above that of `await …` on a loop; and calls per second
of some threads beside as many tasks.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from bench import calls, peers
from bench.measure import Row, p50_s, rate
from bench.ownership import Limit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bench.measure import Work

THREADS = 8
MOST_US = 150.0


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """A lone call, and calls of some threads at once."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/bench.db"
        async with peers.elsewhere(partial(calls.serve, url), pinned=False):
            awaited, blocking = calls.program(url), calls.program(url)
            async with awaited.connect():
                c = await asyncio.to_thread(blocking.sync().__enter__)  # no loop runs in a thread of its own
                refs = itertools.cycle([c.ref(calls.Echo, f"echo-{number}") for number in range(calls.ENTITIES)])

                def call() -> object:
                    return c.call(next(refs).echo(calls.BODY))

                ours = calls.spread(awaited)
                yield await _lone(ours, call, rounds=rounds, times=int(2_000 * seconds))
                yield await _many(ours, call, rounds=rounds, seconds=seconds)
                await asyncio.to_thread(c.disconnect)


async def _lone(awaited: Work, blocking: Callable[[], object], *, rounds: int, times: int) -> Row:
    def taken() -> float:
        return statistics.median(_took_s(blocking) for _ in range(times))

    await p50_s(awaited, times=times)
    await asyncio.to_thread(taken)
    over = []
    for _ in range(rounds):
        base = await p50_s(awaited, times=times)
        over.append((await asyncio.to_thread(taken) - base) * 1e6)
    median, worst = statistics.median(over), max(over)
    return Limit("sync call over awaited, p50", 1, 0.0, 0.0, MOST_US / max(median, 1e-3), 1.0, median, worst, "us")


def _took_s(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


async def _many(awaited: Work, blocking: Callable[[], object], *, rounds: int, seconds: float) -> Row:
    def per_s() -> float:
        until, began = time.perf_counter() + seconds, time.perf_counter()

        def caller(_: int) -> int:
            done = 0
            while time.perf_counter() < until:
                blocking()
                done += 1
            return done

        with ThreadPoolExecutor(THREADS) as threads:
            return sum(threads.map(caller, range(THREADS))) / (time.perf_counter() - began)

    pairs = []
    for _ in range(rounds):
        base = await rate(awaited, callers=THREADS, seconds=seconds)
        pairs.append((await asyncio.to_thread(per_s), base))
    ours, raw = (statistics.median(each) for each in zip(*pairs, strict=True))
    return Row("sync calls / awaited", THREADS, ours, raw, statistics.median(a / b for a, b in pairs), None)
