"""A shop whose orders and messages are one commit: half of the orders fail half-way, none of them leaves a message.

python examples/transactions.py            # a SQLite file in a temporary folder
COTERIE_URL=postgresql://… python examples/transactions.py
"""

import asyncio
import os
import tempfile

from coterie import Cluster, Entity, rpc

ORDERS = 40


class OutOfStock(Exception):
    """Raised after the order was inserted and its message was sent."""


class Warehouse(Entity[None]):
    @rpc(persisted=True, key="order")
    async def pack(self, order: str) -> None:
        async with self.transaction() as sql:  # with the end of this message, or not at all
            await sql.execute("insert into parcels (name) values ($1)", order)


def program(url: str) -> Cluster:
    cluster = Cluster(url, shards=3)
    cluster.entity(Warehouse)
    return cluster


async def order(cluster: Cluster, number: int) -> str:
    name = f"order-{number}"
    async with cluster.transaction() as tx:
        await tx.execute("insert into orders (name) values ($1)", name)
        message = await cluster.send(cluster.ref(Warehouse, "north").pack(name), via=tx)
        if number % 2:
            raise OutOfStock(name)  # neither the row nor the message will ever have been
    await cluster.result(message, timeout="60s")
    return name


async def main(url: str) -> None:
    async with program(url) as cluster:
        async with cluster.transaction() as tx:
            await tx.execute("drop table if exists orders")
            await tx.execute("create table orders (name text primary key)")
        async with cluster.transaction() as tx:
            await tx.execute("drop table if exists parcels")
            await tx.execute("create table parcels (name text)")
        ends = await asyncio.gather(*(order(cluster, number) for number in range(ORDERS)), return_exceptions=True)
        failed = [end for end in ends if isinstance(end, OutOfStock)]
        async with cluster.transaction() as tx:
            orders = await tx.fetch("select name from orders order by name")
            parcels = await tx.fetch("select name from parcels order by name")
        assert [row["name"] for row in orders] == [row["name"] for row in parcels]
        assert len(orders) + len(failed) == ORDERS, ends
        print(f"{len(orders)} orders, {len(parcels)} parcels; {len(failed)} orders failed and left nothing")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(os.environ.get("COTERIE_URL", f"sqlite:///{folder}/transactions.db")))
