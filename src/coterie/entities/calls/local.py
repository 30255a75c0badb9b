"""Volatile calls that nobody waits for: `cluster.send` returns when a runner has taken them (DUR-07).

Calls of entities that live in the caller's own process: no socket, but the same bytes, so nothing is shared.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from coterie.entities.calls.wire import FAILED, NOT_MINE
from coterie.entities.host.work import Work
from coterie.errors import MalformedMessage, RunnerUnavailable

if TYPE_CHECKING:
    from coterie.entities.host.host import Host
    from coterie.errors import CoterieError


TAKEN = b"\xc0"
"""The answer that says so: nothing, as msgpack has it."""


class DetachedCall(Work, eq=False):
    """A call whose answer goes nowhere. What keeps it from being taken is told; defects are in the log."""

    trouble: Any = None  # a CoterieError, or NOT_MINE

    def reply(self, body: bytes) -> None:
        """Nobody waits."""

    def failed(self, failure: bytes) -> None:
        """Nobody waits."""

    def refuse(self, error: CoterieError) -> None:
        self.trouble = error

    def not_mine(self) -> None:
        self.trouble = NOT_MINE

    async def send(self, item: bytes) -> None:
        """Nobody reads."""

    def end(self) -> None:
        """Nobody reads."""


def take(host: Host, work: DetachedCall) -> bytes:
    """Have a call run; `TAKEN`, or `NOT_MINE`.

    Raises:
        CoterieError: It cannot be taken: its mailbox is full, nobody knows it.
    """
    host.deliver(work)
    if work.trouble is None:
        return TAKEN
    if isinstance(work.trouble, bytes):
        return work.trouble
    raise work.trouble


_AHEAD_MOST = 16
"""Items of a stream that wait for their reader."""


class LocalCall(Work, eq=False):
    """A call whose answer is a future's result, in the same form as one that came from elsewhere."""

    answer: Any = None  # an asyncio.Future[bytes]

    def reply(self, body: bytes) -> None:
        try:
            self.answer.set_result(body)
        except asyncio.InvalidStateError:
            return  # its caller was cancelled, and has not run since

    def failed(self, failure: bytes) -> None:
        self.reply(FAILED + failure)

    def refuse(self, error: CoterieError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def not_mine(self) -> None:
        self.reply(NOT_MINE)

    async def send(self, item: bytes) -> None:
        """The caller's class has a plain method where the runner's has a stream: another version is loaded here."""
        del item
        self.refuse(MalformedMessage(what=self.target, problem="it is a stream, and was called as if it were none"))
        raise _left(self)

    def end(self) -> None:
        """Refused above, unless it had no items."""
        self.refuse(MalformedMessage(what=self.target, problem="it is a stream, and was called as if it were none"))


async def call_nearby(host: Host, work: LocalCall) -> bytes:
    """Deliver a call and wait for its answer, which the host gives by the deadline. Cancelled, it cancels the work."""
    answer = work.answer = asyncio.get_running_loop().create_future()
    host.deliver(work)
    try:
        body: bytes = await answer
    except asyncio.CancelledError:
        host.cancel(work)
        raise
    return body


class LocalStream(Work, eq=False):
    """A stream whose items wait for a reader in this process, a few at a time."""

    pipe: Any = None  # a Pipe

    def reply(self, body: bytes) -> None:
        """As in `LocalCall.send`, the other way round."""
        del body
        self.refuse(MalformedMessage(what=self.target, problem="it is no stream, and was called as if it were one"))

    def failed(self, failure: bytes) -> None:
        self.pipe.put(FAILED + failure)
        self.pipe.finish(None)

    def refuse(self, error: CoterieError) -> None:
        self.pipe.finish(error)

    def not_mine(self) -> None:
        self.pipe.put(NOT_MINE)
        self.pipe.finish(None)

    async def send(self, item: bytes) -> None:
        self.pipe.put(item)
        if not await self.pipe.room():
            raise _left(self)

    def end(self) -> None:
        self.pipe.finish(None)


class LocalPipe:
    """Bytes from a handler to a reader in the same process: `async for`, once, then `aclose`."""

    def __init__(self, host: Host, work: LocalStream) -> None:
        self._host = host
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._items: deque[bytes] = deque()
        self._over = False
        self._error: CoterieError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._is_open = False
        work.pipe = self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if not self._is_open:
            self._is_open = True
            self._host.deliver(self._work)
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._over:
                raise StopAsyncIteration
            self._reader = self._loop.create_future()
            await self._reader
        item = self._items.popleft()
        _wake(self._writer)
        return item

    async def aclose(self) -> None:
        """The reader leaves."""
        self._items.clear()
        if self._is_open and not self._over:
            self._host.cancel(self._work)
            self.finish(None)

    # The handler's end

    def put(self, item: bytes) -> None:
        """An item is there."""
        if not self._over:
            self._items.append(item)
            _wake(self._reader)

    def finish(self, error: CoterieError | None) -> None:
        """Nothing more comes."""
        if not self._over:
            self._over, self._error = True, error
            _wake(self._reader)
            _wake(self._writer)

    async def room(self) -> bool:
        """Wait while the reader is behind; false if it has left. The work's deadline bounds it."""
        while len(self._items) >= _AHEAD_MOST and not self._over:
            self._writer = self._loop.create_future()
            await self._writer
        return not self._over


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _left(work: Work) -> RunnerUnavailable:
    return RunnerUnavailable(runner="here", target=work.target, problem="the reader has left", sent=False)
