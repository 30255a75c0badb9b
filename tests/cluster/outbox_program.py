"""A shop that is killed: `python outbox_program.py URL ROUND`.

It inserts orders into a table of its own and sends each order's message with `via=`, from two tasks, until it is
killed. Every third order it rolls back. It prints where it is: `sent` before each end of a transaction, `committed`
after each commit.
"""

from __future__ import annotations

import asyncio
import os
import sys

import asyncpg

from coterie import Cluster, Entity, rpc


class Orders(Entity[None]):
    """What runs the messages, on a runner elsewhere: it notes each run in a table."""

    @rpc(persisted=True, key="order")
    async def confirm(self, order: str) -> None:
        async with self.transaction() as sql:
            await sql.execute("insert into confirmed (name) values ($1)", order)


def program(url: str) -> Cluster:
    """The same for the runner."""
    cluster = Cluster(url, shards=3)
    cluster.entity(Orders)
    return cluster


async def sell(cluster: Cluster, url: str, name: str) -> None:
    """One order after the other, each in a transaction."""
    connection = await asyncpg.connect(url)
    for number in range(1_000_000):
        order = f"{name}-{number}"
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("insert into orders (name) values ($1)", order)
        await cluster.send(cluster.ref(Orders, f"o{number % 10}").confirm(order), via=connection)
        say(f"sent {order}")
        if number % 3 == 2:
            await transaction.rollback()
            continue
        await transaction.commit()
        say(f"committed {order}")


async def main(url: str, round_: str) -> None:
    cluster = program(url)
    async with cluster.connect():
        await asyncio.gather(*(sell(cluster, url, f"{round_}-{task}") for task in range(2)))


def say(line: str) -> None:
    os.write(1, (line + "\n").encode())  # one unbuffered write: what was said before the kill is in the pipe


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
