"""An order that a person approves: it waits for days, out of memory, and says meanwhile how it stands.

python examples/approval.py
pytest examples/test_approval.py        # the same under simulated faults, with days of virtual time
"""

import asyncio
from dataclasses import dataclass
from typing import Literal

from coterie import Cluster, ReceiveTimeout, Workflow

cluster = Cluster("sqlite://")


@dataclass
class Order:
    id: str
    cents: int
    patience: str = "3d"


@dataclass
class Decision:
    who: str
    says: Literal["yes", "no"]


shipped: dict[str, str] = {}


async def ship(order: Order, approved_by: str) -> str:
    """Stands for a parcel service: it has one parcel for each order, however often it is asked."""
    return shipped.setdefault(order.id, f"{order.id}, approved by {approved_by}")


@cluster.workflow
async def purchase(workflow: Workflow, order: Order) -> str:
    if order.cents > 10_000:
        await workflow.publish("status", "waits for an approval")
        try:
            decision = await workflow.receive("decision", Decision, timeout=order.patience)
        except ReceiveTimeout:
            await workflow.publish("status", "expired")
            return "nobody has approved it"
        await workflow.publish("status", f"{decision.who} says {decision.says}")
        if decision.says == "no":
            return f"refused by {decision.who}"
    else:
        decision = Decision("the rule for small orders", "yes")
    parcel = await workflow.step("ship", ship, order, decision.who)
    await workflow.publish("status", "shipped")
    return parcel


async def watched(order: Order) -> list[str]:
    """What a page shows to whoever has ordered: each status once, until the end."""
    run = cluster.workflow_handle(purchase, order.id)
    return [status async for status in run.follow("status", str)]


async def main() -> None:
    async with cluster:
        lamp, car, yacht = Order("lamp", 4_000), Order("car", 2_000_000), Order("yacht", 90_000_000, patience="200ms")
        runs = [await cluster.start_workflow(purchase, order, id=order.id) for order in (lamp, car, yacht)]
        page = asyncio.create_task(watched(car))
        await runs[1].send("decision", Decision("alice", "yes"), key="mail-17")
        print([await run.result(timeout="30s") for run in runs])
        print(await page)
    assert sorted(shipped) == ["car", "lamp"]


if __name__ == "__main__":
    asyncio.run(main())
