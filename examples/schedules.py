"""Schedules that are made at run time, and a timer that is cancelled before it rings.

python examples/schedules.py               # in memory
COTERIE_URL=postgresql://… python examples/schedules.py
"""

import asyncio
import os
from dataclasses import dataclass

from coterie import Cluster, Entity, rpc

cluster = Cluster(os.environ.get("COTERIE_URL", "sqlite://"))


@dataclass
class Cart:
    paid: bool = False
    reminders: int = 0


@cluster.entity
class Order(Entity[Cart]):
    @rpc(persisted=True)
    async def place(self) -> None:
        self.timer("remind", self.me.remind(), every="1s")
        self.timer("expire", self.me.expire(), after="1h")

    @rpc(persisted=True)
    async def remind(self) -> None:
        self.state.reminders += 1
        print(f"{self.id}: please pay")

    @rpc(persisted=True)
    async def expire(self) -> None:
        await self.forget()

    @rpc
    async def pay(self) -> int:
        self.state.paid = True
        self.cancel_timer("remind")
        self.cancel_timer("expire")
        return self.state.reminders

    @rpc(persisted=True)
    async def report(self) -> None:
        print(f"{self.id}: {'paid' if self.state.paid else 'open'}")


async def main() -> None:
    async with cluster:
        order = cluster.ref(Order, "order-7")
        await order.place()
        info = await cluster.schedules.put("report/order-7", "@every 1s", order.report(), overlap="skip")
        print(f"{info.name}: {info.explained}, calls {info.calls} on {info.shard}")
        async with asyncio.timeout(60):
            while not await cluster.schedules.history("report/order-7"):
                await asyncio.sleep(0.1)
        print("paid after", await order.pay(), "reminders")
        await cluster.schedules.pause("report/order-7")
        for each in await cluster.schedules.history("report/order-7"):
            print(f"{each.at:%H:%M:%S}", each.reason or "sent")
        await cluster.schedules.remove("report/order-7")


if __name__ == "__main__":
    asyncio.run(main())
