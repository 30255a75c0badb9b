"""Jobs between simulated runners: each ends once, within the limits of its queue, in order (T1-T4, T6, T9)."""

from __future__ import annotations

import pytest

from tests.simulation.workloads import jobs
from tests.simulation.workloads.calls import EVERYTHING


@pytest.mark.simulated(seeds=5)
async def test_t1_t2_t3_t6_t9_jobs_end_once_and_within_their_limits_under_all_faults() -> None:
    await jobs.main()


@pytest.mark.simulated(seeds=3)
async def test_t4_jobs_begin_in_order_of_their_ranks_while_the_clock_of_the_database_is_right() -> None:
    faults = tuple(each for each in EVERYTHING if type(each).__name__ != "StorageClockSteps")
    await jobs.run(faults=faults)
