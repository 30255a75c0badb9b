"""Payments while processes are killed and frozen, the database restarts and sockets are cut (GAP-02, GAP-06, GAP-09).

    python -m tests.cluster.chaos_messages --minutes 15 --engine postgres --seed 7

The seed decides what is broken, when and for how long; what the processes make of it, nobody decides. It ends with the
judgement of all payments: none lost, none doubled.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.testing import Server
from tests.cluster.bank_cluster import bank
from tests.cluster.chaos import Chaos

if TYPE_CHECKING:
    from collections import Counter

    from tests.cluster.bank_cluster import Branch

RUNNERS, CLIENTS, HANDS = 4, 3, 2
FLAW = 0.01


async def run(*, engine: str, minutes: float, seed: int, folder: Path) -> None:
    """Chaos for some minutes, then the judgement."""
    with ExitStack() as stack:
        server = None
        url = f"sqlite:///{folder}/bank.db"
        if engine == "postgres":
            server = Server()
            stack.callback(server.close)
            server.start()
            url = server.url(server.create_database())
        async with bank(url, folder, runners=RUNNERS // 2, clients=0, flaw=FLAW, directory=folder) as branch:
            wires = [await branch.start_behind_proxy(stack) for _ in range(RUNNERS - RUNNERS // 2)]
            await branch.start_clients(CLIENTS)
            await branch.paying()
            chaos = Chaos(branch, seed=seed, server=server, wires=wires)
            until_s = time.monotonic() + minutes * 60
            watch = asyncio.create_task(watched(branch))
            await asyncio.gather(*(chaos.go_on(until_s=until_s) for _ in range(HANDS)))
            watch.cancel()
            for each in branch.cluster.runners:
                await chaos.supervise(each)
            broken_s = time.monotonic()
            counts = await branch.close_day()
            report(branch, chaos, counts, engine=engine, quiet_s=time.monotonic() - broken_s)


async def watched(branch: Branch) -> None:
    """Say how it goes, once a minute."""
    while True:
        await asyncio.sleep(60)
        records = branch.records.refresh()
        print(f"{len(records.told)} told, {len(records.tried)} tried, {await branch.pending()} pending", flush=True)


def report(branch: Branch, chaos: Chaos, counts: Counter[str], *, engine: str, quiet_s: float) -> None:
    """What was broken, and what came of it."""
    waits = sorted(told.took_s for told in branch.records.told.values())
    print(f"{engine}: 0 lost, 0 doubled, {branch.retried} dead; all at an end {quiet_s:.1f}s after the last fault")
    print("faults: " + ", ".join(f"{times} {what}" for what, times in sorted(chaos.done.items())))
    print("payments: " + ", ".join(f"{times} {what}" for what, times in counts.most_common()))
    print("errors of clients: " + ", ".join(f"{times} {code}" for code, times in branch.records.failed.most_common()))
    print(
        f"answered after p50 {waits[len(waits) // 2]:.3f}s, p99 {waits[len(waits) * 99 // 100]:.3f}s, {waits[-1]:.1f}s"
    )


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
