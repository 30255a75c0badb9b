"""The ends of a simulated connection: transports that behave towards their protocol as those of asyncio do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from coterie.testing.network.pipes import Mark, Pipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextvars import Context

    from coterie.testing.loop.nodes import Node
    from coterie.testing.network.network import Address, Network

    Buffer = bytes | bytearray | memoryview

_HIGH_BYTES = 64 * 1024


class SimTransport(asyncio.Transport):
    """One end of a connection.

    Promise:
        The protocol sees `connection_made`, then any number of `data_received`, then at most one `eof_received`, then
        `connection_lost` once; all on its own node, and nothing once that has crashed.
    """

    incoming: Pipe
    outgoing: Pipe

    def __init__(self, network: Network, node: Node, context: Context, address: Address, peer: Address) -> None:
        super().__init__({"sockname": tuple(address), "peername": tuple(peer)})
        self.node = node
        self.context = context
        self.address = address
        self.is_lost = False
        self.is_paused = False
        self.accept: Callable[[], asyncio.Protocol | None] | None = None
        self._network = network
        self._loop = network.loop
        self._protocol: asyncio.Protocol | None = None
        self._closing = False
        self._eof_written = False
        self._writing_paused = False
        self.set_write_buffer_limits()

    # For the owner, as in asyncio

    def write(self, data: Buffer) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if data and not (self._closing or self._loop.over) and self.node.alive:
            self.outgoing.buffer += data
            self.outgoing.pump()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not (self._closing or self._eof_written):
            self._eof_written = True
            self.outgoing.finish()

    def close(self) -> None:
        if not self._closing and self.node.alive:
            self._closing = True
            if not self._eof_written:
                self.outgoing.finish()
            self.buffer_changed()

    def abort(self) -> None:
        if self.node.alive:
            self.outgoing.reset()
            self.lose(None)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not (self.is_paused or self._closing)

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self.incoming.read_later()

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None, "connection_made comes first"
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol), "the simulated network serves asyncio.Protocol only"
        self._protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        high = high if high is not None else _HIGH_BYTES if low is None else 4 * low
        low = high // 4 if low is None else low
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._limits = (low, high)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._limits

    def get_write_buffer_size(self) -> int:
        return len(self.outgoing.buffer)

    # For the pipes and the network

    def begin(self, protocol: asyncio.Protocol) -> None:
        """Pass the connection to its protocol."""
        self._protocol = protocol
        self.context.run(protocol.connection_made, self)

    def opened(self) -> None:
        """The connection has reached the listening end."""
        protocol = self.accept() if self.accept is not None else None
        if protocol is None:
            self.outgoing.reset()
            self.lose(None)
        else:
            self._protocol = protocol
            protocol.connection_made(self)

    def deliver(self, data: bytes) -> None:
        """Pass bytes to the protocol; if it raises, it loses its connection, as in asyncio."""
        assert self._protocol is not None, "connection_made comes first"
        try:
            self._protocol.data_received(data)
        except Exception as error:  # noqa: BLE001 as asyncio
            self._loop.call_exception_handler({"message": "data_received() failed", "exception": error})
            self.outgoing.reset()
            self.lose(error)

    def ended(self, end: Mark) -> None:
        """The other end sends no more."""
        if end is Mark.RESET:
            self.lose(ConnectionResetError("connection reset by peer"))
        elif self._protocol is not None and not self._protocol.eof_received():
            self.close()

    def buffer_changed(self) -> None:
        """Have the protocol pause or resume writing, and finish closing when all is sent."""
        size, (low, high) = len(self.outgoing.buffer), self._limits
        if self._protocol is not None and not self.is_lost:
            if size > high and not self._writing_paused:
                self._writing_paused = True
                self._protocol.pause_writing()
            elif size <= low and self._writing_paused:
                self._writing_paused = False
                self._protocol.resume_writing()
        if self._closing and size == 0:
            self.lose(None)

    def lose(self, error: Exception | None) -> None:
        """End this side of the connection, now or because it is broken."""
        if not self.is_lost:
            self.is_lost = self._closing = True
            self.outgoing.buffer.clear()
            self._loop.call_soon(self._call_connection_lost, error, context=self.context)

    def _call_connection_lost(self, error: Exception | None) -> None:
        self._network.forget(self)
        if self._protocol is not None:
            self._protocol.connection_lost(error)
