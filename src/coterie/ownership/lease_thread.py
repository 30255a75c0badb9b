"""Keeps the lease: performs what `lease` decides, in a thread with its own small loop, on the one dedicated session.

A handler that blocks the runner's loop for some seconds, as plain Python does, must not cost the lease. In simulation
a node of the same process stands in for the thread, so that the loop can be blocked without it.

    runner's loop                          aside (a thread of its own)
    ─────────────                          ───────────────────────────
    ask(work) ───────────────────────────▶ work(session), one at a time
    pulse() ◀── tell ────────────────────  each step: does the loop turn?
    on_renewed(renewal) ◀── tell ────────  renew, about once a second
    on_ended(reason) ◀── tell ───────────  the row is gone, or the loop was blocked: self-eviction

`Trust` is written here and read everywhere.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from coterie.errors import PersistenceError, StorageReplaced
from coterie.kernel import coroutines, metrics
from coterie.kernel.service import Service, Tasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    from coterie.kernel.clock import Clock
    from coterie.kernel.supervisor import Supervisor
    from coterie.ownership.lease import LeasePolicy
    from coterie.ownership.runner_health import RunnerHealth
    from coterie.ownership.seats import Trust
    from coterie.storage.interface import Ownership, Registration, Renewal, SeatDeclaration


T = TypeVar("T")


class SideLoop(Protocol):
    """A second place to run coroutines, which keeps running while the runner's loop is blocked."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` there and return its result. Cancelling this cancels it."""
        ...

    def tell(self, callback: Callable[..., object], *args: object) -> None:
        """Called from there: run a callback on the runner's loop as soon as it turns."""
        ...

    def stack(self) -> str:
        """Called from there: the current traceback of the runner's loop; empty if unknown."""
        ...


class ThreadSideLoop(Service):
    """A daemon thread that runs an event loop."""

    def __init__(self) -> None:
        super().__init__(what="lease keeper's thread")
        self._there: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` in the thread and return its result."""
        self.require_running()
        assert self._there is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._there))

    def tell(self, callback: Callable[..., object], *args: object) -> None:
        """Run a callback on the runner's loop; does nothing if that is closed."""
        if not self._here.is_closed():
            self._here.call_soon_threadsafe(callback, *args)

    def stack(self) -> str:
        """The current traceback of the thread of the runner's loop."""
        frame = sys._current_frames().get(self._here_id)  # noqa: SLF001 the documented way to another thread's stack
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    async def _start(self) -> None:
        coroutines.shorten()
        self._here = asyncio.get_running_loop()
        self._here_id = threading.get_ident()
        self._ended: asyncio.Future[None] = self._here.create_future()
        there = asyncio.new_event_loop()
        thread = threading.Thread(target=self._live, args=(there,), name=self.what, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no room for another thread
            there.close()
            raise
        self._there, self._thread = there, thread

    async def _stop(self) -> None:
        if self._there is None or self._thread is None:
            return
        self._there.call_soon_threadsafe(self._there.stop)
        await self._ended
        self._thread.join()

    def _live(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            for task in asyncio.all_tasks(loop):  # their waiters get the cancellation, also if the loop was broken
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
            self.tell(self._thread_ended)

    def _thread_ended(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


log = logging.getLogger("coterie.ownership")

_AGAIN_S = 0.1
"""Pause between two attempts of something that must succeed eventually."""
_RECONNECT_S = 0.2
"""For this long after a failed attempt to open the session, others fail at once instead of waiting in turn."""


async def retry_until_done(work: Callable[[], Awaitable[T]], *, what: str) -> T:
    """Retry `work` until it succeeds, and return its result; the caller sets the limit."""
    while True:
        try:
            return await work()
        except PersistenceError as error:
            if not error.retryable:
                raise
            log.debug("%s failed and is tried again: %s", what, error)
        await asyncio.sleep(_AGAIN_S)


class LeaseKeeper:
    """The dedicated session and the lease on it. Created and called on the runner's loop.

    Args:
        open: Opens the dedicated session.
        presence: The sign of life across all sessions, where there is one.
        vitals: Records how the loop and the database are doing.
        on_renewed: Called on the runner's loop after each renewal, with the moment before it was sent.
        on_ended: Called there once, when this incarnation is over: with a text, or with an error if no other can
            follow.
        supervisor: The supervisor of this process.
    """

    def __init__(
        self,
        keeper: LeasePolicy,
        *,
        open: Callable[[], AbstractAsyncContextManager[Ownership]],
        presence: Callable[[], AbstractAsyncContextManager[object]],
        aside: SideLoop,
        trust: Trust,
        clock: Clock,
        ttl_s: float,
        vitals: RunnerHealth,
        on_renewed: Callable[[Renewal, int], None],
        on_ended: Callable[[str | StorageReplaced], None],
        supervisor: Supervisor,
    ) -> None:
        self._keeper = keeper
        self._open = open
        self._presence = presence
        self._present = AsyncExitStack()
        self._aside = aside
        self._trust = trust
        self._now_ns = clock.steady_ns
        self._ttl_s = ttl_s
        self._vitals = vitals
        self._on_renewed = on_renewed
        self._on_ended = on_ended
        self._supervisor = supervisor
        self._pulse_ns = self._now_ns()
        self._turn = asyncio.Lock()  # serializes the use of the session; belongs to the loop of the thread
        self._session: Ownership | None = None
        self._opened = AsyncExitStack()
        self._failed: tuple[int, PersistenceError] | None = None
        self.generation = 0
        """The generation of the database when the runner registered."""
        self.sessions = 0
        """The number of sessions so far: a new one may be on another start of the server."""

    async def ask(self, work: Callable[[Ownership], Coroutine[Any, Any, T]]) -> T:
        """Run `work` on the dedicated session and return its result.

        Raises:
            PersistenceError: There is no session, or it was lost meanwhile.
        """
        return await self._aside.run(lambda: self._use(work))

    async def register(self, me: Registration, seats: list[SeatDeclaration]) -> None:
        """Register in the cluster; trust begins."""
        self._pulse_ns = self._now_ns()

        async def appear(session: Ownership) -> None:
            sent_ns = self._now_ns()
            await session.register(me, seats, ttl_s=self._ttl_s)
            self._keeper.registered(sent_ns)
            self._vitals.answered(sent_ns)
            self._extend(session)
            self.generation = session.generation

        await self.ask(appear)

    async def live(self) -> None:
        """Keep the lease until cancelled, or until this incarnation is over."""
        await self._aside.run(self._live)

    async def close(self) -> None:
        """Close the session, and give no further sign of life. Trust ends with it."""
        self._trust.end()
        await self._aside.run(self._depart)

    # All that follows runs in the thread, except `_pulse`.

    async def _live(self) -> None:
        tasks = Tasks("lease keeper")
        try:
            await tasks.supervise(self._keep, name="keep the lease", supervisor=self._supervisor)
        finally:
            await tasks.stop()

    async def _keep(self) -> None:
        tasks = Tasks("lease keeper")
        renewing: asyncio.Task[None] | None = None
        try:
            while True:
                if renewing is not None and renewing.done():
                    renewing.result()  # raises unexpected errors
                    renewing = None
                step = self._keeper.step(self._now_ns(), self._pulse_ns)
                if step.action == "renew" and renewing is None:
                    renewing = tasks.spawn(self._renew(), name="renew", report=False)
                elif step.action == "report_stall":
                    self._report_stall()
                elif step.action == "evict_self":
                    await self._evict_self()
                if self._keeper.state == "ended":
                    return
                self._aside.tell(self._pulse, self._now_ns())
                await asyncio.sleep(max((step.wake_ns - self._now_ns()) / 1e9, 0.01))
        finally:
            await tasks.stop()
            self._keeper.interrupted(self._now_ns())  # otherwise it would wait for that renewal for ever

    def _pulse(self, since_ns: int) -> None:
        """The runner's loop turns; it was pinged at `since_ns`."""
        self._pulse_ns = self._now_ns()
        self._vitals.turned(since_ns)

    async def _renew(self) -> None:
        try:
            renewal, sent_ns = await self._use(self._prolong)
        except PersistenceError as error:
            first = self._keeper.state == "kept"
            self._keeper.failed(self._now_ns())
            self._vitals.failed(str(error))
            metrics.RENEWALS.of("failed").value += 1
            metrics.STORAGE_ERRORS.of("lease", error.outcome).value += 1
            level = logging.WARNING if first else logging.DEBUG  # once per outage
            log.log(level, "the lease could not be renewed, %.1f s of trust are left: %s", self._trust.left_s, error)
            return
        except Exception as error:
            self._keeper.failed(self._now_ns())
            self._vitals.failed(repr(error))
            metrics.RENEWALS.of("failed").value += 1
            raise
        if renewal is None:
            self._end("another runner found this one dead and evicted it")
        else:
            self._aside.tell(self._on_renewed, renewal, sent_ns)

    async def _prolong(self, session: Ownership) -> tuple[Renewal | None, int]:
        sent_ns = self._now_ns()
        renewal = await session.renew(ttl_s=self._ttl_s)
        if renewal is not None:
            metrics.RENEWALS.of("ok").value += 1
            metrics.LEASE_MARGIN.spread().see(max(0.0, self._trust.left_s))
            self._keeper.renewed(sent_ns, self._now_ns())
            self._vitals.answered(sent_ns, renewal.now)
            self._extend(session)
        return renewal, sent_ns

    def _extend(self, session: Ownership) -> None:
        self._trust.extend(self._keeper.trusted_until_ns)
        self._trust.connected = session.witnessed or session.leases_only

    async def _evict_self(self) -> None:
        stood_s = (self._now_ns() - self._pulse_ns) / 1e9
        metrics.EVICTIONS.of("stall").value += 1
        self._end(f"the event loop was blocked for {stood_s:.1f} s")
        try:
            await self._use(lambda session: session.leave())
        except PersistenceError as error:
            log.warning("this runner could not delete its row; its seats become free when its lease expires: %s", error)

    def _end(self, reason: str | StorageReplaced) -> None:
        self._trust.end()  # first: later reads must see it
        self._keeper.evicted()
        self._aside.tell(self._on_ended, reason)

    def _report_stall(self) -> None:
        stood_s = (self._now_ns() - self._pulse_ns) / 1e9
        metrics.LOOP_STALLS.of().value += 1
        log.warning(
            "the event loop has been blocked for %.1f s; it is in:\n%s", stood_s, self._aside.stack() or "(unknown)"
        )

    async def _use(self, work: Callable[[Ownership], Coroutine[Any, Any, T]]) -> T:
        async with self._turn:
            session = await self._connected()
            try:
                return await work(session)
            except StorageReplaced as error:
                self._end(error)
                await self._close()
                raise
            except PersistenceError as error:
                if error.outcome != "refused":  # the session is lost or in doubt
                    await self._close()
                raise
            except BaseException:
                await self._close()  # cancelled half-way: what is still in flight must not meet the next work
                raise

    async def _connected(self) -> Ownership:
        if self._session is not None:
            return self._session
        if self._failed is not None and self._now_ns() - self._failed[0] < _RECONNECT_S * 1e9:
            raise self._failed[1]
        try:
            self._session = await self._opened.enter_async_context(self._open())
        except PersistenceError as error:
            self._failed = self._now_ns(), error
            raise
        if self.sessions == 0:
            await self._present.enter_async_context(self._presence())
        self.sessions += 1
        return self._session

    async def _depart(self) -> None:
        try:
            await self._close()
        finally:
            await self._present.aclose()

    async def _close(self) -> None:
        self._trust.connected = False
        self._session = None
        opened, self._opened = self._opened, AsyncExitStack()
        await opened.aclose()
