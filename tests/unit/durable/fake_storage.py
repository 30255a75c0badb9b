"""A unit whose body is the test, and as much of a storage as it needs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Literal

from coterie.durable.steps import DurableWork
from coterie.errors import PersistenceError
from coterie.kernel.clock import Dial
from coterie.kernel.serialization.codec import codec_for
from coterie.kernel.service import Tasks
from coterie.ownership.seats import Tenure, Trust
from coterie.storage.contracts.units import DeferredRow, StepResult, StepRow, StepWrite, UnitSnapshot
from coterie.storage.interface import Claim
from tests.support.manual_clock import ManualClock
from tests.support.services import services


def time() -> float:
    return asyncio.get_running_loop().time()


class Units:
    """What is stored. An answer to a look can be slow, or fail."""

    def __init__(self) -> None:
        self.values: list[DeferredRow] = []
        self.looks = 0
        self.is_away = False
        self.written: list[StepWrite] = []
        self.steps: tuple[StepRow, ...] = ()
        self.troubles: list[PersistenceError] = []
        self.tells: Literal["written", "over", "fenced"] = "written"
        self.is_gone = False
        self.answers = asyncio.Event()
        self.answers.set()

    def now(self) -> datetime:
        return datetime.fromtimestamp(time(), UTC)

    def give(self, name: str, value: int) -> None:
        self.values.append(DeferredRow(name, codec_for(int).checked(value), None))

    async def step(self, write: StepWrite) -> StepResult:
        if self.troubles:
            raise self.troubles.pop(0)
        self.written.append(write)
        due_at = None if write.due_s is None else self.now() + timedelta(seconds=write.due_s)
        row = StepRow(
            branch=write.branch,
            position=write.position,
            kind=write.kind,
            name=write.name,
            done=write.done,
            value=write.value,
            error=write.error,
            due_at=due_at,
        )
        return StepResult(self.tells, row, self.now())

    async def load(self, *_: object) -> Any:
        self.looks += 1
        if self.is_away:
            raise PersistenceError(doing="read", problem="it is away", outcome="unreachable")
        read = tuple(self.values)
        await self.answers.wait()
        if self.is_gone:
            return None
        row: Any = SimpleNamespace(life=0)
        return UnitSnapshot(row, self.steps, read, self.now())


class OpenUnit:
    """A unit whose body is the test."""

    def __init__(self) -> None:
        self.units = Units()
        self.tasks = Tasks("test")
        self.trust = Trust(ManualClock())
        self.trust.extend(10**15)
        tenure = Tenure(Claim(runner="r", seat="s", epoch=1), clean=True, trust=self.trust)
        storage = SimpleNamespace(units=self.units)
        given = services(storage=storage, tasks=self.tasks, dial=Dial(time, time()), settings={"frame_limit": "64KiB"})
        self.work = DurableWork("u", given, tenure, open=self.units.load)
        self.work.places.begin()

    def waits(self, name: str) -> asyncio.Task[int]:
        return self.tasks.spawn(self.work.deferred(name, int).wait(), name=name)

    def sleeps(self) -> asyncio.Task[None]:
        return self.tasks.spawn(self.work.sleep("60s", name="nap"), name="nap")


async def pause() -> None:
    """Everybody comes to where they wait."""
    await asyncio.sleep(0.01)
