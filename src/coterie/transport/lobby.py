"""Before TLS: a listener's sockets are counted and timed from the moment they are accepted.

A server that is given a TLS context tells of a connection only when TLS is through: until then nobody counts it,
and it may take a minute. So under TLS we accept ourselves, put the socket before a `Gate`, and only then secure it.
(Accepting a plain connection and upgrading it would do in asyncio; uvloop loses the first bytes on the way.)
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING

from coterie.kernel.service import Tasks
from coterie.kernel.supervisor import Supervisor
from coterie.transport.listening import PROVED_WITHIN_S, Gate

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

log = logging.getLogger("coterie")

_AGAIN_S = 1.0
"""The pause after a failed accept: most often there is no descriptor left, and some will be freed."""


class Lobby:
    """Accepts the sockets of one listener and secures them.

    Args:
        context: Gives the server's side of TLS, for each connection: certificates are replaced while it runs.
        factory: Makes the protocol of a connection; called when its TLS is through, and only then.
        gate: Counts and limits those who wait for TLS; the handshake that follows inside it has a gate of its own.
        supervisor: The one of this process.
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
        """Accept from now on. The listener is bound and listens; it stays the caller's to close, after `close`."""
        listener.setblocking(False)
        accept = functools.partial(self._accept, listener)
        self._tasks.supervise(accept, name="accept connections", supervisor=self._supervisor)

    async def close(self) -> None:
        """Accept no more, and close all that wait."""
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
        door = self.gate.enter(peer, task.cancel)
        try:
            # The gate is the one that ends it; the limit here is only there because a minute is the default.
            await loop.connect_accepted_socket(
                self._factory, accepted, ssl=self._context(), ssl_handshake_timeout=2 * PROVED_WITHIN_S
            )
            door.admitted()
        except OSError as error:  # refused certificates, timeouts and resets are all of this kind
            reason = getattr(error, "verify_message", None) or getattr(error, "reason", None)
            if reason is not None:
                door.refused(f"TLS: {reason.replace('_', ' ').lower()}")
        finally:
            door.left()  # unless it ended otherwise
