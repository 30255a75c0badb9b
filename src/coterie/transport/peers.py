"""The transport of one process: a connection to each peer, opened when needed and shared by all calls.

Usually there is one connection per peer. Two runners that call each other at the same moment open two; both keep the
one that the smaller incarnation opened, and the opener of the other one retires it: requests in flight on it are
finished first. Should the kept one be dead without our knowing, a ping finds out, and the other takes its place.

Also here: what it means that a peer cannot be reached, and how long it is not retried (pure).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from functools import partial
from typing import TYPE_CHECKING, Literal

from coterie.errors import ShuttingDown
from coterie.transport.connection import Connection
from coterie.transport.handshake import Handshake, OtherIncarnation
from coterie.transport.in_flight import Answer, PendingReply, late, unavailable
from coterie.transport.interface import Transport, TransportLimits
from coterie.transport.listener import Gate, PendingSocket
from coterie.transport.protocol import Refused, pack_headers
from coterie.transport.streams import ReadStream, StreamItems

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from coterie.kernel.random import Random
    from coterie.transport.identity import Identity
    from coterie.transport.interface import ItemStream, PeerAddress, Presence, RequestHandler, Wire


class KnownPeers:
    """All connections of a process, and which of them to use for each peer.

    Args:
        me: This process's incarnation.
        gone: Called with a peer and the reason when its last connection is lost without a goodbye of the peer.
    """

    def __init__(self, me: str, gone: Callable[[str, Exception], None]) -> None:
        self.everyone: dict[
            Connection, None
        ] = {}  # all with a socket, authenticated or not; not a set, whose order does not repeat
        self.current: dict[str, Connection] = {}
        self._me = me
        self._gone = gone
        self._peers: dict[str, list[Connection]] = {}  # open ones, oldest first

    def add(self, connection: Connection) -> None:
        """A connection is being made."""
        self.everyone[connection] = None
        connection.gone.add_done_callback(lambda _: self.everyone.pop(connection, None))

    def admit(self, connection: Connection) -> None:
        """A connection has opened."""
        peers = self._peers.setdefault(connection.peer, [])
        for other in peers:
            other.ping()
        peers.append(connection)
        kept = self.find(connection.peer)
        for other in peers:
            if kept is not None and other.is_ours and not kept.is_ours and other.is_usable:
                other.retire("both sides opened a connection")

    def lost(self, connection: Connection, error: Exception) -> None:
        """A connection is lost."""
        peers = self._peers.get(connection.peer, [])
        if connection in peers:
            peers.remove(connection)
            self.find(connection.peer)
            if not peers:
                del self._peers[connection.peer]
                if not connection.was_told:
                    self._gone(connection.peer, error)

    def of(self, peer: str) -> list[Connection]:
        """The open connections to a peer."""
        return list(self._peers.get(peer, ()))

    def find(self, peer: str) -> Connection | None:
        """The connection to use for a peer, which becomes the current one."""
        usable = [connection for connection in self._peers.get(peer, ()) if connection.is_usable]
        if not usable:
            self.current.pop(peer, None)
            return None
        self.current[peer] = found = preferred(usable, ours=self._me < peer)
        return found


def preferred(connections: list[Connection], *, ours: bool) -> Connection:
    """The connection to use: the oldest of the side that has precedence; both sides choose the same one."""
    return next((connection for connection in connections if connection.is_ours is ours), connections[0])


_KEPT_MOST = 1_024


def presence(error: Exception | None) -> Presence:
    """What an attempt to connect has shown [M2]: only "refused" and "other" mean that the runner is gone."""
    if error is None:
        return "present"
    if isinstance(error, OtherIncarnation):
        return "other"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, Refused | ssl.SSLError):
        return "stranger"
    return "silent"


def problem_of(error: Exception, address: str) -> str:
    """Why a peer cannot be reached, for `RunnerUnavailable`."""
    if isinstance(error, Refused):
        return f"{address}: {error.reason}"
    if isinstance(error, ConnectionRefusedError):
        return f"nobody listens on {address}"
    if isinstance(error, TimeoutError):
        return f"no answer from {address}"
    return f"{address}: {str(error) or type(error).__name__}"


class PeerErrors:
    """Peers that could not be reached lately: not retried for a while, which doubles each time, with jitter."""

    def __init__(self, chance: Random, *, first_s: float, most_s: float) -> None:
        self._chance = chance
        self._first_s, self._most_s = first_s, most_s
        self._peers: dict[str, tuple[float, float, str]] = {}  # until when, how long that was, why

    def __len__(self) -> int:
        return len(self._peers)

    def of(self, peer: str, now_s: float) -> str | None:
        """Why this peer must not be tried now; None if it may be tried."""
        until_s, _, problem = self._peers.get(peer, (0.0, 0.0, ""))
        return f"{problem} (tried again in {until_s - now_s:.2g}s)" if now_s < until_s else None

    def add(self, peer: str, problem: str, now_s: float) -> None:
        """It could not be reached."""
        _, last_s, _ = self._peers.pop(peer, (0.0, 0.0, ""))
        wait_s = min(self._most_s, max(self._first_s, last_s * 2))
        while len(self._peers) >= _KEPT_MOST:
            del self._peers[next(iter(self._peers))]  # the one tried longest ago
        self._peers[peer] = (now_s + self._chance.between(wait_s / 2, wait_s), wait_s, problem)

    def over(self, peer: str) -> None:
        """It was reached."""
        self._peers.pop(peer, None)


log = logging.getLogger("coterie")


class Peers(Transport):
    """The transport of one process, over any wire.

    Args:
        me: The identity that this process proves to its peers.
        wire: Makes connections.
        handler: Answers requests.
        secrets: Called once, at start: see `identity.shared_secrets`.
        chance: For nonces and jitter.
        limits: The bounds.
        listens: False for a client, which accepts no connections.
    """

    def __init__(
        self,
        *,
        me: Identity,
        wire: Wire,
        handler: RequestHandler,
        secrets: Callable[[], Awaitable[Sequence[bytes]]],
        chance: Random,
        limits: TransportLimits | None = None,
        listens: bool = True,
    ) -> None:
        super().__init__(what="the transport")
        self._me, self._wire, self._handler, self._chance = me, wire, handler, chance
        self._limits = limits or TransportLimits()
        self._ask_secrets = secrets
        self._secrets: Sequence[bytes] = ()
        self._listens = listens
        self._address: str | None = None
        self._gate = Gate()
        self._known = KnownPeers(me.incarnation, self._gone)
        self._current = self._known.current
        self._openings: dict[str, asyncio.Future[str | None]] = {}
        self._errors = PeerErrors(chance, first_s=self._limits.backoff_s, most_s=self._limits.backoff_most_s)
        self._callbacks: list[Callable[[str, str], None]] = []

    @property
    def address(self) -> str | None:
        return self._address

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
        connection = self._current.get(peer.incarnation)
        packed = pack_headers(headers) if headers else b""
        if connection is None or connection.is_leaving:
            return self._request(peer, route, body, within_s, packed, target)
        return connection.calls.request(route, body, within_s, packed, target)

    def ask(
        self, peer: PeerAddress, route: int, body: bytes, *, within_s: float, target: object, answer: Answer
    ) -> PendingReply | None:
        connection = self._current.get(peer.incarnation)
        if connection is None or connection.is_leaving:
            return None
        return connection.calls.ask(answer, route, body, within_s, target)

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
        packed = pack_headers(headers) if headers else b""

        async def opening() -> ReadStream:
            connection, _ = await self._reach(peer, within_s, target)
            return await connection.stream(route, body, within_s, packed, target)

        return StreamItems(opening)

    def notify(self, peer: PeerAddress, route: int, body: bytes, *, headers: Mapping[str, str] | None = None) -> bool:
        connection = self._current.get(peer.incarnation)
        packed = pack_headers(headers) if headers else b""
        return connection is not None and connection.notify(route, body, packed)

    async def connect(self, peer: PeerAddress) -> None:
        await self._reach(peer, self._limits.connect_s, "a connection")

    async def probe(self, peer: PeerAddress) -> Presence:
        self.require_running()
        connection = self._make(self._greeting("client", expects=peer.incarnation), on_open=_ignore)
        error = await self._open(connection, peer)
        connection.close("only looked")
        return presence(error)

    @property
    def is_waited_for(self) -> bool:
        return any(len(connection.calls) for connection in self._current.values())

    def drop(self, peer: str, problem: str) -> None:
        for connection in self._known.of(peer):
            connection.abort(unavailable(peer, problem, sent=True))

    def connected(self, peer: PeerAddress) -> bool:
        connection = self._current.get(peer.incarnation)
        return connection is not None and connection.is_usable

    def on_lost(self, callback: Callable[[str, str], None]) -> None:
        self._callbacks.append(callback)

    # Lifecycle

    async def _start(self) -> None:
        self._secrets = await self._ask_secrets()
        if self._listens:
            self._address = await self._wire.listen(self._accept)

    async def _stop(self) -> None:
        """Callers must drain first. Requests still in flight fail with `ShuttingDown`."""
        await self._wire.close()
        self._gate.close()
        connections = list(self._known.everyone)
        for connection in connections:
            connection.close("stopping")
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.goodbye_s):
                    for connection in connections:
                        await asyncio.shield(connection.gone)
        finally:
            for connection in connections:
                connection.abort(ShuttingDown(what=self.what))

    # Reaching a peer

    async def _request(
        self, peer: PeerAddress, route: int, body: bytes, within_s: float, headers: bytes, target: object
    ) -> bytes:
        connection, left_s = await self._reach(peer, within_s, target)
        return await connection.calls.request(route, body, left_s, headers, target)

    async def _reach(self, peer: PeerAddress, within_s: float, target: object) -> tuple[Connection, float]:
        """A connection, and the time that is left."""
        self.require_running()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with asyncio.timeout(within_s):
                while (connection := self._known.find(peer.incarnation)) is None:
                    problem = await self._opened(peer)
                    self.require_running()
                    if problem is not None:
                        raise unavailable(peer.incarnation, problem, sent=False, target=target)
        except TimeoutError:
            hint = f"it was not sent: there was no connection to {peer.address} yet"
            raise late(peer.incarnation, within_s, target, hint=hint) from None
        return connection, within_s - (loop.time() - began_s)

    async def _opened(self, peer: PeerAddress) -> str | None:
        """Wait for the one attempt that all callers of this peer share. Returns: the problem, if any."""
        opening = self._openings.get(peer.incarnation)
        if opening is None:
            problem = self._not_worth_trying(peer)
            if problem is not None:
                return problem
            opening = self._openings[peer.incarnation] = asyncio.get_running_loop().create_future()
            task = self.tasks.spawn(self._attempt(peer), name=f"connect to {peer.address}")
            task.add_done_callback(lambda _: self._attempted(peer, "the attempt was given up"))
        return await asyncio.shield(opening)

    def _not_worth_trying(self, peer: PeerAddress) -> str | None:
        if not peer.address:
            return "it is not connected, and has no address"
        if peer.incarnation == self._me.incarnation:
            return "it is this very process"
        if len(self._known.everyone) >= self._limits.peers:
            return f"there are {self._limits.peers} connections already, the most there may be"
        return self._errors.of(peer.incarnation, asyncio.get_running_loop().time())

    async def _attempt(self, peer: PeerAddress) -> None:
        connection = self._make(self._greeting("client", expects=peer.incarnation), on_open=self._admit)
        error = await self._open(connection, peer)
        problem = None
        if error is None or self.connected(peer):  # the peer may have connected to us meanwhile
            self._errors.over(peer.incarnation)
        else:
            problem = problem_of(error, peer.address)
            self._errors.add(peer.incarnation, problem, asyncio.get_running_loop().time())
        self._attempted(peer, problem)

    def _attempted(self, peer: PeerAddress, problem: str | None) -> None:
        opening = self._openings.pop(peer.incarnation, None)
        if opening is not None and not opening.done():
            opening.set_result(problem)

    async def _open(self, connection: Connection, peer: PeerAddress) -> Exception | None:
        """Connect and perform the handshake. Returns: the error, if any."""
        try:
            async with asyncio.timeout(self._limits.connect_s):
                await self._wire.connect(peer.address, lambda: connection)
                return await asyncio.shield(connection.opened)
        except OSError as error:  # TimeoutError and ssl.SSLError are OSErrors
            connection.abort(unavailable(peer.incarnation, "it did not answer", sent=False))
            return error
        except BaseException:
            connection.abort(ShuttingDown(what=self.what))
            raise

    # Connections

    def _accept(self) -> Connection:
        return self._make(self._greeting("server", expects=None), on_open=self._admit, enter=self._enter)

    def _make(
        self,
        greet: Callable[[asyncio.BaseTransport], Handshake],
        *,
        on_open: Callable[[Connection], None],
        enter: Callable[[Connection, asyncio.BaseTransport], PendingSocket] | None = None,
    ) -> Connection:
        connection = Connection(
            handler=self._handler,
            limits=self._limits,
            greet=greet,
            on_open=on_open,
            on_lost=self._known.lost,
            on_gone=self._wire.gone,
            enter=enter,
        )
        self._known.add(connection)
        return connection

    def _greeting(
        self, role: Literal["client", "server"], *, expects: str | None
    ) -> Callable[[asyncio.BaseTransport], Handshake]:
        make = partial(Handshake, role=role, me=self._me, secrets=self._secrets, chance=self._chance, expects=expects)
        return lambda transport: make(seal=self._wire.made(transport))

    def _enter(self, connection: Connection, transport: asyncio.BaseTransport) -> PendingSocket:
        shown = str(transport.get_extra_info("peername"))
        return self._gate.enter(shown, lambda: connection.abort(Refused("it was not proved in time")))

    def _admit(self, connection: Connection) -> None:
        if len(self._known.everyone) > self._limits.peers:
            connection.close("too many connections")
        else:
            self._known.admit(connection)

    def _gone(self, peer: str, error: Exception) -> None:
        for callback in self._callbacks:
            try:
                callback(peer, str(error))
            except Exception:  # as with handlers: a bug above must not break our own bookkeeping
                log.exception("a callback failed on the loss of runner %s", peer)


def _ignore(_: Connection) -> None:
    """For a probe: nothing will be sent."""
