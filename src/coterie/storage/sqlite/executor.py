"""Runs the SQL: a thread that owns its connections, or a simulator's replacement."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from coterie.errors import PersistenceError
from coterie.kernel import coroutines, metrics
from coterie.kernel.fork_guard import ProcessOrigin
from coterie.kernel.service import Service
from coterie.storage.interface import WAITING_MOST

if TYPE_CHECKING:
    from coterie.storage.sqlite.database import SqliteConnections


log = logging.getLogger("coterie")


class Closing(Protocol):
    """A connection, or `SqliteConnections`."""

    def close(self) -> None:
        """Close it."""
        ...


T = TypeVar("T")
Owned = TypeVar("Owned", bound=Closing)
Owned_co = TypeVar("Owned_co", bound=Closing, covariant=True)

Role = Literal["writer", "reader", "ownership"]


class Executor(Protocol[Owned_co]):
    """Runs plain functions on what it owns, one after another."""

    async def start(self) -> None:
        """Open what it owns."""
        ...

    async def stop(self) -> None:
        """Run the accepted work, then close what it owns."""
        ...

    async def run(self, work: Callable[[Owned_co], T]) -> T:
        """Return the result of `work`, or raise its error."""
        ...


Executors = Callable[[Role, "Callable[[], SqliteConnections]"], "Executor[SqliteConnections]"]
"""Creates the executor of a role from a function that opens its connections; a simulator's may share one for all."""


def threads(role: Role, connect: Callable[[], SqliteConnections]) -> Executor[SqliteConnections]:
    """The production executors: a thread each."""
    return ThreadExecutor(connect, what=f"SQLite {role}")


class ThreadExecutor(Service, Generic[Owned]):
    """One thread and what it owns, which nothing else touches.

    Use it from the loop that started it. Results are delivered once per iteration of that loop, however many
    there are, so the price of crossing threads is paid per batch.

    Args:
        connect: Opens what the thread owns.
        what: Its name.
        waiting_most: Maximum number of queued pieces of work.
        idle: Called in the thread whenever the queue is empty, and again after as many seconds as it returns.

    Promise:
        A cancelled caller does not disturb the work of others; its own work is skipped if it has not begun, and
        completes otherwise. `stop` returns when what it owns is closed.
    """

    def __init__(
        self,
        connect: Callable[[], Owned],
        *,
        what: str,
        waiting_most: int = WAITING_MOST,
        idle: Callable[[Owned], float | None] = lambda _: None,
    ) -> None:
        super().__init__(what=what)
        self._connect = connect
        self._idle = idle
        self._waiting_most = waiting_most
        self._waiting = 0
        self._inbox: queue.SimpleQueue[tuple[Callable[[Owned], Any], asyncio.Future[Any]] | None]
        self._inbox = queue.SimpleQueue()
        self._outbox: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._delivering = False
        self._thread: threading.Thread | None = None
        self._origin = ProcessOrigin(what)

    async def run(self, work: Callable[[Owned], T]) -> T:
        """Return the result of `work`, or raise its error."""
        self._origin.require_same()
        self.require_running()
        if self._waiting >= self._waiting_most:
            raise PersistenceError(
                doing=f"queue work for the {self.what}",
                problem=f"{self._waiting} pieces are waiting already",
                outcome="unreachable",
                hint="slow down, or wait for earlier work first",
            )
        done: asyncio.Future[T] = self._loop.create_future()
        self._waiting += 1
        self._inbox.put((work, done))
        return await done

    async def _start(self) -> None:
        coroutines.shorten()
        self._loop = asyncio.get_running_loop()
        self._origin.set()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._waiting += 1
        thread = threading.Thread(target=self._live, args=(opened,), name=self.what, daemon=True)
        thread.start()
        self._thread = thread  # set only now: `_stop` waits for its end
        await opened

    async def _stop(self) -> None:
        self._origin.require_same()
        if self._thread is None:
            return
        self._inbox.put(None)
        await self._ended
        self._thread.join()

    # What follows runs in the thread, except `_deliver`. What it owns is a local variable: a forked child has no such
    # thread, so it never drops a reference to a connection, which would close it [P13].

    def _live(self, opened: asyncio.Future[None]) -> None:
        try:
            owned = self._connect()
        except BaseException as error:  # noqa: BLE001 any error goes to the caller of `start`
            self._post(opened, None, error)
        else:
            self._post(opened, None, None)
            try:
                self._serve(owned)
            finally:
                owned.close()
        finally:
            self._post(self._ended, None, None)

    def _serve(self, owned: Owned) -> None:
        while (job := self._next(owned)) is not None:
            work, done = job
            if done.cancelled():
                self._post(done, None, None)
                continue
            try:
                result, problem = work(owned), None
            except BaseException as error:  # noqa: BLE001 any error goes to the caller
                result, problem = None, error
            self._post(done, result, problem)
            # Keep no references while waiting for the next piece.
            del job, work, done, result, problem

    def _next(self, owned: Owned) -> tuple[Callable[[Owned], Any], asyncio.Future[Any]] | None:
        while True:
            try:
                return self._inbox.get_nowait()
            except queue.Empty:
                with contextlib.suppress(queue.Empty):
                    return self._inbox.get(timeout=self._idle_s(owned))

    def _idle_s(self, owned: Owned) -> float | None:
        """Run the idle callback; an error in it must not end the thread."""
        try:
            return self._idle(owned)
        except Exception as error:
            metrics.TASK_FAILURES.of("SQLite thread").value += 1
            log.exception("the %s failed while it was idle, and goes on: %r", self.what, error)
            return None

    def _post(self, done: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        self._outbox.append((done, result, error))
        # Set before the delivery is scheduled and cleared before it empties the outbox, so that no entry is left
        # behind.
        if not self._delivering:
            self._delivering = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        while self._outbox:
            done, result, error = self._outbox.popleft()
            if done is not self._ended:
                self._waiting -= 1
            if done.done():
                continue
            if error is None:
                done.set_result(result)
            elif isinstance(error, StopIteration):  # which a future refuses
                done.set_exception(RuntimeError(f"the work of {self.what} raised {error!r}"))
            else:
                done.set_exception(error)
