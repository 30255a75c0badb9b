"""The event loop of a blocking program, in a thread of its own, and the calls that other threads make on it.

    thread ──run(make)──▶ copy of its context ──▶ the loop: connect if need be, await make() ──▶ result or error
      │                                                          ▲
      └── interrupted: Ctrl-C, a time limit by signal ───────────┘ cancelled

If the process runs the cluster itself, as a runner or a client on a loop of its own, calls are made on that loop.
Otherwise they are made by a client on the loop of this thread, which connects with the first call. While a thread
waits, its call may give it blocking work to do (`in_waiting_thread`): what belongs to the thread is used nowhere else.

A forked child has no such thread. It forgets the loop and the clients of its parent, and its first call starts its own.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import sys
import threading
from contextvars import Context, ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from coterie.errors import ShuttingDown
from coterie.kernel.service import State, Tasks
from coterie.main import loop_factory
from coterie.work.threads import await_here, body_here

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from coterie.client import Client
    from coterie.participant import Participant

T = TypeVar("T")
R = TypeVar("R")

_END_S = 2.0
"""How long the clients may take to leave when the interpreter ends."""
_LOOK_S = 1.0
"""How often a waiting thread checks that the loop still exists."""

_waiting: ContextVar[ThreadCall[Any]] = ContextVar("coterie_waiting")
"""On the loop: the call that a thread waits for."""
_running_loop = asyncio._get_running_loop  # noqa: SLF001 documented; unlike its sister it does not raise without a loop


class LoopBridge:
    """Makes the calls of threads on the loop of one cluster.

    Args:
        participant: Knows the runner or client of the cluster in this process.
        new_client: Makes a client, for a process that has neither.
    """

    def __init__(self, participant: Participant, new_client: Callable[[], Client]) -> None:
        self._participant = participant
        self._new_client = new_client

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await `make()` on the loop, in a copy of the caller's context. Returns its result, or raises its error.

        An exception in the waiting thread (Ctrl-C, a signal handler that raises) cancels the call.

        Raises:
            RuntimeError: An event loop runs in this thread.
            ShuttingDown: The loop ended before the call did.
        """
        if (simulated := await_here.get()) is not None:
            result: T = simulated(make)
            return result
        require_blocking()
        loop = self._running_loop()
        if loop is not None:
            return ThreadCall(make, loop, _tasks).run()
        here = loop_thread()
        return here.run(lambda: self._through_client(here, make))

    def disconnect(self) -> None:
        """Stop the client of this thread's loop, if there is one. The next call connects anew."""
        require_blocking()
        if (here := _thread) is not None:
            here.run(lambda: here.disconnect(self._participant))

    def _running_loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop on which this process runs the cluster; None: it does not."""
        running = self._participant.present()
        if running is None or running.state is State.STOPPED or not running.origin.is_this_process:
            return None
        loop = running.origin.loop
        return loop if loop is not None and loop.is_running() else None

    async def _through_client(self, here: LoopThread, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        client = here.clients.get(self._participant)
        if client is None or client.state is not State.RUNNING:
            client = await here.connect(self._participant, self._new_client)
        self._participant.enter(client)
        return await make()


class ThreadCall(Generic[T]):
    """A call that a thread makes on a loop.

    Args:
        make: Makes the work; called on the loop.
        loop: The loop.
        tasks: The group of tasks that the work belongs to.
    """

    __slots__ = (
        "_body",
        "_errand",
        "_error",
        "_is_abandoned",
        "_loop",
        "_make",
        "_result",
        "_task",
        "_tasks",
        "_turn",
    )

    def __init__(
        self, make: Callable[[], Coroutine[Any, Any, T]], loop: asyncio.AbstractEventLoop, tasks: Tasks
    ) -> None:
        self._make = make
        self._loop = loop
        self._tasks = tasks
        self._body = body_here()
        self._turn = threading.Lock()  # held until the thread has something to do: cheaper than an Event
        self._turn.acquire()
        self._errand: Callable[[], object] | None = None
        self._is_abandoned = False
        self._task: asyncio.Task[T] | None = None
        self._result: T | None = None
        self._error: BaseException | None = None

    # In the thread

    def run(self) -> T:
        """Start it, wait for its end, and return its result or raise its error."""
        try:
            self._submit(self._begin)
            while True:
                while not self._turn.acquire(timeout=_LOOK_S):
                    if self._loop.is_closed():
                        raise _ended()
                if (errand := self._errand) is None:
                    break  # it has ended
                self._errand = None
                errand()
        except BaseException:
            with contextlib.suppress(ShuttingDown):
                self._submit(self._abandon)
            raise
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # else the error and this frame would keep each other alive
        return cast("T", self._result)

    def _submit(self, callback: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)  # in a copy of the context of this thread
        except RuntimeError as error:  # the loop is closed
            raise _ended() from error

    # On the loop

    async def in_thread(self, work: Callable[[], R]) -> R:
        """Do blocking work in the thread that waits for this call, one at a time."""
        done: asyncio.Future[R] = self._loop.create_future()

        def errand() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 any error goes to the call; what interrupts the thread cancels it
                self._submit(partial(_end_errand, done, None, error))
            else:
                self._submit(partial(_end_errand, done, result, None))

        self._errand = errand
        self._turn.release()
        return await done

    def _begin(self) -> None:
        if self._is_abandoned:
            return
        _waiting.set(self)
        try:
            self._task = self._tasks.spawn(self._make(), name="call of a thread", report=False)
        except BaseException as error:  # noqa: BLE001 any error goes to the thread, which would wait for ever
            self._error = error
            self._turn.release()
        else:
            self._task.add_done_callback(self._end)
            if self._body is not None:
                self._body.begin_call()

    def _abandon(self) -> None:
        self._is_abandoned = True
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        self._task = None
        if self._body is not None:
            self._body.end_call()
        if task.cancelled():
            self._error = _ended()
        elif (error := task.exception()) is not None:
            self._error = error
        else:
            self._result = task.result()
        self._errand = None  # one that was cancelled before the thread began it
        if self._turn.locked():
            self._turn.release()


async def in_waiting_thread(work: Callable[[], R]) -> R:
    """Do blocking work in the thread that waits for the current call: a database connection may belong to it."""
    return await _waiting.get().in_thread(work)


def _end_errand(done: asyncio.Future[R], result: Any, error: Exception | None) -> None:
    if done.done():
        return  # the call was cancelled meanwhile
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)


class LoopThread:
    """An event loop in a thread, and the clients that are connected on it. One for each process."""

    def __init__(self) -> None:
        self.loop = (loop_factory() or asyncio.new_event_loop)()
        self.clients: dict[Participant, Client] = {}
        """The clients that have connected, by the participant of their cluster. Used on the loop only."""
        self._tasks = Tasks("sync")
        self._lives = Tasks("sync clients")
        self._connecting: dict[Participant, asyncio.Task[Client]] = {}
        self._is_ending = False
        self._thread = threading.Thread(target=self._live, name="coterie-sync", daemon=True)
        self._thread.start()

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await `make()` on the loop, for a thread.

        Raises:
            ShuttingDown: The interpreter is ending.
        """
        if self._is_ending:
            raise _ended()
        return ThreadCall(make, self.loop, self._tasks).run()

    async def connect(self, participant: Participant, new_client: Callable[[], Client]) -> Client:
        """Connect the client of a cluster: once, however many wait for it. After an error the next call tries again."""
        connecting = self._connecting.get(participant)
        if connecting is None:
            # In a context of its own: what the first caller's context has is not for the client's standing tasks.
            work = self._connect(participant, new_client)
            connecting = self._lives.spawn(work, name="connect", report=False, context=Context())
            self._connecting[participant] = connecting
        return await asyncio.shield(connecting)

    async def disconnect(self, participant: Participant) -> None:
        """Stop the client of a cluster."""
        client = self.clients.pop(participant, None)
        if client is not None:
            await client.stop()

    def end(self, *, within_s: float) -> None:
        """Stop the clients and the loop, from another thread. After the limit they end with the process."""
        if self._is_ending or not self._thread.is_alive():
            return
        self._is_ending = True
        self.loop.call_soon_threadsafe(lambda: self._lives.spawn(self._end(), name="end"))
        self._thread.join(within_s)

    def silence(self) -> None:
        """In a forked child: its parent's tasks are not reported as unfinished when they are dropped."""
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 there is no other way

    async def _connect(self, participant: Participant, new_client: Callable[[], Client]) -> Client:
        try:
            client = new_client()
            await client.start()
            self.clients[participant] = client
        finally:
            del self._connecting[participant]
        return client

    async def _end(self) -> None:
        try:
            await self._tasks.stop()
            for participant in list(self.clients):
                await self.disconnect(participant)
        finally:
            self.loop.stop()

    def _live(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()


_tasks = Tasks("calls of threads")
"""Calls on a loop of the program's own."""
_lock = threading.Lock()
_thread: LoopThread | None = None
_inherited: list[LoopThread] = []
"""What a forked child has of its parent. Kept, so that nothing of it is finalized: that would reach the parent."""


def loop_thread() -> LoopThread:
    """The loop of this process for blocking programs, started if need be."""
    global _thread
    found = _thread
    if found is None:
        with _lock:
            found = _thread = _thread or LoopThread()
    return found


def require_blocking() -> None:
    """Refuse to block a thread that must not be blocked.

    Raises:
        RuntimeError: An event loop runs in it.
    """
    if _running_loop() is not None:
        raise RuntimeError(
            "cluster.sync() would block the event loop that runs in this thread: await the methods of the cluster "
            "itself, inside `async with cluster.connect():`, or call this with asyncio.to_thread"
        )


def require_threads() -> None:
    """Refuse a process whose threads are not threads.

    Raises:
        RuntimeError: gevent or eventlet has replaced them.
    """
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("threading"):
        patched = "gevent"
    elif eventlet is not None and eventlet.is_monkey_patched("thread"):
        patched = "eventlet"
    else:
        return
    raise RuntimeError(
        f"cluster.sync() needs threads, and {patched} has replaced those of this process: run it with threads instead "
        f"(gunicorn --worker-class gthread, celery --pool prefork or threads)"
    )


def _ended() -> ShuttingDown:
    return ShuttingDown(what="the event loop of the cluster")


def _forked() -> None:
    global _lock, _thread
    _lock = threading.Lock()  # another thread of the parent may have held it
    if _thread is not None:
        _thread.silence()
        _inherited.append(_thread)
        _thread = None


def _ending() -> None:
    if _thread is not None:
        _thread.end(within_s=_END_S)


os.register_at_fork(after_in_child=_forked)
atexit.register(_ending)
