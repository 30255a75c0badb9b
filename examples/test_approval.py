"""The orders of `approval.py` under simulated faults: whatever was decided in time is done, and done once.

pytest examples/test_approval.py
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from approval import Decision, Order, cluster, purchase, shipped
from coterie import PersistenceError, WorkflowEnded
from coterie.testing import Kills, StorageErrors, simulate


@pytest.mark.simulated(seeds=20)
async def test_what_was_decided_in_time_is_done() -> None:
    shipped.clear()
    orders = [Order(f"order-{number}", 20_000) for number in range(6)]
    async with simulate(cluster, runners=3, faults=[Kills(every_s=20), StorageErrors(every_s=20)]) as sim:
        for order in orders:
            await insisting(partial(cluster.start_workflow, purchase, order, id=order.id))
        await sim.advance("1m")
        for number, order in enumerate(orders[:4]):
            decision = Decision("alice", "no" if number == 0 else "yes")
            run = cluster.workflow_handle(purchase, order.id)
            for _ in range(2):  # two clicks on one link
                await insisting(partial(run.send, "decision", decision, key="link"))
            await sim.advance("10s")
        await sim.calm()
        runs = [cluster.workflow_handle(purchase, order.id) for order in orders]
        ended = [await run.result(timeout="5m") for run in runs[:4]]
        said = [await run.published("status", str) for run in runs[:4]]
        await sim.advance("3d")
        ended += [await run.result(timeout="5m") for run in runs[4:]]
        said += [await run.published("status", str) for run in runs[4:]]
        with pytest.raises(WorkflowEnded):
            await runs[5].send("decision", Decision("bob", "yes"))
    assert ended[0] == "refused by alice"
    assert ended[4:] == ["nobody has approved it"] * 2
    assert sorted(shipped) == ["order-1", "order-2", "order-3"]
    assert said == ["alice says no", "shipped", "shipped", "shipped", "expired", "expired"]


async def insisting(work: Callable[[], Awaitable[object]]) -> None:
    """Do it until the database says that it is done: a start by its id and a message by its key are there once."""
    while True:
        try:
            await work()
        except WorkflowEnded:  # the second click, after the parcel has gone
            return
        except PersistenceError:
            await asyncio.sleep(0.5)
        else:
            return
