"""One direction of a connection: bytes on their way, in order, divided and delayed by the seed.

    write ──▶ buffer ──▶ flight ──▶ unread ──▶ data_received
              (process)  (wire)     (kernel)
              └ limits   └──── at most a window ────┘

The buffer is the writing process's and is lost with it. What is in flight arrives at its instant, later while the
link is cut. The kernel of the reading machine takes it whether the process reads or not, up to the window.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.testing.handles import SimTimer
    from coterie.testing.network import Network
    from coterie.testing.transports import SimTransport

WINDOW_BYTES = 64 * 1024
GIVE_UP_NS = 924_000_000_000  # how long Linux sends again by default (tcp_retries2) before it gives up
_AGAIN_NS = 1_500_000_000  # a healed link is noticed when the next retry is due


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
    """One direction of a connection."""

    def __init__(self, network: Network, source: SimTransport, target: SimTransport) -> None:
        self._network = network
        self._loop = network.loop
        self._chance = network.chance
        self._source = source
        self._target = target
        self.route = (source.address.host, target.address.host)
        self.buffer = bytearray()
        self.unread = bytearray()
        self._flight: deque[_Packet] = deque()
        self._flight_bytes = 0
        self._unacknowledged_bytes = 0
        self._timer: SimTimer | None = None
        self._giving_up: SimTimer | None = None
        self._last_ns = 0
        self._ending = False
        self._refused = False  # the process at the other end is gone: whatever comes is answered by a reset
        self.broken = False

    # The writing side

    def write(self, data: bytes) -> None:
        """Take bytes of the process."""
        self.buffer += data
        self.pump()

    def finish(self) -> None:
        """Send the end of the stream after what was written."""
        self._ending = True
        self.pump()

    def pump(self) -> None:
        """Move what fits from the buffer to the wire."""
        while self.buffer and not self.broken and (room := self._room()) > 0:
            piece = bytes(self.buffer[:room])
            del self.buffer[: len(piece)]
            self._send_split(piece)
        if self._ending and not self.buffer and not self.broken:
            self._ending = False
            self.send(Mark.EOF)
        self._source.buffer_changed()

    def send(self, content: bytes | Mark) -> None:
        """Put something on the wire."""
        link = self._network.link(*self.route)
        if link.reset and isinstance(content, bytes) and self._chance.random() < link.reset:
            self._source.connection.reset()
            return
        self._flight_bytes += len(content) if isinstance(content, bytes) else 0
        self._flight.append(_Packet(self._arrival(), content))
        self._watch()
        if self._refused:
            self._source.incoming.reset()

    def reset(self) -> None:
        """Break off: what is on the wire is cut at any byte, and a reset follows it."""
        if self.broken:
            return
        self.buffer.clear()
        self._keep(self._chance.randint(0, self._flight_bytes))
        self.send(Mark.RESET)
        self.broken = True

    def vanish(self) -> None:
        """The writing process is gone; the wire keeps what it has."""
        self.buffer.clear()
        self.broken = True

    def _room(self) -> int:
        return WINDOW_BYTES - self._flight_bytes - len(self.unread) - self._unacknowledged_bytes

    def _send_split(self, piece: bytes) -> None:
        split = self._network.link(*self.route).split
        while len(piece) > 1 and self._chance.random() < split:
            at = self._chance.randint(1, len(piece) - 1)
            self.send(piece[:at])
            piece = piece[at:]
        self.send(piece)

    def _keep(self, count: int) -> None:
        kept: deque[_Packet] = deque()
        for packet in self._flight:
            if isinstance(packet.content, bytes):
                packet.content, count = packet.content[:count], count - min(count, len(packet.content))
            kept.append(packet)
        self._flight = deque(packet for packet in kept if packet.content)
        self._flight_bytes = sum(len(p.content) for p in self._flight if isinstance(p.content, bytes))

    # The wire

    def _arrival(self) -> int | None:
        if self._network.is_cut(*self.route):
            return None
        self._last_ns = max(self._last_ns, self._loop.now_ns + self._network.delay_ns(*self.route))
        return self._last_ns

    def cut(self) -> None:
        """The link is cut: what has not arrived waits."""
        for packet in self._flight:
            if packet.at_ns is not None and packet.at_ns > self._loop.now_ns:
                packet.at_ns = None
        self._watch()

    def heal(self) -> None:
        """The link is back: what waited is sent again, when the next retry is due."""
        self._last_ns = max(self._last_ns, self._loop.now_ns + int(self._chance.random() * _AGAIN_NS))
        for packet in self._flight:
            if packet.at_ns is None:
                packet.at_ns = self._arrival()
        self._watch()

    def acknowledge(self) -> None:
        """The other direction is back, and with it the news of what was read."""
        if self._unacknowledged_bytes:
            self._unacknowledged_bytes = 0
            self._soon_pump()

    def refuse(self) -> None:
        """The reading process is gone, its machine is there: whatever comes is answered by a reset."""
        self._refused = True
        if self._flight:
            self._source.incoming.reset()
