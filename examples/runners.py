"""Three runners share 100 shards; one is killed with SIGKILL, one more joins, one leaves: watch the seats move.

python examples/runners.py            # a SQLite file in a temporary folder
COTERIE_URL=postgresql://… python examples/runners.py
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter

from coterie import Cluster


def start(url: str, name: str) -> subprocess.Popen[bytes]:
    """A runner is a process of its own: this same file, with a name."""
    environment = {**os.environ, "COTERIE_URL": url, "COTERIE_RUNNER_NAME": name}
    return subprocess.Popen([sys.executable, __file__, "--runner"], env=environment, stderr=subprocess.DEVNULL)


async def seats(cluster: Cluster) -> Counter[str]:
    """How many shards each runner holds."""
    return Counter(holder for holder in (await cluster.shards()).values() if holder is not None)


async def settle(cluster: Cluster, *names: str) -> None:
    """Wait until these runners, and nobody else, share all shards evenly."""
    began, limit_s = time.perf_counter(), 60
    while True:
        held = await seats(cluster)
        even = max(held.values(), default=0) - min(held.values(), default=0) <= 1
        if set(held) == set(names) and held.total() == cluster.settings.shards and even:
            break
        if time.perf_counter() - began > limit_s:
            raise SystemExit(f"not settled within {limit_s} s: {dict(held)}")
        await asyncio.sleep(0.02)
    shares = ", ".join(f"{name} {held[name]}" for name in sorted(held))
    print(f"  {time.perf_counter() - began:5.2f}s  {shares}")


async def watch(url: str) -> None:
    cluster = Cluster(url)
    processes = {name: start(url, name) for name in ("anna", "bela", "cleo")}
    try:
        async with cluster.connect():
            print("three start:")
            await settle(cluster, "anna", "bela", "cleo")
            print("anna is killed:")
            processes["anna"].send_signal(signal.SIGKILL)
            await settle(cluster, "bela", "cleo")
            print("dora joins:")
            processes["dora"] = start(url, "dora")
            await settle(cluster, "bela", "cleo", "dora")
            print("bela leaves:")
            processes["bela"].terminate()
            await settle(cluster, "cleo", "dora")
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait(timeout=30)


def main() -> None:
    if "--runner" in sys.argv:
        Cluster().run()
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(watch(os.environ.get("COTERIE_URL", f"sqlite:///{folder}/runners.db")))


if __name__ == "__main__":
    main()
