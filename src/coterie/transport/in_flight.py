"""The requests of this side on one connection: which caller waits for which id, within which bounds and until when.

Ids count up and are never reused on a connection, so what arrives late for a request that was cancelled, or that
expired, matches no request and is dropped; it can never be taken for the answer to another one (incident 39).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct

from coterie.errors import CoterieError, MalformedMessage, RunnerUnavailable, SendTimeout, ShuttingDown
from coterie.kernel.deadlines import Deadlines
from coterie.transport.protocol import CancelFrame, FailureFrame, ProtocolError, ReplyFrame, RequestFrame, read_error

if TYPE_CHECKING:
    from coterie.transport.interface import TransportLimits
    from coterie.transport.protocol import EndFrame, ItemFrame
    from coterie.transport.streams import ReadStream


def unavailable(peer: str, problem: str, *, sent: bool, target: object = None) -> RunnerUnavailable:
    """The peer cannot be reached; `sent` says whether the request can have arrived."""
    hint = "" if sent else "it was not sent, so sending it again is safe"
    return RunnerUnavailable(runner=peer, target=named(target), problem=problem, sent=sent, hint=hint)


def late(peer: str, within_s: float, target: object = None, *, hint: str = "") -> SendTimeout:
    """The peer has not answered in time; perhaps no time was left when the request was sent."""
    shown = f"runner {peer}" if target is None else f"{target} on runner {peer}"
    return SendTimeout(target=shown, waited_s=max(round(within_s, 3), 0.0), hint=hint)


def named(target: object) -> str:
    """The name of a request's target, for errors."""
    return "a request" if target is None else str(target)


SMALL_BYTES = 512
"""Bodies up to this size are not counted one by one: the bound on their number bounds them too."""


Answer: TypeAlias = "asyncio.Future[bytes] | asyncio.Future[bytes | None]"
"""Gets the reply or the error of a request. Its owner may set None itself."""


class FrameSender(Protocol):
    """Sends frames: see `Connection.send`."""

    def __call__(self, frame: object, lone: bool = False) -> None: ...


class PendingReply(Struct, eq=False, gc=False):
    """A request in flight."""

    calls: OutgoingRequests
    number: int

    def cancel(self) -> None:
        """The caller no longer waits for the answer."""
        self.calls.cancel(self.number)


class OutgoingRequests:
    """Requests that wait for their reply.

    Args:
        loop: Its clock counts.
        peer: The other end's incarnation, for errors.
        send: Queues a frame.
        limits: What the peer accepts: see `TermsFrame`.

    Promise:
        Each request ends once: reply, failure, expiry, cancellation or loss, whichever comes first.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, peer: str, send: FrameSender, limits: TransportLimits
    ) -> None:
        self.last_id = 0
        self.left_id = 0  # the last one that was passed to the socket
        self.dropped = 0
        self.streams: dict[int, ReadStream] = {}
        self.deadlines = Deadlines(loop, self._sweep)
        self._loop, self._time, self._create_future = loop, loop.time, loop.create_future
        self._peer = peer
        self._send = send
        self._limits = limits
        self._waiting: dict[int, tuple[Answer, float, float, object]] = {}
        self._sizes: dict[int, int] = {}  # of bodies that are not small
        self._bytes = 0
        self._most = limits.in_flight  # how many may wait before `enter` is needed: see `_recount`
        self._queue: deque[asyncio.Future[None]] = deque()
        self._ended: CoterieError | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self.streams)

    async def request(
        self, route: int, body: bytes, within_s: float, headers: bytes = b"", target: object = None
    ) -> bytes:
        """Send a request and wait for its reply. The hot path: everything rare is behind one comparison."""
        if len(self._waiting) >= self._most or len(body) > SMALL_BYTES:
            within_s -= await self.enter(len(body), within_s, target)
        answer: asyncio.Future[bytes] = self._create_future()
        number = self._put(answer, route, body, within_s, headers, target)
        try:
            return await answer
        except asyncio.CancelledError:
            self.cancel(number)
            raise

    def ask(self, answer: Answer, route: int, body: bytes, within_s: float, target: object) -> PendingReply | None:
        """Send a small request at once; `answer` gets its outcome. None: there is no room, and nothing was sent."""
        if len(self._waiting) >= self._most or len(body) > SMALL_BYTES:
            return None
        return PendingReply(self, self._put(answer, route, body, within_s, b"", target))

    def _put(
        self,
        answer: Answer,
        route: int,
        body: bytes,
        within_s: float,
        headers: bytes,
        target: object,
    ) -> int:
        """Send a request for which there is room. Returns: its id."""
        number = self.last_id = self.last_id + 1
        waiting = self._waiting
        until_s = self._time() + within_s
        if until_s < self.deadlines.next_s:
            self.deadlines.arm(until_s)
        lone = not waiting
        waiting[number] = (answer, until_s, within_s, target)
        left_ms = int(within_s * 1000) if within_s > 0 else 0  # its time may be over by now: it expires
        self._send(RequestFrame(number, route, body, left_ms, headers), lone)
        return number

    def opened(self, reading: ReadStream) -> int:
        """Register a stream that is about to be requested, after `enter`. Returns: its id."""
        number = self.last_id = self.last_id + 1
        self.streams[number] = reading
        self._recount()
        if reading.until_s < self.deadlines.next_s:
            self.deadlines.arm(reading.until_s)
        return number

    def closed(self, number: int) -> ReadStream | None:
        """Remove a stream that is over for this side; None if it was removed already."""
        reading = self.streams.pop(number, None)
        if reading is not None:
            self._recount()
            self._settle(number)
        return reading

    # Incoming frames

    def replied(self, frame: ReplyFrame) -> None:
        """A reply arrived."""
        try:
            self._waiting.pop(frame.id)[0].set_result(frame.body)
        except KeyError:
            self._unknown(frame.id)
            return
        except asyncio.InvalidStateError:
            pass  # cancelled, and its task has not run since
        if self._sizes or self._queue:
            self._settle(frame.id)

    def failed(self, frame: FailureFrame) -> None:
        """A request or a stream failed at the peer."""
        if frame.id in self._waiting:
            self._end(frame.id, read_error(frame))
        else:
            self._finish(frame.id, read_error(frame))

    def item(self, frame: ItemFrame) -> None:
        """An item of a stream arrived."""
        reading = self.streams.get(frame.id)
        if reading is None:
            self._unknown(frame.id)
        else:
            reading.receive(frame)

    def ended(self, frame: EndFrame) -> None:
        """A stream has ended."""
        self._finish(frame.id, None)

    def _finish(self, number: int, error: CoterieError | None) -> None:
        reading = self.closed(number)
        if reading is None:
            self._unknown(number)
        else:
            reading.finish(error)

    # Endings

    def lost(self, error: CoterieError) -> None:
        """The connection is lost: fail all requests, saying whether each can have been sent."""
        self._ended = error
        self._recount()
        for number, (_, _, _, target) in list(self._waiting.items()):
            self._end(number, self._loss(number, target))
        for number, reading in list(self.streams.items()):
            self.closed(number)
            reading.finish(self._loss(number, reading.target))
        for future in self._queue:
            if not future.done():
                future.set_result(None)  # it tries again, and finds out
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
        if number in self._waiting:  # unless an earlier expiry has cost the connection
            _, _, within_s, target = self._waiting[number]
            self._end(number, late(self._peer, within_s, target))
            self._send(CancelFrame(number))

    def cancel(self, number: int) -> None:
        """The caller no longer waits for the reply."""
        if number in self._waiting:
            self._end(number, None)
            self._send(CancelFrame(number))

    def _end(self, number: int, error: CoterieError | None) -> None:
        future = self._waiting.pop(number)[0]
        if error is not None and not future.done():
            future.set_exception(error)
        self._settle(number)

    def _unknown(self, number: int) -> None:
        if number > self.last_id or number == 0:
            raise ProtocolError(f"an answer to request {number}, and {self.last_id} were asked")
        self.dropped += 1

    def _loss(self, number: int, target: object) -> CoterieError:
        error = self._ended
        assert error is not None, "only after the loss"
        if isinstance(error, RunnerUnavailable):
            return unavailable(self._peer, error.problem, sent=number <= self.left_id, target=target)
        return ShuttingDown(what="the transport")  # one each: a traceback belongs to one caller

    # Room

    async def enter(self, size: int, within_s: float, target: object) -> float:
        """Wait for room, first come, first served, and take it for the next id. Returns: how long that took.

        Raises:
            SendTimeout, RunnerUnavailable, MalformedMessage: There will be none; nothing was sent.
        """
        began_s = self._time()
        self._require(size, target)
        if self._queue or not self._has_room(size):
            await self._wait(size, within_s, target)
        if size > SMALL_BYTES:
            self._sizes[self.last_id + 1] = size
            self._bytes += size
        return self._time() - began_s

    async def _wait(self, size: int, within_s: float, target: object) -> None:
        if len(self._queue) >= self._limits.waiting:
            problem = f"{len(self._queue)} requests wait for room already"
            raise unavailable(self._peer, problem, sent=False, target=target)
        try:
            async with asyncio.timeout(within_s):
                await self._line_up(size, target)
        except TimeoutError:
            hint = "it was not sent: too much was on its way to that runner already"
            raise late(self._peer, within_s, target, hint=hint) from None

    async def _line_up(self, size: int, target: object) -> None:
        """Wait at the end of the queue. A woken waiter stays at its head until there is room: none overtakes."""
        queue, turn = self._queue, self._create_future()
        queue.append(turn)
        self._recount()
        try:
            while queue[0] is not turn or not self._has_room(size):
                if turn.done():
                    turn = queue[0] = self._create_future()
                await turn
                self._require(size, target)
        finally:
            queue.remove(turn)
            self._recount()
            self._loop.call_soon(self._wake)  # after this one has taken its room, there may be some left

    def _require(self, size: int, target: object) -> None:
        if self._ended is not None:
            raise self._loss(self.last_id + 1, target)
        if size > self._limits.body_most_bytes:
            raise MalformedMessage(
                what=named(target),
                problem=f"{size} bytes, runner {self._peer} takes {self._limits.body_most_bytes}",
                hint="it was not sent; send less at once, or raise frame_limit on all runners",
            )

    def _has_room(self, size: int) -> bool:
        return len(self) < self._limits.in_flight and (
            self._bytes == 0 or self._bytes + size <= self._limits.in_flight_bytes
        )

    def _recount(self) -> None:
        """Recompute `_most`: no request overtakes the queue or uses a lost connection; streams count like requests."""
        is_open = self._ended is None and not self._queue
        self._most = self._limits.in_flight - len(self.streams) if is_open else 0

    def _settle(self, number: int) -> None:
        """A request has ended: let the next waiter check for room."""
        self._bytes -= self._sizes.pop(number, 0)
        self._wake()

    def _wake(self) -> None:
        if self._queue and not self._queue[0].done() and len(self) < self._limits.in_flight:
            self._queue[0].set_result(None)
