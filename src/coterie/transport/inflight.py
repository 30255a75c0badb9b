"""The requests of this side on one connection: who waits for which id, within which bounds and until when.

Ids count up and are never used again on a connection, so what arrives late for a request that was cancelled, or that
expired, finds nobody and is dropped; it can never be taken for the answer to another one (incident 39).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Protocol

from coterie.errors import CoterieError, MalformedMessage, RunnerUnavailable, SendTimeout, ShuttingDown
from coterie.transport.deadlines import Deadlines
from coterie.transport.envelopes import Cancel, Failure, Reply, Request, read_error
from coterie.transport.frames import ProtocolError

if TYPE_CHECKING:
    from coterie.transport.envelopes import End, Item
    from coterie.transport.interface import Limits
    from coterie.transport.streaming import Reading


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
        self.deadlines = Deadlines(loop, self._sweep)
        self._loop = loop
        self._peer = peer
        self._send = send
        self._limits = limits
        self._waiting: dict[int, tuple[asyncio.Future[bytes], float, int, float]] = {}
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
        until_s = self._loop.time() + within_s
        waiting[number] = (future, until_s, size, within_s)
        if until_s < self.deadlines.next_s:
            self.deadlines.arm(until_s)
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
        future, _, size, _ = entry
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
        self.deadlines.stop()
        assert not self._waiting, "nobody is left waiting"
        assert self._bytes == 0, "what is counted in is counted out"

    def _sweep(self, now_s: float) -> tuple[float, int]:
        for number in [number for number, (_, until_s, _, _) in self._waiting.items() if until_s <= now_s]:
            self._expired(number)
        for reading in [reading for reading in self.streams.values() if reading.until_s <= now_s]:
            reading.expired()
        left_s = [until_s for _, until_s, _, _ in self._waiting.values()]
        left_s += [reading.until_s for reading in self.streams.values()]
        return min(left_s, default=math.inf), len(left_s)

    def _expired(self, number: int) -> None:
        if number in self._waiting:  # unless one that expired before it has cost the connection
            waited_s = round(self._waiting[number][3], 3)
            self._end(number, SendTimeout(target=f"runner {self._peer}", waited_s=waited_s))
            self._send(Cancel(number))

    def _cancelled(self, number: int) -> None:
        if number in self._waiting:
            self._end(number, None)
            self._send(Cancel(number))

    def _end(self, number: int, error: CoterieError | None) -> None:
        future, _, size, _ = self._waiting.pop(number)
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
        if len(self._queue) >= self._limits.waiting:
            raise unavailable(self._peer, f"{len(self._queue)} requests wait for room already", sent=False)
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
        """Wait at the end of the line. Whoever is woken stays at its head until there is room: nobody overtakes."""
        queue, turn = self._queue, self._loop.create_future()
        queue.append(turn)
        try:
            while queue[0] is not turn or not self.has_room(size):
                if turn.done():
                    turn = queue[0] = self._loop.create_future()
                await turn
                self._require(route, size)
        finally:
            queue.remove(turn)
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

    def wake(self) -> None:
        """Something has ended: let the next one look whether there is room."""
        if self._queue and not self._queue[0].done() and len(self) < self._limits.in_flight:
            self._queue[0].set_result(None)


def unavailable(peer: str, problem: str, *, sent: bool) -> RunnerUnavailable:
    """The peer cannot be reached, and whether the request can have arrived."""
    hint = "" if sent else "it was not sent, so sending it again is safe"
    return RunnerUnavailable(runner=peer, target="a request", problem=problem, sent=sent, hint=hint)
