"""How a seat comes and goes at its holder: occupied, drained, released, given up, owed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import PersistenceError
from coterie.ownership.seats import HeldSeats, Tenure, Trust
from coterie.storage.interface import Claim, Grant, checksum
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeLeaseSession:
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


class SeatsUnderTest:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.desk = FakeLeaseSession()
        self.trust = Trust(self.clock)
        self.trust.extend(4_500_000_000)
        self.occupants: dict[str, Occupant] = {}
        self.offers: list[tuple[str, int, str | None]] = []
        self.holdings = HeldSeats(
            "me",
            address=lambda: "127.0.0.1:1",
            lease_keeper=self.desk,  # type: ignore[arg-type] # a stand-in
            trust=self.trust,
            occupy=self._occupy,
            released=lambda *offer: self.offers.append(offer),
        )

    def _occupy(self, tenure: Tenure) -> Occupant:
        self.occupants[tenure.seat] = Occupant(tenure)
        return self.occupants[tenure.seat]


def fail(*_: object, **__: object) -> Any:
    raise KeyError("a bug")


@pytest.fixture
async def stage() -> SeatsUnderTest:
    stage = SeatsUnderTest()
    stage.holdings.granted([Grant("a", 1, True), Grant("b", 7, False)])
    return stage


async def test_a_granted_seat_is_occupied_with_its_epoch_and_its_past(stage: SeatsUnderTest) -> None:
    assert stage.holdings.staying == {"a": 1, "b": 7}
    assert (stage.occupants["a"].tenure.clean, stage.occupants["b"].tenure.clean) == (True, False)
    assert stage.holdings.checksum == checksum({"a": 1, "b": 7})


async def test_a_seat_granted_after_trust_has_ended_is_not_occupied_but_owed_m3(stage: SeatsUnderTest) -> None:
    stage.trust.end()
    assert stage.holdings.granted([Grant("c", 2, True)]) == []
    assert "c" not in stage.occupants
    await stage.holdings.repay()
    assert stage.desk.released == [("c", 2)]


async def test_a_seat_that_moves_is_drained_then_ended_then_released_then_offered(stage: SeatsUnderTest) -> None:
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


async def test_a_release_without_answer_is_sent_until_one_comes(stage: SeatsUnderTest) -> None:
    stage.desk.failures = 2
    await stage.holdings.move("a", None)
    assert stage.desk.released == [("a", 1)]


async def test_without_trust_everything_stops_and_is_given_back_before_anything_else_lock_09(
    stage: SeatsUnderTest,
) -> None:
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


async def test_what_the_table_does_not_have_in_our_name_is_dropped_m13(stage: SeatsUnderTest) -> None:
    stage.holdings.compare({"a": 2})  # a was granted again, and b to somebody else
    assert stage.holdings.staying == {}
    assert all(occupant.log == ["abandon"] for occupant in stage.occupants.values())


async def test_what_only_the_table_knows_is_given_back(stage: SeatsUnderTest) -> None:
    stage.holdings.compare({"a": 1, "b": 7, "c": 3})  # an acquire whose answer was lost
    await stage.holdings.repay()
    assert stage.desk.released == [("c", 3)]
    assert stage.holdings.staying == {"a": 1, "b": 7}


async def test_a_late_picture_does_not_bring_back_what_was_released(stage: SeatsUnderTest) -> None:
    await stage.holdings.move("a", None)
    stage.holdings.compare({"a": 1, "b": 7})
    await stage.holdings.repay()
    assert stage.desk.released == [("a", 1)]


async def test_a_seat_on_its_way_out_is_left_to_its_move(stage: SeatsUnderTest) -> None:
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


async def test_one_that_cannot_be_occupied_is_given_back_and_told_while_its_neighbours_stay() -> None:
    stage, refused = SeatsUnderTest(), list[str]()
    stage.holdings._refused = refused.append

    def occupy(tenure: Tenure) -> Occupant:
        if tenure.seat == "bad":
            raise KeyError("x")
        return stage._occupy(tenure)

    stage.holdings._occupy = occupy
    assert stage.holdings.granted([Grant("bad", 3, True), Grant("good", 1, True)]) == [("good", 1)]
    assert (refused, stage.holdings.staying) == (["bad"], {"good": 1})
    assert stage.holdings.tenure("bad") is None
    assert stage.holdings.checksum == checksum({"bad": 3, "good": 1}), "the table has it in our name until it is back"
    await stage.holdings.repay()
    assert stage.desk.released == [("bad", 3)]


async def test_by_default_nobody_is_told_of_one_that_cannot_be_occupied() -> None:
    stage = SeatsUnderTest()
    stage.holdings._occupy = fail
    assert stage.holdings.granted([Grant("bad", 3, True)]) == []


async def test_the_tenure_of_a_seat_is_known_while_it_is_held(stage: SeatsUnderTest) -> None:
    tenure = stage.holdings.tenure("b")
    assert tenure is not None
    assert (tenure.seat, tenure.epoch, tenure.clean, tenure.held) == ("b", 7, False, True)
    await stage.holdings.move("b", None)
    assert stage.holdings.tenure("b") is None
    assert not tenure.held


async def test_what_is_owed_is_forgotten_when_the_table_has_it_no_more_in_our_name(stage: SeatsUnderTest) -> None:
    stage.holdings.give_up("test")
    stage.holdings.compare({"a": 1})
    await stage.holdings.repay()
    assert stage.desk.released == [("a", 1)]


async def test_what_the_table_still_has_after_a_release_and_a_new_look_was_lost_there_m13(
    stage: SeatsUnderTest,
) -> None:
    await stage.holdings.move("a", None)
    stage.holdings.expect_view()
    stage.holdings.compare({"a": 1, "b": 7})
    await stage.holdings.repay()
    assert stage.desk.released == [("a", 1), ("a", 1)]


async def test_a_drain_that_fails_cuts_off_what_is_left_and_the_seat_is_given_back(stage: SeatsUnderTest) -> None:
    stage.occupants["a"].drain = fail  # type: ignore[method-assign]
    await stage.holdings.move("a", "other")
    assert stage.occupants["a"].log == ["abandon"]
    assert stage.occupants["a"].tenure.ended
    assert (stage.desk.released, stage.offers) == ([("a", 1)], [("a", 1, "other")])


async def test_one_that_cannot_be_stopped_in_order_does_not_keep_the_others_from_being_stopped(
    stage: SeatsUnderTest,
) -> None:
    stage.occupants["a"].abandon = fail  # type: ignore[method-assign]
    stage.holdings.give_up("test")
    assert stage.occupants["a"].tenure.ended
    assert stage.occupants["b"].log == ["abandon"]
    assert len(stage.holdings) == 0


async def test_a_move_under_way_ends_when_everything_is_given_up(stage: SeatsUnderTest) -> None:
    stage.occupants["a"].may_end.clear()
    move = asyncio.create_task(stage.holdings.move("a", "other"))
    await asyncio.sleep(0)
    stage.holdings.give_up("test")
    await asyncio.wait([move])
    assert move.cancelled()
    assert (stage.offers, stage.desk.released) == ([], [])
    await stage.holdings.repay()
    assert stage.desk.released == [("a", 1), ("b", 7)]


async def test_a_move_that_had_not_begun_when_everything_was_given_up_does_nothing(stage: SeatsUnderTest) -> None:
    move = asyncio.create_task(stage.holdings.move("a", "other"))
    stage.holdings.give_up("test")
    await move
    assert stage.occupants["a"].log == ["abandon"]
    assert (stage.offers, stage.desk.released) == ([], [])


def refuse(stage: SeatsUnderTest, *names: str, error: Exception | None = None) -> None:
    """The database refuses to release these, once each."""
    left, release = set(names), stage.desk.release

    async def release_or_refuse(name: str, epoch: int) -> bool:
        if name in left:
            left.remove(name)
            raise error or PersistenceError(doing="release", problem="no")
        return await release(name, epoch)

    stage.desk.release = release_or_refuse  # type: ignore[method-assign]


async def test_a_release_that_fails_by_a_bug_is_owed_and_the_move_fails(stage: SeatsUnderTest) -> None:
    refuse(stage, "a", error=KeyError("x"))
    with pytest.raises(KeyError, match="x"):
        await stage.holdings.move("a", "other")
    assert stage.holdings.staying == {"b": 7}
    assert stage.offers == [], "it is not free yet"
    assert stage.holdings.checksum == checksum({"a": 1, "b": 7})
    await stage.holdings.repay()
    assert stage.desk.released == [("a", 1)]


async def test_a_release_that_the_database_refuses_is_tried_again_before_the_seat_is_offered(
    stage: SeatsUnderTest,
) -> None:
    refuse(stage, "a")
    await stage.holdings.move("a", "other")
    assert (stage.desk.released, stage.offers) == ([("a", 1)], [("a", 1, "other")])


async def test_of_seats_that_leave_together_a_refused_one_does_not_keep_the_others(stage: SeatsUnderTest) -> None:
    refuse(stage, "a")
    async with stage.holdings._releasing:  # both wait for their turn, and take it together
        moves = [asyncio.create_task(stage.holdings.move(seat, "other")) for seat in ("b", "a")]
        while len(stage.holdings._unreleased) < 2:
            await asyncio.sleep(0)
    done = await asyncio.gather(*moves, return_exceptions=True)
    assert done[0] is None
    assert stage.offers[0] == ("b", 7, "other")
    assert sorted(stage.desk.released) == [("a", 1), ("b", 7)], "it was tried again in a turn of its own"
    assert done[1] is None


async def test_a_turn_of_releases_ends_when_its_time_is_over(
    stage: SeatsUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal waits behind it on the same session."""
    monkeypatch.setattr("coterie.ownership.seats._RELEASING_S", 0.0)
    turns: list[list[str]] = []
    ask = stage.desk.ask

    async def asked(work: Callable[[Any], Any]) -> Any:
        outcomes = await ask(work)
        turns.append(list(outcomes))
        return outcomes

    stage.desk.ask = asked  # type: ignore[method-assign]
    async with stage.holdings._releasing:
        moves = [asyncio.create_task(stage.holdings.move(seat, None)) for seat in ("a", "b")]
        while len(stage.holdings._unreleased) < 2:
            await asyncio.sleep(0)
    await asyncio.gather(*moves)
    assert turns == [["a"], ["b"]], "at least one in each turn"


async def test_a_session_that_is_lost_fails_the_whole_turn_and_each_is_tried_again(stage: SeatsUnderTest) -> None:
    stage.desk.failures = 1
    async with stage.holdings._releasing:
        moves = [asyncio.create_task(stage.holdings.move(seat, None)) for seat in ("a", "b")]
        while len(stage.holdings._unreleased) < 2:
            await asyncio.sleep(0)
    await asyncio.gather(*moves)
    assert sorted(stage.desk.released) == [("a", 1), ("b", 7)]


@pytest.mark.parametrize("cause", ["given up", "evicted", "time", "cut off"])
def test_a_tenure_answers_alike_however_it_is_asked(cause: str) -> None:
    clock = ManualClock()
    trust = Trust(clock)
    clock.advance(timedelta(seconds=1))
    trust.extend(clock.steady_ns() + 1000)
    trust.connected = True
    tenure = Tenure(Claim("me", "a", 1), clean=True, trust=trust)
    now_ns = clock.steady_ns()
    assert (tenure.held, tenure.held_at()) == (True, now_ns)
    assert (tenure.may_start, tenure.may_start_at(), tenure.may_start_at(now_ns)) == (True, now_ns, now_ns)
    if cause == "given up":
        tenure.ended = True
    elif cause == "evicted":
        trust.end()
    elif cause == "time":
        clock.advance(timedelta(seconds=1))
    else:
        trust.connected = False
    now_ns = clock.steady_ns()
    goes_on = cause == "cut off"  # what has begun may end, nothing new begins
    assert (tenure.held, tenure.held_at()) == (goes_on, now_ns if goes_on else None)
    assert (tenure.may_start, tenure.may_start_at(), tenure.may_start_at(now_ns)) == (False, None, None)
