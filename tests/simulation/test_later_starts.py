"""Runs that begin later, are put off and run out of time, under faults (W14).

A fixed sample of seeds here, thousands with `make sim`.
"""

from __future__ import annotations

import pytest

from tests.simulation.workloads import later_starts


@pytest.mark.simulated(seeds=3)
async def test_w14_starts_are_put_off_and_none_is_lost_under_faults() -> None:
    await later_starts.main()
