"""The interface of the transport: requests, notices and streams of opaque bytes between runners.

    caller ── request(peer, route, body) ──▶ RequestHandler.on_request(request) ── request.reply(body) ──▶ caller
           ── stream(peer, route, body) ───▶ RequestHandler.on_request(request) ── await send(item) … end()
           ── notify(peer, route, body) ───▶ RequestHandler.on_notify(…)

A route is a small number that both sides know; its meaning and the content of the bodies are opaque to the transport.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from coterie.kernel.service import Service
from coterie.transport.protocol import FRAME_LIMIT_BYTES, TermsFrame

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from coterie.transport.in_flight import Answer, PendingReply

Presence = Literal["present", "other", "refused", "stranger", "silent"]
"""What a probe finds at an address: the runner; another incarnation; no listener; a process without our secret; no
answer."""


class Route:
    """The routes of this protocol version. A number is never used again for something else."""

    OWNERSHIP: Final = 1
    """Notices about seats: offers, and hints that something has changed."""
    CALL: Final = 2
    """A volatile call of an entity."""
    BROADCAST: Final = 3
    """A call of all active entities of a type."""
    MESSAGE: Final = 4
    """A persisted message for its owner."""
    OBSERVE: Final = 5
    """What a runner knows of itself."""
    QUESTION: Final = 6
    """Calls by name, and lists of active entities, for clients that do not have the program."""
    JOB: Final = 7
    """Jobs of tasks: what is new, what may start where, what is over."""


class PeerAddress(NamedTuple):
    """The address of a runner, and the incarnation expected there.

    Args:
        address: The literal `ip:port`, or the equivalent of the wire in use. Empty: use an existing connection only.
        incarnation: The incarnation that it must prove in the handshake.
    """

    address: str
    incarnation: str


@dataclass(frozen=True, kw_only=True)
class TransportLimits:
    """The bounds of a transport, with their reasons."""

    body_most_bytes: int = FRAME_LIMIT_BYTES
    """The setting `frame_limit`: larger bodies are refused before they are sent, and before they are read."""
    in_flight: int = 16_384
    """Requests of one side on one connection; further ones wait for room, within their deadline."""
    in_flight_bytes: int = 64 * 1024 * 1024
    """The total size of their bodies, and of what waits to be written."""
    waiting: int = 16_384
    """Callers that wait for room on one connection; further ones are refused."""
    window_bytes: int = 256 * 1024
    """What a stream may send ahead of its reader."""
    ping_s: float = 5.0
    """After this much silence a ping is sent …"""
    pings: int = 3
    """… and after this many unanswered pings the connection is closed. Longer than a loop may block (8 s)."""
    connect_s: float = 5.0
    """Limit for connecting and the handshake together."""
    peers: int = 1_024
    """Connections, in both directions."""
    backoff_s: float = 0.05
    """How long a peer that could not be reached is not retried at first; doubled each time, with jitter …"""
    backoff_most_s: float = 2.0
    """… up to this."""
    goodbye_s: float = 1.0
    """How long the sender of a goodbye waits for the other end to close."""

    def agreed(self, theirs: TermsFrame) -> TransportLimits:
        """The limits for what may be sent to a peer with such terms."""
        return replace(
            self,
            body_most_bytes=min(self.body_most_bytes, theirs.body_most_bytes),
            in_flight=min(self.in_flight, theirs.in_flight),
            in_flight_bytes=min(self.in_flight_bytes, theirs.in_flight_bytes),
        )


class Request(Protocol):
    """A request from a peer, answered once: by `reply`, by `fail`, or by `send`, `send`, …, `end` if it is a stream.

    Answers to a request that was cancelled, or whose connection is lost, are dropped.
    """

    @property
    def peer(self) -> str:
        """The incarnation of the caller, proved in the handshake."""
        ...

    @property
    def route(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def arrived_s(self) -> float:
        """When it was read, in the loop's time; the same for all requests of one read."""
        ...

    @property
    def until_s(self) -> float:
        """When the caller gives up, in the loop's time, within the time in transit."""
        ...

    @property
    def is_stream(self) -> bool: ...
    @property
    def is_open(self) -> bool:
        """Whether the caller still waits for the answer."""
        ...

    def reply(self, body: bytes) -> None: ...
    def fail(self, code: str, facts: Mapping[str, object]) -> None:
        """Make the caller raise the error of this code and these facts (`CoterieError.to_wire`)."""
        ...

    async def send(self, item: bytes) -> None:
        """Send an item of a stream; wait while the reader is a window behind.

        Raises:
            RunnerUnavailable: The reader has closed the stream, or its connection is lost.
        """
        ...

    def end(self) -> None: ...


class RequestHandler(Protocol):
    """Answers requests. Called straight from the socket: no task per request, so it must neither block nor await."""

    def on_request(self, request: Request) -> None:
        """Answer now, or keep the request and answer later."""
        ...

    def on_cancel(self, request: Request) -> None:
        """The caller no longer waits for an answer: it cancelled, or the connection is lost."""
        ...

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None: ...


class ItemStream(Protocol):
    """The items of a stream: `async for`, once. A reader that stops before the end calls `aclose`."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def __anext__(self) -> bytes: ...
    async def aclose(self) -> None: ...


class Wire(Protocol):
    """Makes byte streams to other processes: TCP, TLS, the simulator's network."""

    async def listen(self, factory: Callable[[], asyncio.Protocol]) -> str:
        """Accept connections. Returns: the address to advertise."""
        ...

    async def connect(self, address: str, factory: Callable[[], asyncio.Protocol]) -> object:
        """Connect; the protocol has its transport when this returns.

        Raises:
            OSError: The connection was refused (`ConnectionRefusedError`), or the address cannot be reached.
        """
        ...

    def made(self, transport: asyncio.BaseTransport) -> bool:
        """A connection was made, by either side. Returns: whether to seal it, since it leaves the host unprotected."""
        ...

    def gone(self, transport: asyncio.BaseTransport) -> None:
        """A connection is about to be closed."""
        ...

    async def close(self) -> None:
        """Stop listening. Connections stay open."""
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
        """The address to which others connect; None for a client, which does not listen."""

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
        """Send a request to a peer, connecting first if need be. Await it at once. Cancelling it notifies the peer.

        Args:
            peer: The receiver.
            route: The route at the receiver.
            body: The body, opaque here.
            within_s: How long to wait for the reply.
            headers: Metadata such as the trace context.
            target: What the request is for, named in errors by its `str`, which is evaluated only then.

        Raises:
            SendTimeout: No reply in time; the handler may have run.
            RunnerUnavailable: No connection, or it broke; `sent` says whether the request can have arrived.
            MalformedMessage: The body is larger than the peer accepts: not sent.
            ShuttingDown: This transport is stopping.
            CoterieError: The error with which the handler failed.
        """

    @abc.abstractmethod
    def ask(
        self, peer: PeerAddress, route: int, body: bytes, *, within_s: float, target: object, answer: Answer
    ) -> PendingReply | None:
        """As `request` without a coroutine, if it can be sent at once: `answer` gets the result or the error.

        Returns:
            A function to call when the answer is no longer needed; None: nothing was sent, and nothing will be.
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
        """Request a stream of items. `within_s` is the longest silence, of the sender or of the reader.

        Raises what `request` does, at the first item or later.
        """

    @abc.abstractmethod
    def notify(self, peer: PeerAddress, route: int, body: bytes, *, headers: Mapping[str, str] | None = None) -> bool:
        """Send a notice without a reply; false if it was dropped: not connected, or too much is queued."""

    @abc.abstractmethod
    async def connect(self, peer: PeerAddress) -> None:
        """Ensure a connection to a peer, so that its loss is noticed.

        Raises:
            RunnerUnavailable: The peer cannot be reached.
        """

    @abc.abstractmethod
    async def probe(self, peer: PeerAddress) -> Presence:
        """Find out what answers at the address now [M2]: by a new connection, even if there is one already."""

    @property
    @abc.abstractmethod
    def is_waited_for(self) -> bool:
        """Whether any request waits for its reply."""

    @abc.abstractmethod
    def drop(self, peer: str, problem: str) -> None:
        """Close all connections to an incarnation at once; pending requests fail with `RunnerUnavailable`."""

    @abc.abstractmethod
    def connected(self, peer: PeerAddress) -> bool:
        """Whether there is a connection that accepts requests."""

    @abc.abstractmethod
    def on_lost(self, callback: Callable[[str, str], None]) -> None:
        """Call `callback(incarnation, problem)` whenever the last connection to a peer breaks.

        A peer that said goodbye, because it stopped or was only probing (`probe`), is not lost in this sense.
        """
