"""A blocking program with eight threads, and a runner that serves them: no await outside of the handlers.

python examples/sync.py            # a SQLite file in a temporary folder
COTERIE_URL=postgresql://… python examples/sync.py
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from coterie import Cluster, Entity, rpc

THREADS, EACH = 8, 50


@dataclass
class Count:
    orders: int = 0


class Shop(Entity[Count]):
    @rpc
    async def orders(self) -> int:
        return self.state.orders

    @rpc(persisted=True, key="order_id")
    async def order(self, order_id: str) -> int:  # noqa: ARG002 the key
        self.state.orders += 1
        return self.state.orders


def program(url: str | None = None) -> Cluster:
    cluster = Cluster(url)
    cluster.entity(Shop)
    return cluster


def buy(url: str) -> None:
    cluster = program(url)

    def buyer(thread: int) -> None:
        with cluster.sync() as c:  # as in a view: a block for each request costs nothing
            shop = c.ref(Shop, "corner", timeout="60s")
            sent = [c.send(shop.order(f"order-{thread}-{number}")) for number in range(EACH)]
            for message in sent:
                c.result(message, timeout="60s")

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(buyer, range(THREADS)))
    with cluster.sync() as c:
        orders = c.call(c.ref(Shop, "corner").orders(), timeout="60s")
    assert orders == THREADS * EACH, orders
    print(f"{THREADS} threads sent {orders} orders, each was handled once")


def main() -> None:
    if "--runner" in sys.argv:
        program().run()
        return
    with tempfile.TemporaryDirectory() as folder:
        url = os.environ.get("COTERIE_URL", f"sqlite:///{folder}/sync.db")
        environment = {**os.environ, "COTERIE_URL": url}
        runner = subprocess.Popen([sys.executable, __file__, "--runner"], env=environment, stderr=subprocess.DEVNULL)
        try:
            buy(url)
        finally:
            runner.terminate()
            runner.wait(timeout=30)


if __name__ == "__main__":
    main()
