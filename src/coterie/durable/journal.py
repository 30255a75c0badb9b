"""Storing: how what a unit did gets to storage, and from there to whoever runs it next.

load    once, before anything else: the rows of steps by their places, the values of deferreds by their names
find    at a place ─▶ its row, or nothing; something else is there: `StepDiverged`
store   at a place, under the fence ─▶ the row as it is then; the seat is lost, or the unit is over: `LeadershipLost`

While the database is away, it is waited for. Who finds that it cannot go on says so to the whole unit (`halt`). If the
code takes another way, nothing is stored from then on, whatever the body makes of that (W2).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from coterie.durable.position import Places
from coterie.errors import LeadershipLost, PersistenceError, StepDiverged
from coterie.kernel.context import refuse_in_transaction
from coterie.storage.contracts.units import StepWrite

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from datetime import datetime

    from coterie.durable.position import Place
    from coterie.kernel.clock import Dial
    from coterie.kernel.service import Tasks
    from coterie.ownership.seats import Tenure
    from coterie.storage.contracts.units import DeferredRow, StepRow, UnitSnapshot, UnitStore

log = logging.getLogger("coterie.workflows")

AWAY_S = 0.2
"""Between two looks whether the database is back."""


class Journal:
    """What is stored of one unit, and the right to add to it.

    Args:
        unit: Its key.
        open: Loads it when the first step is called.
        tenure: By which right.
        units: Where it is stored.
        dial: The database's clock.
        life: Of the unit, unless another one is stored.
        tasks: For what is loaded and written behind the back of the body.
    """

    def __init__(
        self,
        unit: str,
        *,
        open: Callable[[], Awaitable[UnitSnapshot]],
        tenure: Tenure,
        units: Callable[[], UnitStore],
        dial: Dial,
        tasks: Tasks,
        life: int,
    ) -> None:
        self.unit = unit
        self.places = Places(unit)
        self.halted: BaseException | None = None
        """Why a branch did not go on, whatever the body has made of that: groups of tasks hide it, and so does
        `except Exception`."""
        self.on_halt: Callable[[], None] | None = None
        """Called when there is no use in going on: it took another way, or the seat is lost."""
        self._open = open
        self._tenure = tenure
        self._units = units
        self._dial = dial
        self._tasks = tasks
        self._opening: asyncio.Task[UnitSnapshot] | None = None
        self._is_loaded = False
        self.life = life
        """Of the unit; as stored, once that is known."""
        self._deferreds: dict[str, DeferredRow] = {}
        self._read_at: datetime | None = None  # when they were read last, by the database's clock
        self._hints = Hints()
        self._pending: list[asyncio.Task[None]] = []  # what is to be stored before anything that follows

    # What is there

    @property
    def is_open(self) -> bool:
        """Whether anything of it may be stored."""
        return self._opening is not None

    async def opened(self) -> UnitSnapshot:
        """What is known of the unit, loaded once.

        Raises:
            RuntimeError: A transaction is open here: whatever asks would store something beside it [C3].
        """
        refuse_in_transaction(f"a step of {self.unit}")
        if self._opening is None:
            self._opening = self._spawn(self._load(), f"open {self.unit}")
        return await asyncio.shield(self._opening)

    async def _load(self) -> UnitSnapshot:
        while True:
            self.require_held()
            asked, hints = self._dial.now(), self._hints.came
            try:
                loaded = await self._open()
            except PersistenceError as error:
                tell_waiting(self.unit, error)
                await asyncio.sleep(AWAY_S)
                continue
            self.places.learn(loaded.steps)
            self._hear(loaded, asked, hints)
            self.life = loaded.row.life
            self._is_loaded = True
            return loaded

    async def _look(self) -> None:
        """Read the values of deferreds anew; later, if the database is away."""
        asked, hints = self._dial.now(), self._hints.came
        try:
            loaded = await self._units().load(self._tenure.claim, self.unit)
        except PersistenceError as error:
            log.info("%s looks for values later: %s", self.unit, error)
            await asyncio.sleep(AWAY_S)
            return
        if loaded is None:
            raise self.lost()
        self._hear(loaded, asked, hints)

    def _hear(self, loaded: UnitSnapshot, asked: datetime, hints: int) -> None:
        self._dial.hear(loaded.now, asked=asked)
        self._read_at = loaded.now
        self._hints.read = max(self._hints.read, hints)
        known = len(self._deferreds)
        self._deferreds |= {each.name: each for each in loaded.deferreds}
        if len(self._deferreds) > known:
            self._hints.wake()  # one branch may have found what another one waits for

    def hint(self) -> None:
        """There may be a value."""
        self._hints.came += 1
        self._hints.wake()

    def value_of(self, name: str) -> DeferredRow | None:
        """What is known to have come for a deferred."""
        return self._deferreds.get(name)

    def _found(self, place: Place) -> StepRow | None:
        try:
            return self.places.stored(place)
        except StepDiverged as error:
            raise self.halt(error) from None

    # What is added

    async def _stored(
        self,
        place: Place,
        *,
        done: bool = True,
        value: bytes | None = None,
        error: bytes | None = None,
        due_s: float | None = None,
        wait: bool = True,
    ) -> StepRow:
        """Store it, for as long as the seat is ours; the row as it is then.

        Raises:
            LeadershipLost: The seat, or the unit, is not ours any more.
            StepDiverged: The code takes another way than what is stored.
        """
        while wait and self._pending:
            await asyncio.shield(self._pending[0])
            self._pending = [each for each in self._pending if not each.done()]
        write = StepWrite(
            claim=self._tenure.claim,
            unit=self.unit,
            branch=place.branch,
            position=place.position,
            kind=place.kind,
            name=place.name,
            digest=place.digest,
            done=done,
            value=value,
            error=error,
            due_s=due_s,
        )
        while True:
            if self.halted is not None:
                self.require_same_way()
            self.require_held()
            asked = self._dial.now()
            try:
                told = await self._units().step(write)
            except PersistenceError as failure:
                tell_waiting(self._what(place), failure)
                await asyncio.sleep(AWAY_S)
                continue
            if told.row is None or told.told in ("fenced", "over"):
                raise self.lost()
            self._dial.hear(told.now, asked=asked)  # what sleeps from now on sleeps by the clock that said until when
            self.places.learn([told.row])
            return told.row

    async def insist(self, write: Callable[[], Awaitable[Any]]) -> None:
        """Write something, for as long as the seat is ours. Whether it was refused does not matter."""
        while self._tenure.held:
            try:
                await write()
            except PersistenceError as failure:
                tell_waiting(self.unit, failure)
                await asyncio.sleep(AWAY_S)
            else:
                return

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = self._tasks.spawn(work, name=name, report=False)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # whoever needs it asks, if at all
        return task

    # The right to go on

    def require_held(self) -> None:
        """Raise `LeadershipLost` unless the seat is ours."""
        if not self._tenure.held:
            raise self.lost()

    def require_same_way(self) -> None:
        """Raise `StepDiverged` if the code was found to take another way, also if the body has caught that (W2)."""
        if isinstance(self.halted, StepDiverged):
            raise self.halted

    def lost(self) -> BaseException:
        return self.halt(LeadershipLost(seat=self._tenure.seat, epoch=self._tenure.epoch))

    def halt(self, error: BaseException) -> BaseException:
        """Something cannot go on; what to raise. That a branch was stopped is no reason, beside one."""
        if not isinstance(self.halted, Exception):
            self.halted = error
        if self.on_halt is not None:
            self.on_halt()
        return error

    def _what(self, place: Place) -> str:
        return f"{place.kind} {place.name!r} of {self.unit}"


class Hints:
    """Of values that may be there. What came after a read had begun may be of a value that it did not see."""

    __slots__ = ("_news", "came", "read")

    def __init__(self) -> None:
        self.came = 0
        self.read = 0
        """How many had come before the last read began."""
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Have all who wait look around; nobody can take that from another one."""
        self._news.set()
        self._news = asyncio.Event()

    async def wait(self) -> None:
        """Until the next time."""
        await self._news.wait()


def tell_waiting(what: str, error: PersistenceError) -> None:
    """Say that the database did not do something, and is asked again. What it refuses it may refuse for ever."""
    level = logging.WARNING if error.outcome == "refused" else logging.INFO
    log.log(level, "%s waits for the database: %s", what, error)
