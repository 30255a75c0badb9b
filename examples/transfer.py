"""A transfer between two banks: what was withdrawn is paid back if the other bank refuses, whoever dies meanwhile.

python examples/transfer.py
pytest examples/test_transfer.py        # the same under simulated faults

A step may run twice, if its runner dies between the step and the commit that records it. So each booking has a key,
and a bank books a key once: as every payment provider does.
"""

import asyncio
from dataclasses import dataclass, field

from coterie import Cluster, Retry, Workflow, WorkflowFailed

cluster = Cluster("sqlite://")


class Refused(Exception):
    """The bank does not book this, now or later."""


@dataclass
class Bank:
    """Stands for a bank behind an API. It books each key once."""

    balances: dict[str, int] = field(default_factory=dict)
    booked: dict[str, int] = field(default_factory=dict)

    async def book(self, account: str, cents: int, key: str) -> str:
        await asyncio.sleep(0.01)
        if key not in self.booked:
            if account not in self.balances or self.balances[account] + cents < 0:
                raise Refused(f"{account} cannot take {cents}")
            self.booked[key] = cents
            self.balances[account] += cents
        return key


ours, theirs = Bank(), Bank()


@dataclass
class Transfer:
    id: str
    source: str
    target: str
    cents: int


@cluster.workflow(retry=Retry(5, on=[ConnectionError]))
async def transfer(workflow: Workflow, order: Transfer) -> str:
    workflow.compensate("pay back", pay_back, order)  # before the step: it may be done, and its runner die
    await workflow.step("withdraw", ours.book, order.source, -order.cents, f"{order.id} out")
    await workflow.step("deposit", theirs.book, order.target, order.cents, f"{order.id} in")
    return f"{order.cents} from {order.source} to {order.target}"


async def pay_back(order: Transfer) -> None:
    """Undo the withdrawal, if there was one: a compensation runs at least once, also after a step that has failed."""
    if f"{order.id} out" in ours.booked:
        await ours.book(order.source, order.cents, f"{order.id} back")


async def main() -> None:
    ours.balances["alice"], theirs.balances["bob"] = 1_000, 0
    async with cluster:
        run = await cluster.start_workflow(transfer, Transfer("t1", "alice", "bob", 300), id="t1")
        print(await run.result(timeout="30s"))
        run = await cluster.start_workflow(transfer, Transfer("t2", "alice", "nobody", 300), id="t2")
        try:
            await run.result(timeout="30s")
        except WorkflowFailed as error:
            print(error.problem, [step.name for step in await run.steps()])
    print(ours.balances, theirs.balances)
    assert ours.balances == {"alice": 700}
    assert theirs.balances == {"bob": 300}


if __name__ == "__main__":
    asyncio.run(main())
