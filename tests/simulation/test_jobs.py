"""Jobs between simulated runners: each ends once, within the limits of its queue, in order (T1-T4, T6, T9)."""

from __future__ import annotations

import pytest

from tests.simulation.workloads import jobs


@pytest.mark.simulated(seeds=5)
async def test_t1_t2_t3_t6_t9_jobs_end_once_and_within_their_limits_under_all_faults() -> None:
    await jobs.main()


@pytest.mark.simulated(seeds=3)
async def test_t4_jobs_begin_in_order_of_their_ranks_while_storage_answers() -> None:
    await jobs.run(faults=jobs.IN_ORDER, ranks=True)
