"""One end of a connection without a network or a handshake, and a handler that answers at random."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from coterie.transport.connection import Connection
from coterie.transport.handshake import Established
from coterie.transport.interface import TransportLimits
from coterie.transport.protocol import Frames, Refused, TermsFrame, decode, encode
from tests.support.transport import framed

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from coterie.transport.handshake import Handshake
    from coterie.transport.interface import Request

LIMITS = TransportLimits(body_most_bytes=64 * 1024, in_flight=50, in_flight_bytes=512 * 1024, window_bytes=4_096)
TERMS = framed([encode(TermsFrame(LIMITS.body_most_bytes, LIMITS.in_flight, LIMITS.in_flight_bytes))])


class Sink(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.sizes: list[int] = []  # of single writes
        self.is_closed = self.is_paused = False

    def write(self, data: Any) -> None:
        self.written += data
        self.sizes.append(len(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def frames(self) -> list[Any]:
        """What was written since the last time."""
        frames = [decode(body) for body in Frames().feed(bytes(self.written))]
        self.written.clear()
        return frames


class Proved:
    """A handshake that is over before it begins."""

    def __init__(self) -> None:
        self.done: Established | None = None

    def begin(self) -> bytes:
        return b""

    def receive(self, data: bytes) -> bytes:
        self.done = Established("peer", 1, data, None, None)
        return b""

    def closed(self) -> Refused:
        return Refused("closed")


class Answering:
    """Answers at once, later, or not at all, as chance will have it."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.chance = chance
        self.kept: list[Request] = []
        self.cancelled: list[Request] = []
        self.notices: list[bytes] = []

    def on_request(self, request: Request) -> None:
        if self.chance is None:
            self.kept.append(request)
        elif request.is_stream or self.chance.random() < 0.3:
            if len(self.kept) < 100:
                self.kept.append(request)
            else:
                request.fail("runner_full", {})
        else:
            request.reply(request.body)

    def on_cancel(self, request: Request) -> None:
        self.cancelled.append(request)
        if request in self.kept:
            self.kept.remove(request)

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.notices.append(body)


class Lone:
    """A connection whose peer is the test."""

    def __init__(
        self, *, handler: Answering | None = None, limits: TransportLimits = LIMITS, agreed: bool = True
    ) -> None:
        self.handler = handler or Answering()
        self.errors: list[Exception] = []
        self.sink = Sink()

        def greet(_: asyncio.BaseTransport) -> Handshake:
            return Proved()  # type: ignore[return-value] # what a connection uses of one

        self.connection = Connection(
            handler=self.handler,
            limits=limits,
            greet=greet,
            on_open=lambda _: None,
            on_lost=lambda _, error: self.errors.append(error),
            on_gone=lambda _: None,
        )
        self.connection.connection_made(self.sink)
        self.connection.data_received(TERMS if agreed else b"")
        self.sink.written.clear()
        self.sink.sizes.clear()

    def say(self, *frames: Any) -> list[Any]:
        """Let the peer send frames; what the connection sends back."""
        self.connection.data_received(framed(map(encode, frames)))
        return self.sink.frames()
