"""TCP and TLS: the wire of production. Under TLS a listener's sockets are counted and timed as soon as accepted.

A server with a TLS context reports a connection only after the TLS handshake: until then it is not counted, and may
take a minute. So under TLS we accept ourselves, register the socket at a `Gate`, and only then start TLS. (Accepting a
plain connection and upgrading it would do in asyncio; uvloop loses the first bytes on the way.)

Unix sockets between processes of one host measured 0.87 to 1.03 times TCP on loopback, so there are none.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import socket
from typing import TYPE_CHECKING

from coterie.errors import ConfigurationError
from coterie.kernel.service import Tasks
from coterie.kernel.supervisor import Supervisor
from coterie.settings.parsers import split_address
from coterie.transport.identity import advertised_address, is_loopback
from coterie.transport.listener import PROVED_WITHIN_S, Gate, Plug, tune, warn_in_the_clear
from coterie.transport.tls import Certificates

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from coterie.settings import Settings


log = logging.getLogger("coterie")

_AGAIN_S = 1.0
"""The pause after a failed accept: usually no descriptor is left, and some will be freed."""


class Handshakes:
    """Accepts the sockets of one listener and secures them.

    Args:
        context: Returns the server's TLS context, for each connection: certificates are replaced while it runs.
        factory: Makes the protocol of a connection; called only after its TLS handshake.
        gate: Counts and limits sockets that wait for TLS; the handshake that follows inside it has its own gate.
        supervisor: The supervisor of this process.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        factory: Callable[[], asyncio.Protocol],
        *,
        gate: Gate | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.gate = gate or Gate()
        self._context = context
        self._factory = factory
        self._supervisor = supervisor or Supervisor()
        self._tasks = Tasks("TLS lobby")
        self._fresh: dict[socket.socket, None] = {}  # accepted, and their tasks have not begun

    def open(self, listener: socket.socket) -> None:
        """Start accepting. The listener is bound and listens; the caller closes it, after `close`."""
        listener.setblocking(False)
        accept = functools.partial(self._accept, listener)
        self._tasks.supervise(accept, name="accept connections", supervisor=self._supervisor)

    async def close(self) -> None:
        """Stop accepting, and close all waiting sockets."""
        self.gate.close()
        await self._tasks.stop()
        for accepted in self._fresh:
            accepted.close()
        self._fresh.clear()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(_AGAIN_S)
            else:
                self._fresh[accepted] = None
                self._tasks.spawn(self._secure(accepted, str(peer[0])), name="secure")

    async def _secure(self, accepted: socket.socket, peer: str) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        del self._fresh[accepted]
        pending = self.gate.enter(peer, task.cancel)
        try:
            # The gate ends it; the limit here only replaces the default of a minute.
            await loop.connect_accepted_socket(
                self._factory, accepted, ssl=self._context(), ssl_handshake_timeout=2 * PROVED_WITHIN_S
            )
            pending.admitted()
        except OSError as error:  # refused certificates, timeouts and resets are all of this kind
            reason = getattr(error, "verify_message", None) or getattr(error, "reason", None)
            if reason is not None:
                pending.refused(f"TLS: {reason.replace('_', ' ').lower()}")
        finally:
            pending.left()  # unless it ended otherwise


_BACKLOG = 256
_WHY_NOT_BOUND = {
    errno.EADDRINUSE: (
        "another process listens on this port",
        "stop that process, or choose another port; port 0 takes a free one",
    ),
    errno.EADDRNOTAVAIL: ("this host has no such address", "listen on one that it has, and tell others by advertise"),
    errno.EACCES: ("this process may not listen on this port", "choose a port above 1023"),
}


class TcpWire:
    """Sockets, as the settings `listen`, `advertise` and `tls_*` say."""

    def __init__(self, settings: Settings, *, supervisor: Supervisor | None = None) -> None:
        self._settings = settings
        self._supervisor = supervisor or Supervisor()
        self._certificates = None if settings.tls_cert is None else Certificates(settings)
        self._tasks = Tasks("certificates")
        self._listener: socket.socket | None = None
        self._plug: Plug | None = None
        self._server: asyncio.Server | None = None
        self._handshakes: Handshakes | None = None
        self._plugs: dict[asyncio.BaseTransport, Plug] = {}

    async def listen(self, factory: Callable[[], asyncio.Protocol]) -> str:
        """Bind and accept. Returns: the address to advertise.

        Raises:
            ConfigurationError: It cannot be bound, or there is no single address to advertise.
        """
        listener = self._listener = await self._bind()
        self._plug = Plug(listener)
        certificates = self._certificates
        if certificates is None:
            self._server = await asyncio.get_running_loop().create_server(factory, sock=listener, backlog=_BACKLOG)
        else:
            self._handshakes = Handshakes(lambda: certificates.server, factory, supervisor=self._supervisor)
            self._handshakes.open(listener)
            self._tasks.supervise(certificates.watch, name="watch certificates", supervisor=self._supervisor)
        address = advertised_address(self._settings, listener.getsockname()[:2])
        warn_in_the_clear(self._settings, self._settings.listen)
        return address

    async def connect(self, address: str, factory: Callable[[], asyncio.Protocol]) -> object:
        """Connect; raises `OSError`."""
        host, port = split_address(address)
        loop, context = asyncio.get_running_loop(), None
        if self._certificates is not None:
            self._certificates.refresh()
            context = self._certificates.client
        name = None if context is None else ""
        return await loop.create_connection(factory, host, port, ssl=context, server_hostname=name)

    def made(self, transport: asyncio.BaseTransport) -> bool:
        """Set socket options. Returns: whether to seal: it leaves the host without TLS."""
        opened = transport.get_extra_info("socket")
        tune(opened)
        self._plugs[transport] = Plug(opened)
        peer = transport.get_extra_info("peername")  # None: it was reset already, as its protocol learns next
        return self._certificates is None and not (peer is not None and is_loopback(str(peer[0])))

    def gone(self, transport: asyncio.BaseTransport) -> None:
        """The socket is about to be closed."""
        plug = self._plugs.pop(transport, None)
        if plug is not None:
            plug.pull()

    async def close(self) -> None:
        """Stop listening."""
        await self._tasks.stop()
        if self._handshakes is not None:
            await self._handshakes.close()
        if self._server is not None:
            self._server.close()
        if self._listener is not None:
            assert self._plug is not None, "made together"
            self._plug.pull()
            self._listener.close()

    async def _bind(self) -> socket.socket:
        host, port = split_address(self._settings.listen)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = found[0]
            listener = socket.socket(family, kind, protocol)
            try:
                listener.setblocking(False)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                listener.listen(_BACKLOG)  # here, so that a port that two have bound at once is refused like any other
            except BaseException:
                listener.close()
                raise
        except OSError as error:
            raise _not_bound(self._settings.listen, error) from error
        return listener


def _not_bound(listen: str, error: OSError) -> ConfigurationError:
    problem, hint = _WHY_NOT_BOUND.get(error.errno or 0, (error.strerror or str(error), "correct listen"))
    return ConfigurationError(problem=f"listen is {listen}: {problem}", hint=hint)
