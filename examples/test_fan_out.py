"""The pictures of `fan_out.py` under simulated faults: after a crash only those run again that were not stored.

pytest examples/test_fan_out.py
"""

import os
from functools import partial

import pytest

from coterie.testing import simulate
from fan_out import LIMIT, album, at_once, cluster, scaled

PICTURES = int(os.environ.get("PICTURES", "500"))


@pytest.mark.simulated(seeds=5)
async def test_only_what_was_not_stored_runs_again() -> None:
    kills = 3
    scaled.clear()
    async with simulate(cluster, runners=3) as sim:
        run = await cluster.start_workflow(album, PICTURES, id="holidays")
        for number in range(kills):
            await sim.wait_until(partial(has_scaled, PICTURES * (number + 1) // (kills + 2)), within="10m")
            at_once[:] = 0, 0
            for runner in sim.runners:
                runner.kill()  # one of them has the run
            for runner in sim.runners:
                runner.start()
        total = await run.result(timeout="30m")
    assert total == sum(picture % 100 for picture in range(PICTURES))
    assert len(scaled) == PICTURES
    again = sum(scaled.values()) - PICTURES
    assert again <= kills * LIMIT, f"{again} ran again"
    assert at_once[1] <= LIMIT


def has_scaled(count: int) -> bool:
    return len(scaled) >= count
