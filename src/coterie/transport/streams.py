"""Streams: items that never get further ahead of their reader than a window.

    reader   Request(window) ─▶                               ─▶ Credit(consumed) …
    sender                      Item, Item, … until the window is used up, then it waits      … Item, End

Credit is counted in bytes, with a surcharge for each item, so that empty ones are bounded too. One item may overshoot,
so a reader holds at most a window and one item.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from coterie.transport.in_flight import FrameSender, OutgoingRequests, late
from coterie.transport.protocol import CancelFrame, CreditFrame, ItemFrame, ProtocolError, RequestFrame

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, Self

    from coterie.errors import CoterieError

ITEM_BYTES = 64


def weight(item: bytes) -> int:
    """What an item uses of the window."""
    return len(item) + ITEM_BYTES


class ReadStream:
    """The reader's end: fed by the connection, consumed by `StreamItems`."""

    def __init__(
        self,
        calls: OutgoingRequests,
        send: FrameSender,
        request: RequestFrame,
        *,
        peer: str,
        within_s: float,
        target: object,
    ) -> None:
        self.target = target
        self._loop = asyncio.get_running_loop()
        self.until_s = self._loop.time() + within_s
        self._calls = calls
        self._send = send
        self._peer = peer
        self._within_s = within_s
        self._window_bytes = request.window_bytes
        self._items: deque[bytes] = deque()
        self._owed_bytes = 0  # sent by the peer, and not returned as credit
        self._given_bytes = 0  # consumed since the last credit
        self._over = False
        self._error: CoterieError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._number = request.id = calls.opened(self)
        send(request)

    async def next(self) -> bytes | None:
        """The next item; None at the end."""
        self.until_s = self._loop.time() + self._within_s
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._over:
                return None
            assert self._waiter is None, "a stream has one reader"
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._items.popleft()
        self._give_back(weight(item))
        return item

    def close(self) -> None:
        """The reader stops reading."""
        self._items.clear()
        if self._calls.closed(self._number) is not None:
            self._send(CancelFrame(self._number))
            self.finish(None)

    # Called by the connection

    def receive(self, frame: ItemFrame) -> None:
        """An item arrived."""
        self.until_s = self._loop.time() + self._within_s
        if self._owed_bytes >= self._window_bytes:
            raise ProtocolError(f"a stream sends on without credit, {self._owed_bytes} bytes ahead of its reader")
        self._owed_bytes += weight(frame.body)
        self._items.append(frame.body)
        self._wake()

    def finish(self, error: CoterieError | None) -> None:
        """No more items will arrive."""
        assert not self._over, "a stream ends once"
        self._over, self._error = True, error
        self._wake()

    def expired(self) -> None:
        """The silence was too long."""
        if self._calls.closed(self._number) is not None:  # unless another expiry has cost the connection
            self._send(CancelFrame(self._number))
            self.finish(late(self._peer, self._within_s, "a stream" if self.target is None else self.target))

    def _give_back(self, size: int) -> None:
        self._given_bytes += size
        if not self._over and self._given_bytes * 2 >= self._window_bytes:
            self._owed_bytes -= self._given_bytes
            self._send(CreditFrame(self._number, self._given_bytes))
            self._given_bytes = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class StreamItems:
    """The result of `Transport.stream`: opens at the first item, ends at the last, at an error, or by `aclose`."""

    def __init__(self, opening: Callable[[], Coroutine[Any, Any, ReadStream]]) -> None:
        self._opening = opening
        self._reading: ReadStream | None = None
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._closed:
            raise StopAsyncIteration
        try:
            if self._reading is None:
                self._reading = await self._opening()
            item = await self._reading.next()
        except BaseException:
            await self.aclose()
            raise
        if item is None:
            self._closed = True
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        """Stop reading: the sender is notified."""
        self._closed = True
        if self._reading is not None:
            self._reading.close()


class WriteStream:
    """The sender's end: how much it may send, and who waits for credit."""

    __slots__ = ("_credit_bytes", "_over", "_waiter")

    def __init__(self, window_bytes: int) -> None:
        self._credit_bytes = window_bytes
        self._over = False
        self._waiter: asyncio.Future[None] | None = None

    async def wait_for_credit(self) -> bool:
        """Wait for credit; false if the stream is over.

        No deadline here: the reader has one, and so has the connection, and either ends this.
        """
        while self._credit_bytes <= 0 and not self._over:
            assert self._waiter is None, "a stream has one sender"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return not self._over

    def spend(self, item: bytes) -> None:
        """An item is sent."""
        self._credit_bytes -= weight(item)

    def add(self, more_bytes: int) -> None:
        """The reader has consumed items."""
        self._credit_bytes += more_bytes
        self._wake()

    def stop(self) -> None:
        """The stream is over."""
        self._over = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
