"""Runs the steps of one unit, and encodes their results: by the function's return annotation, else as plain values.

step   stored? ──yes──▶ the stored result
          └─ no: run it, with retries ─▶ store its result or error ─▶ continue
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from datetime import datetime
from functools import lru_cache, partial
from hashlib import blake2b
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_type_hints

from coterie.durable import failure
from coterie.durable.position import named
from coterie.durable.run_messages import MessagingWork
from coterie.entities.persisted.outcome import require_small
from coterie.entities.reference import Sendable
from coterie.errors import (
    ConfigurationError,
    LeadershipLost,
    MalformedMessage,
    PersistenceError,
    RunnerUnavailable,
    ShuttingDown,
    StepDiverged,
)
from coterie.kernel import chaos, metrics, spans
from coterie.kernel.ids import Seat
from coterie.kernel.retry import Retry
from coterie.kernel.serialization.codec import PLAIN, codec_for
from coterie.work.context import facts_of
from coterie.work.definition import is_async, is_plain
from coterie.work.limits import is_cancelled
from coterie.work.middleware import WorkInfo
from coterie.work.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from coterie.durable.position import Place
    from coterie.kernel.serialization.codec import Codec
    from coterie.storage.contracts.units import StepRow


_PLAIN = (str, int, float, bool, bytes, datetime, type(None))
_MISSING = object()
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def encoded(fn: Callable[..., Any], value: Any, *, what: str) -> tuple[bytes, Any]:
    """The result of a step as bytes that are known to decode, and the value they decode to.

    Raises:
        MalformedMessage: It does not fit the annotation; or there is none, and it is not a plain value.
    """
    codec = _codec(_function(fn))
    if codec is not None:
        return codec.settled(value, what)
    if not _is_plain(value):
        name, kind = getattr(fn, "__name__", "the function"), "async def" if is_async(fn) else "def"
        raise MalformedMessage(
            what=what,
            problem=f"{name} returned {type(value).__name__}, and has no return annotation by which to read it again",
            hint=f"annotate it: {kind} {name if name.isidentifier() else 'work'}(…) -> {type(value).__name__}",
        )
    return PLAIN.settled(value, what)


def decoded(fn: Callable[..., Any], data: bytes, *, what: str) -> Any:
    """The stored result of a step."""
    return (_codec(_function(fn)) or PLAIN).decode(data, what=what)


def digest(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """A digest of a step's arguments; empty if they are not plain data."""
    if not args and not kwargs:
        return b""
    try:
        return blake2b(PLAIN.canonical([list(args), dict(kwargs)]), digest_size=8).digest()
    except (MalformedMessage, TypeError, ValueError):
        return b""


def require_function(name: Any, fn: Any, *, verb: str = "step") -> None:
    """Refuse what cannot run as a step, before it takes a place.

    Raises:
        TypeError: It is no function; the error says what to write.
    """
    if type(fn) is FunctionType and type(name) is str and not fn.__code__.co_flags & _GENERATOR:
        return
    if callable(name):
        shown = _name_of(name)
        raise TypeError(f'{verb}({shown}, …) has no name: write {verb}("{shown}", {shown}, …)')
    if isinstance(fn, Sendable):
        shown = repr(fn)
        fn.close()  # nothing is sent
        raise TypeError(
            f"{verb} {name!r} got {shown}, which would be sent in each run of the body: give a function that awaits "
            f"it, or run the jobs of a task by map(task, items)"
        )
    if inspect.iscoroutine(fn):
        shown = fn.__name__ if fn.__name__.isidentifier() else "fn"
        fn.close()  # it never runs
        raise TypeError(
            f"{verb} {name!r} got a coroutine, which would run in each run of the body: give the function and its "
            f'arguments, {verb}("{name}", {shown}, …)'
        )
    if not is_async(fn) and not is_plain(fn):
        raise TypeError(
            f"{verb} {name!r} got {_name_of(fn)!r}, expected a function: an async one, or a plain one, which runs in a "
            f"thread"
        )


def _name_of(given: Any) -> str:
    return getattr(given, "__name__", None) or repr(given)[:100]


@lru_cache(maxsize=4096)
def _codec(fn: Callable[..., Any]) -> Codec[Any] | None:
    """The codec of the return annotation; None: there is no annotation."""
    annotations = getattr(fn, "__annotations__", {})
    asked = SimpleNamespace(__annotations__={name: annotations[name] for name in ("return",) if name in annotations})
    try:
        found = get_type_hints(asked, globalns=getattr(fn, "__globals__", {})).get("return", _MISSING)
    except (NameError, TypeError, AttributeError):
        found = _MISSING  # a name that exists for type checkers only
    if found is _MISSING or found is Any:
        return None
    try:
        return codec_for(found)
    except ConfigurationError:
        return None


def _function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind a partial, a bound method or a callable object."""
    if type(fn) is FunctionType and not hasattr(fn, "__wrapped__"):
        return fn
    while isinstance(fn, partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if inspect.isroutine(fn):
        return getattr(fn, "__func__", fn)
    return type(fn).__call__


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_plain(each) for each in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return type(value) in _PLAIN


T = TypeVar("T")

log = logging.getLogger("coterie.workflows")

TRANSIENT = (RunnerUnavailable, ShuttingDown, PersistenceError)
"""The receiver could not be reached: that is not a result."""
_UNREACHED = Retry(attempts=1_000_000, base="100ms", max="10s")
"""Pauses between retries after such errors."""
_UNREAD: Any = object()
"""Stands for a value that is known only in its stored form."""


class StepCall(NamedTuple):
    """A step that was called, at its place."""

    place: Place
    fn: Callable[..., Any]
    """An async function; or a plain one, which runs in a thread."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    retry: Retry | None = None
    timeout_s: float | None = None
    keep: bool = True
    """Whether its result is needed again."""


def _called(step: StepCall) -> Awaitable[Any]:
    work: Awaitable[Any] = step.fn(*step.args, **step.kwargs)
    return work


class Attempts:
    """Counts the attempts of a step."""

    __slots__ = ("made",)

    def __init__(self) -> None:
        self.made = 0


class DurableWork(MessagingWork):
    """The steps of one unit.

    Promise:
        A stored step never runs again, and returns what is stored (W1). Code that diverges from what is stored gets
        `StepDiverged`, and nothing stored is changed (W2).
    """

    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        retry: Retry | None = None,
        timeout_s: float | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Run a function once and return its result, in this and every later run."""
        require_function(name, fn)
        place = self.places.next_place("step", named(name, "a step"), digest(args, kwargs))
        return self.run(StepCall(place, fn, args, kwargs, retry or self.retry, timeout_s))

    def patch(self, name: str) -> bool:
        """Whether the new code runs here. The marker is stored before any later step, unless none may follow."""
        self.require_same_way()
        is_new, place = self.places.patched(named(name, "a patch"))
        if place is not None and not self.stop_at_frontier and not self.closed:
            self._pending.append(self._spawn(self._mark(place), f"patch {name}"))
        return is_new

    async def _mark(self, place: Place) -> None:
        with self.at_work():
            await self._store(place, wait=False)

    async def run(self, step: StepCall) -> Any:
        """Run a step, unless it is stored."""
        if not self._is_loaded:
            await self.opened()
        row, value = self._row_at(step.place), _UNREAD
        if row is None or not row.done:
            if step.keep:
                await self.may_go_on()
            self.require_held()
            row, value = await self._run_and_store(step)
        if row.error is not None:
            raise await self.after_others(failure.unpack(row.error), step.place)
        if not step.keep:
            return None
        return self._decoded(step, row) if value is _UNREAD else value

    def _decoded(self, step: StepCall, row: StepRow) -> Any:
        place = step.place
        try:
            return decoded(step.fn, row.value or b"", what=self._what(place))
        except MalformedMessage as error:  # it decoded when it was stored: the code has changed
            found = f"{place.name}, whose result is another one now ({error.problem})"
            raise self.halt(StepDiverged(unit=self.unit, found=found, stored=place.name)) from error

    async def _run_and_store(self, step: StepCall) -> tuple[StepRow, Any]:
        """Run and store a step. Returns: the stored row, and its value if that is known without decoding."""
        place, data, error = step.place, None, None
        attempts, began_at = Attempts(), self._dial.now()
        with self.at_work():
            try:
                value = await self._run_with_retries(step, attempts)
                if step.keep:
                    data, value = encoded(step.fn, value, what=self._what(place))
                    if len(data) > self._most_bytes:
                        require_small(data, what=self._what(place), most_bytes=self._most_bytes)
            except (LeadershipLost, StepDiverged) as reason:
                raise self.halt(reason) from None
            except Exception as raised:
                log.info("%s failed, and is not retried", self._what(place), exc_info=raised)
                data, value, error = None, _UNREAD, failure.pack(raised)
            if chaos.on:
                chaos.saw("step", f"{place.name} of {self.unit}")
                await chaos.point("workflows.before_step")
            row = await self._store(place, value=data, error=error, began_at=began_at, attempts=attempts.made)
            metrics.STEPS.of("ok" if row.error is None else "failed").value += 1
            return row, value if row.value is data else _UNREAD  # an earlier attempt may have stored another value

    async def _run_with_retries(self, step: StepCall, attempts: Attempts) -> Any:
        place, retry, timeout_s = step.place, step.retry, step.timeout_s
        attempt = unreached = 0
        while True:
            attempts.made += 1
            try:
                with self.places.inside():
                    work = self._begun(step, attempts.made)
                    if timeout_s is None and not spans.on:
                        return await work
                    return await self._limited(place, work, timeout_s, attempts.made)
            except (LeadershipLost, StepDiverged):
                raise
            except asyncio.CancelledError:
                if self.closed or is_cancelled():
                    raise
                raise RuntimeError("it was cancelled, by itself") from None
            except TRANSIENT as error:
                unreached += 1
                pause_s = _UNREACHED.delay_s(unreached, self._services.chance)
                log.info("%s is retried, its receiver could not be reached: %s", self._what(place), error)
            except Exception as error:
                attempt += 1
                pause_s = None if retry is None else retry.delay_s(attempt, self._services.chance, error)
                if pause_s is None:
                    raise
                log.info("%s is retried after %r", self._what(place), error)
            self.require_held()
            await asyncio.sleep(pause_s or 0.0)
            self.require_held()  # a runner that was frozen here must not run what its successor has stored

    def _begun(self, step: StepCall, attempt: int) -> Awaitable[Any]:
        """One attempt, inside of the program's middleware."""
        call = self._in_thread if is_plain(step.fn) else _called
        if not self._services.middleware:
            return call(step)
        seat, kind = self._tenure.seat, step.place.kind
        if self.unit.startswith(f"{seat}/"):  # of a tick or a leader
            name, key = Seat.split(seat)[1], self.unit.removeprefix(f"{seat}/")
        else:
            name, _, key = self.unit.partition(":")[2].partition("/")
        work = WorkInfo(
            kind="compensation" if kind == "compensation" else "step",
            name=name,
            id=key,
            method=step.place.name,
            attempt=attempt,
        )
        return self._services.middleware.around(work, lambda: call(step))

    def _in_thread(self, step: StepCall) -> Awaitable[Any]:
        place, body = step.place, partial(step.fn, *step.args, **step.kwargs)
        alone = (self.unit, place.branch, place.position)  # an attempt that was given up may still run
        return in_thread(self._services.threads, body, what=self._what(place), alone=alone)

    async def _limited(self, place: Place, work: Awaitable[Any], timeout_s: float | None, attempt: int) -> Any:
        async with asyncio.timeout(timeout_s):
            if not spans.on:
                return await work
            facts = facts_of(self._tenure) | {"coterie.unit": self.unit, "coterie.attempt": attempt}
            with spans.span(f"step.{place.name}", facts):
                return await work
