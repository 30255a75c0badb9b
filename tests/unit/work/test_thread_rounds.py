"""Random rounds on the threads of plain functions keep what is promised; each planted bug breaks one of them (T7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.work.thread_plants import PLANTS, SEEDS_MOST, found_after
from tests.unit.work.thread_rounds import Round

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


@pytest.mark.parametrize("seed", range(20))
async def test_bodies_that_come_are_cancelled_and_end_at_random_keep_the_promise(seed: int) -> None:
    await Round(seed).play()


@pytest.mark.nightly
async def test_thousands_of_rounds_keep_the_promise() -> None:
    for seed in range(2_000):
        await Round(seed).play()


@pytest.mark.parametrize("planted", PLANTS.values(), ids=PLANTS)
def test_a_planted_bug_is_found(planted: Callable[[], AbstractContextManager[object]]) -> None:
    assert found_after(planted) is not None, f"not found within {SEEDS_MOST} rounds"
