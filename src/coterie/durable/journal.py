"""The journal of a unit: loads and stores its steps and the values of its deferreds.

load    once, before anything else: the rows of steps by their places, the values of deferreds by their names
find    at a place ─▶ its row, or nothing; something else is there: `StepDiverged`
store   at a place, under the fence ─▶ the row as stored; the seat is lost, or the unit is over: `LeadershipLost`

While the database is away, the journal waits for it. A branch that cannot continue halts the whole unit (`halt`). Once
the code has diverged, nothing more is stored, even if the body catches the error (W2).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from coterie.durable.position import Places
from coterie.errors import LeadershipLost, PersistenceError, StepDiverged
from coterie.kernel.context import refuse_in_transaction
from coterie.storage.contracts.units import StepWrite
from coterie.work.while_held import AWAY_S, while_held

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from datetime import datetime

    from coterie.durable.position import Place
    from coterie.kernel.retry import Retry
    from coterie.ownership.seats import Tenure
    from coterie.storage.contracts.units import DeferredRow, StepResult, StepRow, UnitSnapshot
    from coterie.work.services import Services

log = logging.getLogger("coterie.workflows")


class Journal:
    """What is stored of one unit, and the right to add to it.

    Args:
        unit: Its key.
        services: The services of its runner.
        tenure: The tenure under which it writes.
        open: Loads it when the first step is called; None: the seat is not held.
        life: The life of the unit, unless another one is stored.
        retry: The retry policy of steps that raise; None: no retries.
    """

    def __init__(
        self,
        unit: str,
        services: Services,
        tenure: Tenure,
        *,
        open: Callable[[], Awaitable[UnitSnapshot | None]],
        life: int = 0,
        retry: Retry | None = None,
    ) -> None:
        self.unit = unit
        self.retry = retry
        self.places = Places(unit)
        self.halted: BaseException | None = None
        """Why a branch could not continue, even if the body has hidden that: task groups do, and so does
        `except Exception`."""
        self.on_halt: Callable[[], None] | None = None
        """Called when continuing is pointless: the code diverged, or the seat is lost."""
        self._open = open
        self._services = services
        self._tenure = tenure
        self._dial = services.dial
        self._most_bytes = services.settings.frame_limit  # of a result
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
        loaded = await while_held(self.require_held, partial(self._read, self._open), what=self.unit, log=log)
        self.places.add(loaded.steps)
        self.life = loaded.row.life
        self._is_loaded = True
        return loaded

    async def _read_values(self) -> None:
        """Read the values of deferreds again; if the database is away, return after a pause."""
        try:
            await self._read(partial(self._services.units.load, self._tenure.claim, self.unit))
        except PersistenceError as error:
            log.info("%s could not read the values it waits for, and reads them again soon: %s", self.unit, error)
            await asyncio.sleep(AWAY_S)

    async def _read(self, load: Callable[[], Awaitable[UnitSnapshot | None]]) -> UnitSnapshot:
        asked, hints = self._dial.now(), self._hints.came
        loaded = await load()
        if loaded is None:
            raise self.lost()
        self._dial.observe(loaded.now, asked=asked)
        self._read_at = loaded.now
        self._hints.read = max(self._hints.read, hints)
        known = len(self._deferreds)
        self._deferreds |= {each.name: each for each in loaded.deferreds}
        if len(self._deferreds) > known:
            self._hints.wake()  # one branch may have found what another waits for
        return loaded

    def hint(self) -> None:
        """A value may have arrived."""
        self._hints.came += 1
        self._hints.wake()

    def value_of(self, name: str) -> DeferredRow | None:
        """The value of a deferred, if it is known to have arrived."""
        return self._deferreds.get(name)

    def _row_at(self, place: Place) -> StepRow | None:
        try:
            return self.places.row_at(place)
        except StepDiverged as error:
            raise self.halt(error) from None

    # Writing

    async def _store(
        self,
        place: Place,
        *,
        done: bool = True,
        value: bytes | None = None,
        error: bytes | None = None,
        due_s: float | None = None,
        began_at: datetime | None = None,
        attempts: int | None = None,
        wait: bool = True,
    ) -> StepRow:
        """Store a step, retrying while we hold the seat. Returns: the row as stored.

        Raises:
            LeadershipLost: We no longer hold the seat, or the unit is over.
            StepDiverged: The code diverges from what is stored.
        """
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
            began_at=began_at,
            attempts=attempts,
            runner=self._services.runner,
            life=self.life,
        )
        return await self._written(place, partial(self._services.units.step, write), wait=wait)

    async def _written(self, place: Place, write: Callable[[], Awaitable[StepResult]], *, wait: bool = True) -> StepRow:
        """Run a write at a place, retrying while we hold the seat. Returns and raises as `_store`."""
        while wait and self._pending:
            await asyncio.shield(self._pending[0])
            self._pending = [each for each in self._pending if not each.done()]
        result = await while_held(
            self.require_may_write, partial(self._try_to_write, write), what=self._what(place), log=log
        )
        if result.row is None or result.told in ("fenced", "over"):
            raise self.lost()
        self.places.add([result.row])
        return result.row

    async def _try_to_write(self, write: Callable[[], Awaitable[StepResult]]) -> StepResult:
        asked = self._dial.now()
        result = await write()
        self._dial.observe(result.now, asked=asked)  # sleeps are measured by the clock that set their end
        return result

    async def retry_write(self, write: Callable[[], Awaitable[Any]]) -> None:
        """Retry a write until the database answers, or we lose the seat."""
        with contextlib.suppress(LeadershipLost):
            await while_held(self._tenure.require_held, write, what=self.unit, log=log)

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = self._services.tasks.spawn(work, name=name, report=False)
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

    def require_may_write(self) -> None:
        """Raise unless we hold the seat and the code has not diverged."""
        if self.halted is not None:
            self.require_same_way()
        self.require_held()

    def lost(self) -> BaseException:
        """The seat is lost: halt the unit, and return the error to raise."""
        return self.halt(self._tenure.lost())

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
