"""A cron that runs each second, fails once and is tried again; then it is paused, and run by hand.

python examples/cron.py               # in memory
COTERIE_URL=postgresql://… python examples/cron.py
"""

import asyncio
import itertools
import os

from coterie import Cluster, Retry, Tick

cluster = Cluster(os.environ.get("COTERIE_URL", "sqlite://"))
runs = itertools.count()


@cluster.cron("report", "@every 1s", retry=Retry(attempts=2, base="50ms"))
async def report(tick: Tick) -> None:
    if next(runs) == 0:
        raise ConnectionError("the first run of all fails")
    print(f"report for {tick.scheduled_at:%H:%M:%S}, attempt {tick.attempt}")


async def main() -> None:
    async with cluster:
        async with asyncio.timeout(60):
            while (await cluster.crons.get("report")).run_count < 2:
                await asyncio.sleep(0.1)
        await cluster.crons.pause("report")
        tick = await cluster.crons.wait(await cluster.crons.trigger("report"))
        print(f"by hand: {tick.outcome} on {tick.runner}, {tick.kind}")
        for each in await cluster.crons.history("report", limit=5):
            print(f"{each.scheduled_at:%H:%M:%S}  {each.outcome}, attempts: {each.attempt}, errors: {len(each.errors)}")


if __name__ == "__main__":
    asyncio.run(main())
