"""Two runners, one leader: the leader is killed with SIGKILL, and the other one goes on where it stopped.

python examples/singleton.py          # a SQLite file in a temporary folder
COTERIE_URL=postgresql://… python examples/singleton.py
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from coterie import Cluster, Leader

cluster = Cluster()  # COTERIE_URL


@dataclass
class Progress:
    last_id: int = 0


@cluster.singleton("importer", state=Progress, every="100ms")
async def importer(leader: Leader[Progress]) -> None:
    async with leader.update() as state:  # saved when the block ends; refused if another runner leads by then
        state.last_id += 1


async def leads() -> str | None:
    """The runner that leads, as soon as it has saved something."""
    (info,) = await cluster.singletons.list()
    return info.leader if info.run_count else None


async def wait_for(name: str, runners: dict[str, subprocess.Popen[bytes]]) -> str:
    """Wait until one of these runners leads."""
    async with asyncio.timeout(60):
        while (leader := await leads()) not in runners:
            await asyncio.sleep(0.05)
    state = await cluster.singletons.state("importer", Progress)
    print(f"{name}: {leader} leads, row {state.last_id if state else 0}")
    return str(leader)


async def main() -> None:
    runners = {name: start(name) for name in ("anna", "bert")}
    try:
        async with cluster.connect():
            while not await cluster.singletons.list():
                await asyncio.sleep(0.05)
            first = await wait_for("at first", runners)
            runners[first].send_signal(signal.SIGKILL)
            print(f"killed {first}")
            await wait_for("now", {name: each for name, each in runners.items() if name != first})
    finally:
        for each in runners.values():
            each.terminate()
            each.wait()


def start(name: str) -> subprocess.Popen[bytes]:
    """A runner is a process of its own: this same file, with a name."""
    environment = {**os.environ, "COTERIE_RUNNER_NAME": name, "COTERIE_HTTP_LISTEN": "off"}
    return subprocess.Popen([sys.executable, __file__, "--runner"], env=environment, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    if "--runner" in sys.argv:
        cluster.run()
    elif "COTERIE_URL" in os.environ:
        asyncio.run(main())
    else:
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{folder}/singleton.db"
            subprocess.run([sys.executable, __file__], env={**os.environ, "COTERIE_URL": url}, check=True)
