"""Jobs of queues with limits while processes are killed and frozen, and the database restarts (T1, T2, T6, T9).

    python -m tests.cluster.chaos_jobs --minutes 15 --engine postgres --seed 7

The seed decides what is broken, when and for how long; what the processes make of it, nobody decides. After every two
minutes nothing is broken for some time, in which the starts of a busy queue are compared with its rate. It ends with
the judgement of all jobs by what the database and the bodies have written down: none lost, none ended twice, none over
a limit.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.testing import Server
from tests.cluster.chaos import Chaos
from tests.cluster.job_cluster import load
from tests.cluster.job_history import WINDOW_S, judge_rate, peaks, rate_windows, starts_of
from tests.cluster.job_load_program import RATE

if TYPE_CHECKING:
    from collections import Counter

    from tests.cluster.job_cluster import Load
    from tests.support.history.ownership import Event

RUNNERS, CLIENTS, SENDERS, HANDS = 3, 2, 12, 2
SPELL_S = 120.0
"""How long things are broken, before the next calm."""
SETTLE_S = 10.0
"""How long what was broken may take until all is as ever."""
CALM_S = WINDOW_S + 15.0
RATED = "queue:rated"


async def run(*, engine: str, minutes: float, seed: int, folder: Path) -> None:
    """Chaos for some minutes, then the judgement."""
    with ExitStack() as stack:
        server = None
        url = f"sqlite:///{folder}/jobs.db"
        if engine == "postgres":
            server = Server()
            stack.callback(server.close)
            server.start()
            url = server.url(server.create_database())
        async with load(url, folder, directory=folder) as here:
            await here.start_runners(RUNNERS - 1)
            wires = [await here.start_behind_proxy(stack)]
            await here.start_clients(CLIENTS, senders=SENDERS)
            here.feed()
            chaos, calm = Chaos(here, seed=seed, server=server, wires=wires), []
            left_s = minutes * 60
            while left_s > 0:
                await broken(here, chaos, for_s=min(SPELL_S, left_s), seed=seed)
                left_s -= SPELL_S
                broken_s = time.monotonic()
                calm.append(await calmed(SETTLE_S, CALM_S))
            counts, committed = await here.close()
            report(here, chaos, counts, engine=engine, quiet_s=time.monotonic() - broken_s - SETTLE_S - CALM_S)
            report_limits(committed, calm)


async def broken(here: Load, chaos: Chaos, *, for_s: float, seed: int) -> None:
    """Break things for some time; afterwards all processes run."""
    until_s = time.monotonic() + for_s
    hands = (chaos.go_on(until_s=until_s) for _ in range(HANDS))
    await asyncio.gather(here.operate(until_s=until_s, seed=seed), *hands)
    for each in here.cluster.runners:
        await chaos.supervise(each)


async def calmed(settle_s: float, calm_s: float) -> tuple[int, int]:
    """Break nothing for some time; when that was, without the time in which all settles."""
    await asyncio.sleep(settle_s)
    since_ns = time.time_ns()
    await asyncio.sleep(calm_s)
    return since_ns, time.time_ns()


def report(here: Load, chaos: Chaos, counts: Counter[str], *, engine: str, quiet_s: float) -> None:
    """What was broken, and what came of it."""
    print(f"{engine}: 0 lost, 0 ended twice, 0 over a limit; all at an end {quiet_s:.1f}s after the last calm")
    print("faults: " + ", ".join(f"{times} {what}" for what, times in sorted(chaos.done.items())))
    print(f"operator: {here.orders} pauses, limits and retries; {here.retried} dead jobs run again")
    print("jobs: " + ", ".join(f"{times} {what}" for what, times in counts.most_common()))
    print("errors of clients: " + ", ".join(f"{times} {code}" for code, times in here.notes().failed.most_common()))


def report_limits(committed: list[tuple[int, Event]], calm: list[tuple[int, int]]) -> None:
    """How near the queues came to their limits, and the rate while nothing was broken."""
    for each in peaks(committed):
        print(f"{each.seat}: at most {each.running} at once, {each.in_partition} of a partition")
    load_1m, _, _ = os.getloadavg()
    windows = rate_windows(starts_of(committed, RATED), calm, rate=RATE)
    print(
        f"rate of {RATE}/s: {windows.least:.2%} to {windows.most:.2%} of it in {windows.windows} windows of "
        f"{WINDOW_S:g}s; load of the machine {load_1m:.1f} on {os.cpu_count()} cores",
        flush=True,
    )
    judge_rate(windows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--engine", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="an empty folder that is kept, with journals and logs")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coterie-chaos-")))
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(run(engine=options.engine, minutes=options.minutes, seed=options.seed, folder=folder))


if __name__ == "__main__":
    main()
