"""A trigger sends calls: plain SQL, from a program that has no coterie, and the call commits with its row.

COTERIE_URL=postgresql://… python examples/sql.py       # without it: a PostgreSQL of its own, if one is installed
"""

import asyncio
import os
from dataclasses import dataclass, field

import asyncpg

from coterie import Cluster, Entity, MessageId, rpc
from coterie.testing import Server

TABLE = """
drop table if exists example_orders;
create table example_orders (id text primary key, customer text not null, cents bigint not null);

create or replace function example_order_placed() returns trigger language plpgsql as $$
begin
    perform coterie.send(
        'Account', new.customer, 'charge', jsonb_build_object('order_id', new.id, 'cents', new.cents)
    );
    return new;
end
$$;

create trigger placed after insert on example_orders for each row execute function example_order_placed();
"""


@dataclass
class Charged:
    orders: list[str] = field(default_factory=list)


class Account(Entity[Charged]):
    @rpc(persisted=True, key="order_id")
    async def charge(self, order_id: str, cents: int) -> int:
        self.state.orders.append(order_id)
        print(f"{self.id} pays {cents} for {order_id}")
        return cents

    @rpc
    async def orders(self) -> list[str]:
        return self.state.orders


async def shop(url: str) -> str:
    """Only SQL from here on, as psql or a program in another language would write it."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(TABLE)
        await connection.execute("insert into example_orders values ('o-1', 'alice', 500), ('o-2', 'alice', 700)")
        await connection.execute("begin; insert into example_orders values ('o-3', 'alice', 1); rollback")
        sent: str = await connection.fetchval(
            """select coterie.send('Account', 'alice', 'charge', '{"order_id": "o-4", "cents": 9}')"""
        )
        return sent
    finally:
        await connection.close()


async def main(url: str) -> None:
    cluster = Cluster(url)
    cluster.entity(Account)
    async with cluster:
        last = await shop(url)
        assert await cluster.result(MessageId[int](last)) == 9
        orders = await cluster.ref(Account, "alice").orders()
    assert orders[-3:] == ["o-1", "o-2", "o-4"], orders
    print("three orders were charged; the one that was rolled back was not")


if __name__ == "__main__":
    if given := os.environ.get("COTERIE_URL"):
        asyncio.run(main(given))
    else:
        server = Server()
        server.start()
        try:
            asyncio.run(main(server.url()))
        finally:
            server.close()
