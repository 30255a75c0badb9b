"""Two runners host accounts; this process calls them while one is killed and another one joins.

python examples/calls.py            # a SQLite file in a temporary folder
COTERIE_URL=postgresql://… python examples/calls.py
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter

from coterie import Cluster, Entity, RunnerUnavailable, SendTimeout, rpc

ACCOUNTS = 50


class Account(Entity):
    cents = 0

    @rpc
    async def deposit(self, cents: int) -> int:
        """Volatile: what it holds is gone when its runner is."""
        self.cents += cents
        return self.cents

    @rpc
    async def runner(self) -> str:
        return self.cluster.settings.runner_name or "?"


def program(url: str | None = None) -> Cluster:
    cluster = Cluster(url)
    cluster.entity(Account)
    return cluster


def start(url: str, name: str) -> subprocess.Popen[bytes]:
    """A runner is a process of its own: this same file, with a name."""
    environment = {**os.environ, "COTERIE_URL": url, "COTERIE_RUNNER_NAME": name}
    return subprocess.Popen([sys.executable, __file__, "--runner"], env=environment, stderr=subprocess.DEVNULL)


async def homes(cluster: Cluster) -> Counter[str]:
    """Where the accounts live, as they say themselves. Asking is safe to repeat."""

    async def ask(number: int) -> str:
        while True:
            try:
                return await cluster.ref(Account, f"account-{number}").runner()
            except (RunnerUnavailable, SendTimeout):  # it may have run: our call to make
                continue

    return Counter(await asyncio.gather(*(ask(number) for number in range(ACCOUNTS))))


async def settle(cluster: Cluster, *names: str) -> None:
    """Call until exactly these runners answer."""
    began, limit_s = time.perf_counter(), 60
    while (found := await homes(cluster)).keys() != set(names):
        if time.perf_counter() - began > limit_s:
            raise SystemExit(f"not settled within {limit_s} s: {dict(found)}")
        await asyncio.sleep(0.02)
    shares = ", ".join(f"{name} {found[name]}" for name in sorted(found))
    print(f"  {time.perf_counter() - began:5.2f}s  {shares}")


async def watch(url: str) -> None:
    cluster = program(url)
    processes = {name: start(url, name) for name in ("anna", "bela")}
    try:
        async with cluster.connect():
            print("two start:")
            await settle(cluster, "anna", "bela")
            alice = cluster.ref(Account, "account-1")
            print(f"deposits: {await alice.deposit(900)}, {await alice.deposit(100)}")
            print("anna is killed:")
            processes["anna"].send_signal(signal.SIGKILL)
            await settle(cluster, "bela")
            print("cleo joins:")
            processes["cleo"] = start(url, "cleo")
            await settle(cluster, "bela", "cleo")
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait(timeout=30)


def main() -> None:
    if "--runner" in sys.argv:
        program().run()
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(watch(os.environ.get("COTERIE_URL", f"sqlite:///{folder}/calls.db")))


if __name__ == "__main__":
    main()
