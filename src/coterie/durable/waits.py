"""Sleeps and deferreds of a unit, and whether all it does is wait, so that it may be suspended.

sleep      stored? ──no──▶ store when it ends ─────▶ wait until then ────────────────▶ store that it has ended
deferred   stored? ──no──▶ store that it waits ────▶ wait for its value or timeout ──▶ store which came first

A branch of a unit is busy (a step runs or is being stored), waits, or is parked because nothing new may be started. If
a branch waits or is parked, and none is busy, the unit is quiet.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from coterie.durable import failure
from coterie.durable.journal import Journal
from coterie.durable.position import named
from coterie.errors import DeferredRejected, DeferredTimeout, MalformedMessage, StepDiverged
from coterie.kernel.durations import seconds_or_none, to_seconds
from coterie.kernel.serialization import schema
from coterie.kernel.serialization.codec import codec_for
from coterie.work.limits import settled
from coterie.work.occupants import GRACE_S
from coterie.work.while_held import AWAY_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator
    from datetime import datetime

    from coterie.durable.position import Place
    from coterie.kernel.durations import Duration
    from coterie.kernel.retry import Retry
    from coterie.ownership.seats import Tenure
    from coterie.storage.contracts.units import DeferredRow, StepRow, UnitSnapshot
    from coterie.work.services import Services

T = TypeVar("T")

POLL_S = 5.0
"""Polling interval for values whose hints were lost."""
_LONGEST_S = 9e9
"""The longest delay: a later due date would exceed what databases can represent."""
_TURNS = 100
"""Turns of the loop that branches get to reach their former places: several for each nested task group."""


_lane: ContextVar[Lane | None] = ContextVar("coterie_lane", default=None)


class Lane:
    """Tasks that are to begin nothing new once one of them has decided the outcome: of a race, or of a map.

    Args:
        around: The lane in which it begins.
    """

    __slots__ = ("around", "closed", "reached", "received")

    def __init__(self, around: Lane | None) -> None:
        self.closed = False
        self.received: list[Place] = []
        """The steps that have received messages, also those of lanes inside of it."""
        self.reached: set[tuple[str, int]] = set()
        """The places that its tasks have reached in this run of the body."""
        self.around = around

    def enter(self) -> None:
        """Continue the current task, and those that it starts, in this lane."""
        _lane.set(self)

    def require_open(self) -> None:
        """Raise a cancellation if it, or one around it, is closed."""
        lane: Lane | None = self
        while lane is not None:
            if lane.closed:
                raise asyncio.CancelledError("the outcome is decided without it")
            lane = lane.around

    def note_reached(self, place: Place) -> None:
        """A task has come to a place."""
        lane: Lane | None = self
        while lane is not None:
            lane.reached.add((place.branch, place.position))
            lane = lane.around

    def note_received(self, place: Place) -> None:
        """A step has received a message."""
        lane: Lane | None = self
        while lane is not None:
            lane.received.append(place)
            lane = lane.around


def lane_here() -> Lane | None:
    """The lane of the current task, if there is one."""
    return _lane.get()


def require_open_lane() -> None:
    """Raise a cancellation if the lane of the current task is closed."""
    lane = _lane.get()
    if lane is not None:
        lane.require_open()


class WaitingWork(Journal):
    """The branches of one unit: what they wait for, and which of them are busy."""

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
        super().__init__(unit, services, tenure, open=open, life=life, retry=retry)
        self.waits: dict[Wait, None] = {}
        self.busy = 0
        """Steps that run or are being stored."""
        self.on_quiet: Callable[[], None] | None = None
        """Called when the unit becomes quiet."""
        self.stop_at_frontier = False
        """Whether steps that are not stored may no longer start: the unit is to be interrupted, or left to another
        runner. Branches that reach such a step are parked, so that the others get as far as they can."""
        self.parked = 0
        """Parked branches."""
        self.closed = False
        """Whether the body is to end: branches that reach a new step are cancelled."""
        self.turns = 0
        """Counts all beginnings and ends, to detect activity."""
        self._loop = asyncio.get_running_loop()
        self._branches: dict[asyncio.Task[Any] | None, None] = {}  # those that run a step, or wait

    # Sleeps and deferreds

    def sleep(self, duration: Duration, *, name: str) -> Coroutine[Any, Any, None]:
        """Wait for a duration, measured from the first call, across restarts."""
        length_s = to_seconds(duration, what=f"sleep {name!r}", allow_zero=True)
        return self._sleep(self.places.next_place("sleep", named(name, "a sleep")), length_s)

    async def _sleep(self, place: Place, length_s: float) -> None:
        row = await self.begin_waiting(place, due_s=length_s)
        if row.done:
            return
        assert row.due_at is not None, "a sleep has an end"
        await self._wait(None, row.due_at)
        with self.at_work():
            await self._store(place)  # the sleep must stay over even if the database's clock is set back

    def deferred(self, name: str, type: type[T]) -> Deferred[T]:
        """A value that another process provides."""
        return Deferred(self, named(name, "a deferred"), type)

    def token(self, name: str, type: Any) -> str:
        """The token that resolves a deferred, valid for this life of the unit."""
        return self._services.tokens.make(self.unit, name, life=self.life, takes=schema.describe(type))

    async def wait_for(self, place: Place, type: Any, timeout_s: float | None) -> Any:
        """Wait for the value of a deferred."""
        takes = msgspec.msgpack.encode(schema.describe(type))
        row = await self.begin_waiting(place, due_s=timeout_s, takes=takes)
        if not row.done and row.due_at is None:
            value = await self.wait_value(place.name)
            if value.error is not None:
                raise await self.after_others(
                    DeferredRejected(unit=self.unit, name=place.name, problem=value.error), place
                )
            return self._value(place, type, value.value)
        if not row.done:  # store whether value or timeout came first
            found = await self._wait(place.name, row.due_at)
            row = await self._store_first(place, found, timeout_s or 0.0)
        if row.error is not None:
            raise await self.after_others(failure.unpack(row.error), place)
        return self._value(place, type, row.value)

    def _value(self, place: Place, type: Any, data: bytes | None) -> Any:
        try:
            return codec_for(type).decode(data or b"", what=f"deferred {place.name!r}")
        except MalformedMessage as error:  # it fitted the type in its token: the code has changed
            found = f"deferred {place.name}, whose value is another one now ({error.problem})"
            raise self.halt(StepDiverged(unit=self.unit, found=found, stored=place.name)) from error

    async def _store_first(self, place: Place, found: DeferredRow | None, waited_s: float) -> StepRow:
        with self.at_work():
            if found is None:
                late = DeferredTimeout(unit=self.unit, name=place.name, waited_s=waited_s)
                return await self._store(place, error=failure.pack(late))
            if found.error is not None:
                rejected = DeferredRejected(unit=self.unit, name=place.name, problem=found.error)
                return await self._store(place, error=failure.pack(rejected))
            return await self._store(place, value=found.value)

    # Building blocks

    async def begin_waiting(self, place: Place, *, due_s: float | None = None, takes: bytes | None = None) -> StepRow:
        """Store that the unit waits at a place, with the type of the value. Returns: the row as stored."""
        await self.opened()
        row = self._row_at(place)
        if row is None:
            await self.may_go_on()
            with self.at_work():
                due_s = None if due_s is None else min(due_s, _LONGEST_S)
                row = await self._store(place, done=False, value=takes, due_s=due_s)
        return row

    async def once(self, place: Place, work: Callable[[], Awaitable[Any]]) -> None:
        """Do something that comes to the same when it is repeated, and store that it is done, unless that is stored."""
        await self.opened()
        if self._row_at(place) is None:
            await self.may_go_on()
            with self.at_work():
                await work()
                await self._store(place)

    async def wait_value(self, name: str) -> DeferredRow:
        """Wait for the value of a deferred, without a timeout."""
        found = await self._wait(name, None)
        assert found is not None, "it has no end"
        return found

    async def poll(self, place: Place, read: Callable[[], Awaitable[bytes | None]]) -> bytes:
        """Poll for something that sends no hint, and store it."""
        while True:
            with self.at_work():
                data = await read()
                if data is not None:
                    return (await self._store(place, value=data)).value or b""
            await self._wait(None, self._dial.now() + timedelta(seconds=POLL_S))

    async def _wait(self, name: str | None, due_at: datetime | None) -> DeferredRow | None:
        """Wait for a value or until an instant of the database's clock. Returns: the value; None at the instant."""
        require_open_lane()
        wait = Wait(name, due_at)
        self.waits[wait] = None
        self._notify_if_quiet()
        self._count_in()
        try:
            while True:
                if name is not None and name in self._deferreds:
                    return self._deferreds[name]
                left_s = POLL_S if due_at is None else self._dial.until_s(due_at)
                if left_s <= 0 and (name is None or self._has_read_at(due_at)):
                    return None
                await self._wait_for_news(min(left_s if left_s > 0 else AWAY_S, POLL_S), name)
        finally:
            del self.waits[wait]
            self._count_out()
            self._notify_if_quiet()

    def _has_read_at(self, due_at: datetime | None) -> bool:
        """Whether values were read after `due_at`: a value that was acknowledged before then must count."""
        return due_at is not None and self._read_at is not None and self._read_at >= due_at

    async def _wait_for_news(self, limit_s: float, name: str | None) -> None:
        """Wait until the next read is due, then read, if there is a value to read. If a hint came while the last read
        ran, the value may have been missed: then the read is due now."""
        if name is None or self._hints.came == self._hints.read:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._hints.wait()
        self.require_held()
        if name is not None and name not in self._deferreds:
            await self._read_values()

    # Branches

    async def may_go_on(self) -> None:
        """Return if a new step may start here. Otherwise park the branch until it is cancelled, or raise."""
        require_open_lane()
        if self.halted is not None:
            self.require_same_way()
        if not self.stop_at_frontier and not self.closed:
            return
        self.halted = self.halted or asyncio.CancelledError("nothing new starts here")
        if self.closed:
            raise asyncio.CancelledError("nothing new starts here")
        self.parked += 1
        self._count_in()
        self._notify_if_quiet()
        try:
            await self._loop.create_future()  # cancelled by what has set the flag
        finally:
            self.parked -= 1
            self._count_out()

    async def after_others(self, error: Exception, place: Place | None = None) -> Exception:
        """Return the error to raise. In a later run it may be known at once, and ends the other branches: so these
        first get the time to reach their former places, by what is stored, and to register their compensations."""
        if place is not None:
            failure.mark(error, place)
        if self.places.is_branched:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        return error

    async def end_branches(self) -> None:
        """The body has ended: cancel branches that still run (siblings of a failed step); they start nothing new."""
        self.closed = True
        left = [each for each in self._branches if each is not None and each is not asyncio.current_task()]
        for each in left:
            each.cancel()
        if left:
            await settled(left, limit_s=GRACE_S)

    @property
    def is_quiet(self) -> bool:
        """Whether a branch waits or is parked, and none is busy."""
        return bool(self.waits or self.parked) and not self.busy

    def _notify_if_quiet(self) -> None:
        if self.on_quiet is not None and self.is_quiet:
            self.on_quiet()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """A block that counts as busy: something runs or is being stored."""
        self.busy += 1
        self._count_in()
        try:
            yield
        finally:
            self.busy -= 1
            self._count_out()
            self._notify_if_quiet()

    def _count_in(self) -> None:
        self.turns += 1
        self._branches[asyncio.current_task(self._loop)] = None

    def _count_out(self) -> None:
        self.turns += 1
        self._branches.pop(asyncio.current_task(self._loop), None)


@dataclass(slots=True, eq=False)
class Wait:
    """One branch's wait, for a deferred, a message or an instant."""

    deferred: str | None
    due_at: datetime | None
    inbox: str | None = None
    """The name of the message."""


class Deferred(Generic[T]):
    """A value that another process provides: pass on its `token`, then `wait`. Any holder of the token resolves it,
    once: `cluster.resolve(token, value)`, or `cluster.reject(token, "why")`.
    """

    def __init__(self, work: WaitingWork, name: str, type: type[T]) -> None:
        self._work = work
        self._name = name
        self._type = type

    @property
    def token(self) -> str:
        """The token that resolves it. It can be passed on before the unit waits."""
        return self._work.token(self._name, self._type)

    def wait(self, *, timeout: Duration | None = None) -> Coroutine[Any, Any, T]:
        """Wait for the value, across restarts.

        Args:
            timeout: The longest wait, measured from the first call.

        Raises:
            DeferredTimeout: The value did not arrive in time.
            DeferredRejected: The deferred was rejected.
        """
        timeout_s = seconds_or_none(timeout, what=f"timeout of deferred {self._name!r}")
        return self._work.wait_for(self._work.places.next_place("deferred", self._name), self._type, timeout_s)
