"""Durable work: steps, sleeps and deferreds of one unit, whoever runs it now.

step       stored? ──yes──▶ what is stored             no: run it ─▶ store it under the fence ─▶ go on
sleep      stored? ──no───▶ store when it is over      wait until then
deferred   stored? ──no───▶ store that it is waited for ─▶ wait for its value, or until its time is over
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from coterie.entities.limits import settled
from coterie.errors import (
    DeferredRejected,
    DeferredTimeout,
    LeadershipLost,
    MalformedMessage,
    PersistenceError,
    RunnerUnavailable,
    ShuttingDown,
    StepDiverged,
)
from coterie.kernel import chaos, meters, tracing
from coterie.kernel.codec import codec_for
from coterie.kernel.durations import seconds_or_none, to_seconds
from coterie.kernel.retry import Retry
from coterie.steps import failures, results
from coterie.steps.places import Places
from coterie.storage.units import StepWrite

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from datetime import datetime

    from coterie.kernel.chance import Chance
    from coterie.kernel.dial import Dial
    from coterie.kernel.durations import Duration
    from coterie.kernel.tasks import Tasks
    from coterie.ownership.tenure import Tenure
    from coterie.steps.places import Place
    from coterie.steps.tokens import Tokens
    from coterie.storage.units import DeferredRow, Loaded, StepRow, Units

T = TypeVar("T")

log = logging.getLogger("coterie.workflows")

_AWAY_S = 0.2
"""Between two looks whether the database is back."""
_LOOK_S = 5.0
"""Between two looks for values of which no hint has come."""
_GRACE_S = 3.0
"""How long a cancelled branch may take to end: then nobody waits for it any more."""
_TURNS = 100
"""Of the loop, in which branches come to where they were: several for each group of tasks inside of another."""
_TRANSIENT = Retry(attempts=1_000_000, base="100ms", max="10s")
"""Pauses between tries of what failed because somebody could not be reached: that is no result."""
_UNREAD: Any = object()
TRANSIENT = (RunnerUnavailable, ShuttingDown, PersistenceError)


class Opening(Protocol):
    """Loads a unit, once."""

    async def __call__(self) -> Loaded: ...


class Waiting:
    """Something that a unit waits for, without doing anything else in this branch."""

    __slots__ = ("deferred", "due_at")

    def __init__(self, deferred: str | None, due_at: datetime | None) -> None:
        self.deferred = deferred
        self.due_at = due_at


class AtWork:
    """A block in which something runs, or is being stored: its unit does not only wait."""

    __slots__ = ("_work",)

    def __init__(self, work: DurableWork) -> None:
        self._work = work

    def __enter__(self) -> None:
        self._work.begin()

    def __exit__(self, *exc: object) -> None:
        self._work.end()


class DurableWork:
    """The steps of one unit.

    Args:
        unit: Its key.
        open: Loads it when the first step is called.
        tenure: By which right.
        units: Where it is stored.
        tokens: Makes the tokens of its deferreds.
        dial: The database's clock.
        chance: For pauses.
        tasks: For what is written behind the back of the body.
        retry: How often a step that raises is tried; None: once.

    Promise:
        A step that is stored never runs again, and gives what is stored (W1). Code that takes another way than what
        is stored is told so, and nothing is changed (W2).
    """

    def __init__(
        self,
        unit: str,
        *,
        open: Opening,
        tenure: Tenure,
        units: Callable[[], Units],
        tokens: Callable[[], Tokens],
        dial: Dial,
        chance: Chance,
        tasks: Tasks,
        retry: Retry | None = None,
    ) -> None:
        self.unit = unit
        self.places = Places(unit)
        self.waits: dict[Waiting, None] = {}
        self.busy = 0
        """Steps that run, or are being stored."""
        self.on_quiet: Callable[[], None] | None = None
        """Called when there is something to wait for, and nothing else to do."""
        self.retry = retry
        self.stop_at_frontier = False
        """Whether what is not stored is not begun any more: it shall be interrupted, or is left to another runner.
        Branches that come there stand still, so that the others get as far as they can."""
        self.closed = False
        """Whether the body shall end: whoever comes there now is cancelled."""
        self.halted: BaseException | None = None
        """Why a branch did not go on, whatever the body has made of that: groups of tasks hide it, and so does
        `except Exception`."""
        self.on_halt: Callable[[], None] | None = None
        """Called when there is no use in going on: it took another way, or the seat is lost."""
        self.standing = 0
        """Branches that stand still."""
        self.at_work = AtWork(self)
        self.turns = 0
        """Counts whatever begins or ends, so that it can be seen whether something did."""
        self._open = open
        self._tenure = tenure
        self._units = units
        self._tokens = tokens
        self._dial = dial
        self._chance = chance
        self._tasks = tasks
        self._opening: asyncio.Task[Loaded] | None = None
        self._is_loaded = False
        self._loop = asyncio.get_running_loop()
        self._deferreds: dict[str, DeferredRow] = {}
        self._read_at: datetime | None = None  # when they were read last, by the database's clock
        self._news = asyncio.Event()
        self._pending: list[asyncio.Task[None]] = []
        self._branches: dict[asyncio.Task[Any] | None, None] = {}  # that run a step, or wait

    # What a body calls

    def step(
        self,
        name: str,
        fn: Callable[..., Awaitable[T]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        retry: Retry | None = None,
        timeout_s: float | None = None,
    ) -> Coroutine[Any, Any, T]:
        """Run something once, and give what it gave, now and in every later run."""
        place = self.places.take("step", _named(name, "a step"), results.digest(args, kwargs))
        return self.run(place, fn, args, kwargs, retry=retry or self.retry, timeout_s=timeout_s)

    def sleep(self, duration: Duration, *, name: str) -> Coroutine[Any, Any, None]:
        """Wait for so long from the first time that this was called, across restarts."""
        length_s = to_seconds(duration, what=f"sleep {name!r}", allow_zero=True)
        return self._sleep(self.places.take("sleep", _named(name, "a sleep")), length_s)

    def deferred(self, name: str, type: type[T]) -> Deferred[T]:
        """A value that comes from elsewhere."""
        return Deferred(self, _named(name, "a deferred"), type)

    def token(self, name: str) -> str:
        """By which anybody may resolve a deferred."""
        return self._tokens().make(self.unit, name)

    def patch(self, name: str) -> bool:
        """Whether new code runs here. What is new is stored before anything that follows."""
        is_new, place = self.places.patched(_named(name, "a patch"))
        if place is not None:
            self._pending.append(self._spawn(self._mark(place), f"patch {name}"))
        return is_new

    # What others tell

    def hint(self) -> None:
        """There may be a value."""
        self._news.set()

    def learn(self, deferreds: Iterable[DeferredRow]) -> None:
        """Values that are there."""
        known = len(self._deferreds)
        self._deferreds |= {each.name: each for each in deferreds}
        if len(self._deferreds) > known:
            self._news.set()  # one branch may have found what another one waits for

    def value_of(self, name: str) -> DeferredRow | None:
        """What is known to have come for a deferred."""
        return self._deferreds.get(name)

    def halt(self, error: BaseException) -> BaseException:
        """Something cannot go on; what to raise."""
        if self.halted is None:
            self.halted = error
        if self.on_halt is not None:
            self.on_halt()
        return error

    async def end_branches(self) -> None:
        """Whoever ran it is done: what still runs beside (siblings of a step that failed) begins nothing, and ends."""
        self.closed = True
        left = [each for each in self._branches if each is not None and each is not asyncio.current_task()]
        for each in left:
            each.cancel()
        if left:
            await settled(left, limit_s=_GRACE_S)

    async def after_others(self, error: Exception) -> Exception:
        """What to raise. It may be known at once, in a later run, and ends the other branches: these come as far as
        they were first, by what is stored, and say what is to be undone."""
        if self.places.is_branched:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        return error

    # Steps

    async def run(
        self,
        place: Place,
        fn: Callable[..., Awaitable[T]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        retry: Retry | None,
        timeout_s: float | None,
        keep: bool = True,
    ) -> T:
        """Run what stands at a place, unless that is stored. Without `keep` nobody asks for its result again."""
        if not self._is_loaded:
            await self.opened()
        row, value = self._found(place), _UNREAD
        if row is None or not row.done:
            if keep:
                await self.may_go_on()
            self.require_held()
            row, value = await self._ran(place, fn, args, kwargs, retry=retry, timeout_s=timeout_s, keep=keep)
        if row.error is not None:
            raise await self.after_others(failures.unpack(row.error))
        if not keep:
            return cast("T", None)
        return cast("T", self._read(place, fn, row) if value is _UNREAD else value)

    def _read(self, place: Place, fn: Callable[..., Any], row: StepRow) -> Any:
        try:
            return results.decoded(fn, row.value or b"", what=self._what(place))
        except MalformedMessage as error:  # it could be read when it was stored: the code has changed
            found = f"{place.name}, whose result is another one now ({error.problem})"
            raise self.halt(StepDiverged(unit=self.unit, found=found, stored=place.name)) from error

    async def _ran(
        self,
        place: Place,
        fn: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        retry: Retry | None,
        timeout_s: float | None,
        keep: bool,
    ) -> tuple[StepRow, Any]:
        """What is stored then, and the value in it, if that is known without reading it."""
        data = error = None
        with self.at_work:
            try:
                value = await self._tried(place, fn, args, kwargs, retry=retry, timeout_s=timeout_s)
                if keep:
                    data, value = results.encoded(fn, value, what=self._what(place))
            except (LeadershipLost, StepDiverged) as reason:
                raise self.halt(reason) from None
            except Exception as failure:
                log.info("%s has failed for good", self._what(place), exc_info=failure)
                data, value, error = None, _UNREAD, failures.pack(failure)
            if chaos.on:
                await chaos.point("workflows.before_step")
            row = await self._stored(place, value=data, error=error)
            meters.STEPS.of("ok" if row.error is None else "failed").value += 1
            return row, value if row.value is data else _UNREAD  # an earlier try may have been faster

    async def _tried(
        self,
        place: Place,
        fn: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        retry: Retry | None,
        timeout_s: float | None,
    ) -> Any:
        attempt = unreached = 0
        while True:
            try:
                with self.places.inside():
                    if timeout_s is None and not tracing.on:
                        return await fn(*args, **kwargs)
                    return await self._limited(place, fn(*args, **kwargs), timeout_s, attempt + unreached + 1)
            except (LeadershipLost, StepDiverged):
                raise
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self.closed or task is None or task.cancelling():
                    raise
                raise RuntimeError("it was cancelled, by itself") from None
            except TRANSIENT as error:
                unreached += 1
                pause_s = _TRANSIENT.delay_s(unreached, self._chance)
                log.info("%s is tried again, somebody could not be reached: %s", self._what(place), error)
            except Exception as error:
                attempt += 1
                pause_s = None if retry is None else retry.delay_s(attempt, self._chance)
                if pause_s is None:
                    raise
                log.info("%s is tried again after %r", self._what(place), error)
            self.require_held()
            await asyncio.sleep(pause_s or 0.0)
            self.require_held()  # whoever was frozen here must not run what its successor has stored

    async def _limited(self, place: Place, work: Awaitable[Any], timeout_s: float | None, attempt: int) -> Any:
        async with asyncio.timeout(timeout_s):
            if not tracing.on:
                return await work
            with tracing.span(f"step.{place.name}", self._facts(attempt)):
                return await work

    def _facts(self, attempt: int) -> dict[str, str | int]:
        claim = self._tenure.claim
        facts = tracing.seated(runner=claim.runner, seat=claim.seat, epoch=claim.epoch)
        return facts | {"coterie.unit": self.unit, "coterie.attempt": attempt}

    # Waiting

    async def _sleep(self, place: Place, length_s: float) -> None:
        row = await self._begun(place, due_s=length_s)
        if row.done:
            return
        assert row.due_at is not None, "a sleep has an end"
        await self._wait(None, row.due_at)
        with self.at_work:
            await self._stored(place)  # that it is over must stay so, also if the database's clock is set back

    async def wait_for(self, name: str, type: Any, timeout_s: float | None, place: Place) -> Any:
        """The value of a deferred."""
        row = await self._begun(place, due_s=timeout_s)
        if not row.done:
            found = await self._wait(name, row.due_at)
            if row.due_at is not None:  # which of both it was must stay so
                row = await self._decided(place, found, timeout_s or 0.0)
            elif found is not None and found.error is not None:
                raise await self.after_others(DeferredRejected(unit=self.unit, name=name, problem=found.error))
            elif found is not None:
                return codec_for(type).decode(found.value or b"", what=f"deferred {name!r}")
        if row.error is not None:
            raise await self.after_others(failures.unpack(row.error))
        return codec_for(type).decode(row.value or b"", what=f"deferred {name!r}")

    async def _begun(self, place: Place, *, due_s: float | None) -> StepRow:
        """The row of something that is waited for."""
        await self.opened()
        row = self._found(place)
        if row is None:
            await self.may_go_on()
            with self.at_work:
                row = await self._stored(place, done=False, due_s=due_s)
        return row

    async def _decided(self, place: Place, found: DeferredRow | None, waited_s: float) -> StepRow:
        with self.at_work:
            if found is None:
                late = DeferredTimeout(unit=self.unit, name=place.name, waited_s=waited_s)
                return await self._stored(place, error=failures.pack(late))
            if found.error is not None:
                rejected = DeferredRejected(unit=self.unit, name=place.name, problem=found.error)
                return await self._stored(place, error=failures.pack(rejected))
            return await self._stored(place, value=found.value)

    async def begin_waiting(self, place: Place) -> StepRow:
        """Store that something is waited for; the row as it is then."""
        return await self._begun(place, due_s=None)

    async def wait_until_told(self, place: Place, look: Callable[[], Awaitable[bytes | None]]) -> bytes:
        """Look now and then for something that nobody tells, and store it."""
        while True:
            with self.at_work:
                data = await look()
                if data is not None:
                    return (await self._stored(place, value=data)).value or b""
            await self._wait(None, self._dial.now() + timedelta(seconds=_LOOK_S))

    async def wait_value(self, name: str) -> DeferredRow:
        """What a deferred gives, however long that takes."""
        found = await self._wait(name, None)
        assert found is not None, "it has no end"
        return found

    async def _wait(self, name: str | None, due_at: datetime | None) -> DeferredRow | None:
        """Wait for a value, or for an instant of the database's clock; what was first."""
        waiting = Waiting(name, due_at)
        self.waits[waiting] = None
        self._tell()
        self._here()
        try:
            while True:
                if name is not None and name in self._deferreds:
                    return self._deferreds[name]
                left_s = _LOOK_S if due_at is None else self._dial.until_s(due_at)
                if left_s <= 0 and (name is None or self._has_read_at(due_at)):
                    return None
                await self._wait_for_news(min(left_s if left_s > 0 else _AWAY_S, _LOOK_S), name)
        finally:
            del self.waits[waiting]
            self._gone()
            self._tell()

    def _has_read_at(self, due_at: datetime | None) -> bool:
        """Whether it was looked when the time was over: what came before that, and was acknowledged, counts."""
        return due_at is not None and self._read_at is not None and self._read_at >= due_at

    async def _wait_for_news(self, limit_s: float, name: str | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._news.wait()
        self._news.clear()
        self.require_held()
        if name is not None and name not in self._deferreds:
            await self._look()

    async def _look(self) -> None:
        asked = self._dial.now()
        try:
            loaded = await self._units().load(self._tenure.claim, self.unit)
        except PersistenceError as error:
            log.info("%s looks for values later: %s", self.unit, error)
            return
        if loaded is None:
            raise self._lost()
        self._dial.hear(loaded.now, asked=asked)
        self._read_at = loaded.now
        self.learn(loaded.deferreds)

    # Storing

    async def opened(self) -> Loaded:
        """What is known of the unit, loaded once."""
        if self._opening is None:
            self._opening = self._spawn(self._load(), f"open {self.unit}")
        return await asyncio.shield(self._opening)

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = self._tasks.spawn(work, name=name, report=False)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # whoever needs it asks, if at all
        return task

    async def _load(self) -> Loaded:
        while True:
            self.require_held()
            asked = self._dial.now()
            try:
                loaded = await self._open()
            except PersistenceError as error:
                tell_waiting(self.unit, error)
                await asyncio.sleep(_AWAY_S)
                continue
            self._dial.hear(loaded.now, asked=asked)
            self._read_at = loaded.now
            self.places.learn(loaded.steps)
            self.learn(loaded.deferreds)
            self._is_loaded = True
            return loaded

    async def _mark(self, place: Place) -> None:
        with self.at_work:
            await self._stored(place, wait=False)

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
            self.require_held()
            asked = self._dial.now()
            try:
                told = await self._units().step(write)
            except PersistenceError as failure:
                tell_waiting(self._what(place), failure)
                await asyncio.sleep(_AWAY_S)
                continue
            if told.row is None or told.told in ("fenced", "over"):
                raise self._lost()
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
                await asyncio.sleep(_AWAY_S)
            else:
                return

    @property
    def is_open(self) -> bool:
        """Whether anything of it may be stored."""
        return self._opening is not None

    def _found(self, place: Place) -> StepRow | None:
        try:
            return self.places.stored(place)
        except StepDiverged as error:
            raise self.halt(error) from None

    async def may_go_on(self) -> None:
        """Return if something new may be begun here. If not: never, or by an error."""
        if isinstance(self.halted, StepDiverged):  # nothing is changed, also if the body has caught it
            raise self.halted
        if not self.stop_at_frontier and not self.closed:
            return
        self.halted = self.halted or asyncio.CancelledError("it goes no further here")
        if self.closed:
            raise asyncio.CancelledError("it goes no further here")
        self.standing += 1
        self._here()
        self._tell()
        try:
            await asyncio.get_running_loop().create_future()  # whoever has set the mark cancels this
        finally:
            self.standing -= 1
            self._gone()

    def require_held(self) -> None:
        """Raise `LeadershipLost` unless the seat is ours."""
        if not self._tenure.held:
            raise self._lost()

    def _lost(self) -> BaseException:
        return self.halt(LeadershipLost(seat=self._tenure.seat, epoch=self._tenure.epoch))

    def begin(self) -> None:
        """Something runs here now, or is being stored."""
        self.busy += 1
        self._here()

    def end(self) -> None:
        """It does not any more."""
        self.busy -= 1
        self._gone()
        self._tell()

    def _here(self) -> None:
        self.turns += 1
        self._branches[asyncio.current_task(self._loop)] = None

    def _gone(self) -> None:
        self.turns += 1
        self._branches.pop(asyncio.current_task(self._loop), None)

    @property
    def is_quiet(self) -> bool:
        """Whether there is something to wait for, and nothing else to do."""
        return bool(self.waits or self.standing) and not self.busy

    def _tell(self) -> None:
        if self.on_quiet is not None and self.is_quiet:
            self.on_quiet()

    def _what(self, place: Place) -> str:
        return f"{place.kind} {place.name!r} of {self.unit}"


class Deferred(Generic[T]):
    """A value that comes from elsewhere: give its `token` away, and `wait`. Whoever has the token resolves it, once:
    `cluster.resolve(token, value)`, or `cluster.reject(token, "why")`.
    """

    def __init__(self, work: DurableWork, name: str, type: type[T]) -> None:
        self._work = work
        self._name = name
        self._type = type

    @property
    def token(self) -> str:
        """By which it is resolved. It can be given away before anybody waits."""
        return self._work.token(self._name)

    def wait(self, *, timeout: Duration | None = None) -> Coroutine[Any, Any, T]:
        """Wait for the value, across restarts.

        Args:
            timeout: How long at most, from the first time that this was called.

        Raises:
            DeferredTimeout: It did not come in time.
            DeferredRejected: Somebody rejected it.
        """
        timeout_s = seconds_or_none(timeout, what=f"timeout of deferred {self._name!r}")
        place = self._work.places.take("deferred", self._name)
        return self._work.wait_for(self._name, self._type, timeout_s, place)


def tell_waiting(what: str, error: PersistenceError) -> None:
    """Say that the database did not do something, and is asked again. What it refuses it may refuse for ever."""
    level = logging.WARNING if error.outcome == "refused" else logging.INFO
    log.log(level, "%s waits for the database: %s", what, error)


def _named(name: Any, what: str) -> str:
    if not isinstance(name, str) or not name or "\n" in name or "\x00" in name or len(name) > 200:
        raise ValueError(f"name of {what} is {name!r}, expected a short text on one line")
    return name
