"""How a seat comes and goes at its holder: occupied, drained, released, given up, owed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import PersistenceError
from coterie.kernel.clock import ManualClock
from coterie.ownership.holdings import Holdings
from coterie.ownership.tenure import Tenure, Trust
from coterie.storage.interface import Grant, checksum

if TYPE_CHECKING:
    from collections.abc import Callable


class Desk:
    """Stands in for the dedicated session: remembers releases, and fails as often as it is told."""

    def __init__(self) -> None:
        self.released: list[tuple[str, int]] = []
        self.failures = 0

    async def ask(self, work: Callable[[Any], Any]) -> Any:
        return await work(self)

    async def release(self, name: str, epoch: int) -> bool:
        if self.failures:
            self.failures -= 1
            raise PersistenceError(doing="release", problem="no answer", outcome="unknown")
        self.released.append((name, epoch))
        return True


class Occupant:
    def __init__(self, tenure: Tenure) -> None:
        self.tenure = tenure
        self.log: list[str] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def drain(self) -> None:
        self.log.append("drain")
        await self.may_end.wait()
        assert not self.tenure.ended, "work that ends in a drain may still write"
        self.log.append("drained")

    def abandon(self) -> None:
        self.log.append("abandon")


class Stage:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.desk = Desk()
        self.trust = Trust(self.clock)
        self.trust.extend(4_500_000_000)
        self.occupants: dict[str, Occupant] = {}
        self.offers: list[tuple[str, int, str | None]] = []
        self.holdings = Holdings(
            "me",
            address=lambda: "127.0.0.1:1",
            keeping=self.desk,  # type: ignore[arg-type] # a stand-in
            trust=self.trust,
            occupy=self._occupy,
            released=lambda *offer: self.offers.append(offer),
        )

    def _occupy(self, tenure: Tenure) -> Occupant:
        self.occupants[tenure.seat] = Occupant(tenure)
        return self.occupants[tenure.seat]


@pytest.fixture
async def stage() -> Stage:
    stage = Stage()
    stage.holdings.granted([Grant("a", 1, True), Grant("b", 7, False)])
    return stage


async def test_a_granted_seat_is_occupied_with_its_epoch_and_its_past(stage: Stage) -> None:
    assert stage.holdings.staying == {"a": 1, "b": 7}
    assert (stage.occupants["a"].tenure.clean, stage.occupants["b"].tenure.clean) == (True, False)
    assert stage.holdings.checksum == checksum({"a": 1, "b": 7})


async def test_a_seat_granted_after_trust_has_ended_is_not_occupied_but_owed_m3(stage: Stage) -> None:
    stage.trust.end()
    assert stage.holdings.granted([Grant("c", 2, True)]) == []
    assert "c" not in stage.occupants
    await stage.holdings.repay()
    assert stage.desk.released == [("c", 2)]


async def test_a_seat_that_moves_is_drained_then_ended_then_released_then_offered(stage: Stage) -> None:
    stage.occupants["a"].may_end.clear()
    async with asyncio.TaskGroup() as group:
        move = group.create_task(stage.holdings.move("a", "other"))
        await asyncio.sleep(0)
        assert stage.holdings.staying == {"b": 7}
        assert stage.occupants["a"].tenure.held  # what is running may finish and write
        assert stage.desk.released == []
        stage.occupants["a"].may_end.set()
        await move
    assert stage.occupants["a"].tenure.ended
    assert stage.desk.released == [("a", 1)]
    assert stage.offers == [("a", 1, "other")]
    assert "a" not in stage.holdings


async def test_a_release_without_answer_is_sent_until_one_comes(stage: Stage) -> None:
    stage.desk.failures = 2
    await stage.holdings.move("a", None)
    assert stage.desk.released == [("a", 1)]


async def test_without_trust_everything_stops_and_is_given_back_before_anything_else_lock_09(stage: Stage) -> None:
    stage.holdings.give_up("no renewal")
    assert [occupant.log for occupant in stage.occupants.values()] == [["abandon"], ["abandon"]]
    assert all(occupant.tenure.ended for occupant in stage.occupants.values())
    assert (len(stage.holdings), stage.holdings.checksum) == (0, checksum({"a": 1, "b": 7}))
    stage.desk.failures = 1
    with pytest.raises(PersistenceError):
        await stage.holdings.repay()
    await stage.holdings.repay()
    assert sorted(stage.desk.released) == [("a", 1), ("b", 7)]
    assert stage.holdings.checksum == checksum({})


async def test_what_the_table_does_not_have_in_our_name_is_dropped_m13(stage: Stage) -> None:
    stage.holdings.compare({"a": 2})  # a was granted again, and b to somebody else
    assert stage.holdings.staying == {}
    assert all(occupant.log == ["abandon"] for occupant in stage.occupants.values())


async def test_what_only_the_table_knows_is_given_back(stage: Stage) -> None:
    stage.holdings.compare({"a": 1, "b": 7, "c": 3})  # an acquire whose answer was lost
    await stage.holdings.repay()
    assert stage.desk.released == [("c", 3)]
    assert stage.holdings.staying == {"a": 1, "b": 7}


async def test_a_late_picture_does_not_bring_back_what_was_released(stage: Stage) -> None:
    await stage.holdings.move("a", None)
    stage.holdings.compare({"a": 1, "b": 7})
    await stage.holdings.repay()
    assert stage.desk.released == [("a", 1)]


async def test_a_seat_on_its_way_out_is_left_to_its_move(stage: Stage) -> None:
    stage.occupants["a"].may_end.clear()
    async with asyncio.TaskGroup() as group:
        move = group.create_task(stage.holdings.move("a", None))
        await asyncio.sleep(0)
        stage.holdings.compare({"b": 7})
        assert stage.occupants["a"].log == ["drain"]
        stage.occupants["a"].may_end.set()
        await move


def test_trust_ends_at_its_moment_and_is_never_shortened_by_an_older_renewal() -> None:
    trust = Trust(ManualClock())
    found = [trust.holds]
    trust.extend(100)
    trust.extend(50)
    assert trust.left_s == 100 / 1e9
    found.append(trust.holds)
    trust.end()
    trust.extend(10**12)
    found.append(trust.holds)  # for good: a later life has its own
    assert found == [False, True, False]
