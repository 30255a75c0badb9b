"""Ten years of the subscription of `subscription.py`: each month is charged once, and the history stays short.

pytest examples/test_subscription.py
"""

import pytest

from coterie.testing import simulate
from subscription import Subscription, charged, cluster, subscription

MONTHS = 12 * 10


@pytest.mark.simulated(seeds=3)
async def test_ten_years_with_a_runner_that_dies_each_year() -> None:
    charged.clear()
    async with simulate(cluster, runners=2) as sim:
        run = await cluster.start_workflow(subscription, Subscription("alice"), id="alice")
        for year in range(10):
            await sim.advance("360d")
            victim = sim.runners[year % 2]
            victim.kill()
            await sim.advance("30s")
            victim.start()
            steps = await run.steps()
            assert len(steps) <= 10, [step.name for step in steps]
        await run.send("cancel", "ten years are enough")
        result = await run.result(timeout="10m")
        paid = await run.published("paid", int)
    assert result == f"cancelled in month {paid}: ten years are enough"
    assert sorted(charged) == [("alice", month + 1) for month in range(paid or 0)]
    assert MONTHS - 1 <= len(charged) <= MONTHS + 1, len(charged)
