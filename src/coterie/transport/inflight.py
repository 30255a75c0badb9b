"""The requests of this side on one connection: who waits for which id, within which bounds and until when.

Ids count up and are never used again on a connection, so what arrives late for a request that was cancelled, or that
expired, finds nobody and is dropped; it can never be taken for the answer to another one (incident 39).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from coterie.errors import CoterieError, MalformedMessage, RunnerUnavailable, SendTimeout, ShuttingDown
from coterie.transport.envelopes import Cancel, Failure, Reply, Request, read_error
from coterie.transport.frames import ProtocolError
from coterie.transport.wheel import Wheel

if TYPE_CHECKING:
    from coterie.transport.envelopes import End, Item
    from coterie.transport.interface import Limits
    from coterie.transport.streaming import Reading
    from coterie.transport.wheel import Slot


SMALL_BYTES = 512
"""Bodies up to this are not weighed one by one: the bound on their number bounds them too."""


class Sends(Protocol):
    """How frames leave: see `Connection.send`."""

    def __call__(self, frame: object, lone: bool = False) -> None: ...


class Calls:
    """Requests that wait for their reply.

    Args:
        loop: Whose clock counts.
        peer: The other end's incarnation, for errors.
        send: Queues a frame.
        limits: What the peer takes: see `Terms`.

    Promise:
        Each request ends once: reply, failure, expiry, cancellation or loss, whichever comes first.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, peer: str, send: Sends, limits: Limits) -> None:
        self.last_id = 0
        self.left_id = 0  # the last one that was given to the socket
        self.dropped = 0
        self.streams: dict[int, Reading] = {}
        self.wheel = Wheel(loop, self._expired)
        self._loop = loop
        self._peer = peer
        self._send = send
        self._limits = limits
        self._waiting: dict[int, tuple[asyncio.Future[bytes], Slot, int, float]] = {}
        self._bytes = 0
        self._most = limits.in_flight  # zero once the connection is lost, so that the hot path sees it
        self._queue: deque[asyncio.Future[None]] = deque()
        self._ended: CoterieError | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self.streams)

    async def request(self, route: int, body: bytes, within_s: float, headers: bytes) -> bytes:
        """Send a request and wait for its reply."""
        size, waiting = len(body), self._waiting
        if len(waiting) >= self._most or self._queue or (size > SMALL_BYTES and not self.has_room(size)):
            within_s -= await self.room(route, size, within_s)
        number = self.last_id = self.last_id + 1
        future: asyncio.Future[bytes] = self._loop.create_future()
        lone = not waiting
        waiting[number] = (future, self.wheel.add(number, within_s), size, within_s)
        if size > SMALL_BYTES:
            self._bytes += size
        self._send(Request(number, route, body, int(within_s * 1000), headers), lone)
        try:
            return await future
        except asyncio.CancelledError:
            self._cancelled(number)
            raise

    # What arrives

    def replied(self, frame: Reply) -> None:
        """A reply came."""
        entry = self._waiting.pop(frame.id, None)
        if entry is None:
            self._unknown(frame.id)
            return
        future, slot, size, _ = entry
        del slot[frame.id]
        if size > SMALL_BYTES:
            self._bytes -= size
        if not future.cancelled():  # cancelled, and its task has not run since
            future.set_result(frame.body)
        if self._queue:
            self.wake()

    def failed(self, frame: Failure) -> None:
        """A request or a stream failed at the peer."""
        if frame.id in self.streams:
            self.streams.pop(frame.id).finish(read_error(frame))
        elif frame.id in self._waiting:
            self._end(frame.id, read_error(frame))
        else:
            self._unknown(frame.id)

    def item(self, frame: Item) -> None:
        """An item of a stream came."""
        reading = self.streams.get(frame.id)
        if reading is None:
            self._unknown(frame.id)
        else:
            reading.take(frame)

    def ended(self, frame: End) -> None:
        """A stream came to its end."""
        reading = self.streams.pop(frame.id, None)
        if reading is None:
            self._unknown(frame.id)
        else:
            reading.finish(None)

    # Ends

    def lost(self, error: CoterieError) -> None:
        """The connection is gone: tell everybody, and whether their request can have left."""
        self._ended = error
        self._most = 0
        for number in list(self._waiting):
            self._end(number, self._loss(number))
        for number in list(self.streams):
            self.streams.pop(number).finish(self._loss(number))
        for future in self._queue:
            if not future.done():
                future.set_result(None)  # it asks again, and finds out
        self._queue.clear()
        self.wheel.stop()
        assert not self._waiting, "nobody is left waiting"
        assert self._bytes == 0, "what is counted in is counted out"

    def _expired(self, number: int) -> None:
        if number in self.streams:
            self.streams[number].expired()
            return
        if number in self._waiting:  # unless one that expired before it has cost the connection
            waited_s = round(self._waiting[number][3], 3)
            self._end(number, SendTimeout(target=f"runner {self._peer}", waited_s=waited_s))
            self._send(Cancel(number))

    def _cancelled(self, number: int) -> None:
        if number in self._waiting:
            self._end(number, None)
            self._send(Cancel(number))

    def _end(self, number: int, error: CoterieError | None) -> None:
        future, slot, size, _ = self._waiting.pop(number)
        del slot[number]
        if size > SMALL_BYTES:
            self._bytes -= size
        if error is not None and not future.done():
            future.set_exception(error)
        self.wake()

    def _unknown(self, number: int) -> None:
        if number > self.last_id or number == 0:
            raise ProtocolError(f"an answer to request {number}, and {self.last_id} were asked")
        self.dropped += 1

    def _loss(self, number: int) -> CoterieError:
        error = self._ended
        assert error is not None, "only after the loss"
        if isinstance(error, RunnerUnavailable):
            return unavailable(self._peer, error.problem, sent=number <= self.left_id)
        return ShuttingDown(what="the transport")  # one each: a traceback belongs to one caller

    # Room

    def has_room(self, size: int) -> bool:
        """Whether a request of this size may be sent now."""
        return (
            self._ended is None
            and size <= self._limits.body_most_bytes
            and len(self) < self._limits.in_flight
            and (self._bytes == 0 or self._bytes + size <= self._limits.in_flight_bytes)
        )

    async def room(self, route: int, size: int, within_s: float) -> float:
        """Wait until there is room, in the order of coming; how long that took.

        Raises:
            SendTimeout, RunnerUnavailable, MalformedMessage: There will be none; nothing was sent.
        """
        began_s = self._loop.time()
        self._require(route, size)
        try:
            async with asyncio.timeout(within_s):
                await self._line_up(route, size)
        except TimeoutError:
            raise SendTimeout(
                target=f"runner {self._peer}",
                waited_s=round(within_s, 3),
                hint="it was not sent: too much was on its way to that runner already",
            ) from None
        return self._loop.time() - began_s

    async def _line_up(self, route: int, size: int) -> None:
        first = True
        while not self.has_room(size) or (first and self._queue):
            turn: asyncio.Future[None] = self._loop.create_future()
            if first:
                self._queue.append(turn)
            else:
                self._queue.appendleft(turn)  # it was the first, and stays it
            first = False
            try:
                await turn
            except asyncio.CancelledError:
                if turn in self._queue:
                    self._queue.remove(turn)
                else:
                    self.wake()  # its turn goes to the next
                raise
            self._require(route, size)
        self._loop.call_soon(self.wake)  # after this one has taken its room, there may be some left

    def _require(self, route: int, size: int) -> None:
        if self._ended is not None:
            raise self._loss(self.last_id + 1)
        if size > self._limits.body_most_bytes:
            raise MalformedMessage(
                what=f"a message on route {route}",
                problem=f"{size} bytes, runner {self._peer} takes {self._limits.body_most_bytes}",
                hint="it was not sent; send less at once, or raise frame_limit on all runners",
            )
        if len(self._queue) >= self._limits.waiting:
            raise unavailable(self._peer, f"{len(self._queue)} requests wait for room already", sent=False)

    def wake(self) -> None:
        """Something has ended: let the next one in."""
        while self._queue and self._queue[0].done():
            self._queue.popleft()
        if self._queue and (len(self) < self._limits.in_flight):
            self._queue.popleft().set_result(None)


def unavailable(peer: str, problem: str, *, sent: bool) -> RunnerUnavailable:
    """The peer cannot be reached, and whether the request can have arrived."""
    hint = "" if sent else "it was not sent, so sending it again is safe"
    return RunnerUnavailable(runner=peer, target="a request", problem=problem, sent=sent, hint=hint)
