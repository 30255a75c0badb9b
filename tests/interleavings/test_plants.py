"""Each planted bug is found, by the pair that tells its history; the right form beside it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.interleavings.catalogue import catalogue
from tests.interleavings.database import stage
from tests.interleavings.plants import CONTROL, PLANTS, Plant
from tests.interleavings.runs import find
from tests.support.interleaving import explore

if TYPE_CHECKING:
    from tests.interleavings.conftest import NewDatabase
    from tests.support.interleaving import Pair

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name.replace(" ", "-"))
async def test_a_planted_bug_is_found(plant: Plant, new_database: NewDatabase) -> None:
    database = new_database(plant.schema, level=plant.level)
    async with stage(database, own_level=not plant.level) as on:
        run, runs = await find(on, _around(plant), says=plant.says)
    assert run is not None, f"not found in {runs} runs"
    assert run.pair.name == plant.found_by


async def test_the_right_form_without_the_foreign_key_passes(new_database: NewDatabase) -> None:
    """C4: it is the order of the two statements that is found, not the missing key."""
    pairs = catalogue(CONTROL.steps())
    shown = {plant.found_by for plant in PLANTS if plant.schema == CONTROL.schema}
    async with stage(new_database(CONTROL.schema)) as on:
        for name in shown:
            count = await explore(on.play, pairs[name])
            assert not count.failed, str(count.failed[0])


def _around(plant: Plant) -> list[Pair]:
    """The pair that finds the bug. `make plants` looks through the whole catalogue."""
    return [catalogue(plant.steps())[plant.found_by]]
