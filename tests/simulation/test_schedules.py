"""Schedules and timers between simulated runners: each due instant sent once, or skipped with a reason (C9)."""

from __future__ import annotations

import pytest

from tests.simulation.workloads import schedules


@pytest.mark.simulated(seeds=5)
async def test_c9_schedules_and_timers_lose_and_double_nothing_under_all_faults() -> None:
    await schedules.main()
