"""Plain functions of the program (`def` rpcs, crons, steps) in a bounded pool of threads, so that the loop goes on.

    on the loop                                         in a thread
    ───────────                                         ───────────
    run ─▶ an earlier attempt still runs? wait for it
        ─▶ no thread is free? wait for one ───────────▶ the body, in a copy of the context
    cancelled: `current().cancelled` is true               │
        ─▶ it waits all the same: an attempt is over       │
           when its body is                                │
    result, error, or the cancellation ◀────────────────── it ends

A body that calls another one through the cluster waits for it in its thread. If all threads did, none would be left for
the bodies that they wait for. So there may be further threads, up to `_FURTHER_MOST` times the setting. A nested body,
for which a handler or another body may wait, gets one at once if others only wait in calls. A persisted call does not
show whether it is nested: if all threads wait in calls, and none of these has ended for a while, the newest body
gets one, since what is waited for was sent later than whatever waits.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
import traceback
from collections import deque
from contextlib import asynccontextmanager
from contextvars import ContextVar, copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec

from coterie.errors import ShuttingDown
from coterie.kernel.context import Cancellation, enter_thread
from coterie.kernel.service import Service
from coterie.work.limits import STUBBORN_S, settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Hashable

    from coterie.settings import Settings

T = TypeVar("T")

log = logging.getLogger("coterie.work")

_FURTHER_MOST = 8
"""How many times the setting `threads` there may be while bodies wait for others."""
_STUCK_S = 0.05
"""After how long without any progress the newest body gets a further thread."""
_FRAMES = 3
"""The innermost frames of a stubborn body that are logged."""


class StubbornBody(msgspec.Struct, frozen=True, kw_only=True):
    """A body that was cancelled and still runs in its thread. Sent over the wire with field names."""

    what: str
    for_s: float
    """Since it was cancelled."""


class ThreadUse(NamedTuple):
    """How the threads of a runner are used just now."""

    busy: int = 0
    waiting: int = 0
    """Bodies that wait for a thread."""
    stubborn: tuple[StubbornBody, ...] = ()


class Threads(Protocol):
    """Where plain functions run."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def run(self, body: Callable[[], T], /, *, what: str, alone: Hashable = None, is_nested: bool = False) -> T:
        """Run a body in a copy of the current context. Returns its result, or raises its error.

        Args:
            body: The plain function with its arguments.
            what: What it is, for the log.
            alone: Bodies of one key never run at once, even if the earlier one was given up. None: no such key.
            is_nested: Whether another body may be waiting for this one, here or in another process.

        Promise:
            A body that is cancelled before it begins never runs. One that is cancelled later is waited for; then this
            raises `CancelledError`, whatever the body returned or raised.
        """
        ...

    def use(self) -> ThreadUse:
        """How they are used just now."""
        ...


async def in_thread(
    threads: Threads, body: Callable[[], Any], *, what: str, alone: Hashable = None, is_nested: bool = False
) -> Any:
    """Run a plain function: see `Threads.run`. If it returns something to await, that is awaited here."""
    value = await threads.run(body, what=what, alone=alone, is_nested=is_nested)
    return await value if inspect.isawaitable(value) else value


await_here: ContextVar[Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any] | None]
await_here = ContextVar("coterie_await_here", default=None)
"""How a body in a simulation has the loop await something; None: this is none, and its thread may wait by itself."""


class InlineThreads:
    """Runs bodies at once, on the loop: for probes."""

    async def start(self) -> None:
        """There is nothing to start."""

    async def stop(self) -> None:
        """There is nothing to stop."""

    async def run(self, body: Callable[[], T], /, *, what: str, alone: Hashable = None, is_nested: bool = False) -> T:
        """See `Threads.run`. The body takes no time, so nothing can cancel it."""
        del what, alone, is_nested
        context = copy_context()
        context.run(enter_thread, Cancellation())
        return context.run(body)

    def use(self) -> ThreadUse:
        """See `Threads.use`."""
        return ThreadUse()


class ThreadBody:
    """One body from its admission to its end. All of it belongs to the loop, except `call`.

    Args:
        pool: The pool in which it runs.
        body: The plain function with its arguments.
        what: What it is, for the log.
        alone: Its key (see `Threads.run`).
        is_nested: Whether another body may be waiting for it.
    """

    __slots__ = ("_body", "_context", "_error", "_thread", "_value", "alone", "calls", "cancellation", "cancelled_at_s",
                 "has_begun", "has_ended", "is_nested", "pool", "waiter", "what")  # fmt: skip

    def __init__(
        self, pool: ThreadPool, body: Callable[[], Any], *, what: str, alone: Hashable, is_nested: bool
    ) -> None:
        self.pool = pool
        self.what = what
        self.alone = alone
        self.is_nested = is_nested
        self.cancellation = Cancellation()
        self.cancelled_at_s = 0.0
        """When it was cancelled, in the loop's time."""
        self.has_begun = False
        """Whether a thread was given to it."""
        self.has_ended = False
        self.waiter: asyncio.Future[None] | None = None
        self.calls = 0
        """The calls of the cluster for which its thread waits."""
        self._body = body
        self._thread = 0
        self._value: Any = None
        self._error: BaseException | None = None
        self._context = copy_context()
        self._context.run(enter_thread, self.cancellation)
        self._context.run(_running.set, self)

    def call(self) -> None:
        """Run it, in a thread."""
        if self.cancellation.is_set:
            return  # between its start and here
        self._thread = threading.get_ident()
        try:
            self._value = self._context.run(self._body)
        except BaseException as error:  # noqa: BLE001 it is the error of the attempt, SystemExit too
            self._error = error
        finally:
            self._thread = 0

    async def ended(self) -> None:
        """Wait for its end. A cancellation is noted, and raised after the end; before the beginning, at once."""
        cancelled: asyncio.CancelledError | None = None
        while not self.has_ended:
            self.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.waiter
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
                self.pool.cancel(self)
        if cancelled is not None:
            raise cancelled

    def end(self, error: BaseException | None = None) -> None:
        """It has ended; or, with an error, it cannot begin, or is no longer waited for."""
        self._error = error or self._error
        self.has_ended = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def result(self) -> Any:
        """Its result. Raises its error."""
        error, self._error = self._error, None  # else the error and this frame would keep each other alive
        if error is not None:
            raise error
        return self._value

    def where(self) -> str:
        """The innermost frames of its thread; empty if it has just ended."""
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 the documented way to another thread's stack
        return "" if frame is None else "".join(traceback.format_stack(frame)[-_FRAMES:])

    def begin_call(self) -> None:
        """On the loop of a call: the thread begins to wait for it."""
        self.pool.waits(self, 1)

    def end_call(self) -> None:
        """On the loop of a call: the thread no longer waits for it."""
        self.pool.waits(self, -1)


_running: ContextVar[ThreadBody | None] = ContextVar("coterie_thread_body", default=None)
"""The body that runs here: in its thread, and in the calls that it makes on the loop."""

body_here = _running.get
"""The body that runs here; None: this is not the work of one."""


class ThreadPool(Service):
    """The threads of one runner. They start when they are needed, and stay until it stops.

    Args:
        settings: `threads` and `drain`.

    Promise:
        At most `threads` bodies run at once, besides those that wait in a call and those that these may wait for. The
        threads never keep the process from ending.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(what="the threads of plain functions")
        self._most = settings.threads
        self._drain_s = settings.drain.total_seconds()
        self._loop: asyncio.AbstractEventLoop
        self._queue: SimpleQueue[ThreadBody | None] = SimpleQueue()
        self._threads = 0
        self._running: dict[ThreadBody, None] = {}
        self._lent = 0
        """How many of these wait in a call."""
        self._moves = 0
        """Counts the ends of bodies and of their calls."""
        self._watch: asyncio.TimerHandle | None = None
        """Set while all of them wait in calls, and others for a thread."""
        self._first: deque[ThreadBody] = deque()
        """Bodies that wait for a thread: those for which no other body waits …"""
        self._nested: deque[ThreadBody] = deque()
        """… and the others."""
        self._turns: dict[Hashable, asyncio.Future[None]] = {}
        """The last turn of each key, done when its body has ended."""

    async def run(self, body: Callable[[], T], /, *, what: str, alone: Hashable = None, is_nested: bool = False) -> T:
        """See `Threads.run`."""
        self.require_running()
        outer = body_here()
        admitted = ThreadBody(self, body, what=what, alone=alone, is_nested=is_nested or outer is not None)
        async with self._turn(None if outer is not None and outer.alone == alone else alone):  # it has that turn
            self._admit(admitted)
            await admitted.ended()
        result: T = admitted.result()
        return result

    def use(self) -> ThreadUse:
        """See `Threads.use`."""
        return ThreadUse(len(self._running), len(self._first) + len(self._nested), self._stubborn())

    async def _start(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def _stop(self) -> None:
        """Bodies that still run have had the time of `drain`, and were cancelled."""
        if self._running:
            log.error(
                "%d plain functions did not end within %gs, and end with the process: %s",
                len(self._running), self._drain_s, ", ".join(body.what for body in self._running),
            )  # fmt: skip
        for body in (*self._running, *self._first, *self._nested):  # else their tasks would keep the loop from closing
            body.end(ShuttingDown(what=self.what))
        self._first.clear()
        self._nested.clear()
        for _ in range(self._threads):
            self._queue.put(None)
        if self._watch is not None:
            self._watch.cancel()

    # Used by bodies

    def waits(self, body: ThreadBody, calls: int) -> None:
        """The thread of a body waits for so many calls more."""
        if asyncio.get_running_loop() is self._loop and body in self._running:
            before, body.calls = body.calls, body.calls + calls
            self._lent += bool(body.calls) - bool(before)
            self._moves += calls < 0
            self._fill()

    def cancel(self, body: ThreadBody) -> None:
        """Keep a body from beginning; one that has begun is told, and reported if it goes on."""
        if body.cancellation.is_set or body.has_ended:
            return
        body.cancellation.is_set = True
        body.cancelled_at_s = self._loop.time()
        if body.has_begun:
            self._loop.call_later(STUBBORN_S, self._report, body)
        else:
            (self._nested if body.is_nested else self._first).remove(body)
            body.end()

    # How a body begins and ends

    @asynccontextmanager
    async def _turn(self, alone: Hashable) -> AsyncIterator[None]:
        """Wait until no earlier body of a key runs, and keep later ones waiting for the length of the block."""
        if alone is None:
            yield
            return
        before = self._turns.get(alone)
        mine = self._turns[alone] = self._loop.create_future()

        def end(_: object = None) -> None:
            mine.set_result(None)
            if self._turns.get(alone) is mine:
                del self._turns[alone]

        try:
            if before is not None:
                await settled([before])
            yield
        finally:
            if before is None or before.done():
                end()
            else:  # cancelled while it waited: who comes later waits for the one before
                before.add_done_callback(end)

    def _admit(self, body: ThreadBody) -> None:
        (self._nested if body.is_nested else self._first).append(body)
        self._fill()

    def _fill(self) -> None:
        while self._nested and self._has_room(nested=True):
            self._give_thread(self._nested.popleft())
        while self._first and self._has_room(nested=False):
            self._give_thread(self._first.popleft())
        if self._first and self._lent == len(self._running) and self._watch is None:
            self._watch = self._loop.call_later(_STUCK_S, self._relieve, self._moves)

    def _relieve(self, moves: int) -> None:
        """Give a further thread to the newest body, unless something has moved."""
        self._watch = None
        is_stuck = self._lent == len(self._running) < self._most * _FURTHER_MOST and moves == self._moves
        if self._first and is_stuck:
            self._give_thread(self._first.pop())
        self._fill()

    def _has_room(self, *, nested: bool) -> bool:
        busy = len(self._running)
        if busy < self._most:
            return True
        return nested and busy - self._lent < self._most and busy < self._most * _FURTHER_MOST

    def _give_thread(self, body: ThreadBody) -> None:
        if len(self._running) == self._threads:
            try:
                self._start_thread()
            except RuntimeError as error:  # the system has no more threads
                body.end(error)
                return
        body.has_begun = True
        self._running[body] = None
        self._queue.put(body)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run_bodies, name=f"coterie-body-{self._threads + 1}", daemon=True)
        thread.start()
        self._threads += 1

    def _ended(self, body: ThreadBody) -> None:
        body.end()
        del self._running[body]
        self._moves += 1
        self._lent -= bool(body.calls)  # interrupted, it has left a call behind
        if self._threads > self._most:  # one that was started for nested bodies
            self._threads -= 1
            self._queue.put(None)
        self._fill()

    def _report(self, body: ThreadBody) -> None:
        if not body.has_ended:
            log.error(
                "%s was cancelled %gs ago and still runs in its thread, which nothing can end: until it returns, no "
                "other attempt begins; let it look at current().cancelled now and then\n%s",
                body.what, STUBBORN_S, body.where(),
            )  # fmt: skip

    def _stubborn(self) -> tuple[StubbornBody, ...]:
        now_s = self._loop.time() if self._running else 0.0
        cancelled = [(body, now_s - body.cancelled_at_s) for body in self._running if body.cancellation.is_set]
        return tuple(
            StubbornBody(what=body.what, for_s=since_s) for body, since_s in cancelled if since_s >= STUBBORN_S
        )

    # In the threads

    def _run_bodies(self) -> None:
        while (body := self._queue.get()) is not None:
            body.call()
            try:
                self._loop.call_soon_threadsafe(self._ended, body)
            except RuntimeError:  # the loop is closed: the process ends, or this runner of it
                return
            del body  # it would be kept until the next one
