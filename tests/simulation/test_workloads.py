"""The workloads under all faults: a fixed sample of seeds here, thousands with `make sim`."""

from __future__ import annotations

import pytest

from tests.simulation.workloads import fenced, kv, seats


@pytest.mark.simulated(seeds=12)
async def test_inv_d1_d6_kv_loses_and_doubles_nothing_under_all_faults() -> None:
    await kv.main()


@pytest.mark.simulated(seeds=12)
async def test_inv_f1_f4_fenced_state_is_one_chain_under_all_faults() -> None:
    await fenced.main()


@pytest.mark.simulated(seeds=12)
async def test_inv_f1_f4_e3_s1_l1_runners_settle_who_holds_what_under_all_faults() -> None:
    await seats.main()
