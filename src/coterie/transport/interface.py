"""What the rooms above see of the wires between runners: requests, notices and streams of opaque bytes.

    caller ── request(peer, route, body) ──▶ Handler.on_request(request) ── request.reply(body) ──▶ caller
           ── stream(peer, route, body) ───▶ Handler.on_request(request) ── await request.send(item) … request.end()
           ── notify(peer, route, body) ───▶ Handler.on_notify(…)

A route is a small number that both sides know; what it means, and what is in the bodies, is not the transport's.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from coterie.kernel.service import Service
from coterie.transport.protocol import FRAME_LIMIT_BYTES

if TYPE_CHECKING:
    import asyncio
    from asyncio import Future
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from coterie.transport.in_flight import PendingReply
    from coterie.transport.protocol import TermsFrame

Presence = Literal["present", "other", "refused", "stranger", "silent"]
"""What answers at an address: the runner; another incarnation; nobody; somebody without our secret; no answer."""


class PeerAddress(NamedTuple):
    """Where a runner listens, and which one it must be.

    Args:
        address: The literal `ip:port`, or what the wire in use has for one. Empty: only if it is connected already.
        incarnation: What it proves to be in the handshake.
    """

    address: str
    incarnation: str


@dataclass(frozen=True, kw_only=True)
class TransportLimits:
    """The bounds of a transport, with their reasons."""

    body_most_bytes: int = FRAME_LIMIT_BYTES
    """The setting `frame_limit`: larger bodies are refused before they are sent, and before they are read."""
    in_flight: int = 16_384
    """Requests of one side on one connection; more wait for room, within their deadline."""
    in_flight_bytes: int = 64 * 1024 * 1024
    """Their bodies together, and what waits to be written."""
    waiting: int = 16_384
    """Callers that wait for room on one connection; more are refused."""
    window_bytes: int = 256 * 1024
    """What a stream sends ahead of its reader."""
    ping_s: float = 5.0
    """After so much silence a sign of life is asked for …"""
    pings: int = 3
    """… and after so many in vain the connection is given up. Longer than a blocked loop may take (8 s)."""
    connect_s: float = 5.0
    """Connecting and the handshake together."""
    peers: int = 1_024
    """Connections, in both directions."""
    backoff_s: float = 0.05
    """How long a peer that could not be reached is left alone at first; doubled each time, with jitter …"""
    backoff_most_s: float = 2.0
    """… up to this."""
    goodbye_s: float = 1.0
    """How long whoever says goodbye waits for the other end to close."""

    def agreed(self, theirs: TermsFrame) -> TransportLimits:
        """What may be sent to a peer with such terms."""
        return replace(
            self,
            body_most_bytes=min(self.body_most_bytes, theirs.body_most_bytes),
            in_flight=min(self.in_flight, theirs.in_flight),
            in_flight_bytes=min(self.in_flight_bytes, theirs.in_flight_bytes),
        )


class Request(Protocol):
    """A request of a peer, answered once: by `reply`, by `fail`, or by `send`, `send`, …, `end` if it is a stream.

    Answers to a request that was cancelled, or whose connection is gone, are dropped.
    """

    @property
    def peer(self) -> str:
        """The incarnation that asks, proved in the handshake."""
        ...

    @property
    def route(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def arrived_s(self) -> float:
        """When it was read, in the loop's time; the same for all that were read together."""
        ...

    @property
    def until_s(self) -> float:
        """When the caller gives up, in the loop's time, give or take the way here."""
        ...

    @property
    def is_stream(self) -> bool: ...
    @property
    def is_open(self) -> bool:
        """Whether anybody still waits for the answer."""
        ...

    def reply(self, body: bytes) -> None: ...
    def fail(self, code: str, facts: Mapping[str, object]) -> None:
        """Raise the error of this code and these facts (`CoterieError.to_wire`) at the caller."""
        ...

    async def send(self, item: bytes) -> None:
        """Send an item of a stream; wait while the reader is a window behind.

        Raises:
            RunnerUnavailable: The reader has left.
        """
        ...

    def end(self) -> None: ...


class RequestHandler(Protocol):
    """Whoever answers. Called straight from the socket: no task per request, so it must neither block nor await."""

    def on_request(self, request: Request) -> None:
        """Answer now, or keep the request and answer later."""
        ...

    def on_cancel(self, request: Request) -> None:
        """Nobody waits for an answer any more: cancelled, or the connection is gone."""
        ...

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None: ...


class ItemStream(Protocol):
    """The items of a stream: `async for`, once. Whoever leaves before its end calls `aclose`."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def __anext__(self) -> bytes: ...
    async def aclose(self) -> None: ...


class Wire(Protocol):
    """How byte streams to other processes are made: TCP, TLS, the simulator's network."""

    async def listen(self, factory: Callable[[], asyncio.Protocol]) -> str:
        """Accept connections; the address that others are told."""
        ...

    async def connect(self, address: str, factory: Callable[[], asyncio.Protocol]) -> object:
        """Connect; the protocol has its transport when this returns.

        Raises:
            OSError: Nobody listens (`ConnectionRefusedError`), or it cannot be reached.
        """
        ...

    def made(self, transport: asyncio.BaseTransport) -> bool:
        """A connection is made, by either side. Whether it needs sealing: it leaves the host unprotected."""
        ...

    def gone(self, transport: asyncio.BaseTransport) -> None:
        """A connection is about to be closed."""
        ...

    async def close(self) -> None:
        """Listen no more. Connections go on."""
        ...


class Transport(Service, abc.ABC):
    """Requests to peers over one connection each, opened when needed.

    Promise:
        A request runs at most once: it is never sent again. Each caller gets exactly one outcome, within its
        deadline and a tick, and never that of another request, whatever was cancelled before (incident 39).

    Not promised:
        Order between requests. That a request whose caller got an error did not run, unless `sent` is false.
    """

    @property
    @abc.abstractmethod
    def address(self) -> str | None:
        """What others connect to; None for one that does not listen."""

    @abc.abstractmethod
    def request(
        self,
        peer: PeerAddress,
        route: int,
        body: bytes,
        *,
        within_s: float,
        headers: Mapping[str, str] | None = None,
        target: object = None,
    ) -> Awaitable[bytes]:
        """Ask a peer, connecting first if need be. Await it at once. Cancelling it tells the peer.

        Args:
            peer: Whom to ask.
            route: What to ask for.
            body: The rest, opaque here.
            within_s: How long to wait for the reply.
            headers: What tracing and the like put around the body.
            target: What the request is for, named in errors by its `str`, which is taken only then.

        Raises:
            SendTimeout: No reply in time; the handler may have run.
            RunnerUnavailable: No connection, or it broke; `sent` says whether the request can have arrived.
            MalformedMessage: The body is larger than the peer takes: not sent.
            ShuttingDown: This transport stops.
            CoterieError: What the handler failed with.
        """

    @abc.abstractmethod
    def ask(
        self, peer: PeerAddress, route: int, body: bytes, *, within_s: float, target: object, answer: Future[bytes]
    ) -> PendingReply | None:
        """The same without a coroutine, if it can leave at once: `answer` gets what `request` returns or raises.

        Returns:
            What to call if nobody waits for the answer any more; None: nothing was sent, and nothing will be.
        """

    @abc.abstractmethod
    def stream(
        self,
        peer: PeerAddress,
        route: int,
        body: bytes,
        *,
        within_s: float,
        headers: Mapping[str, str] | None = None,
        target: object = None,
    ) -> ItemStream:
        """Ask a peer for items. `within_s` is the longest silence, of the sender or of the reader.

        Raises what `request` does, at the first item or later.
        """

    @abc.abstractmethod
    def notify(self, peer: PeerAddress, route: int, body: bytes, *, headers: Mapping[str, str] | None = None) -> bool:
        """Tell a peer something, without a reply; false if it was dropped: not connected, or too much is waiting."""

    @abc.abstractmethod
    async def connect(self, peer: PeerAddress) -> None:
        """Have a connection to a peer, so that its loss is seen.

        Raises:
            RunnerUnavailable: It cannot be reached.
        """

    @abc.abstractmethod
    async def probe(self, peer: PeerAddress) -> Presence:
        """What answers at the address just now [M2]: a new connection, whatever exists already."""

    @property
    @abc.abstractmethod
    def is_waited_for(self) -> bool:
        """Whether any request waits for its reply."""

    @abc.abstractmethod
    def drop(self, peer: str, problem: str) -> None:
        """Close all connections to an incarnation at once; what waits for it gets `RunnerUnavailable`."""

    @abc.abstractmethod
    def connected(self, peer: PeerAddress) -> bool:
        """Whether there is a connection that takes requests."""

    @abc.abstractmethod
    def on_lost(self, callback: Callable[[str, str], None]) -> None:
        """Have `callback(incarnation, problem)` called whenever the last connection to a peer breaks.

        A peer that said goodbye, because it stopped or has only looked (`probe`), is not lost in this sense.
        """
