"""Calls to entities of the caller's own process, and volatile calls without a waiting caller.

Local calls skip the socket but still encode arguments and results, so that caller and entity share no objects. For a
volatile call without a waiting caller, `cluster.send` returns when a runner has accepted it (DUR-07).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

from coterie.entities.calls.wire import FAILED, NOT_MINE
from coterie.entities.host.work import LATER, Work
from coterie.errors import CoterieError, MalformedMessage, RunnerUnavailable

if TYPE_CHECKING:
    from coterie.entities.host.host import Host


ACCEPTED = b"\xc0"
"""The answer that a call was accepted: nil in msgpack."""


class DetachedCall(Work, eq=False):
    """A call whose result is discarded. Errors that keep it from being accepted are returned; defects are logged."""

    trouble: CoterieError | bytes | None = None  # or `NOT_MINE`

    def reply(self, body: bytes) -> None:
        """Discard the result."""

    def refuse(self, error: CoterieError) -> None:
        self.trouble = error

    def not_mine(self) -> None:
        self.trouble = NOT_MINE

    async def send(self, item: bytes) -> None:
        """Discard the item."""

    def end(self) -> None:
        """Discard the end."""


def accept(host: Host, work: DetachedCall) -> bytes:
    """Deliver a call. Returns `ACCEPTED`, or `NOT_MINE`.

    Raises:
        CoterieError: It is not accepted: its mailbox is full, or its entity type is unknown.
    """
    host.deliver(work)
    if work.trouble is None:
        return ACCEPTED
    if isinstance(work.trouble, bytes):
        return work.trouble
    raise work.trouble


_AHEAD_MOST = 16
"""Limit of the items of a stream that wait for their reader."""


class LocalCall(Work, eq=False):
    """A call whose answer is a future's result, in the same form as that of a remote call."""

    answer: asyncio.Future[bytes] = LATER

    def reply(self, body: bytes) -> None:
        try:
            self.answer.set_result(body)
        except asyncio.InvalidStateError:
            return  # its caller was cancelled, and has not run since

    def refuse(self, error: CoterieError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def not_mine(self) -> None:
        self.reply(NOT_MINE)


async def call_nearby(host: Host, work: LocalCall) -> bytes:
    """Deliver a call and wait for the answer, which the host sends by the deadline. Cancelling cancels the work."""
    answer = work.answer = asyncio.get_running_loop().create_future()
    host.deliver(work)
    try:
        body: bytes = await answer
    except asyncio.CancelledError:
        host.cancel(work)
        raise
    return body


class LocalStream(Work, eq=False):
    """A stream whose items are queued, a few at a time, for a reader in this process."""

    pipe: LocalPipe = LATER

    def reply(self, body: bytes) -> None:
        """The reverse case of `Work.send`."""
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
        if not await self.pipe.wait_for_room():
            raise RunnerUnavailable(runner="here", target=self.target, problem="the reader has left", sent=False)

    def end(self) -> None:
        self.pipe.finish(None)


class LocalPipe:
    """Passes items from a handler to a reader in the same process: `async for`, once, then `aclose`."""

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
        """The reader stops reading."""
        self._items.clear()
        if self._is_open and not self._over:
            self._host.cancel(self._work)
            self.finish(None)

    # Used by the handler

    def put(self, item: bytes) -> None:
        """Queue an item."""
        if not self._over:
            self._items.append(item)
            _wake(self._reader)

    def finish(self, error: CoterieError | None) -> None:
        """End the stream."""
        if not self._over:
            self._over, self._error = True, error
            _wake(self._reader)
            _wake(self._writer)

    async def wait_for_room(self) -> bool:
        """Wait while the reader is behind. Returns False if it no longer reads. The work's deadline limits the wait."""
        while len(self._items) >= _AHEAD_MOST and not self._over:
            self._writer = self._loop.create_future()
            await self._writer
        return not self._over


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
