"""The journal of a unit: loads and stores its steps and the values of its deferreds.

load    once, before anything else: the rows of steps by their places, the values of deferreds by their names
find    at a place ─▶ its row, or nothing; something else is there: `StepDiverged`
store   at a place, under the fence ─▶ the row as stored; the seat is lost, or the unit is over: `LeadershipLost`

While the database is away, the journal waits for it. A branch that cannot continue halts the whole unit (`halt`). Once
the code has diverged, nothing more is stored, even if the body catches the error (W2).
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
"""Pause between two attempts while the database is away."""


class Journal:
    """What is stored of one unit, and the right to add to it.

    Args:
        unit: Its key.
        open: Loads it when the first step is called.
        tenure: The tenure under which it writes.
        units: Where it is stored.
        dial: The database's clock.
        life: The life of the unit, unless another one is stored.
        tasks: Runs loads and writes in the background.
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
        """Why a branch could not continue, even if the body has hidden that: task groups do, and so does
        `except Exception`."""
        self.on_halt: Callable[[], None] | None = None
        """Called when continuing is pointless: the code diverged, or the seat is lost."""
        self._open = open
        self._tenure = tenure
        self._units = units
        self._dial = dial
        self._tasks = tasks
        self._opening: asyncio.Task[UnitSnapshot] | None = None
        self._is_loaded = False
        self.life = life
        """The life of the unit; the stored one, once that is known."""
        self._deferreds: dict[str, DeferredRow] = {}
        self._read_at: datetime | None = None  # when they were last read, by the database's clock
        self._hints = Hints()
        self._pending: list[asyncio.Task[None]] = []  # writes that must finish before anything later is stored

    # Reading

    @property
    def is_open(self) -> bool:
        """Whether anything of it may have been stored."""
        return self._opening is not None

    async def opened(self) -> UnitSnapshot:
        """What is stored of the unit, loaded once.

        Raises:
            RuntimeError: A transaction is open here, and a step would be stored outside of it [C3].
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
        """Read the values of deferreds again; if the database is away, return after a pause."""
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
            self._hints.wake()  # one branch may have found what another waits for

    def hint(self) -> None:
        """A value may have arrived."""
        self._hints.came += 1
        self._hints.wake()

    def value_of(self, name: str) -> DeferredRow | None:
        """The value of a deferred, if it is known to have arrived."""
        return self._deferreds.get(name)

    def _found(self, place: Place) -> StepRow | None:
        try:
            return self.places.stored(place)
        except StepDiverged as error:
            raise self.halt(error) from None

    # Writing

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
        """Store a step, retrying while we hold the seat. Returns: the row as stored.

        Raises:
            LeadershipLost: We no longer hold the seat, or the unit is over.
            StepDiverged: The code diverges from what is stored.
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
            self._dial.hear(told.now, asked=asked)  # sleeps are measured by the clock that set their end
            self.places.learn([told.row])
            return told.row

    async def insist(self, write: Callable[[], Awaitable[Any]]) -> None:
        """Retry a write while we hold the seat. It does not matter whether the write was refused."""
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
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # marks the error as retrieved
        return task

    # The right to continue

    def require_held(self) -> None:
        """Raise `LeadershipLost` unless we hold the seat."""
        if not self._tenure.held:
            raise self.lost()

    def require_same_way(self) -> None:
        """Raise `StepDiverged` if the code was found to diverge, even if the body has caught that (W2)."""
        if isinstance(self.halted, StepDiverged):
            raise self.halted

    def lost(self) -> BaseException:
        return self.halt(LeadershipLost(seat=self._tenure.seat, epoch=self._tenure.epoch))

    def halt(self, error: BaseException) -> BaseException:
        """Record why the unit cannot continue, and return the error to raise. A real error replaces a cancellation."""
        if not isinstance(self.halted, Exception):
            self.halted = error
        if self.on_halt is not None:
            self.on_halt()
        return error

    def _what(self, place: Place) -> str:
        return f"{place.kind} {place.name!r} of {self.unit}"


class Hints:
    """Counts hints that values may have arrived. A read may miss values whose hints came after it began."""

    __slots__ = ("_news", "came", "read")

    def __init__(self) -> None:
        self.came = 0
        self.read = 0
        """How many hints had come before the last read began."""
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Wake all waiters, each of them."""
        self._news.set()
        self._news = asyncio.Event()

    async def wait(self) -> None:
        """Wait for the next wake-up."""
        await self._news.wait()


def tell_waiting(what: str, error: PersistenceError) -> None:
    """Log that an operation failed and is retried; as a warning if the database refused it, since that may last."""
    level = logging.WARNING if error.outcome == "refused" else logging.INFO
    log.log(level, "%s waits for the database: %s", what, error)
