"""Two runners move money between accounts while they are killed in turn; at the end every cent is where it should be.

python examples/messages.py            # a SQLite file in a temporary folder
COTERIE_URL=postgresql://… python examples/messages.py
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from coterie import Cluster, Entity, rpc

ACCOUNTS, EACH, TRANSFERS, KILLS = 20, 1_000, 300, 3


@dataclass
class Balance:
    cents: int = 0


class Account(Entity[Balance]):
    @rpc
    async def balance(self) -> int:
        return self.state.cents

    @rpc(persisted=True, key="order_id")
    async def deposit(self, order_id: str, cents: int) -> int:  # noqa: ARG002 the key
        self.state.cents += cents
        return self.state.cents

    @rpc(persisted=True, key="order_id")
    async def transfer(self, order_id: str, to: str, cents: int) -> int:
        self.state.cents -= cents
        await self.cluster.send(self.cluster.ref(Account, to).deposit(order_id, cents))
        return self.state.cents


def program(url: str | None = None) -> Cluster:
    cluster = Cluster(url)
    cluster.entity(Account)
    return cluster


def start(url: str, name: str) -> subprocess.Popen[bytes]:
    """A runner is a process of its own: this same file, with a name."""
    environment = {**os.environ, "COTERIE_URL": url, "COTERIE_RUNNER_NAME": name}
    return subprocess.Popen([sys.executable, __file__, "--runner"], env=environment, stderr=subprocess.DEVNULL)


async def kill_in_turn(url: str, runners: list[subprocess.Popen[bytes]]) -> None:
    for number in range(KILLS):
        await asyncio.sleep(0.5)
        victim = runners[number % len(runners)]
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        runners[number % len(runners)] = start(url, f"again-{number}")
        print(f"  runner {number % len(runners)} killed and started again")


async def watch(url: str) -> None:
    cluster = program(url)
    runners = [start(url, name) for name in ("anna", "bela")]
    try:
        async with cluster.connect():
            accounts = [cluster.ref(Account, f"account-{number}", timeout="60s") for number in range(ACCOUNTS)]
            await asyncio.gather(*(account.deposit("opening", EACH) for account in accounts))
            killing = asyncio.create_task(kill_in_turn(url, runners))
            for number in range(0, TRANSFERS, 10):
                pairs = [(each % ACCOUNTS, each * 7 % ACCOUNTS, each) for each in range(number, number + 10)]
                moves = [accounts[a].transfer(f"order-{each}", f"account-{b}", 5) for a, b, each in pairs if a != b]
                await asyncio.gather(*moves)
            await killing
            total = -1
            while total != ACCOUNTS * EACH:  # the last deposits are on their way
                total = sum(await asyncio.gather(*(cluster.call(a.balance(), timeout="60s") for a in accounts)))
                await asyncio.sleep(0.05)
            print(f"{TRANSFERS} transfers, {KILLS} kills, {total} cents: nothing lost, nothing doubled")
    finally:
        for runner in runners:
            runner.terminate()
        for runner in runners:
            runner.wait(timeout=30)


def main() -> None:
    if "--runner" in sys.argv:
        program().run()
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(asyncio.wait_for(watch(os.environ.get("COTERIE_URL", f"sqlite:///{folder}/messages.db")), 120))


if __name__ == "__main__":
    main()
