"""One direction of a connection: bytes in transit, in order, divided and delayed by the seed.

    write ──▶ buffer ──▶ flight ──▶ unread ──▶ data_received
              process    wire       kernel
                         └─ at most a window ─┘

The buffer belongs to the writing process and is lost with it. Bytes in flight arrive at their instant, or later if the
link is cut meanwhile. The reading machine accepts them whether its process reads or not, up to the window.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.testing.loop.tasks import SimTimer
    from coterie.testing.network.network import Network
    from coterie.testing.network.transports import SimTransport

WINDOW_BYTES = 64 * 1024
_GIVE_UP_NS = 924_000_000_000  # how long Linux retransmits by default (tcp_retries2)
_RETRY_NS = 1_500_000_000  # a healed link is noticed when the next retry is due


class Mark(Enum):
    """What travels besides bytes."""

    OPEN = "open"
    EOF = "eof"
    RESET = "reset"


@dataclass(slots=True)
class _Packet:
    at_ns: int | None  # None while the link is cut
    content: bytes | Mark


class Pipe:
    """One direction of a connection, from the transport that writes to the one that reads."""

    def __init__(self, network: Network, *, source: SimTransport, target: SimTransport) -> None:
        self.route = (source.address.host, target.address.host)
        self.source = source
        self.buffer = bytearray()
        self._network = network
        self._loop = network.loop
        self._chance = network.chance
        self._target = target
        self._flight: deque[_Packet] = deque()
        self._last_ns = 0
        self._unread = bytearray()
        self._taken_bytes = 0  # of the window: in flight, unread, or read but not yet acknowledged
        self._unknown_bytes = 0
        self._finishing = self._finished = False
        self._broken = False
        self._refused = False
        self._end: Mark | None = None
        self._read_soon = False
        self._armed_ns: int | None = None
        self._timer: SimTimer | None = None
        self._patience: SimTimer | None = None

    # Writing

    def pump(self) -> None:
        """Move what fits from the buffer to the wire, and the end of the stream after it."""
        while self.buffer and not self._broken and self._taken_bytes < WINDOW_BYTES:
            piece = bytes(self.buffer[: WINDOW_BYTES - self._taken_bytes])
            del self.buffer[: len(piece)]
            self._send_divided(piece)
        if self._finishing and not self.buffer:
            self.finish_now()
        self.source.buffer_changed()

    def finish(self) -> None:
        """Send the end of the stream after what is in the buffer."""
        self._finishing = True
        self.pump()

    def finish_now(self) -> None:
        """Send the end of the stream, once."""
        self._finishing = False
        if not self._finished:
            self._finished = True
            self.send(Mark.EOF)

    def send(self, content: bytes | Mark) -> None:
        """Put something on the wire."""
        if self._broken:
            return
        self._taken_bytes += len(content) if isinstance(content, bytes) else 0
        self._flight.append(_Packet(self._arrival_ns(), content))
        self._watch()
        if self._refused and content is not Mark.RESET:  # a reset is never answered: both ends may be gone
            self.source.incoming.reset()

    def reset(self) -> None:
        """Abort: what is on the wire is cut at any byte, and a reset follows."""
        if not self._broken:
            self.buffer.clear()
            self._shorten()
            self.send(Mark.RESET)
            self._broken = True

    def refuse(self) -> None:
        """The reading process is gone, its machine is not: answer whatever arrives with a reset."""
        self._refused = True
        if self._flight:
            self.source.incoming.reset()

    def _send_divided(self, piece: bytes) -> None:
        link = self._network.link(*self.route)
        if link.reset and self._chance.random() < link.reset:
            self._network.loop.trace.note("reset", link="→".join(self.route))
            self.reset()
            self.source.incoming.reset()
        while len(piece) > 1 and self._chance.random() < link.split:
            size = self._chance.randint(1, len(piece) - 1)
            self.send(piece[:size])
            piece = piece[size:]
        self.send(piece)

    def _shorten(self) -> None:
        keep = self._chance.randint(0, sum(map(_size, self._flight)))
        for packet in self._flight:
            if isinstance(packet.content, bytes):
                size = len(packet.content)
                packet.content = packet.content[:keep]
                keep -= min(keep, size)
        self._flight = deque(packet for packet in self._flight if packet.content)

    # The wire

    def cut(self) -> None:
        """The link is cut: what has not arrived yet waits."""
        for packet in self._flight:
            if packet.at_ns is not None and packet.at_ns > self._loop.now_ns:
                packet.at_ns = None
        self._watch()

    def heal(self) -> None:
        """The link is back: what waits is sent again, when the next retry is due."""
        self._last_ns = max(self._last_ns, self._loop.now_ns + int(self._chance.random() * _RETRY_NS))
        for packet in self._flight:
            if packet.at_ns is None:
                packet.at_ns = self._arrival_ns()
        self._watch()

    def acknowledge(self) -> None:
        """The reverse link is healed, and delivers the pending acknowledgements."""
        self._taken_bytes -= self._unknown_bytes
        self._unknown_bytes = 0
        self._pump_soon()

    def _arrival_ns(self) -> int | None:
        if self._network.is_cut(*self.route):
            return None
        self._last_ns = max(self._last_ns, self._loop.now_ns + self._network.delay_ns(*self.route))
        return self._last_ns

    def _watch(self) -> None:
        """Wait for the first packet to arrive or, if it cannot, for the writer's timeout."""
        at_ns = self._flight[0].at_ns if self._flight else None
        if at_ns != self._armed_ns:
            self._armed_ns = at_ns
            if self._timer is not None:
                self._timer.cancel()
            context = self._target.context
            self._timer = None if at_ns is None else self._loop.call_at_ns(at_ns, self._arrive, context=context)
        self.lose_patience()

    def lose_patience(self) -> None:
        """Start or cancel the writing machine's timeout."""
        stuck = bool(self._flight) and (self._flight[0].at_ns is None or not self._target.node.alive)
        if stuck and self._patience is None:
            at_ns, lose = self._loop.now_ns + _GIVE_UP_NS, self.source.lose
            self._patience = self._loop.call_at_ns(
                at_ns, lose, TimeoutError("connection timed out"), context=self.source.context
            )
        elif not stuck and self._patience is not None:
            self._patience.cancel()
            self._patience = None

    # Reading: in the context of the reading node, so a frozen one does it later and a crashed one never

    def _arrive(self) -> None:
        self._armed_ns = self._timer = None
        while self._flight and self._flight[0].at_ns is not None and self._flight[0].at_ns <= self._loop.now_ns:
            self._take(self._flight.popleft().content)
        self._watch()
        self.read()

    def _take(self, content: bytes | Mark) -> None:
        if content is Mark.OPEN:
            self._target.opened()
        elif isinstance(content, Mark):
            self._end = content
            if content is Mark.RESET and (self._target.is_paused or self._chance.random() < 0.5):
                self._unread.clear()  # a reset may overtake what the process has not read
        elif self._target.is_lost:
            self._target.outgoing.reset()
        else:
            self._unread += content

    def read(self) -> None:
        """Pass all or part of the unread bytes to the protocol."""
        self._read_soon = False
        if self._end is Mark.RESET and (not self._unread or self._target.is_closing()):
            self._target.ended(Mark.RESET)
        elif self._target.is_closing() or self._target.is_paused:
            return
        elif self._unread:
            self._target.deliver(self._next_read())
            self.read_later()
        elif self._end is not None:
            self._target.ended(self._end)
            self._end = None

    def read_later(self) -> None:
        """Read again after what is ready now."""
        if (self._unread or self._end) and not self._read_soon:
            self._read_soon = True
            self._loop.call_soon(self.read, context=self._target.context)

    def _next_read(self) -> bytes:
        size = len(self._unread)
        if size > 1 and self._chance.random() < self._network.link(*self.route).split:
            size = self._chance.randint(1, size - 1)
        data = bytes(self._unread[:size])
        del self._unread[:size]
        self._tell_writer(size)
        return data

    def _tell_writer(self, size: int) -> None:
        if self._network.is_cut(*reversed(self.route)):
            self._unknown_bytes += size
        else:
            self._taken_bytes -= size
            self._pump_soon()

    def _pump_soon(self) -> None:
        if self.buffer:
            self._loop.call_soon(self.pump, context=self.source.context)


def _size(packet: _Packet) -> int:
    return len(packet.content) if isinstance(packet.content, bytes) else 0
