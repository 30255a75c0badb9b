"""What a body sees of its leadership: who it is, whether it still is, and what counts as progress (S1, S3, B1)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import pytest

from coterie.errors import ConfigurationError, LeadershipLost
from coterie.singletons.leader import Leader
from tests.support.services import services
from tests.unit.singletons.fake_storage import HeldSingleton, Progress, loaded


class FakeStamps:
    """What was said, in order."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.meta = object()

    def progress(self) -> None:
        self.said.append("progress")

    def beat(self, *beat: Any) -> None:
        self.said.append(beat)


class FakeStates:
    """Where the fence is asked."""

    def __init__(self) -> None:
        self.states = self
        self.held = True
        self.asked = 0

    async def verify(self, claim: Any) -> bool:
        self.asked += 1
        return self.held


class Lead:
    """A leader of a stage."""

    def __init__(self, stage: HeldSingleton) -> None:
        self.stage = stage
        self.stamps = FakeStamps()
        self.storage = FakeStates()
        stamps: Any = self.stamps
        self.leader: Leader[Progress] = Leader(
            "importer",
            services=services(cluster=object(), storage=self.storage),
            tenure=stage.tenure,
            state=stage.state,
            stamps=stamps,
            open_unit=lambda _: nullcontext(cast("Any", None)),
        )


async def lead() -> Lead:
    return Lead(await loaded())


async def test_it_says_who_it_is() -> None:
    """B1: the epoch is the token for resources of the user's own."""
    on = await lead()
    assert (on.leader.name, on.leader.epoch, on.leader.is_leader) == ("importer", 7, True)
    assert repr(on.leader) == "<Leader of 'importer' at epoch 7>"
    assert on.leader.meta is on.stamps.meta
    on.stage.tenure.ended = True
    assert not on.leader.is_leader


async def test_its_state_is_read_saved_and_updated() -> None:
    on = await lead()
    await on.leader.save(Progress(1))
    async with on.leader.update() as state:
        state.last_id += 1
    async with on.leader.transaction(), on.leader.update() as state:
        state.last_id += 1
    assert on.leader.state == on.stage.stored() == Progress(3)
    wrong: Any = on.leader
    with pytest.raises(AttributeError):
        wrong.state = Progress(9)


async def test_verify_asks_the_database_and_trusts_nothing_else() -> None:
    on = await lead()
    await on.leader.verify()
    on.storage.held = False
    with pytest.raises(LeadershipLost) as caught:
        await on.leader.verify()
    assert (caught.value.seat, caught.value.epoch) == ("singleton:importer", 7)
    assert on.leader.is_leader, "as far as it knows"
    on.storage.held = True
    on.stage.tenure.ended = True
    with pytest.raises(LeadershipLost):
        await on.leader.verify()
    assert on.storage.asked == 2


async def test_to_sleep_on_purpose_is_progress() -> None:
    """H1: a body that waits for its next round is well."""
    on = await lead()
    await on.leader.sleep(0)
    await on.leader.sleep("1ms")
    assert on.stamps.said == ["progress"] * 4


async def test_who_lost_the_leadership_in_its_sleep_is_told() -> None:
    on = await lead()
    on.stage.tenure.ended = True
    with pytest.raises(LeadershipLost):
        await on.leader.sleep("1ms")


async def test_a_sleep_that_makes_no_sense_is_refused() -> None:
    on = await lead()
    for wrong in ("10", -1, None):
        with pytest.raises(ConfigurationError, match=r"leader\.sleep is "):
            await on.leader.sleep(wrong)  # type: ignore[arg-type] # what a checker refuses, too


async def test_a_heartbeat_says_how_far_it_is() -> None:
    on = await lead()
    on.leader.heartbeat()
    on.leader.heartbeat("pages", done=3, total=10)
    assert on.stamps.said == [("", None, None), ("pages", 3, 10)]
