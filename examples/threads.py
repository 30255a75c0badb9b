"""Blocking handlers beside others: they run in threads, call each other, and are told when nobody waits any more.

python examples/threads.py            # in memory
COTERIE_URL=postgresql://… python examples/threads.py
"""

import asyncio
import os
import time
from dataclasses import dataclass

from coterie import Cluster, Entity, SendTimeout, current, rpc

cluster = Cluster(os.environ.get("COTERIE_URL", "sqlite://"), threads=2)


@dataclass
class Stock:
    pieces: int = 10


@cluster.entity
class Shelf(Entity[Stock]):
    @rpc(persisted=True, key="order")
    def take(self, order: str, pieces: int) -> int:  # noqa: ARG002 the key
        time.sleep(0.05)  # a driver that blocks
        self.state.pieces -= pieces
        return self.state.pieces

    @rpc
    async def ping(self) -> str:
        return "pong"


@cluster.entity
class Shop(Entity):
    @rpc
    def buy(self, order: str) -> int:
        with cluster.sync() as c:  # on the runner's own loop, for this handler
            return c.call(c.ref(Shelf, "a").take(order, 1))

    @rpc(timeout="200ms")
    def browse(self) -> None:
        while not current().cancelled:
            time.sleep(0.01)
        print("nobody waits any more: the thread ends")


async def main() -> None:
    async with cluster:
        shops = [cluster.ref(Shop, f"shop-{number}") for number in range(4)]
        buying = asyncio.gather(*(shop.buy(f"order-{number}") for number, shop in enumerate(shops)))
        began = asyncio.get_running_loop().time()
        pongs = 0
        while not buying.done():  # the loop goes on while two threads block
            await cluster.ref(Shelf, "b").ping()
            pongs += 1
        print(f"{pongs} calls in {asyncio.get_running_loop().time() - began:.2f}s beside blocking ones")
        left = await buying
        assert sorted(left) == [6, 7, 8, 9]
        try:
            await shops[0].browse()
        except SendTimeout as error:
            print(error)
        assert await cluster.ref(Shelf, "a").take("order-0", 1) == left[0]  # the first result of that key


if __name__ == "__main__":
    asyncio.run(main())
