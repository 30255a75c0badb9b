"""The occupants of a kind: made, woken and polled while a runner holds their seats, and stopped with it."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import PersistenceError
from coterie.kernel.random import Random
from coterie.kernel.supervisor import Supervisor
from coterie.ownership.seats import Tenure, Trust
from coterie.settings import Settings
from coterie.storage.interface import Claim
from coterie.work.middleware import Middleware
from coterie.work.occupants import GRACE_S, LoopOccupant, Occupants
from coterie.work.threads import InlineThreads
from tests.support.manual_clock import ManualClock
from tests.support.services import services

if TYPE_CHECKING:
    from contextvars import Context

    from coterie.work.services import Services

pytestmark = pytest.mark.simulated(seeds=1)
caller: ContextVar[str] = ContextVar("caller", default="nobody")


class FakeRunner:
    """As much of a runner as occupants need."""

    def __init__(self) -> None:
        self.settings = Settings.load({"url": "sqlite://", "drain": "5s"}, environ={})
        self.storage = SimpleNamespace()
        self.calling = SimpleNamespace(clock=ManualClock(), chance=Random(1))
        self.name = "r1"
        self.supervisor = Supervisor(Random(1))
        self.threads, self.middleware = InlineThreads(), Middleware()
        self.last: list[Any] = []
        self.resigned: list[tuple[str, str, str]] = []

    def at_end(self, last: Any) -> None:
        self.last.append(last)

    async def resign(self, seat: str, *, cause: str, error: str) -> None:
        self.resigned.append((seat, cause, error))


class Recorder:
    """An occupant that records what it is told."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.said: list[str] = []

    async def drain(self) -> None:
        self.said.append("drain")

    def abandon(self) -> None:
        self.said.append("abandon")

    def wake(self, unit: str) -> None:
        self.said.append(f"wake {unit}")

    async def end(self) -> None:
        self.said.append("end")


class Recorders(Occupants[Recorder]):
    """Occupants whose polls may fail."""

    def __init__(self, runner: Any) -> None:
        super().__init__("recorders", runner, runner)
        self.begun = self.polls = 0
        self.failing: list[Exception] = []

    def _make(self, tenure: Tenure, context: Context) -> Recorder:
        return Recorder(context)

    def _begin(self) -> None:
        self.begun += 1
        self._supervise(self._sweep, "sweep recorders")

    async def _poll(self) -> None:
        self.polls += 1
        if self.failing:
            raise self.failing.pop(0)


def tenure(seat: str = "cron:x") -> Tenure:
    trust = Trust(ManualClock())
    trust.extend(10**15)
    return Tenure(Claim("a" * 32, seat, 7), clean=True, trust=trust)


async def test_an_occupant_inherits_the_context_of_its_grant_and_the_latest_of_a_seat_is_woken() -> None:
    held = Recorders(FakeRunner())
    caller.set("the grant")
    former = held.occupy(tenure())
    latest, other = held.occupy(tenure()), held.occupy(tenure("cron:y"))
    assert latest.context[caller] == "the grant"
    held.wake("cron:x", "unit 7")
    held.wake("cron:y")
    held.wake("cron:unknown", "unit 7")
    assert (former.said, latest.said, other.said, held.begun) == ([], ["wake unit 7"], ["wake "], 1)
    await held.stop()


async def test_m9_a_poll_that_fails_is_not_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    held = Recorders(FakeRunner())
    held.failing = [PersistenceError(doing="read", problem="it is away", outcome="unreachable"), KeyError()]
    await asyncio.sleep(60)
    assert held.polls == 0, "nothing is held"
    held.occupy(tenure())
    await asyncio.sleep(60)
    assert held.polls > 10
    assert caplog.text.count("standing task 'sweep recorders'") == 1, "an outage is no failure"
    await held.stop()


async def test_when_the_runner_stops_the_occupants_end_and_nothing_is_polled_any_more() -> None:
    runner = FakeRunner()
    held = Recorders(runner)
    occupants = [held.occupy(tenure()), held.occupy(tenure("cron:y"))]
    (stop,) = runner.last
    await stop()
    assert [each.said for each in occupants] == [["end"], ["end"]]
    polls = held.polls
    await asyncio.sleep(60)
    assert held.polls == polls


async def test_a_standing_task_that_keeps_failing_releases_its_seat() -> None:
    runner = FakeRunner()
    held = Recorders(runner)

    async def fail() -> None:
        raise KeyError

    task = held.services.supervise(fail, "fail", tenure(), context=held.occupy(tenure()).context)
    await task
    await asyncio.sleep(1)
    assert runner.resigned == [("cron:x", "failed", "")]
    await held.stop()


class Looping(LoopOccupant):
    """A loop with one task, which ends when it is released, or ignores its cancellation."""

    def __init__(self, given: Services, *, is_stubborn: bool = False) -> None:
        super().__init__(tenure(), given, SimpleNamespace())  # type: ignore[arg-type] # it is not used
        self.is_stubborn = is_stubborn
        self.released = asyncio.Event()
        self._loop = given.tasks.spawn(self._write(), name="loop")
        self.task = given.tasks.spawn(self._work(), name="work")

    async def _write(self) -> None:
        await self._news.wait()
        await asyncio.sleep(1)  # a write that is in flight

    def _running(self) -> list[asyncio.Task[Any]]:
        return [self.task]

    def _release(self) -> None:
        self.released.set()

    async def _work(self) -> str:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not self.is_stubborn:
                    raise


class Obedient(Looping):
    """Its task ends when it is released."""

    async def _work(self) -> str:
        await self.released.wait()
        return "ended by itself"


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def test_what_runs_may_end_by_itself_before_the_seat_is_released() -> None:
    occupant = Obedient(services(settings={"drain": "5s"}))
    began_s = now_s()
    await occupant.drain()
    assert occupant.task.result() == "ended by itself"
    assert not occupant._loop.cancelled(), "a write in flight is followed up"
    assert now_s() - began_s < 2


@pytest.mark.parametrize(("is_stubborn", "within_s"), [(False, 1 + 5), (True, 1 + 5 + GRACE_S)])
async def test_what_does_not_end_is_cancelled_and_then_abandoned(is_stubborn: bool, within_s: float) -> None:
    occupant = Looping(services(settings={"drain": "5s"}), is_stubborn=is_stubborn)
    began_s = now_s()
    await occupant.drain()
    assert now_s() - began_s == pytest.approx(within_s, abs=0.1)
    assert occupant.task.done() is not is_stubborn
    occupant.is_stubborn = False
    occupant.task.cancel()


async def test_what_lost_its_seat_is_cancelled_at_once() -> None:
    occupant = Looping(services())
    await asyncio.sleep(0)
    occupant.abandon()
    await asyncio.sleep(0.01)
    assert occupant.task.cancelled()
