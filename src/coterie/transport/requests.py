"""The requests of peers: passed at once to the handler of their route, which answers at any time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from weakref import ref

from msgspec import Struct

from coterie.errors import CoterieError, MalformedMessage, RemoteError, RunnerUnavailable
from coterie.transport.in_flight import SMALL_BYTES, FrameSender, unavailable
from coterie.transport.protocol import (
    EndFrame,
    FailureFrame,
    ItemFrame,
    ProtocolError,
    ReplyFrame,
    pack_error,
    read_headers,
)
from coterie.transport.streams import WriteStream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coterie.transport import protocol
    from coterie.transport.interface import Request, RequestHandler, TransportLimits
    from coterie.transport.protocol import CancelFrame, CreditFrame, NoticeFrame


OPEN, WEIGHED, LEFT, ANSWERED = range(4)
"""States of a request: the caller waits; the same, and it is a stream or large; it no longer waits; answered."""


class IncomingRequest(Struct, eq=False, gc=False):
    """A request of a peer; see `interface.Request`. A Struct, since creating one takes half the time of a class.

    Thousands may wait, so they are exempt from garbage collection. Therefore none may refer to what refers to it: to
    its `PendingRequests` only weakly, to its `WriteStream` not at all.
    """

    pending: Callable[[], PendingRequests | None]  # a weak reference
    peer: str
    frame: protocol.RequestFrame
    id: int
    route: int
    body: bytes
    arrived_s: float
    until_s: float
    is_stream: bool
    state: int = OPEN

    @property
    def headers(self) -> Mapping[str, str]:
        return read_headers(self.frame.headers)

    @property
    def is_open(self) -> bool:
        return self.state < LEFT

    def reply(self, body: bytes) -> None:
        pending = self.pending()
        if self.state or pending is None or len(body) > pending.small_bytes:
            self._reply(body)
            return
        self.state = ANSWERED  # the hot path: `PendingRequests.reply` inlined
        del pending.waiting[self.id]
        pending.queue(ReplyFrame(self.id, body), not pending.waiting)

    def _reply(self, body: bytes) -> None:
        assert not self.is_stream, "a stream is answered by send and end"
        if (pending := self._end()) is not None:
            pending.reply(self, body)

    def fail(self, code: str, facts: Mapping[str, object]) -> None:
        if (pending := self._end()) is not None:
            pending.fail(self, CoterieError.from_wire(code, facts))

    async def send(self, item: bytes) -> None:
        assert self.is_stream, "only a stream has items"
        assert self.state != ANSWERED, "the stream has ended"
        pending = self.pending()
        if pending is None or not self.is_open:
            raise reader_gone(self.peer)
        await pending.send(self, item)

    def end(self) -> None:
        assert self.is_stream, "only a stream has an end"
        if (pending := self._end()) is not None:
            pending.end(self)

    def _end(self) -> PendingRequests | None:
        """Mark it as answered. Returns None if the caller no longer waits."""
        assert self.state != ANSWERED, "a request is answered once"
        pending = self.pending() if self.is_open else None
        self.state = ANSWERED
        return pending


def reader_gone(peer: str) -> RunnerUnavailable:
    """The reader of a stream no longer waits."""
    return unavailable(peer, "the reader of the stream has left", sent=False)


log = logging.getLogger("coterie")


class PendingRequests:
    """Requests that wait for our answer.

    Args:
        peer: The other end's incarnation.
        send: Queues a frame.
        handler: Answers the requests.
        limits: The limits of this side, as sent to the peer: a peer that keeps to them is never refused.
    """

    def __init__(self, *, peer: str, send: FrameSender, handler: RequestHandler, limits: TransportLimits) -> None:
        self.peer = peer
        self.now_s = 0.0  # set by the connection once for each read
        self.agree(limits.body_most_bytes)
        self.waiting: dict[int, IncomingRequest] = {}
        self.queue = send
        self._me = ref(self)
        self._sendings: dict[int, WriteStream] = {}
        self._on_request = handler.on_request
        self._handler = handler
        self._limits = limits
        self._bytes = 0  # of bodies that are not small
        self.last_id = 0  # the last request received
        self._most = limits.in_flight  # zero once the connection is lost
        self._over = False

    def __len__(self) -> int:
        return len(self.waiting)

    def agree(self, body_most_bytes: int) -> None:
        """Set what the peer accepts of replies and items."""
        self._body_most_bytes = body_most_bytes
        self.small_bytes = min(SMALL_BYTES, body_most_bytes)

    # Incoming frames

    def asked(self, frame: protocol.RequestFrame) -> None:
        """A request arrived."""
        number, body, waiting, now_s = frame.id, frame.body, self.waiting, self.now_s
        if number <= self.last_id:
            raise ProtocolError(f"request {number} after request {self.last_id}: ids are never used again")
        self.last_id = number
        until_s, is_stream = now_s + frame.left_ms / 1000, frame.window_bytes > 0
        waiting[number] = request = IncomingRequest(
            self._me, self.peer, frame, number, frame.route, body, now_s, until_s, is_stream
        )
        if (len(waiting) > self._most or len(body) > SMALL_BYTES or is_stream) and not self._weighed(request):
            return
        try:
            self._on_request(request)
        except Exception as error:  # a bug above must not cost the other requests their connection
            log.exception("the handler of route %d failed", frame.route)
            if request.is_open:
                failure = RemoteError(type_name=type(error).__name__, problem=str(error), remote_traceback="")
                request.fail(*failure.to_wire())

    def cancelled(self, frame: CancelFrame) -> None:
        """The caller no longer waits. Unknown: our answer and its cancellation have crossed."""
        request = self.waiting.get(frame.id)
        if request is not None:
            self._cancel(request)

    def credited(self, frame: CreditFrame) -> None:
        """The reader of a stream has consumed."""
        if frame.id in self._sendings:
            self._sendings[frame.id].add(frame.more_bytes)
        elif frame.id in self.waiting:
            raise ProtocolError(f"credit for request {frame.id}, which is no stream")

    def noticed(self, frame: NoticeFrame) -> None:
        """A notice arrived."""
        if not self._over:
            try:
                self._handler.on_notify(self.peer, frame.route, frame.body, read_headers(frame.headers))
            except Exception:  # as above
                log.exception("the handler of notices on route %d failed", frame.route)

    # Answers

    def reply(self, request: IncomingRequest, body: bytes) -> None:
        """Answer with a reply."""
        self._close(request)
        if len(body) > self._body_most_bytes:
            self.queue(FailureFrame(request.id, *pack_error(self._too_large("the reply to", request, body))))
        else:
            self.queue(ReplyFrame(request.id, body), not self.waiting)

    def fail(self, request: IncomingRequest, error: CoterieError) -> None:
        """Answer with an error."""
        self._close(request)
        self.queue(FailureFrame(request.id, *pack_error(error)))

    async def send(self, request: IncomingRequest, item: bytes) -> None:
        """Send an item when there is credit."""
        if len(item) > self._body_most_bytes:
            raise self._too_large("an item of the stream from", request, item)
        sending = self._sendings[request.id]
        if not await sending.wait_for_credit():
            raise reader_gone(self.peer)
        sending.spend(item)
        self.queue(ItemFrame(request.id, item))

    def end(self, request: IncomingRequest) -> None:
        """End a stream."""
        self._close(request)
        self.queue(EndFrame(request.id))

    def lost(self) -> None:
        """The connection is lost, or about to be: no caller waits for any of these."""
        self._over = True
        self._most = 0
        for request in list(self.waiting.values()):
            self._cancel(request)
        assert self._bytes == 0, "what is counted in is counted out"

    def _close(self, request: IncomingRequest) -> None:
        """It is over for this side, answered or not."""
        del self.waiting[request.id]
        if len(request.body) > SMALL_BYTES:
            self._bytes -= len(request.body)
        if request.is_stream:
            self._sendings.pop(request.id).stop()

    def _cancel(self, request: IncomingRequest) -> None:
        """Its caller no longer waits."""
        self._close(request)
        request.state = LEFT
        try:
            self._handler.on_cancel(request)
        except Exception:  # as above
            log.exception("the handler failed on the cancellation of a request on route %d", request.route)

    def _weighed(self, request: IncomingRequest) -> bool:
        """Count a request that is a stream or large; refuse it if it exceeds the limits that we sent."""
        size = len(request.body)
        weight = size if size > SMALL_BYTES else 0
        if len(self.waiting) > self._most or (weight and not self._has_room(weight)):
            del self.waiting[request.id]
            request.state = ANSWERED
            self._refuse(request.id)
            return False
        self._bytes += weight
        request.state = WEIGHED
        if request.is_stream:
            self._sendings[request.id] = WriteStream(request.frame.window_bytes)
        return True

    def _has_room(self, size: int) -> bool:
        return self._bytes == 0 or self._bytes + size <= self._limits.in_flight_bytes

    def _refuse(self, number: int) -> None:
        problem = "it is stopping" if self._over else "more is in flight than it takes"
        self.queue(FailureFrame(number, *pack_error(unavailable("at the other end", problem, sent=False))))

    def _too_large(self, what: str, request: IncomingRequest, body: bytes) -> MalformedMessage:
        return MalformedMessage(
            what=f"{what} route {request.route}",
            problem=f"{len(body)} bytes, runner {self.peer} takes {self._body_most_bytes}",
            hint="send less at once, or raise frame_limit on all runners",
        )


class Routes:
    """The handler of a transport: dispatches to the handler of each route."""

    def __init__(self) -> None:
        self._handlers: dict[int, RequestHandler] = {}
        self._on_request: dict[int, Callable[[Request], None]] = {}

    def register(self, route: int, handler: RequestHandler) -> None:
        """Register `handler` for a route."""
        assert route not in self._handlers, f"route {route} is taken"
        self._handlers[route] = handler
        self._on_request[route] = handler.on_request

    def on_request(self, request: Request) -> None:
        """Dispatch a request, or refuse an unknown route: it comes from a newer version."""
        self._on_request.get(request.route, _refuse)(request)

    def on_cancel(self, request: Request) -> None:
        """Dispatch a cancellation."""
        if (handler := self._handlers.get(request.route)) is not None:
            handler.on_cancel(request)

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Dispatch a notice; those on unknown routes are dropped."""
        if (handler := self._handlers.get(route)) is not None:
            handler.on_notify(peer, route, body, headers)


def _refuse(request: Request) -> None:
    what = f"a request on route {request.route}"
    request.fail(*MalformedMessage(what=what, problem="this runner knows no such route").to_wire())
