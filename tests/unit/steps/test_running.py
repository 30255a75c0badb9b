"""Running steps: what is stored of them, and what is not."""

from __future__ import annotations

import pytest

from coterie.errors import MalformedMessage, StepDiverged
from tests.unit.steps.grounds import Ground, pause

pytestmark = pytest.mark.simulated(seeds=1)


@pytest.mark.parametrize("why", ["stop_at_frontier", "closed"])
async def test_a_patch_is_not_stored_where_nothing_new_is_begun(why: str) -> None:
    ground = Ground()
    setattr(ground.work, why, True)
    assert ground.work.patch("p")
    await pause()
    assert ground.units.written == []
    await ground.tasks.stop()


async def test_w2_a_patch_that_is_being_stored_is_not_when_another_branch_diverges() -> None:
    """Which is found out before anything was sent."""
    ground = Ground()
    assert ground.work.patch("p")
    ground.work.halt(StepDiverged(unit="u", found="a", stored="b"))
    with pytest.raises(StepDiverged):
        ground.work.patch("q")
    await pause()
    assert ground.units.written == []
    await ground.tasks.stop()


async def test_a_result_that_is_too_large_is_an_error_that_says_what_to_do_and_stays_one() -> None:
    ground = Ground()

    async def give(size: int) -> bytes:
        return bytes(size)

    assert await ground.work.step("small", give, (990,), {}) == bytes(990)
    with pytest.raises(MalformedMessage, match=r"'large' of u: 1,003 bytes, more than the 1,000 .*put large data else"):
        await ground.work.step("large", give, (1000,), {})
    assert [(write.name, write.value is None, write.error is None) for write in ground.units.written] == [
        ("small", False, True),
        ("large", True, False),
    ]
    await ground.tasks.stop()
