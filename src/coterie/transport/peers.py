"""The transport of one process: a connection to each peer, opened when needed and shared by all calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Literal

from coterie.errors import ShuttingDown
from coterie.transport.connection import Connection
from coterie.transport.envelopes import pack_headers
from coterie.transport.frames import Refused
from coterie.transport.handshake import Handshake
from coterie.transport.interface import Limits, Transport
from coterie.transport.listening import Gate
from coterie.transport.outcomes import late, unavailable
from coterie.transport.reaching import Troubles, presence, problem_of
from coterie.transport.roster import Roster
from coterie.transport.streaming import Items

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from coterie.kernel.random import Chance
    from coterie.transport.identity import Identity
    from coterie.transport.inflight import Asked
    from coterie.transport.interface import Handler, PeerAddress, Presence, Stream, Wire
    from coterie.transport.listening import Door
    from coterie.transport.streaming import Reading

log = logging.getLogger("coterie")


class Peers(Transport):
    """The transport of one process, over any wire.

    Args:
        me: What this process proves to its peers.
        wire: How connections are made.
        handler: Who answers requests.
        secrets: Asked once, at start: see `identity.shared_secrets`.
        chance: For nonces and jitter.
        limits: The bounds.
        listens: False for a client, which is never connected to.
    """

    def __init__(
        self,
        *,
        me: Identity,
        wire: Wire,
        handler: Handler,
        secrets: Callable[[], Awaitable[Sequence[bytes]]],
        chance: Chance,
        limits: Limits | None = None,
        listens: bool = True,
    ) -> None:
        super().__init__(what="the transport")
        self._me, self._wire, self._handler, self._chance = me, wire, handler, chance
        self._limits = limits or Limits()
        self._ask_secrets = secrets
        self._secrets: Sequence[bytes] = ()
        self._listens = listens
        self._address: str | None = None
        self._gate = Gate()
        self._roster = Roster(me.incarnation, self._gone)
        self._current = self._roster.current
        self._openings: dict[str, asyncio.Future[str | None]] = {}
        self._troubles = Troubles(chance, first_s=self._limits.backoff_s, most_s=self._limits.backoff_most_s)
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
        self, peer: PeerAddress, route: int, body: bytes, *, within_s: float, target: object, answer: Future[bytes]
    ) -> Asked | None:
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
    ) -> Stream:
        packed = pack_headers(headers) if headers else b""

        async def opening() -> Reading:
            connection, _ = await self._reach(peer, within_s, target)
            return await connection.stream(route, body, within_s, packed, target)

        return Items(opening)

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
        for connection in self._roster.of(peer):
            connection.abort(unavailable(peer, problem, sent=True))

    def connected(self, peer: PeerAddress) -> bool:
        connection = self._current.get(peer.incarnation)
        return connection is not None and connection.is_usable

    def on_lost(self, callback: Callable[[str, str], None]) -> None:
        self._callbacks.append(callback)

    # Its life

    async def _start(self) -> None:
        self._secrets = await self._ask_secrets()
        if self._listens:
            self._address = await self._wire.listen(self._accept)

    async def _stop(self) -> None:
        """Whoever drains has done so before: those who wait now are told, not waited for."""
        await self._wire.close()
        self._gate.close()
        connections = list(self._roster.everyone)
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
                while (connection := self._roster.find(peer.incarnation)) is None:
                    problem = await self._opened(peer)
                    self.require_running()
                    if problem is not None:
                        raise unavailable(peer.incarnation, problem, sent=False, target=target)
        except TimeoutError:
            hint = f"it was not sent: there was no connection to {peer.address} yet"
            raise late(peer.incarnation, within_s, target, hint=hint) from None
        return connection, within_s - (loop.time() - began_s)

    async def _opened(self, peer: PeerAddress) -> str | None:
        """Wait for the one attempt that all who want this peer share; what is in the way."""
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
        if len(self._roster.everyone) >= self._limits.peers:
            return f"there are {self._limits.peers} connections already, the most there may be"
        return self._troubles.of(peer.incarnation, asyncio.get_running_loop().time())

    async def _attempt(self, peer: PeerAddress) -> None:
        connection = self._make(self._greeting("client", expects=peer.incarnation), on_open=self._admit)
        error = await self._open(connection, peer)
        problem = None
        if error is None or self.connected(peer):  # the peer may have reached us meanwhile
            self._troubles.over(peer.incarnation)
        else:
            problem = problem_of(error, peer.address)
            self._troubles.add(peer.incarnation, problem, asyncio.get_running_loop().time())
        self._attempted(peer, problem)

    def _attempted(self, peer: PeerAddress, problem: str | None) -> None:
        opening = self._openings.pop(peer.incarnation, None)
        if opening is not None and not opening.done():
            opening.set_result(problem)

    async def _open(self, connection: Connection, peer: PeerAddress) -> Exception | None:
        """Connect and shake hands; what went wrong, if anything."""
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
        enter: Callable[[Connection, asyncio.BaseTransport], Door] | None = None,
    ) -> Connection:
        connection = Connection(
            handler=self._handler,
            limits=self._limits,
            greet=greet,
            on_open=on_open,
            on_lost=self._roster.lost,
            on_gone=self._wire.gone,
            enter=enter,
        )
        self._roster.add(connection)
        return connection

    def _greeting(
        self, role: Literal["client", "server"], *, expects: str | None
    ) -> Callable[[asyncio.BaseTransport], Handshake]:
        make = partial(Handshake, role=role, me=self._me, secrets=self._secrets, chance=self._chance, expects=expects)
        return lambda transport: make(seal=self._wire.made(transport))

    def _enter(self, connection: Connection, transport: asyncio.BaseTransport) -> Door:
        shown = str(transport.get_extra_info("peername"))
        return self._gate.enter(shown, lambda: connection.abort(Refused("it was not proved in time")))

    def _admit(self, connection: Connection) -> None:
        if len(self._roster.everyone) > self._limits.peers:
            connection.close("too many connections")
        else:
            self._roster.admit(connection)

    def _gone(self, peer: str, error: Exception) -> None:
        for callback in self._callbacks:
            try:
                callback(peer, str(error))
            except Exception:  # as with handlers: a bug above must not cost us our own housekeeping
                log.exception("a callback failed on the loss of runner %s", peer)


def _ignore(_: Connection) -> None:
    """Only to look: nothing will be sent."""
