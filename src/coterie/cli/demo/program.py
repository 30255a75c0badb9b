"""The program of `coterie demo`: accounts that keep money, a single importer, a heartbeat every 10 seconds.

Read it, change it, and run it yourself, in as many terminals as you like:

    coterie run coterie-demo.py
"""

from dataclasses import dataclass

from coterie import Cluster, Entity, Leader, Tick, rpc

cluster = Cluster()  # COTERIE_URL, else the file ./coterie.db


@dataclass
class Balance:
    cents: int = 0


@cluster.entity
class Account(Entity[Balance]):
    """Lives on one runner at a time; any process may call it by its id."""

    @rpc
    async def balance(self) -> int:
        return self.state.cents

    @rpc(persisted=True, key="order_id")
    async def deposit(self, order_id: str, cents: int) -> int:
        self.state.cents += cents  # one call at a time: no lock; committed in one transaction with the reply
        return self.state.cents


@dataclass
class Progress:
    last_id: int = 0


async def fetch_after(last_id: int) -> list[int]:  # stands for your database
    return list(range(last_id + 1, last_id + 26))


@cluster.singleton("importer", state=Progress)
async def importer(leader: Leader[Progress]) -> None:
    """Runs on one runner at a time; the next one resumes where it stopped."""
    while True:
        rows = await fetch_after(leader.state.last_id)
        async with leader.update() as state:  # saved when the block ends, refused if another runner leads by then
            state.last_id = rows[-1]
        await leader.sleep("50ms")


@cluster.cron("heartbeat", "@every 10s")
async def heartbeat(tick: Tick) -> None:
    """Runs once for each tick in the whole cluster, even if runners die meanwhile."""
    print("heartbeat of", tick.scheduled_at, flush=True)


if __name__ == "__main__":
    cluster.run()  # or: coterie run coterie-demo.py --workers 3
