"""A program of one's own under simulated faults: 20 seeds, each minutes of virtual time, in a few seconds.

    python examples/under_faults.py

Three processes move money between two accounts, each with its own key. The naive version reads, then writes; the
atomic one uses `modify`. Under simulation the naive one is caught, with a seed that repeats the failure for ever.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from coterie import Cluster, PersistenceError
from coterie.testing import Kills, Runner, StorageErrors, run_simulation, simulate

cluster = Cluster("sqlite://")

Add = Callable[[int], Awaitable[None]]


async def naive(amount: int) -> None:
    balance = await cluster.kv.get("balance") or 0
    await cluster.kv.set("balance", balance + amount)  # whoever wrote since the get is overwritten


async def atomic(amount: int) -> None:
    await cluster.kv.modify("balance", lambda balance: (balance or 0) + amount)


async def deposits(add: Add) -> None:
    """Three runners deposit for a minute while processes die and the database fails; the books must balance."""
    sure = unsure = 0

    async def body(_: Runner) -> None:
        nonlocal sure, unsure
        while True:
            await asyncio.sleep(0.5)
            unsure += 1  # until we know: this process may die at any moment
            try:
                await add(1)
            except PersistenceError as error:
                unsure -= error.outcome != "unknown"
            else:
                sure, unsure = sure + 1, unsure - 1

    faults = [Kills(every_s=20, lasting_s=5), StorageErrors(every_s=20, lasting_s=5)]
    async with simulate(cluster, runners=3, faults=faults, body=body) as sim:
        await sim.advance("60s")
        for runner in sim.runners:
            runner.kill()
        await sim.calm()
        balance = await cluster.kv.get("balance") or 0
    assert sure <= balance <= sure + unsure, f"{sure} deposits were acknowledged, the balance says {balance}"


def first_failure(add: Add, *, seeds: int = 20) -> str | None:
    for seed in range(seeds):
        try:
            run_simulation(lambda: deposits(add), seed=seed)
        except AssertionError as error:
            return f"seed {seed}: {str(error).splitlines()[0]}"
    return None


def main() -> None:
    began = time.perf_counter()
    print("naive :", first_failure(naive) or "20 seeds, nothing found")
    print("atomic:", first_failure(atomic) or "20 seeds, the books balance in each")
    print(f"took {time.perf_counter() - began:.1f}s")


if __name__ == "__main__":
    main()
