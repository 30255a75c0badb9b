"""What a tick lets its body do, and what becomes of it without the seat (C2)."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from coterie import LeadershipLost, Tick
from coterie.kernel.context import transacting
from tests.support.services import services
from tests.unit.cron.fake_storage import HeldCron, cron, noon

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeTransaction:
    """Remembers what came of it."""

    def __init__(self, storage: FakeStorage) -> None:
        self._storage = storage
        self.ended = ""

    async def commit(self, write: Any) -> str:
        await self._storage.gate.wait()
        self.ended = self._storage.told
        self._storage.committed.append(write.claim)
        return self.ended

    async def rollback(self) -> None:
        self.ended = "rolled back"


class FakeStorage:
    """`storage.Storage`, as far as a tick needs it."""

    def __init__(self) -> None:
        self.told = "written"
        self.held = True
        self.gate = asyncio.Event()
        self.gate.set()
        self.limits: list[float] = []
        self.committed: list[Any] = []
        self.transactions: list[FakeTransaction] = []
        self.states = self

    def transaction(self, *, limit_s: float) -> FakeTransaction:
        self.limits.append(limit_s)
        self.transactions.append(FakeTransaction(self))
        return self.transactions[-1]

    async def verify(self, claim: Any) -> bool:
        return self.held and claim.epoch == 7


Given = tuple[HeldCron, FakeStorage, Tick]


@pytest.fixture
def given() -> Callable[[], Given]:
    def make() -> Given:
        stage, storage = HeldCron(cron()), FakeStorage()
        anything: Any = storage
        tick = Tick(
            "x",
            scheduled_at=noon(0),
            attempt=2,
            manual=True,
            services=services(storage=storage, settings={"transaction_limit": "2.5s"}),
            tenure=stage.tenure,
            work=anything,
            beat=lambda *_: None,
        )
        return stage, storage, tick

    return make


async def test_a_transaction_is_committed_at_the_end_of_its_block_under_the_fence(given: Callable[[], Given]) -> None:
    stage, storage, tick = given()
    async with tick.transaction() as sql:
        begun: Any = sql
        assert begun is storage.transactions[0]
        assert transacting.get() == ("cron 'x'", begun)
        assert not storage.transactions[0].ended
    assert (storage.transactions[0].ended, storage.limits) == ("written", [2.5])
    assert storage.committed == [stage.tenure.claim]
    assert transacting.get() is None


async def test_a_transaction_that_the_fence_refuses_tells_so(given: Callable[[], Given]) -> None:
    _, storage, tick = given()
    storage.told = "fenced"
    with pytest.raises(LeadershipLost):
        async with tick.transaction():
            pass


async def test_without_the_seat_no_transaction_begins(given: Callable[[], Given]) -> None:
    stage, storage, tick = given()
    stage.tenure.ended = True
    with pytest.raises(LeadershipLost):
        async with tick.transaction():
            pytest.fail("it began")
    assert not storage.transactions


async def test_a_block_that_raises_is_rolled_back(given: Callable[[], Given]) -> None:
    _, storage, tick = given()
    with pytest.raises(ZeroDivisionError):
        async with tick.transaction():
            raise ZeroDivisionError
    assert storage.transactions[0].ended == "rolled back"
    assert transacting.get() is None


@pytest.mark.parametrize("told", ["written", "fenced"])
async def test_a_commit_that_has_begun_goes_to_its_end_though_its_body_is_cancelled(
    given: Callable[[], Given], told: str
) -> None:
    """And nobody is told of an error that nobody asked for."""
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    _, storage, tick = given()
    storage.told = told
    storage.gate.clear()

    async def body() -> None:
        async with tick.transaction():
            pass

    task = asyncio.create_task(body())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done(), "whoever comes next must see what was written"
    storage.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert storage.transactions[0].ended == told
    assert storage.committed
    await asyncio.sleep(0)
    gc.collect()
    assert not reported


@pytest.mark.parametrize("how", ["ours", "the tenure has ended", "the database says no"])
async def test_verify_asks_the_database(given: Callable[[], Given], how: str) -> None:
    stage, storage, tick = given()
    stage.tenure.ended = how == "the tenure has ended"
    storage.held = how != "the database says no"
    if how == "ours":
        await tick.verify()
    else:
        with pytest.raises(LeadershipLost):
            await tick.verify()


async def test_a_tick_shows_what_it_is(given: Callable[[], Given]) -> None:
    _, _, tick = given()
    assert repr(tick) == "<Tick of 'x' at 2026-03-01T12:00:00Z, attempt 2>"
    assert (tick.name, tick.scheduled_at, tick.attempt, tick.manual, tick.epoch) == ("x", noon(0), 2, True, 7)
