"""A subscription that is charged each month until it is cancelled: a run for years, whose history does not grow.

python examples/subscription.py         # months of 20 ms
pytest examples/test_subscription.py    # ten years of them, in virtual time, with runners that die
"""

import asyncio
from dataclasses import dataclass, replace

from coterie import Cluster, Workflow

cluster = Cluster("sqlite://", shards=4)


@dataclass
class Subscription:
    customer: str
    month: int = 1
    cents: int = 900
    period: str = "30d"


charged: dict[tuple[str, int], int] = {}


async def charge(customer: str, month: int, cents: int) -> int:
    """Stands for a payment provider, which knows a payment by customer and month."""
    return charged.setdefault((customer, month), cents)


@cluster.workflow
async def subscription(workflow: Workflow, plan: Subscription) -> str:
    await workflow.step("charge", charge, plan.customer, plan.month, plan.cents)
    await workflow.publish("paid", plan.month)
    over = await workflow.first(
        workflow.receive("cancel", str),
        workflow.sleep(plan.period, name="a month"),
    )
    if over[0] == 0:
        return f"cancelled in month {plan.month}: {over[1]}"
    return workflow.again(replace(plan, month=plan.month + 1))  # a new life: nothing of this month stays stored


async def main() -> None:
    async with cluster:
        run = await cluster.start_workflow(subscription, Subscription("alice", period="20ms"), id="alice")
        async for month in run.follow("paid", int):
            if month == 6:
                await run.send("cancel", "moved to the sea")
        print(await run.result(timeout="30s"), [step.name for step in await run.steps()])
    assert len(charged) >= 6


if __name__ == "__main__":
    asyncio.run(main())
