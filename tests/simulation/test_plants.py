"""Every planted bug is found within 300 seeds: an instrument that finds nothing shows nothing."""

from __future__ import annotations

import pytest

from tests.simulation import (
    planted_crons,
    planted_flows,
    planted_jobs,
    planted_later_starts,
    planted_messages,
    planted_schedules,
    planted_talks,
    planted_tasks,
)
from tests.simulation.plants import PLANTS, SEEDS_MOST, Plant

SAMPLED = (
    planted_messages,
    planted_crons,
    planted_flows,
    planted_schedules,
    planted_talks,
    planted_jobs,
    planted_tasks,
    planted_later_starts,
)
RARE = {"lease checked without a lock", "hook before the fence", "unanswered save taken as success"}
"""Found after dozens of seeds. Plants with the same workloads that are found sooner try these each time."""
LONG = RARE | {name for room in SAMPLED for name, *_ in room.PLANTED if name not in room.SAMPLE}


@pytest.mark.parametrize(
    "plant",
    [pytest.param(plant, id=plant.name, marks=[pytest.mark.nightly] * (plant.name in LONG)) for plant in PLANTS],
)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    assert plant.found_after() is not None, f"{plant.name}: not found within {SEEDS_MOST} seeds"


def test_plants_that_are_left_to_the_night_exist() -> None:
    assert {plant.name for plant in PLANTS} > LONG
