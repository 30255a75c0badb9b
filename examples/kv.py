"""Two processes share one counter, one greeting and one SQLite file.

    python examples/kv.py            # the file is kv-demo.db in a temporary folder
    COTERIE_URL=postgresql://… python examples/kv.py

Each process adds one to the counter 500 times, many at once. Nothing is lost, because `modify` is atomic.
"""

import asyncio
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass

from coterie import Cluster


@dataclass
class Greeting:
    text: str
    by: str


async def work(url: str, me: str) -> None:
    cluster = Cluster(url)
    async with cluster.connect():
        visits = cluster.kv.prefix("demo:")
        began = time.perf_counter()
        await asyncio.gather(*(visits.modify("visits", lambda n: (n or 0) + 1) for _ in range(500)))
        await visits.typed(Greeting).set(me, Greeting("hello", by=me), ttl="1h")
        print(f"  {me}: 500 atomic changes in {time.perf_counter() - began:.2f}s")


def start(url: str, me: str) -> None:
    asyncio.run(work(url, me))


async def report(url: str) -> int:
    cluster = Cluster(url)
    async with cluster.connect():
        demo = cluster.kv.prefix("demo:")
        visits = int(await demo.get("visits") or 0)
        async for key, value in demo.items():
            print(f"  {key} = {value}")
        await demo.clear()
    return visits


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = os.environ.get("COTERIE_URL", f"sqlite:///{folder}/kv-demo.db")
        print("two processes, one database, 1,000 changes of one key:")
        spawn = multiprocessing.get_context("spawn")
        processes = [spawn.Process(target=start, args=(url, name)) for name in ("anna", "bela")]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        visits = asyncio.run(report(url))
        print(f"expected 1000, found {visits}: {'nothing was lost' if visits == 1000 else 'SOMETHING IS WRONG'}")
        raise SystemExit(visits != 1000)


if __name__ == "__main__":
    main()
