"""Runs that are sent messages, publish, map, race and start others, under all faults (W6, W7, W10, W13).

A fixed sample of seeds here, thousands with `make sim`.
"""

from __future__ import annotations

import pytest

from tests.simulation.workloads import talks


@pytest.mark.simulated(seeds=3)
async def test_w6_w7_w10_w13_runs_talk_under_all_faults() -> None:
    await talks.main()
