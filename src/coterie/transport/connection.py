"""One connection to a peer: handshake, then frames, in both directions. Over TCP, TLS or the simulator's network.

    greeting ──▶ open ──▶ leaving ──▶ lost          greeting: nothing is decoded (INV-X1)
        └──────────┴──────────────────▲             leaving: a Goodbye was sent or received; no new requests

Back-pressure: the requests of one side are bounded (`in_flight`), streams by their windows (`streams`), pending writes
by `outbox`. Reading stops only when a peer does not read what is written to it. It does not stop for requests that we
have no room for, since behind them may be the replies that our own handlers wait for: such requests are refused, and a
peer that keeps to our terms sends none.

A silent peer is pinged, and the connection is closed if it stays silent. Ticks are counted, not time: after a pause of
our own (a blocked loop, a suspended laptop) what the peer has sent meanwhile is read before the next tick, and counts.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from coterie.errors import CoterieError, ShuttingDown
from coterie.kernel import metrics
from coterie.transport import protocol
from coterie.transport.in_flight import OutgoingRequests, unavailable
from coterie.transport.outbox import Outbox
from coterie.transport.protocol import (
    AROUND_BODY_BYTES,
    Frames,
    GoodbyeFrame,
    NoticeFrame,
    PingFrame,
    PongFrame,
    ProtocolError,
    Refused,
    TermsFrame,
)
from coterie.transport.requests import PendingRequests
from coterie.transport.streams import ReadStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.transport.handshake import Established, Handshake
    from coterie.transport.interface import RequestHandler, TransportLimits
    from coterie.transport.listener import PendingSocket
    from coterie.transport.sealed_records import Opener


class Pulse:
    """The heartbeat of one connection.

    Args:
        loop: Its clock counts.
        limits: How often to ping, and how many unanswered pings to tolerate.
        ping: Sends a ping.
        moves: Whether the peer reads what we write, although we read nothing from it.
        give_up: Called once, with the reason.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: TransportLimits,
        *,
        ping: Callable[[], None],
        moves: Callable[[], bool],
        give_up: Callable[[str], None],
    ) -> None:
        self.heard = True  # set with each read
        self._loop = loop
        self._every_s, self._most = limits.ping_s, limits.pings
        self._ping, self._moves, self._give_up = ping, moves, give_up
        self._in_vain = 0
        self._timer = loop.call_later(self._every_s, self._tick)

    def stop(self) -> None:
        """Stop pinging."""
        self._timer.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._every_s, self._tick)
        if self.heard or self._moves():
            self.heard, self._in_vain = False, 0
        elif self._in_vain < self._most:
            self._in_vain += 1
            self._ping()
        else:
            self.stop()
            self._give_up(f"nothing heard from it for {self._every_s * (self._most + 1):g}s")


_decode = protocol.decode
_frames, _bytes, _open = metrics.FRAMES.of("received"), metrics.BYTES.of("received"), metrics.CONNECTIONS.of()


class Connection(asyncio.Protocol):
    """One connection.

    Args:
        handler: Answers the peer's requests.
        limits: The limits of this side.
        greet: Makes the handshake, once the transport is known.
        on_open: Called when the peer has authenticated itself and sent its terms.
        on_lost: Called once when the connection is lost, also if it never opened.
        on_gone: Called when its socket is about to be closed.
        enter: Registers an unauthenticated socket; None on the side that connects.
    """

    def __init__(
        self,
        *,
        handler: RequestHandler,
        limits: TransportLimits,
        greet: Callable[[asyncio.BaseTransport], Handshake],
        on_open: Callable[[Connection], None],
        on_lost: Callable[[Connection, Exception], None],
        on_gone: Callable[[asyncio.BaseTransport], None],
        enter: Callable[[Connection, asyncio.BaseTransport], PendingSocket] | None = None,
    ) -> None:
        self.is_ours = enter is None
        self.peer = ""
        self.is_open = self.is_leaving = self.is_lost = False
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self.opened: asyncio.Future[Exception | None] = self._loop.create_future()  # why it did not open, or None
        self.gone: asyncio.Future[None] = self._loop.create_future()  # the socket is closed
        self.calls: OutgoingRequests
        self._incoming: PendingRequests
        self._out: Outbox
        self._handler, self._limits = handler, limits
        self._greet, self._enter = greet, enter
        self._on_open, self._on_lost, self._on_gone = on_open, on_lost, on_gone
        self._pending: PendingSocket | None = None
        self._transport: asyncio.Transport | None = None
        self._handshake: Handshake
        self._established: Established | None = None
        self._opener: Opener | None = None
        self._frames = Frames(limits.body_most_bytes + AROUND_BODY_BYTES)
        self._read: Callable[[bytes], None] = self._greeted  # handles the next bytes, at this stage
        self._dispatch: dict[type, Callable[[Any], None]] = {}
        self._is_retired = self._is_left = False  # a Goodbye was sent; one was received
        self.was_told = False
        """Whether the peer announced that it closes: it stops, or was only probing. It did not die."""
        self._pulse: Pulse
        self._closing: asyncio.TimerHandle | None = None

    # For callers

    @property
    def is_usable(self) -> bool:
        """Whether new requests may be sent."""
        return self.is_open and not self.is_leaving

    def notify(self, route: int, body: bytes, headers: bytes) -> bool:
        """Send a notice; false if it was dropped."""
        if self._out.is_full or not self.is_usable or len(body) > self._terms.body_most_bytes:
            return False
        self._out.send(NoticeFrame(route, body, headers))
        return True

    async def stream(
        self, route: int, body: bytes, within_s: float, headers: bytes = b"", target: object = None
    ) -> ReadStream:
        """Open a stream."""
        await self.calls.enter(len(body), within_s, target)
        left_ms = int(max(within_s, 0.0) * 1000)
        request = protocol.RequestFrame(0, route, body, left_ms, headers, self._limits.window_bytes)
        return ReadStream(self.calls, self._out.send, request, peer=self.peer, within_s=within_s, target=target)

    def ping(self) -> None:
        """Send a ping; a connection that the peer does not know of breaks by it."""
        self._out.send(PingFrame())
        self._close_if_done()

    def retire(self, reason: str) -> None:
        """Send no new requests, let both sides finish those in flight, then close."""
        if self.is_open and not (self._is_retired or self.is_lost):
            self._is_retired = self.is_leaving = True
            self._out.send(GoodbyeFrame(reason))

    def close(self, reason: str) -> None:
        """Say goodbye and end all requests in flight. Then the peer closes, or we do after a while."""
        if self.is_open and not self.is_lost and self._transport is not None:
            self._out.send(GoodbyeFrame(reason, is_final=True, taken_id=self._incoming.last_id))
            self._out.flush()
            self._lose(ShuttingDown(what="the transport"))
            self._closing = self._loop.call_later(self._limits.goodbye_s, self._transport.abort)
        elif not self.is_lost:
            self.abort(ShuttingDown(what="the transport"))

    def abort(self, error: Exception) -> None:
        """Close at once."""
        self._lose(error)
        if self._transport is not None:
            self._transport.abort()
        elif not self.gone.done():
            self.gone.set_result(None)

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # a stream transport, though uvloop's does not inherit from it
        self._transport = transport
        self._out = Outbox(self._loop, transport, most_bytes=self._limits.in_flight_bytes, give_up=self._give_up)
        if self.is_lost:  # given up while it was being connected
            transport.abort()
            return
        if self._enter is not None:
            self._pending = self._enter(self, transport)
        self._handshake = self._greet(transport)
        transport.write(self._handshake.begin())

    def data_received(self, data: bytes) -> None:
        out = self._out
        was_holding, out.is_holding = out.is_holding, True  # the frames that this causes are sent together, at the end
        try:
            self._read(data)
        except (ProtocolError, Refused) as error:
            self._broken(error)
        out.is_holding = was_holding
        if out.frames:
            out.flush()
        if self._is_retired:
            self._close_if_done()

    def eof_received(self) -> None:
        """The peer closed: so do we, by returning None."""

    def pause_writing(self) -> None:
        self._out.pause()

    def resume_writing(self) -> None:
        self._out.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_lost:
            self._lose(self._handshake.closed() if self._established is None else self._loss(self._cut() or exc))
        if self._closing is not None:
            self._closing.cancel()
        if self._transport is not None:
            self._on_gone(self._transport)
        if not self.gone.done():
            self.gone.set_result(None)

    # The handshake

    def _greeted(self, data: bytes) -> None:
        assert self._transport is not None, "connection_made comes first"
        answer = self._handshake.receive(data)
        if answer:
            self._transport.write(answer)
        if self._handshake.done is not None:
            self._prove(self._handshake.done)
            self._read(self._handshake.done.leftover)

    def _prove(self, established: Established) -> None:
        """The peer is authenticated: from here on frames are decoded."""
        limits = self._limits
        self._pulse = Pulse(self._loop, limits, ping=self.ping, moves=self._out.moves, give_up=self._give_up)
        self._established, self.peer = established, established.peer
        self._out.sealer, self._opener = established.sealer, established.opener
        self._read = self._receive if self._opener is None else self._open
        if self._pending is not None:
            self._pending.admitted()
        self._incoming = PendingRequests(peer=self.peer, send=self._out.send, handler=self._handler, limits=limits)
        self._dispatch = dict.fromkeys(protocol.KINDS, _too_soon)
        self._dispatch |= {TermsFrame: self._agreed, PingFrame: self._pinged, PongFrame: _ignore}
        self._out.send(TermsFrame(limits.body_most_bytes, limits.in_flight, limits.in_flight_bytes))

    def _agreed(self, theirs: TermsFrame) -> None:
        """The peer's terms come first: from here on requests flow."""
        if self.is_open:
            raise ProtocolError("terms are said once")
        incoming = self._incoming
        self._terms = self._limits.agreed(theirs)
        incoming.agree(self._terms.body_most_bytes)
        self.calls = OutgoingRequests(self._loop, peer=self.peer, send=self._out.send, limits=self._terms)
        self._out.calls = self.calls
        self._dispatch |= {
            protocol.RequestFrame: incoming.asked,
            protocol.ReplyFrame: self.calls.replied,
            protocol.FailureFrame: self.calls.failed,
            protocol.CancelFrame: incoming.cancelled,
            protocol.NoticeFrame: incoming.noticed,
            protocol.ItemFrame: self.calls.item,
            protocol.EndFrame: self.calls.ended,
            protocol.CreditFrame: incoming.credited,
            GoodbyeFrame: self._parted,
        }
        self.is_open = True
        _open.value += 1
        metrics.CONNECTIONS_OPENED.of("us" if self.is_ours else "peer").value += 1
        self._on_open(self)
        if not self.opened.done():
            self.opened.set_result(None)

    # Frames

    def _open(self, data: bytes) -> None:
        assert self._opener is not None, "it is sealed"
        for verified in self._opener.open(data):
            self._receive(verified)

    def _receive(self, data: bytes) -> None:
        dispatch, count = self._dispatch, 0
        self._incoming.now_s = self._time()
        self._pulse.heard = True
        for body in self._frames.feed(data):
            count += 1
            try:
                frame = _decode(body)
            except protocol.MALFORMED as error:
                protocol.require_optional(body, error)
                continue
            dispatch[type(frame)](frame)
        _frames.value += count
        _bytes.value += len(data)

    def _pinged(self, frame: PingFrame) -> None:
        self._out.send(PongFrame(frame.number))

    def _parted(self, frame: GoodbyeFrame) -> None:
        """The peer sends no new requests; neither do we, and say so."""
        self._is_left = True
        if frame.is_final and self._transport is not None:
            self.was_told = True
            if frame.taken_id is not None:
                self.calls.left_id = min(self.calls.left_id, frame.taken_id)
            self._lose(self._loss(None))
            self._transport.close()
        elif not self._is_retired:
            self._is_retired = self.is_leaving = True
            self._out.send(GoodbyeFrame(frame.reason))

    def _close_if_done(self) -> None:
        """When both have said goodbye and nothing is in flight, the side that opened the connection closes it."""
        if self._is_left and self.is_ours and not (self.is_lost or len(self.calls) or len(self._incoming)):
            self.close("done")

    # The end

    def _give_up(self, problem: str) -> None:
        self.abort(unavailable(self.peer, problem, sent=True))

    def _broken(self, error: ProtocolError | Refused) -> None:
        if self._pending is not None and isinstance(error, Refused):
            self._pending.refused(error.reason)
        self.abort(error if isinstance(error, Refused) else unavailable(self.peer, f"it sent {error}", sent=True))

    def _loss(self, exc: Exception | None) -> CoterieError:
        why = f"the connection broke ({exc or 'closed by the other end'})"
        if self._is_left and not isinstance(exc, ProtocolError):
            why = "it said goodbye"
        return unavailable(self.peer, why, sent=True)

    def _cut(self) -> ProtocolError | None:
        """Whether it ended inside a sealed record: the peer died while writing, or the rest was cut off on the way."""
        try:
            if self._opener is not None:
                self._opener.end()
        except ProtocolError as error:
            return error
        return None

    def _lose(self, error: Exception) -> None:
        """End everything that depends on the connection, once."""
        if self.is_lost:
            return
        self.is_lost = self.is_leaving = True
        self._read = _ignore
        if self._established is not None:
            self._pulse.stop()
        if self._transport is not None:
            self._out.close()
        if self._pending is not None:
            self._pending.left()
        if self.is_open:
            _open.value -= 1
            assert isinstance(error, CoterieError), "callers get errors of ours"
            self.calls.lost(error)
        if self._established is not None:
            self._incoming.lost()
        self._on_lost(self, error)
        if not self.opened.done():
            self.opened.set_result(error)


def _too_soon(frame: object) -> None:
    raise ProtocolError(f"{type(frame).__name__} before the terms")


def _ignore(_: object) -> None:
    """A pong needs no handling: reading it is enough. Bytes read after the loss are dropped."""
