"""The catalogue: no order of any pair, and no session lost on the way, breaks what ownership promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.interleavings import late_definitions, started_units, stored_jobs, stored_ticks, stored_units
from tests.interleavings.catalogue import catalogue
from tests.interleavings.database import stage
from tests.interleavings.runs import describe, play_pair
from tests.support.interleaving import Count, explore, losses

if TYPE_CHECKING:
    from tests.interleavings.conftest import NewDatabase

pytestmark = pytest.mark.postgres

PAIRS = catalogue()
SELDOM = {name for name in PAIRS if name.startswith("unit: ")} - stored_units.OFTEN
SELDOM |= {name for name in PAIRS if name.startswith("job: ")} - stored_jobs.OFTEN
SELDOM |= late_definitions.NIGHTLY | started_units.NIGHTLY
OFTEN = [name for name in PAIRS if name not in stored_ticks.NIGHTLY | SELDOM]
SAMPLE = 2
"""Orders per loss in `make test`. Without losses all orders are played."""


@pytest.mark.parametrize("name", OFTEN)
async def test_no_order_of_a_pair_breaks_a_promise(name: str, url: str) -> None:
    """C1, C4, M4, M13, K1, INV-F1-F3: all orders, and a fixed sample of those with a lost session."""
    async with stage(url) as on:
        count = await play_pair(on, PAIRS[name], most=SAMPLE)
    _require_well(count, allows=PAIRS[name].allows)
    assert count.runs >= len(losses(PAIRS[name])) + 4


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", PAIRS)
async def test_no_order_with_a_session_lost_anywhere_breaks_a_promise(
    name: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same, all of it."""
    async with stage(url) as on:
        count = await play_pair(on, PAIRS[name])
    with capsys.disabled():
        print(f"\n  {name}: {describe(count)}", end="", flush=True)
    _require_well(count, allows=PAIRS[name].allows)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("seldom", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["often", "seldom"])
async def test_the_isolation_level_of_the_database_does_not_matter(
    level: str, seldom: bool, new_database: NewDatabase
) -> None:
    """m4: our sessions set their own level; at a stricter one the fence's wait would end in 40001."""
    async with stage(new_database(level=level)) as on:
        for name, pair in PAIRS.items():
            if (name in SELDOM) == seldom:
                _require_well(await explore(on.play, pair), allows=pair.allows)


def _require_well(count: Count, *, allows: frozenset[str]) -> None:
    assert not count.failed, "\n\n".join(map(str, count.failed[:3]))
    assert not count.failures.keys() - allows, f"refusals: {count.failures}"
