"""The transfers of `transfer.py` under simulated faults: no money appears, none is lost.

pytest examples/test_transfer.py
"""

import asyncio

import pytest

from coterie import PersistenceError, WorkflowFailed
from coterie.testing import EVERYTHING, simulate
from transfer import Transfer, cluster, ours, theirs, transfer

BOBS = "bob", "closed"  # every second one goes to an account that does not exist


@pytest.mark.simulated(seeds=20)
async def test_each_transfer_is_done_or_undone() -> None:
    for bank in ours, theirs:
        bank.booked.clear()
    ours.balances, theirs.balances = {"alice": 1_000}, {"bob": 0}
    async with simulate(cluster, runners=3, faults=EVERYTHING) as sim:
        orders = [Transfer(f"t{number}", "alice", BOBS[number % 2], 10) for number in range(10)]
        for order in orders:
            await started(order)
            await sim.advance("2s")
        await sim.calm()
        ended = [await outcome(order) for order in orders]
    assert ended == [order.target == "bob" for order in orders]
    assert ours.balances == {"alice": 950}, ours.booked
    assert theirs.balances == {"bob": 50}, theirs.booked


async def started(order: Transfer) -> None:
    """Start it, whatever the database answers: the same id is the same transfer."""
    while True:
        try:
            await cluster.start_workflow(transfer, order, id=order.id)
        except PersistenceError:  # it may be stored, or not
            await asyncio.sleep(0.5)
        else:
            return


async def outcome(order: Transfer) -> bool:
    try:
        await cluster.workflow_handle(transfer, order.id).result(timeout="5m")
    except WorkflowFailed:
        return False
    return True
