"""Orders are paid, approved and packed by runners that are killed in turn; every step is recorded once.

python examples/workflows.py            # a SQLite file in a temporary folder
COTERIE_URL=postgresql://… python examples/workflows.py
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile

from coterie import Cluster, Workflow

ORDERS, KILLS = 12, 2

cluster = Cluster()


async def charge(order: str) -> str:
    await asyncio.sleep(0.05)  # stands for a payment
    return f"payment for {order}"


async def pack(order: str, payment: str) -> str:
    await asyncio.sleep(0.05)
    return f"{order}: {payment}"


@cluster.workflow
async def checkout(workflow: Workflow, order: str) -> str:
    payment = await workflow.step("charge", charge, order)
    await workflow.sleep("300ms", name="time to think")
    return await workflow.step("pack", pack, order, payment)


def start() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "run"])


async def main() -> None:
    runners = [start() for _ in range(2)]
    try:
        async with cluster.connect():
            names = [f"order-{number}" for number in range(ORDERS)]
            runs = [await cluster.start_workflow(checkout, name, id=name) for name in names]
            for _ in range(KILLS):
                await asyncio.sleep(0.5)
                runners[0].send_signal(signal.SIGKILL)
                runners[0].wait()
                runners = [runners[1], start()]
            results = await asyncio.gather(*(run.result(timeout="60s") for run in runs))
            assert results == [f"{name}: payment for {name}" for name in names], results
            print(f"{len(results)} orders were paid and packed while {KILLS} runners were killed")
    finally:
        for runner in runners:
            runner.terminate()
        for runner in runners:
            runner.wait()


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        cluster.run()
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.environ.setdefault("COTERIE_URL", f"sqlite:///{folder}/orders.db")
            cluster = Cluster()
            checkout = cluster.workflow(checkout)
            asyncio.run(main())
