"""A breakable network between a process and its database: silent, one-way, slow, refusing.

What is held back is not lost: TCP would retransmit it, so it arrives late when the network heals. That includes the end
of a connection: a server does not notice that a process died behind a cut.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.kernel.service import Tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from coterie.testing.database import Way

_WAYS: tuple[Way, ...] = ("requests", "replies")
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0: closing sends RST instead of FIN
_CHUNK_BYTES = 65536
_VERB_S = 120.0


class Proxy:
    """Forwards bytes between its clients and one server, until a verb changes that.

    It runs in a thread of its own, so that a test that blocks does not slow it. Verbs have acted when they return.

    Args:
        host: The server's host.
        port: The server's port.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = host, port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._tasks = Tasks("proxy")
        self._listener: asyncio.Server | None = None
        self._links: dict[_Link, None] = {}
        self._held: tuple[Way, ...] = ()
        self._delay_s = 0.0
        self.port = 0

    def start(self) -> None:
        """Start it; return when it accepts connections, on `port`."""
        self._thread.start()
        self._do(self._listen())

    def close(self) -> None:
        """Drop all connections and end."""
        self._do(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self, *ways: Way, session: int | None = None) -> None:
        """Go silent: connections stay open and new ones are accepted, but nothing passes.

        Args:
            ways: Only what goes to the server ("requests"), or only what comes back ("replies").
            session: Only the connection that the server sees coming from this port (`client_port` in
                pg_stat_activity); all of them, and new ones, if left out.
        """
        self._do(self._cut(ways or _WAYS, session))

    def reset(self) -> None:
        """Break all connections at once; new ones are accepted."""
        self._do(self._reset())

    def refuse(self) -> None:
        """Break all connections and refuse new ones."""
        self._do(self._refuse())

    def delay(self, seconds: float) -> None:
        """Delay everything by so much in each direction; 0 for no delay."""
        self._delay_s = seconds

    def heal(self) -> None:
        """Forward everything again, including what was held back."""
        self._do(self._heal())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_VERB_S)

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self.port or free_port())
        self.port = self._listener.sockets[0].getsockname()[1]

    async def _shut(self) -> None:
        await self._refuse()
        await self._tasks.stop()

    async def _cut(self, ways: tuple[Way, ...], session: int | None) -> None:
        if session is None:
            self._held = ways
        chosen = [link for link in self._links if session in (None, link.session)]
        if session is not None and not chosen:
            raise LookupError(f"no connection comes from port {session}")
        for link in chosen:
            link.hold(ways)

    async def _heal(self) -> None:
        self._held, self._delay_s = (), 0.0
        for link in self._links:
            link.hold(())
        if self._listener is None:
            await self._listen()

    async def _reset(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self._reset()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(reader, writer)
        link.hold(self._held)
        self._links[link] = None
        self._tasks.spawn(self._serve(link), name="link")

    async def _serve(self, link: _Link) -> None:
        try:
            for way in _WAYS:  # connecting needs both
                await link.open[way].wait()
            await link.connect(*self._server)
            await asyncio.gather(*(link.pump(way, delay_s=lambda: self._delay_s) for way in _WAYS))
        except OSError:
            pass  # no server: the client is cut off below
        finally:
            link.reset()
            self._links.pop(link, None)


class _Link:
    """One connection through the proxy: two directions, each open or held."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._client = reader, writer
        self._server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.open: dict[Way, asyncio.Event] = {way: asyncio.Event() for way in _WAYS}

    @property
    def session(self) -> int | None:
        """The port from which the server sees it coming."""
        return None if self._server is None else self._server[1].get_extra_info("sockname")[1]

    def hold(self, ways: tuple[Way, ...]) -> None:
        """Hold back these directions and release the others."""
        for way, gate in self.open.items():
            if way in ways:
                gate.clear()
            else:
                gate.set()

    async def connect(self, host: str, port: int) -> None:
        self._server = await asyncio.open_connection(host, port)

    async def pump(self, way: Way, *, delay_s: Callable[[], float]) -> None:
        """Forward one direction until its end, which travels as the data does."""
        assert self._server is not None
        here, there = (self._client, self._server) if way == "requests" else (self._server, self._client)
        reader, writer = here[0], there[1]
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._pass(way, delay_s())
                writer.write(data)
                await writer.drain()
        await self._pass(way, delay_s())
        writer.transport.abort()

    def reset(self) -> None:
        """Break it at both ends."""
        for _, writer in filter(None, (self._client, self._server)):
            if not writer.transport.is_closing():
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()

    async def _pass(self, way: Way, delay_s: float) -> None:
        if delay_s:
            await asyncio.sleep(delay_s)
        await self.open[way].wait()


def free_port() -> int:
    """A loopback port that is free just now, and that no outgoing connection of this machine is given meanwhile.

    Those have ports of the ephemeral range: one of them may take a port of it before its server is started, or while
    the server restarts; a client that tries to reach a server that is down may even connect to itself.
    """
    for _ in range(1000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(_LOWEST_PORT, _ephemeral_from())))
            port: int = probe.getsockname()[1]
            return port
    raise OSError("no port is free below the ephemeral range")


_LOWEST_PORT = 10_000


def _ephemeral_from() -> int:
    """The first port that the system gives to outgoing connections."""
    with suppress(OSError):
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        return max(lowest, _LOWEST_PORT + 10_000)
    return 32_768
