"""The requests of the other side on one connection: handed to the handler at once, answered when it likes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from coterie.errors import CoterieError, MalformedMessage, RemoteError
from coterie.transport.envelopes import End, Failure, Item, Reply, pack_error, read_headers
from coterie.transport.frames import ProtocolError
from coterie.transport.inflight import SMALL_BYTES, unavailable
from coterie.transport.streaming import Sending

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coterie.transport import envelopes
    from coterie.transport.envelopes import Cancel, Credit, Notice
    from coterie.transport.inflight import Sends
    from coterie.transport.interface import Handler, Limits

log = logging.getLogger("coterie")


class Request(Struct, eq=False):
    """A request of a peer; see `interface.Request`. A Struct, since those are made in a fifth of a class's time."""

    answers: Any  # an Answers; Any, since msgspec would look for the name
    id: int
    route: int
    body: bytes
    arrived_s: float
    left_ms: int
    raw_headers: bytes
    sending: Any  # a Sending if it is a stream
    is_open: bool = True
    is_answered: bool = False

    @property
    def peer(self) -> str:
        return str(self.answers.peer)

    @property
    def until_s(self) -> float:
        return float(self.arrived_s + self.left_ms / 1000)

    @property
    def headers(self) -> Mapping[str, str]:
        return read_headers(self.raw_headers)

    @property
    def is_stream(self) -> bool:
        return self.sending is not None

    def reply(self, body: bytes) -> None:
        assert self.sending is None, "a stream is answered by send and end"
        assert not self.is_answered, "a request is answered once"
        self.is_answered = True
        if self.is_open:
            self.answers.reply(self, body)

    def fail(self, code: str, facts: Mapping[str, object]) -> None:
        self.answers.fail(self, CoterieError.from_wire(code, facts))

    async def send(self, item: bytes) -> None:
        await self.answers.send(self, item)

    def end(self) -> None:
        self.answers.end(self)


class Answers:
    """Requests that wait for our answer.

    Args:
        peer: The other end's incarnation.
        send: Queues a frame.
        handler: Who answers.
        limits: What this side takes, as it told the peer: a peer that keeps to it is never refused.
    """

    def __init__(self, *, peer: str, send: Sends, handler: Handler, limits: Limits) -> None:
        self.peer = peer
        self.now_s = 0.0  # set by the connection once for each read
        self.body_most_bytes = limits.body_most_bytes
        self._send = send
        self._on_request = handler.on_request
        self._handler = handler
        self._limits = limits
        self._open: dict[int, Request] = {}
        self._bytes = 0
        self._last_id = 0
        self._most = limits.in_flight  # zero once the connection is lost
        self._over = False

    def __len__(self) -> int:
        return len(self._open)

    # What arrives

    def asked(self, frame: envelopes.Request) -> None:
        """A request came."""
        number, size = frame.id, len(frame.body)
        if number <= self._last_id:
            raise ProtocolError(f"request {number} after request {self._last_id}: ids are never used again")
        self._last_id = number
        if len(self._open) >= self._most or (size > SMALL_BYTES and not self._has_room(size)):
            self._refuse(number)
            return
        sending = Sending(frame.window_bytes) if frame.window_bytes else None
        request = Request(self, number, frame.route, frame.body, self.now_s, frame.left_ms, frame.headers, sending)
        self._open[number] = request
        if size > SMALL_BYTES:
            self._bytes += size
        try:
            self._on_request(request)
        except Exception as error:  # a bug above must not cost the other requests their connection
            log.exception("the handler of route %d failed", frame.route)
            if request.is_open:
                self.fail(request, RemoteError(type_name=type(error).__name__, problem=str(error), remote_traceback=""))

    def cancelled(self, frame: Cancel) -> None:
        """The caller has left. Unknown: our answer and its cancellation have crossed."""
        request = self._open.get(frame.id)
        if request is not None:
            self._close(request)
            self._tell(request)

    def credited(self, frame: Credit) -> None:
        """The reader of a stream has consumed."""
        request = self._open.get(frame.id)
        if request is not None:
            if request.sending is None:
                raise ProtocolError(f"credit for request {frame.id}, which is no stream")
            request.sending.add(frame.more_bytes)

    def noticed(self, frame: Notice) -> None:
        """A notice came."""
        if not self._over:
            try:
                self._handler.on_notify(self.peer, frame.route, frame.body, read_headers(frame.headers))
            except Exception:  # as above
                log.exception("the handler of notices on route %d failed", frame.route)

    # Answers

    def reply(self, request: Request, body: bytes) -> None:
        """Answer an open request: the hot path, so `_close` is spelled out."""
        request.is_open = False
        del self._open[request.id]
        if len(request.body) > SMALL_BYTES:
            self._bytes -= len(request.body)
        if len(body) > self.body_most_bytes:
            self._send(Failure(request.id, *pack_error(self._too_large("the reply to", request, body))))
        else:
            self._send(Reply(request.id, body), not self._open)

    def fail(self, request: Request, error: CoterieError) -> None:
        """Answer by an error; dropped if nobody waits."""
        if self._answered(request):
            self._send(Failure(request.id, *pack_error(error)))

    async def send(self, request: Request, item: bytes) -> None:
        """Send an item when there is credit."""
        assert request.sending is not None, "only a stream has items"
        assert not request.is_answered, "the stream has ended"
        if len(item) > self.body_most_bytes:
            raise self._too_large("an item of the stream from", request, item)
        if not await request.sending.room():
            raise unavailable(self.peer, "the reader of the stream has left", sent=False)
        request.sending.spend(item)
        self._send(Item(request.id, item))

    def end(self, request: Request) -> None:
        """End a stream; dropped if nobody reads."""
        assert request.sending is not None, "only a stream has an end"
        if self._answered(request):
            self._send(End(request.id))

    def lost(self) -> None:
        """The connection is gone, or about to be: nobody waits for any of these."""
        self._over = True
        self._most = 0
        for request in list(self._open.values()):
            self._close(request)
            self._tell(request)
        assert self._bytes == 0, "what is counted in is counted out"

    def _answered(self, request: Request) -> bool:
        assert not request.is_answered, "a request is answered once"
        request.is_answered = True
        if not request.is_open:
            return False
        self._close(request)
        return True

    def _close(self, request: Request) -> None:
        del self._open[request.id]
        if len(request.body) > SMALL_BYTES:
            self._bytes -= len(request.body)
        request.is_open = False
        if request.sending is not None:
            request.sending.stop()

    def _tell(self, request: Request) -> None:
        try:
            self._handler.on_cancel(request)
        except Exception:  # as above
            log.exception("the handler failed on the cancellation of a request on route %d", request.route)

    def _has_room(self, size: int) -> bool:
        return self._bytes == 0 or self._bytes + size <= self._limits.in_flight_bytes

    def _refuse(self, number: int) -> None:
        problem = "it is stopping" if self._over else "more is in flight than it takes"
        self._send(Failure(number, *pack_error(unavailable("at the other end", problem, sent=False))))

    def _too_large(self, what: str, request: Request, body: bytes) -> MalformedMessage:
        return MalformedMessage(
            what=f"{what} route {request.route}",
            problem=f"{len(body)} bytes, runner {self.peer} takes {self.body_most_bytes}",
            hint="send less at once, or raise frame_limit on all runners",
        )
