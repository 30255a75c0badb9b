"""Every planted bug is found within 300 seeds: an instrument that finds nothing shows nothing."""

from __future__ import annotations

import pytest

from .plants import PLANTS, SEEDS_MOST, Plant


@pytest.mark.simulation
@pytest.mark.timeout(300)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    assert plant.found_after() is not None, f"{plant.name}: not found within {SEEDS_MOST} seeds"
